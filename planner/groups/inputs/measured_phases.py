"""Seconds of phases that were measured in running groups, in place of those that a workload states.

A job is measured by the options that it runs by. The ratios between options stay, so the seconds of its reference
follow, and with them the seconds of an iteration alone. The interference of other jobs is divided out: in a group that
is worth its nodes, a phase of another job runs nearly always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ....plans.schema.groups_plan import GroupMember, GroupsPlan, MeasuredPhases
from ....plans.schema.workload import Workload
from ....plans.yaml.canonical_form import with_values
from ....plans.yaml.errors import InputError
from ....plans.yaml.input_files import read_text
from ....plans.yaml.yaml_doc import Loc
from ....traces.groups.group_journal import load_journal
from ....traces.groups.group_report import PHASES, switches
from ....traces.groups.groups_folder import group_folders
from .group_model import GroupJob, PhaseOption
from .phase_seconds import PhaseSeconds, from_turns
from .workload_jobs import Problem

# Switches (`warm_s` of the phases in a workload) from a run of groups: seconds that a phase takes longer after another
# job's, stated by the workload or derived from the model's size (phase_seconds.py). A run measures them in each phase:
# engines wake, or states come, and later they leave. A switch takes both, since no other job has the devices meanwhile.
#
# A phase keeps its seconds if too few switches were measured, if the difference is within the error of the measurement,
# or if it is less than LEAST_SHARE of the job's iteration, which would change no choice of groups. A job that is
# planned with its group keeps them, too: the workload has no phases of it.

FEWEST_TURNS = 5
LEAST_SHARE = 0.005
DIGITS = 4


@dataclass(frozen=True)
class MeasuredSwitch:
    """Seconds of a switch of a phase.

    Attributes:
        job: whose.
        phase: `rollout` or `train`.
        turns: phases with a measured switch.
        planned_s: seconds of the plan.
        measured_s: mean seconds of the run; None if none was measured.
        error_s: error of that mean (two standard errors); None for fewer than two.
        changes: whether the workload should get the measured seconds.
    """

    job: str
    phase: str
    turns: int
    planned_s: float
    measured_s: float | None
    error_s: float | None
    changes: bool


def measured_switches(run: Path, plan: GroupsPlan) -> list[MeasuredSwitch]:
    """The switches of all jobs of a plan that were executed, by group, job and phase.

    `run`: the folder of one group, or of all groups of the plan. Raises InputError if it is of other groups, or cannot
    be read.
    """
    found = []
    for key, folder in group_folders(run).items():
        journal = load_journal(folder)
        if key not in plan.groups:
            if not journal.members:  # its jobs have moved away
                continue
            raise InputError(f"runs a group {key}, and the plan has none; name the plan that it runs", str(run))
        for name, member in plan.groups[key].jobs.items():
            figures = switches(folder / name, member, [span for span in journal.spans if span.job == name])
            found += [
                _switch(name, phase, figures[phase], member.slowdown.alone_s, member.point is None) for phase in PHASES
            ]
    return found


def _switch(job: str, phase: str, figures: dict[str, float | None], alone_s: float, stated: bool) -> MeasuredSwitch:
    turns, planned_s, error_s = figures["turns"], figures["planned_s"], figures["error_s"]
    assert turns is not None and planned_s is not None, "what is counted and planned is always there"
    measured_s = None
    if figures["in_s"] is not None and figures["out_s"] is not None:
        measured_s = figures["in_s"] + figures["out_s"]
    changes = (
        stated
        and measured_s is not None
        and error_s is not None
        and turns >= FEWEST_TURNS
        and abs(measured_s - planned_s) > max(error_s, LEAST_SHARE * alone_s)
    )
    return MeasuredSwitch(job, phase, int(turns), planned_s, measured_s, error_s, changes)


def tuned_workload(path: Path, switches: Iterable[MeasuredSwitch]) -> str:
    """The text of the workload at `path` with the seconds that were measured; its comments stay.

    Raises InputError if it is no workload, or has no such job any more.
    """
    values: dict[Loc, float] = {
        ("jobs", switch.job, "phases", switch.phase, "warm_s"): float(f"{switch.measured_s:.{DIGITS}g}")
        for switch in switches
        if switch.changes and switch.measured_s is not None
    }
    return with_values(read_text(path), Workload, values, str(path))


FEWEST = 5
"""Iterations below which a job keeps the seconds of the workload: a mean of fewer is too uncertain."""

SHORTEST_S = 1e-3
"""Shortest seconds of a phase, as the workload document has it."""


@dataclass(frozen=True)
class ReferencePhases:
    """Seconds of a job's phases by its reference, means over so many `iterations`."""

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
        problem: with the options of the jobs.
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
            slowed * _factor(options, pinned.way)
            for options, pinned in ((job.rollout, member.rollout), (job.train, member.train))
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


def _scaled(options: tuple[PhaseOption, ...], factor: float) -> tuple[PhaseOption, ...]:
    return tuple(replace(option, mean_s=option.mean_s * factor) for option in options)


def _factor(options: tuple[PhaseOption, ...], index: int) -> float:
    """Seconds of an option over those of the reference; 1 if the job has no such option any more."""
    return options[index].mean_s / options[0].mean_s if index < len(options) else 1.0
