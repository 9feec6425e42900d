"""Seconds of phases that were measured in running groups, in the place of those that a workload states.

A job was measured on the ways that it runs by. Its other ways take as many times longer or shorter as before, so the
seconds of its reference follow, and with them the seconds of an iteration alone. What other jobs in the group slowed it
by, the rules' interference, is taken out again: in a group that is worth its nodes, another's phase runs nearly always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....plans.schema.groups_plan import GroupMember, MeasuredPhases
from .group_model import GroupJob, PhaseWay
from .phase_seconds import PhaseSeconds, from_turns
from .workload_jobs import Problem

FEWEST = 5
"""Iterations below which a job's seconds are those of the workload: a mean of fewer says little."""

SHORTEST_S = 1e-3
"""Shortest seconds of a phase, as the workload document has it."""


@dataclass(frozen=True)
class ReferencePhases:
    """Seconds of a job's phases on its reference; `iterations`: that they are means of."""

    seconds: PhaseSeconds
    iterations: int

    def document(self) -> MeasuredPhases:
        """Return them as a plan of groups has them."""
        return MeasuredPhases(
            rollout_s=self.seconds.rollout_s, train_s=self.seconds.train_s, iterations=self.iterations
        )


def reference_phases(
    problem: Problem, members: Mapping[str, GroupMember], pairs: Mapping[str, Sequence[tuple[float, float]]]
) -> dict[str, ReferencePhases]:
    """Return the seconds of the jobs' references; jobs with fewer than FEWEST iterations, or none, are left out.

    Args:
        problem: with the ways of the jobs.
        members: by job, where it ran.
        pairs: by job, (rollout, train) seconds of its iterations there.
    """
    found: dict[str, ReferencePhases] = {}
    for name, measured in sorted(pairs.items()):
        job, member = problem.jobs.get(name), members.get(name)
        if job is None or member is None or len(measured) < FEWEST:
            continue
        slowed = 1 + problem.rules.interference if len(members) > 1 else 1.0
        factors = [
            slowed * _factor(ways, pinned.way)
            for ways, pinned in ((job.rollout, member.rollout), (job.train, member.train))
        ]
        on_reference = [
            (max(rollout_s / factors[0], SHORTEST_S), max(train_s / factors[1], SHORTEST_S))
            for rollout_s, train_s in measured
        ]
        found[name] = ReferencePhases(from_turns(on_reference), len(measured))
    return found


def given_phases(measured: Mapping[str, MeasuredPhases]) -> dict[str, ReferencePhases]:
    """Return the measured seconds that a plan of groups states; it has no spread of them."""
    return {
        name: ReferencePhases(PhaseSeconds(phases.rollout_s, phases.train_s), phases.iterations)
        for name, phases in measured.items()
    }


def with_phases(problem: Problem, phases: Mapping[str, ReferencePhases]) -> Problem:
    """Return the problem with measured seconds, and their spread, for the jobs that have them."""
    return replace(
        problem,
        jobs={name: _measured(job, phases[name]) if name in phases else job for name, job in problem.jobs.items()},
    )


def _measured(job: GroupJob, phases: ReferencePhases) -> GroupJob:
    seconds = phases.seconds
    return replace(
        job.with_spread(seconds.spread),
        rollout=_scaled(job.rollout, seconds.rollout_s / job.rollout[0].mean_s),
        train=_scaled(job.train, seconds.train_s / job.train[0].mean_s),
    )


def _scaled(ways: tuple[PhaseWay, ...], factor: float) -> tuple[PhaseWay, ...]:
    return tuple(replace(way, mean_s=way.mean_s * factor) for way in ways)


def _factor(ways: tuple[PhaseWay, ...], index: int) -> float:
    """Seconds of a way over those of the reference; 1 for a way that the job has no more."""
    return ways[index].mean_s / ways[0].mean_s if index < len(ways) else 1.0
