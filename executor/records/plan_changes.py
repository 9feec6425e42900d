"""A run that goes on by another plan of its job: whether it may, what changes, and what its folder keeps of both.

`plan.yaml` of a run's folder is the plan in force; those before it are `plans/until-step-NNNNNN.yaml`. `job.yaml` is
the job as the run was started or resumed with. A run keeps its model, its data and the sizes of its steps: weights,
epochs and deferred prompts of its checkpoints are of these. All else may change: rounds, layouts, nodes, drafts, the
loss's constants, and what of the job decides no plan (a learning rate).

What the old plan deferred is trained first, by the old plan's rule (rounds/schedule.py).
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.check.plan_check import CheckedPlan
from ...plans.diff.change import changes, key_values
from ...plans.schema.job import Job, load_job
from ...plans.schema.plan import Plan, load_plan
from ...plans.schema.planned_job import PlannedJob
from ...plans.yaml.errors import InputError
from ...plans.yaml.input_files import opened
from ...plans.yaml.yaml_io import error_at, sha256_file
from ...traces.run_log import PLAN_COPY, TRACE
from .execution_folder import JOB_COPY, written

EARLIER_PLANS = "plans"

KEPT: tuple[tuple[str, ...], ...] = (
    ("name",),
    ("model", "path"),
    ("model", "dtype"),
    ("data", "path"),
    ("rollout", "prompts_per_step"),
    ("rollout", "samples_per_prompt"),
    ("rollout", "max_prompt_tokens"),
    ("rollout", "max_response_tokens"),
)
"""Keys of job.yaml that a run keeps: its checkpoints are of these."""


@dataclass(frozen=True)
class PlanChange:
    """The plan that a run goes on by, in the place of the one in its folder.

    Attributes:
        plan_path: the new plan.
        sha256: digest of its file.
        changes: decisions that differ, by dotted key below `job`: (old, new) as text.
    """

    plan_path: Path
    sha256: str
    changes: dict[str, tuple[str, str]]


class PlanRefusal(NamedTuple):
    """Why a run does not go on by the plan of a request."""

    request_id: str
    plan: str
    reason: str


def must_be_same_job(run_dir: Path, plan_path: Path, checked: CheckedPlan) -> None:
    """Raise InputError, with the line of job.yaml, unless the run in a folder can go on by the plan at `plan_path`."""
    job, path = checked.job, checked.job_path
    before = _job_before(run_dir, checked)
    if before is None:
        raise InputError(
            f"was started with another job than {plan_path} was solved for; give a plan of its own job, or "
            "start a new run with another --out",
            str(run_dir),
        )
    for location in KEPT:
        old, new = _value(before, location), _value(job, location)
        if old != new:
            was, now = (json.dumps(_plain(value), default=str) for value in (old, new))
            raise error_at(
                path,
                location,
                f"{'.'.join(location)}: is {now}, and the run in {run_dir} has {was}: its checkpoints are of that; "
                "write it back and solve again, or start a new run with another --out",
            )


def _job_before(run_dir: Path, checked: CheckedPlan) -> Job | None:
    """The job of the run in a folder. Of a run of an older version, which has no copy: the plan's, if the run's plan
    was solved from the same file, or from one in which the solver read the same; else None."""
    if (run_dir / JOB_COPY).is_file():
        return load_job(run_dir / JOB_COPY)
    old, new = load_plan(run_dir / PLAN_COPY).inputs, checked.plan.inputs
    read = [inputs.solver_read and inputs.solver_read.job for inputs in (old, new)]
    same = old.job.sha256 == new.job.sha256 or (read[0] is not None and read[0] == read[1])
    return checked.job if same else None


def _value(job: Job, location: Sequence[str]) -> Any:
    value: Any = job
    for key in location:
        value = getattr(value, key)
    return value


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def plan_change(run_dir: Path, plan_path: Path) -> PlanChange | None:
    """What changes if the run in a folder goes on by the plan at `plan_path`; None: it is the plan in force."""
    digest = sha256_file(plan_path)
    if sha256_file(run_dir / PLAN_COPY) == digest:
        return None
    try:
        old: Plan | None = load_plan(run_dir / PLAN_COPY)
    except InputError:  # of another version of rlplan: the run goes on, and nobody can say what changed
        old = None
    new = load_plan(plan_path)
    return PlanChange(plan_path, digest, {} if old is None else changed_decisions(old.job, new.job))


def changed_decisions(old: PlannedJob, new: PlannedJob) -> dict[str, tuple[str, str]]:
    """By dotted key, decisions that differ, (old, new) as text."""
    before, after = (planned.model_dump(mode="json", exclude={"why"}) for planned in (old, new))
    return {change.key: key_values(change) for change in changes(before, after)}


def keep_both_plans(run_dir: Path, change: PlanChange, step: int) -> None:
    """Make the new plan of a run that is at `step` the one in force. Raises RunFailed if the disk does not take it."""
    copy, earlier = run_dir / PLAN_COPY, run_dir / EARLIER_PLANS / f"until-step-{step:06d}.yaml"
    with written(copy):
        earlier.parent.mkdir(exist_ok=True)
        if not earlier.exists():  # else two changes at one step: the first of the plans between took no step
            shutil.copyfile(copy, earlier)
        partial = copy.with_name(f".{PLAN_COPY}.partial")
        shutil.copyfile(change.plan_path, partial)
        partial.replace(copy)


def run_name(run_dir: Path) -> str | None:
    """The name that the run in a folder was started with, whatever its plan is now; None where no trace says so."""
    if not (run_dir / TRACE).is_file():
        return None
    with opened(run_dir / TRACE) as file, io.BufferedReader(file) as lines:
        first = lines.readline()
    try:
        name = json.loads(first).get("name")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None
