"""A new plan for groups that run, from what their jobs were measured at: the library call behind a proposed re-plan.

It is `rlplan solve WORKLOAD --from` the running plan, with measured seconds of phases in place of the workload's, and
with the seconds that each job is ahead of its bound as what it may lose by a move. Jobs that have ended are left
out, and so are jobs that do not run yet: the user adds those. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...plans.schema.groups_plan import GroupsPlan, MeasuredPhases, Move, load_groups_plan
from ...plans.schema.workload import load_workload
from ...plans.yaml.errors import InputError
from ...traces.groups.group_journal import GroupJournal, iteration_seconds
from .inputs.group_model import Slowdown
from .inputs.measured_phases import ReferencePhases, reference_phases, with_phases
from .inputs.running_plan import running_state, solved_from
from .inputs.workload_jobs import Problem, problem_of
from .simulate.slowdowns import bounds_kept, slowdowns
from .solve_workload import Notify, solve_workload


@dataclass(frozen=True)
class Staying:
    """A job if no job moves: its slowdown with measured phases, its bound, and whether the bound holds."""

    slowdown: Slowdown
    slo: float
    keeps: bool


@dataclass(frozen=True)
class Proposal:
    """A proposed re-plan.

    Attributes:
        running: the plan that runs.
        plan: the new plan; its `moves` say who moves, at what price, and whether a bound needs it.
        staying: by job, its state if no job moved.
        measured: by job, the seconds of its reference that the new plan was solved with.
    """

    running: GroupsPlan
    plan: GroupsPlan
    staying: Mapping[str, Staying]
    measured: Mapping[str, MeasuredPhases]

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves, in the order in which they should be made."""
        return self.plan.moves


def propose_replan(
    workload_path: Path,
    running_path: Path,
    out: Path,
    journals: Mapping[str, GroupJournal],
    ahead_s: Mapping[str, float],
    ended: Collection[str] = (),
    notify: Notify = lambda text: None,
) -> Proposal:
    """Return a new plan for the jobs that run.

    Args:
        workload_path: the workload of the running plan, as it is now.
        running_path: the plan that runs: the copy in the folder of the groups.
        out: where the new plan will be written; its inputs are named relative to it.
        journals: by group of the running plan; jobs of a group without a journal keep the seconds of the workload.
        ahead_s: by job, seconds that it is ahead of its bound (bound_machine.py); a job that is behind moves only if a
            bound needs it. Jobs without an entry may move as if they were far ahead.
        ended: jobs of the running plan that do not run any more.

    Raises InputError for files that cannot be read, or if no job is left; Infeasible if the nodes leave no room.
    """
    running = load_groups_plan(running_path)
    workload, cluster = load_workload(workload_path)
    stated = problem_of(workload, workload_path, cluster)
    members = {name: member for group in running.groups.values() for name, member in group.jobs.items()}
    problem = _of_jobs(stated, [name for name in stated.jobs if name in members and name not in ended], ahead_s)
    if not problem.jobs:
        raise InputError("none of its jobs runs any more", str(running_path))
    phases: dict[str, ReferencePhases] = {}
    for key, journal in journals.items():
        if key in running.groups:
            jobs = running.groups[key].jobs
            phases |= reference_phases(problem, jobs, iteration_seconds(journal, jobs))
    problem = with_phases(problem, phases)
    measured = {name: each.document() for name, each in phases.items()}
    inputs = solved_from(workload_path, workload, problem, running_path, out, measured)
    staying = _staying(running, running_path, problem)
    plan = solve_workload(workload, problem, inputs, (running, running_path), True, notify)
    return Proposal(running, plan, staying, measured)


def _of_jobs(problem: Problem, names: Collection[str], ahead_s: Mapping[str, float]) -> Problem:
    """The problem of some of the jobs, with the seconds that they are ahead of their bounds."""
    return replace(
        problem,
        jobs={name: problem.jobs[name] for name in names},
        remaining_s={name: each for name, each in problem.remaining_s.items() if name in names},
        ahead_s={name: max(0.0, ahead_s[name]) for name in names if name in ahead_s},
        read={name: path for name, path in problem.read.items() if name in names},
        points={name: paths for name, paths in problem.points.items() if name in names},
    )


def _staying(running: GroupsPlan, path: Path, problem: Problem) -> dict[str, Staying]:
    state = running_state(running, path, problem.jobs, problem.node_types)
    found: dict[str, Staying] = {}
    for group in state.groups.values():
        simulated = slowdowns(group, state.jobs, problem.rules)
        kept = bounds_kept(group, state.jobs, simulated, problem.rules)
        found |= {name: Staying(simulated[name], problem.jobs[name].slo, kept[name]) for name in simulated}
    return dict(sorted(found.items()))
