"""What `rlplan execute` can run, as data: the layouts of its trainers, and the levers that it does not have yet.

The planner prices more layouts and levers than the executor has, so that plans can be made for other frameworks, too.
This is the one place that says which of them the executor runs. `solve` considers nothing else unless it is told `--for
any`; `check` says whether a plan runs here, and `execute` refuses the others by the same function (`unsupported`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..schema.job import Search
from ..schema.plan import Plan
from ..schema.sections.layouts import UpdateLayout
from ..schema.sections.planned_job import PlannedJob
from ..schema.sections.planned_rounds import LongRound, ShortRound
from ..yaml.yaml_doc import Loc

UPDATE_VALUES: Mapping[str, tuple[Any, ...]] = {
    "pp": (1,),
    "cp": (1,),
    "ep": (1,),
    "recompute": ("none", "full"),
    "offload": (False, True),
}
"""By key of a plan's `train` section: the values that the executor's trainers run. A key that is not here may have any
value that divides the model: dp, tp, sp, micro_batch_tokens."""

SAME_IN_BOTH_KINDS = ("dp", "tp", "sp")
"""Keys of `train` with one value for short and for long rounds, since trainers are started once. The others of the keys
that the executor has (recompute, offload, micro_batch_tokens) may differ."""

LEVERS: Mapping[str, str] = {
    "drafts": "the executor's engines decode without drafts",
    "hand_over": "the executor trains when the round is over",
}
"""Levers of a job's `search` that the executor does not have, each with the reason."""

OTHERS_ONLY = "other frameworks only"
"""What is said of a plan that the executor cannot run, before the reasons."""

NOT_HERE = "solve again without --for any, or run the plan with another framework"
"""The remedy for a layout that cannot run: the user cannot simply write another one, which may not fit memory."""

_WHY_NOT = {
    "pp": "and the executor's trainers have no pipeline",
    "cp": "and the executor's trainers share sequences by sp",
    "ep": "and transformers (5.19) shares experts out over tensor-parallel ranks only, where tp splits them already",
}


def update_faults(train: UpdateLayout, heads: tuple[int, int] | None = None) -> Iterator[tuple[str, str]]:
    """Yield (key of the `train` section, what is wrong) for each setting that the executor's trainers cannot run.

    `heads`: (attention, key-value) heads of the model; None: unknown and not checked.
    """
    for key, values in UPDATE_VALUES.items():
        value = getattr(train, key)
        if value not in values:
            known = " or ".join(map(_text, values))
            yield key, f"is {_text(value)}, {_WHY_NOT.get(key, f'and the executor has only {known}')}"
    if heads is not None:
        yield from _heads_faults(train, heads)


def _heads_faults(train: UpdateLayout, heads: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Yield the fault of tensor or sequence ranks that do not share the heads evenly: no head is held twice."""
    attention, kv = heads
    for key, ranks, name in (("tp", train.tp, "tp"), ("sp", train.tp * train.sp, "tp x sp")):
        if attention % ranks or kv % ranks:
            text = f"and {name} {ranks} does not divide {attention} attention and {kv} key-value heads"
            yield key, f"is {getattr(train, key)}, {text}"
            return


def unsupported(planned: PlannedJob, heads: tuple[int, int] | None = None) -> Iterator[tuple[Loc, str, str]]:
    """Yield (location in the plan, what is wrong, remedy) for each decision that the executor cannot run.

    `heads`: (attention, key-value) heads of the model; None: unknown and not checked.
    """
    short, long = planned.rounds.short, planned.rounds.long
    for kind, train in [("short", short.train)] + ([("long", long.train)] if long else []):
        for key, text in update_faults(train, heads):
            yield ("job", "rounds", kind, "train", key), text, NOT_HERE
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
    if long is None:
        return
    yield from _lever_faults(("job", "rounds", "long"), long)
    if long.rollout.pool != short.rollout.pool:
        yield (
            ("job", "rounds", "long", "rollout", "pool"),
            f"is {long.rollout.pool}, but all engines and trainers of a job run in one pool",
            f"write {short.rollout.pool} as in rounds.short.rollout",
        )
    for key in SAME_IN_BOTH_KINDS:
        here, there = getattr(long.train, key), getattr(short.train, key)
        if here != there:
            yield (
                ("job", "rounds", "long", "train", key),
                f"is {here}, but trainers are started once, for both kinds of round",
                f"write {there} as in rounds.short.train",
            )


def not_executable(planned: PlannedJob, heads: tuple[int, int] | None = None) -> list[str]:
    """Return why the executor cannot run the plan, each reason once with all its keys; empty if it can."""
    return merged((".".join(map(str, loc)), fault) for loc, fault, _ in unsupported(planned, heads))


def merged(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Return each fault of (dotted key, fault) once, as text with all its keys."""
    keys_of: dict[str, list[str]] = {}
    for key, fault in faults:
        keys_of.setdefault(fault, []).append(key)
    return [
        f"{keys[0]}{' ' if fault.startswith('is ') else ': '}{fault}"
        + (f" (so is {', '.join(keys[1:])})" if keys[1:] else "")
        for fault, keys in keys_of.items()
    ]


def is_for_any(plan: Plan) -> bool:
    """Return whether a plan is solved again among all candidates, and not only among those that the executor runs.

    It is if it was solved so, or if it cannot be run here: then it was solved by an earlier version, or edited.
    """
    return plan.solver.for_any or any(True for _ in unsupported(plan.job))


def left_out(search: Search) -> list[str]:
    """Return a line for each lever that a job names and that a plan for this executor leaves out."""
    named = {"drafts": search.drafts is not None, "hand_over": bool(search.hand_over)}
    return [f"search.{lever} is left out: {why}; --for any plans it" for lever, why in LEVERS.items() if named[lever]]


def _lever_faults(location: Loc, kind: ShortRound | LongRound) -> Iterator[tuple[Loc, str, str]]:
    if kind.rollout.drafts is not None:
        yield (*location, "rollout", "drafts"), LEVERS["drafts"], "write null, or solve again without --for any"
    if kind.hand_over is not None:
        yield (*location, "hand_over"), LEVERS["hand_over"], "write null, or solve again without --for any"


def _text(value: object) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
