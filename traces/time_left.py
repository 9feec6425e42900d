"""How long a run will still take: by its own steps so far, and by the pattern of rounds that its plan predicts.

Short and long rounds differ in seconds, and the queue of deferred prompts says when the next long round comes. So the
rounds that are left are played, each with the mean seconds of its kind: the prediction, times what all steps took over
theirs, as long as few rounds of the kind were measured, and what these took once there are more. What lies between two
steps (evaluations, checkpoints, turns of other runs on the same engines) is added as it was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from ..plans.schema.plan import Plan
from .trace_events import Step

LATEST = 32
"""Steps of a kind whose mean is taken: lengths drift while a policy learns."""

TRUST = 2
"""Measured rounds of a kind that the prediction of its seconds counts for, once it is scaled to what all steps took."""

ENOUGH = 4
"""Short rounds from which on the prompts that they defer are taken as measured, not as predicted."""


def time_left_s(
    plan: Plan, steps: Sequence[Step], wanted: int, ended_s: Sequence[float] = (), drains: bool = True
) -> float:
    """Seconds that a run needs from the end of its last step; 0 if it has its steps and owes nothing.

    Args:
        plan: of the run.
        steps: done so far, in order; their first one may be slower than others, since engines were cold.
        wanted: steps that the run was asked for.
        ended_s: when the run was last started, and when each step since then ended, on any clock; () if unknown: then
            only evaluations are added, as the plan predicts them.
        drains: whether further long rounds train what is deferred after `wanted` steps.
    """
    short_s, long_s = _seconds_by_kind(plan, steps)
    kinds = kinds_left(plan, steps, wanted, drains)
    between_s, evaluation_s = _between(plan, steps, ended_s)
    done = steps[-1].step if steps else 0
    evaluated = plan.predicted.evaluation
    evaluations = 0
    if evaluated is not None and kinds:
        every = evaluated.every_steps
        # One before each step whose weights are due, and one of the last weights.
        evaluations = sum((done + place) % every == 0 for place in range(len(kinds))) + 1
    rounds_s = sum(long_s if kind == "long" else short_s for kind in kinds)
    return rounds_s + len(kinds) * between_s + evaluations * evaluation_s


def kinds_left(plan: Plan, steps: Sequence[Step], wanted: int, drains: bool = True) -> list[str]:
    """The kinds of the rounds that are left, in order; arguments as of `time_left_s`.

    A short round defers as many prompts as its like did on average (before `ENOUGH` of them, as many as fill the plan's
    share of long rounds); a long round comes when as many wait as the plan's long round issues, and trains P of them.
    """
    planned, target = plan.job.rounds.long, plan.job.issue.prompts_per_step
    left = max(0, wanted - (steps[-1].step if steps else 0))
    if planned is None:
        return ["short"] * left
    needed = target if planned.queue is None else planned.issue.prompts
    waiting, deferred = float(steps[-1].deferred) if steps else 0.0, _deferred_by_short(plan, steps)
    kinds = []
    for _ in range(left):
        kinds.append("long" if waiting >= needed else "short")
        waiting += -target if kinds[-1] == "long" else deferred
    return kinds + ["long"] * (-(-round(waiting) // target) if drains and round(waiting) > 0 else 0)


def _deferred_by_short(plan: Plan, steps: Sequence[Step]) -> float:
    """Prompts that a short round defers."""
    grew = [after.deferred - before.deferred for before, after in pairwise(steps) if after.kind == "short"]
    if len(grew) >= ENOUGH:
        return max(0.0, statistics.fmean(grew))
    long = plan.predicted.rounds.long
    share = 0.0 if long is None else min(long.share, 0.99)
    return plan.job.issue.prompts_per_step * share / (1.0 - share)


def _seconds_by_kind(plan: Plan, steps: Sequence[Step]) -> tuple[float, float]:
    """Seconds of a short and of a long round."""
    predicted = plan.predicted.rounds
    planned_s = {"short": predicted.short.step_s.mean, "long": (predicted.long or predicted.short).step_s.mean}
    warm = steps[1:] if len({step.kind for step in steps[1:]}) == len({step.kind for step in steps}) else steps
    as_planned_s = sum(planned_s[step.kind] for step in warm)
    over = sum(float(step.total_s) for step in warm) / as_planned_s if as_planned_s else 1.0

    def seconds(kind: str) -> float:
        measured = [float(step.total_s) for step in warm if step.kind == kind][-LATEST:]
        return (TRUST * planned_s[kind] * over + sum(measured)) / (TRUST + len(measured))

    return seconds("short"), seconds("long")


def _between(plan: Plan, steps: Sequence[Step], ended_s: Sequence[float]) -> tuple[float, float]:
    """(seconds between two steps, seconds that an evaluation adds), the latter predicted until one was measured."""
    evaluated = plan.predicted.evaluation
    gaps: dict[bool, list[float]] = {False: [], True: []}
    timed = zip(steps[len(steps) - len(ended_s) + 1 :], pairwise(ended_s), strict=True) if ended_s else ()
    for place, (step, (began_s, end_s)) in enumerate(timed):
        due = evaluated is not None and (step.step - 1) % evaluated.every_steps == 0
        if due or place:  # before its first step a run does what it does at a start alone
            gaps[due].append(max(0.0, end_s - began_s - step.total_s))
    plain_s = statistics.fmean(gaps[False]) if gaps[False] else 0.0
    if evaluated is None:
        return plain_s, 0.0
    measured_s = max(0.0, statistics.fmean(gaps[True]) - plain_s) if gaps[True] else evaluated.seconds
    return plain_s, measured_s
