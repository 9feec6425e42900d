"""Which decisions of a plan the executor cannot run yet: `execute` refuses them, `check` and `solve` note them, and
`solve` prefers trainers that can run among equal ones.

The planner prices more layouts and levers than the executor has, so that a plan can be made for another trainer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..schema.sections.layouts import UpdateLayout
from ..schema.sections.planned_job import PlannedJob
from ..schema.sections.planned_rounds import LongRound, ShortRound
from ..yaml.yaml_doc import Loc

DATA_PARALLEL_ONLY = ("tp", "pp", "cp", "ep")
"""Sizes that must be 1: the executor's trainers are data parallel only."""


NOT_YET = "this executor cannot run it yet; you can still review and compare it"
"""The remedy for a layout that cannot run: the user cannot simply write another one, which may not fit memory."""


def update_faults(train: UpdateLayout) -> Iterator[tuple[str, str]]:
    """Yield (key of the `train` section, what is wrong) for each setting that the executor's trainers cannot run."""
    for name in DATA_PARALLEL_ONLY:
        size = getattr(train, name)
        if size != 1:
            yield name, f"is {size}, and the executor's trainers are data parallel only"
    if train.recompute != "none":
        yield "recompute", f"is {train.recompute}, which the executor's trainers do not do"
    if train.offload:
        yield "offload", "is true, which the executor's trainers do not do"


def unsupported(planned: PlannedJob) -> Iterator[tuple[Loc, str, str]]:
    """Yield (location in the plan, what is wrong, remedy) for each decision that the executor cannot run."""
    short, long = planned.rounds.short, planned.rounds.long
    for kind, train in [("short", short.train)] + ([("long", long.train)] if long else []):
        yield from ((("job", "rounds", kind, "train", key), text, NOT_YET) for key, text in update_faults(train))
    if planned.reward.judge is not None:
        yield (
            ("job", "reward", "judge"),
            "the executor has no judge",
            "remove the key, and score with a function that asks one elsewhere",
        )
    if planned.reward.synchronous:
        yield (
            ("job", "reward", "synchronous"),
            "the executor scores beside the rollout, which is never slower",
            "write false",
        )
    yield from _lever_faults(("job", "rounds", "short"), short)
    if long is not None:
        yield from _lever_faults(("job", "rounds", "long"), long)
    if long is not None and long.rollout.pool != short.rollout.pool:
        yield (
            ("job", "rounds", "long", "rollout", "pool"),
            f"is {long.rollout.pool}, but all engines and trainers of a job run in one pool",
            f"write {short.rollout.pool} as in rounds.short.rollout",
        )
    if long is not None and long.train.dp != short.train.dp:
        yield (
            ("job", "rounds", "long", "train", "dp"),
            f"is {long.train.dp}, but trainers are started once, for both kinds of round",
            f"write {short.train.dp} as in rounds.short.train",
        )


def not_executable(planned: PlannedJob) -> list[str]:
    """Return why the plan cannot be executed yet, each reason once with all its keys; empty if it can be."""
    keys_of: dict[str, list[str]] = {}
    for loc, fault, _ in unsupported(planned):
        keys_of.setdefault(fault, []).append(".".join(map(str, loc)))
    return [
        f"{keys[0]}{' ' if fault.startswith('is ') else ': '}{fault}"
        + (f" (so is {', '.join(keys[1:])})" if keys[1:] else "")
        for fault, keys in keys_of.items()
    ]


def _lever_faults(location: Loc, kind: ShortRound | LongRound) -> Iterator[tuple[Loc, str, str]]:
    if kind.rollout.drafts is not None:
        yield (
            (*location, "rollout", "drafts"),
            "the executor's engines decode without drafts",
            "write null, or solve again without search.drafts in the job",
        )
    if kind.hand_over is not None:
        yield (
            (*location, "hand_over"),
            "the executor trains when the round is over",
            "write null, or solve again without search.hand_over in the job",
        )
