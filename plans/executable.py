"""Which updates the executor can run, as data: `execute` refuses others, and `solve` prefers these among equals.

The planner prices more layouts and levers than the executor has, so that a plan can be made for another trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .base import Recompute


class UpdateLayout(Protocol):
    """How an update is spread over accelerators: a plan's `train` section, or the costs of one."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def recompute(self) -> Recompute: ...
    @property
    def offload(self) -> bool: ...


DATA_PARALLEL_ONLY = ("tp", "pp", "cp", "ep")
"""Sizes that must be 1: the executor's trainers are data parallel only."""


def update_faults(train: UpdateLayout) -> Iterator[tuple[str, str]]:
    """(key of the `train` section, what is wrong and what to write) for each part that no trainer here can do."""
    for name in DATA_PARALLEL_ONLY:
        size = getattr(train, name)
        if size != 1:
            yield name, f"is {size}, but the executor's trainers are data parallel only; write 1"
    if train.recompute != "none":
        yield "recompute", f"is {train.recompute}, which the executor's trainers do not do; write none"
    if train.offload:
        yield "offload", "is true, which the executor's trainers do not do; write false"
