"""How an update is spread over accelerators, as plans and costs have it alike."""

from __future__ import annotations

from typing import Protocol

from ..schema.base import Recompute


class UpdateSizes(Protocol):
    """The sizes of an update's layout."""

    @property
    def dp(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def ep(self) -> int: ...


class UpdateLayout(UpdateSizes, Protocol):
    """The sizes, and what is done to save memory: a plan's `train` section, or the costs of one."""

    @property
    def recompute(self) -> Recompute: ...
    @property
    def offload(self) -> bool: ...
