"""What of a plan this executor can run: the planner knows layouts and levers that nothing here has yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..plans.check import CheckedPlan
from ..plans.executable import update_faults
from ..plans.plan import LongRound, Plan, PlannedJob, ShortRound
from ..plans.yaml_doc import Loc


def unsupported(planned: PlannedJob) -> Iterator[tuple[Loc, str]]:
    """(location in the plan, what and remedy) for each part that cannot be run."""
    short, long = planned.rounds.short, planned.rounds.long
    for kind, train in [("short", short.train)] + ([("long", long.train)] if long else []):
        yield from ((("job", "rounds", kind, "train", key), text) for key, text in update_faults(train))
    if planned.reward.judge is not None:
        yield (
            ("job", "reward", "judge"),
            "the executor has no judge; remove the key, and score with a function that asks one elsewhere",
        )
    if planned.reward.synchronous:
        yield (
            ("job", "reward", "synchronous"),
            "the executor scores beside the rollout, which is never slower; write false",
        )
    yield from _lever_faults(("job", "rounds", "short"), short)
    if long is not None:
        yield from _lever_faults(("job", "rounds", "long"), long)
    if long is not None and long.rollout.pool != short.rollout.pool:
        yield (
            ("job", "rounds", "long", "rollout", "pool"),
            f"is {long.rollout.pool}, but all engines and trainers of a job run in one pool; write "
            f"{short.rollout.pool} as in rounds.short.rollout",
        )
    if long is not None and long.train.dp != short.train.dp:
        yield (
            ("job", "rounds", "long", "train", "dp"),
            f"is {long.train.dp}, but trainers are started once, for both kinds of round; write {short.train.dp} as in "
            "rounds.short.train",
        )


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


def _lever_faults(at: Loc, kind: ShortRound | LongRound) -> Iterator[tuple[Loc, str]]:
    if kind.rollout.drafts is not None:
        yield (
            (*at, "rollout", "drafts"),
            "the executor's engines decode without drafts; write null, or solve again without search.drafts in the job",
        )
    if kind.hand_over is not None:
        yield (
            (*at, "hand_over"),
            "the executor trains when the round is over; write null, or solve again without search.hand_over in the "
            "job",
        )
