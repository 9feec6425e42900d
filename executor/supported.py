"""What plans that are executed in turns must have in common. What of one plan can be run: plans/facts/executable.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..plans.check.plan_check import CheckedPlan
from ..plans.schema.plan import Plan

SHARED: tuple[tuple[str, ...], ...] = (
    ("job", "rounds", "short", "rollout", "pool"),
    ("job", "reward", "workers"),
)
"""What plans that are executed in turns have in common beside job and cluster, because it is started once for all."""


def differences(first: CheckedPlan, other: CheckedPlan) -> Iterator[tuple[tuple[str, ...], str]]:
    """(location in `other`, what) for each thing in which two plans differ and that is started once for both; the
    file's name is to follow. Job and cluster are compared as their files are now: plans that were solved before and
    after a change of a learning rate are of one job."""
    if first.job != other.job:
        yield ("inputs", "job", "sha256"), "is of another job than"
    if first.cluster != other.cluster:
        yield ("inputs", "cluster", "sha256"), "is of another cluster than"
    for path in SHARED:
        ours, theirs = _at(other.plan, path), _at(first.plan, path)
        if ours != theirs:
            yield path, f"is {ours}, not {theirs} as in"


def _at(plan: Plan, path: tuple[str, ...]) -> Any:
    value: Any = plan
    for key in path:
        value = getattr(value, key)
    return value
