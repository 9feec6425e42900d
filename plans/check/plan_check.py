"""Check a plan against its inputs and its cluster before a run; its faults are raised as an error.

People edit plans, and inputs of a plan change after it was solved. `check_plan` runs before anything starts, and for
`--dry-run`; the executor may assert whatever `check_plan` has checked. The rules are those of plans/check; `rlplan
check` reports all faults of all rules.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from ..facts.model_shape import ModelShape, shape_of_job
from ..schema.cluster import Cluster, load_cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.job import Job, JobPaths, job_paths, load_job
from ..schema.plan import Plan, load_plan
from ..yaml.errors import InputError, joined
from ..yaml.yaml_io import error_at
from .finding import Fault
from .plan_fit import misfits
from .solved_rules import UNREAD_TEXT, input_files, stale_inputs, unread_changes
from .solved_rules import input_path as input_path


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that passed the check, with the documents that it was solved from.

    Attributes:
        plan, cluster, job: the documents.
        job_path: path of job.yaml.
        profile_path, lengths_path: paths of the profile and the length trace; None: the lengths come from a table.
        paths: the job's model and data.
        model: the model's shape; None: unknown.
    """

    plan: Plan
    cluster: Cluster
    job: Job
    job_path: Path
    profile_path: Path
    lengths_path: Path | None
    paths: JobPaths
    model: ModelShape | None


def open_plan(plan_path: str | Path) -> CheckedPlan:
    """Read a plan and its inputs, and check them: what a command does with a plan before it starts anything.

    The digests are checked first, so that a changed input is reported as changed and not checked further. An
    input that changed only where the solver does not read gives a warning. Raises InputError.
    """
    plan = load_plan(plan_path)
    check_digests(plan, plan_path)
    for path in unread_changes(plan, plan_path):
        warnings.warn(f"{plan_path}: '{path}' {UNREAD_TEXT}", stacklevel=2)
    job_path = input_path(plan.inputs.job, plan_path)
    cluster = load_cluster(input_path(plan.inputs.cluster, plan_path))
    job = load_job(job_path)
    paths = job_paths(job, job_path)
    model = shape_of_job(job, job_path)
    check_plan(plan, plan_path, cluster, job, model)
    lengths = plan.inputs.lengths.file
    return CheckedPlan(
        plan=plan,
        cluster=cluster,
        job=job,
        job_path=job_path,
        profile_path=input_path(plan.inputs.profile, plan_path),
        lengths_path=None if lengths is None else input_path(lengths, plan_path),
        paths=paths,
        model=model,
    )


def model_of_plan(plan: Plan, plan_path: str | Path) -> ModelShape | None:
    """The shape of the model of the job of the plan at `plan_path`; None: unknown, or job.yaml or the model's folder
    cannot be read, which is for others to report."""
    job_path = input_path(plan.inputs.job, plan_path)
    try:
        return shape_of_job(load_job(job_path), job_path)
    except InputError:
        return None


def changed_inputs(plan: GroupsPlan, plan_path: str | Path) -> list[str]:
    """Paths, as written in the plan, of input files that are missing or have changed."""
    locations = [fault.location for fault in stale_inputs(plan, plan_path)]
    stale = {location[:-1] if location[-1] == "path" else location for location in locations}
    return [file.path for location, file in input_files(plan) if location in stale]


def check_plan(plan: Plan, plan_path: str | Path, cluster: Cluster, job: Job, model: ModelShape | None) -> None:
    """Raise InputError, with the plan's lines, if `plan` does not fit its inputs, its cluster or its job.

    In this order: an input file is missing or has changed; name, P or n differ from the job's; the cutoff is not below
    the job's cap; and for each kind of round: its TP does not divide the heads, its pool does not exist, its engines do
    not fit the pool, its micro-batch does not hold the longest sequence, its trainers do not fit the pool.

    Args:
        plan: from `load_plan`, which has checked the document itself.
        plan_path: its file; input paths are relative to its folder.
        cluster, job: loaded from the files that the plan names.
        model: the shape of the job's model (`shape_of_job`); None: unknown and not checked.
    """
    check_digests(plan, plan_path)
    errors = [_error(fault, plan_path) for fault in misfits(plan, cluster, job, model)]
    if errors:
        raise joined(errors)


def check_digests(plan: Plan, plan_path: str | Path) -> None:
    """Raise InputError if inputs of the plan are missing, or changed in a key that the solver reads; it has all of
    them."""
    errors = [_error(fault, plan_path) for fault in stale_inputs(plan, plan_path)]
    if errors:
        raise joined(errors)


def _error(fault: Fault, plan_path: str | Path) -> InputError:
    return error_at(plan_path, fault.location, f"{fault.key}: {fault.text}")
