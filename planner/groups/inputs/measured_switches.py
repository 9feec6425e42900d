"""What a run of co-execution groups says of its jobs' switches: `warm_s` of the phases in their workload.

A workload has the seconds that a turn takes longer after another job's, or they come from the model's size
(switch_seconds.py). A run measures them in each turn: engines wake, or states come, and later they leave again. Others
have the devices neither meanwhile, so a switch takes both.

A phase keeps its seconds where too few turns were measured, and where what was measured differs by no more than its
own error, or by less than LEAST_SHARE of the job's iteration, which no choice of groups would show. A job that is
planned with its group keeps them, too: the workload has no phases of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ....plans.schema.groups_plan import GroupsPlan
from ....plans.schema.workload import Workload
from ....plans.yaml.canonical_form import with_values
from ....plans.yaml.errors import InputError
from ....plans.yaml.input_files import read_text
from ....plans.yaml.yaml_doc import Loc
from ....traces.groups.group_report import PHASES, switches
from ....traces.groups.group_turns import turns_of
from ....traces.groups.groups_folder import group_folders

FEWEST_TURNS = 5
LEAST_SHARE = 0.005
DIGITS = 4


@dataclass(frozen=True)
class MeasuredSwitch:
    """Seconds of a switch of a phase.

    Attributes:
        job: whose.
        phase: `rollout` or `train`.
        turns: that were measured.
        planned_s: seconds of the plan.
        measured_s: mean seconds of the run; None without a turn.
        error_s: by how much that mean may be off (two standard errors); None with fewer than two turns.
        changes: whether the workload should have what was measured.
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
        journal = turns_of(folder)
        turns = journal.turns
        if key not in plan.groups:
            if not journal.seated:  # its jobs have moved away
                continue
            raise InputError(f"runs a group {key}, and the plan has none; name the plan that it runs", str(run))
        for name, member in plan.groups[key].jobs.items():
            figures = switches(folder / name, member, [turn for turn in turns if turn.job == name])
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
