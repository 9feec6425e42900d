"""Slowdowns of a group's jobs over the first steps of a run, by the permit simulator.

A plan states slowdowns of the long run. A run begins with all jobs ready at once, which then run one after another;
under multi_rate it takes some thirty steps until each has its long-run share of the units. So the slowdowns of a short
run are compared with those of the same steps of a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....rounds.permits.permit_events import PlacedJob
from ....rounds.permits.permit_machine import PermitMachine
from ....rounds.permits.slowdown import WARM
from .permit_simulator import TruePhases, simulate_phases

Draws = Sequence[tuple[float, float]]

MOST_STEPS = 2000
"""Most steps of a job that are simulated: after more, its slowdown is that of the long run."""


def step_ends(
    permit_rule: str,
    placed: Sequence[PlacedJob],
    draws_s: Mapping[str, Draws],
    steps: Mapping[str, int],
    interference: float,
) -> dict[str, list[float]]:
    """Seconds since the group began at which each job's first steps end.

    Args:
        draws_s: by job, (rollout, train) seconds of its steps without switches, used cyclically.
        steps: by job, how many steps at least.
        interference: share by which phases of several jobs slow each other.
    """
    truths = [TruePhases(tuple(draws_s[placed.job])) for placed in placed]
    ends: dict[str, list[float]] = {placed.job: [] for placed in placed}
    for span in simulate_phases(PermitMachine(permit_rule), placed, truths, interference):
        if span.phase == "train" and span.ends_phase:
            ends[span.job].append(span.end_s)
        if all(len(each) >= steps[job] for job, each in ends.items()):
            return ends
    raise AssertionError("phases never end")


def common_span(ends_s: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """(begin, end), in seconds, of the time in which all jobs run and are warm: from the last job's step number WARM to
    the end of the first job that is done."""
    return max(each[WARM - 1] for each in ends_s.values()), min(each[-1] for each in ends_s.values())


def steps_within(ends_s: Mapping[str, Sequence[float]], span_s: tuple[float, float]) -> dict[str, list[int]]:
    """Indices of each job's steps that end within a span of seconds."""
    return {job: [n for n, t in enumerate(each) if span_s[0] <= t <= span_s[1]] for job, each in ends_s.items()}


def step_seconds(ends_s: Sequence[float], steps: Sequence[int]) -> float:
    """Mean seconds between the ends of these steps, which follow each other. Raises ValueError for fewer than two."""
    if len(steps) < 2:
        raise ValueError("a job ended fewer than two steps while all ran")
    return (ends_s[steps[-1]] - ends_s[steps[0]]) / (len(steps) - 1)


def first_slowdowns(
    permit_rule: str,
    placed: Sequence[PlacedJob],
    alone_s: Mapping[str, float],
    steps: Mapping[str, int],
    interference: float,
) -> dict[str, float] | None:
    """Slowdown of each job over its first steps, with the mean seconds of phases that the plan has, while all jobs run;
    None if a job ends fewer than two steps in that time, or has ended more than MOST_STEPS.

    Args:
        seats: of the jobs with which the group began.
        alone_s: by job, seconds of an iteration alone.
        steps: by job, steps that it ended.
    """
    if min(steps.values()) <= WARM or max(steps.values()) > MOST_STEPS:
        return None
    ends = step_ends(permit_rule, placed, {placed.job: [placed.expected_s] for placed in placed}, steps, interference)
    ends = {job: each[: steps[job]] for job, each in ends.items()}
    common = steps_within(ends, common_span(ends))
    if min(map(len, common.values())) < 2:
        return None
    return {placed.job: step_seconds(ends[placed.job], common[placed.job]) / alone_s[placed.job] for placed in placed}
