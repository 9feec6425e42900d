"""Whether a plan still fits what it was solved from and where it is to run: its faults, as an error.

A plan is a file that people edit and that outlives its inputs. `check_plan` is asked before anything starts, and by
`--dry-run`; what it lets through, the executor may assert. The rules are those of checks/; `rlplan check` reports all
faults of all rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..schema.cluster import Cluster, load_cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.job import Job, JobPaths, job_paths, load_job, model_heads
from ..schema.plan import Plan, load_plan
from ..yaml.errors import InputError, joined
from ..yaml.yaml_doc import Loc
from ..yaml.yaml_io import error_at
from .finding import Fault
from .input_rules import UNREAD_TEXT, input_files, stale_inputs, unread_changes
from .input_rules import input_path as input_path
from .plan_fit import misfits


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that holds, with what it was solved from.

    Attributes:
        plan, cluster, job: the documents.
        job_path: where job.yaml is.
        profile_path, lengths_path: where the profile and the length trace are; None: lengths of a table.
        paths: the job's model and data.
    """

    plan: Plan
    cluster: Cluster
    job: Job
    job_path: Path
    profile_path: Path
    lengths_path: Path | None
    paths: JobPaths


def open_plan(plan_path: str | Path) -> CheckedPlan:
    """Read a plan and all that it names, and check it whole: what a command does with a plan before it starts anything.

    The digests come first, so that a changed job is called stale and not judged. A model that is no local folder is not
    looked up, and its heads are not checked. An input that changed in nothing that the solver reads is a warning.
    Raises InputError.
    """
    plan = load_plan(plan_path)
    check_digests(plan, plan_path)
    for path in unread_changes(plan, plan_path):
        warnings.warn(f"{plan_path}: '{path}' {UNREAD_TEXT}", stacklevel=2)
    job_path = input_path(plan.inputs.job, plan_path)
    cluster = load_cluster(input_path(plan.inputs.cluster, plan_path))
    job = load_job(job_path)
    paths = job_paths(job, job_path)
    heads = model_heads(paths.model_folder) if paths.model_folder else None
    check_plan(plan, plan_path, cluster, job, heads)
    lengths = plan.inputs.lengths.file
    return CheckedPlan(
        plan=plan,
        cluster=cluster,
        job=job,
        job_path=job_path,
        profile_path=input_path(plan.inputs.profile, plan_path),
        lengths_path=None if lengths is None else input_path(lengths, plan_path),
        paths=paths,
    )


def changed_inputs(plan: GroupsPlan, plan_path: str | Path) -> list[str]:
    """Paths, as the plan has them, of input files that are missing or no longer the same."""
    stale = {fault.loc[:-1] if fault.loc[-1] == "path" else fault.loc for fault in stale_inputs(plan, plan_path)}
    return [file.path for loc, file in input_files(plan) if loc in stale]


def check_plan(plan: Plan, plan_path: str | Path, cluster: Cluster, job: Job, heads: tuple[int, int] | None) -> None:
    """Raise InputError, with the plan's lines, for the things in `plan` that do not hold.

    In this order: an input file is missing or has changed; name, P or n differ from the job's; the cutoff is not below
    the job's cap; and for each kind of round: its TP does not divide the heads, its pool does not exist, its engines do
    not fit the pool, its micro-batch does not hold the longest sequence, its trainers do not fit the pool.

    Args:
        plan: from `load_plan`, hence consistent in itself.
        plan_path: its file; input paths are relative to its folder.
        cluster, job: as loaded from the files that the plan names.
        heads: (attention heads, key-value heads) as from `job.model_heads`; None when unknown, and not checked then.
    """
    check_digests(plan, plan_path)
    found = [_error(fault, plan_path) for fault in misfits(plan, cluster, job, heads)]
    if found:
        raise joined(found)


def check_digests(plan: Plan, plan_path: str | Path) -> None:
    """Raise InputError, with each of them, when files that the plan was solved from are missing, or when something
    changed in them that the solver reads."""
    found = [_error(fault, plan_path) for fault in stale_inputs(plan, plan_path)]
    if found:
        raise joined(found)


def faults(plan: Plan, cluster: Cluster, job: Job, heads: tuple[int, int] | None) -> Iterator[tuple[Loc, str]]:
    """Where `plan` does not fit `cluster` and `job`: (location in the plan, what and remedy). Reads no file."""
    for fault in misfits(plan, cluster, job, heads):
        yield fault.loc, fault.text


def _error(fault: Fault, plan_path: str | Path) -> InputError:
    return error_at(plan_path, fault.loc, f"{fault.key}: {fault.text}")
