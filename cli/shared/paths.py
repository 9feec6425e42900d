"""Paths on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...plans.check.input_rules import input_files, input_path
from ...plans.schema.job import Job, job_paths
from ...plans.schema.plan import load_plan
from ...plans.yaml.errors import InputError
from ...plans.yaml.output_files import Written, must_take_file
from ...plans.yaml.yaml_io import STDOUT, error_at

if TYPE_CHECKING:
    from ...plans.schema.cluster import Cluster
    from ...profiles.profile_schema import Profile


def job_file(path: Path) -> Path:
    """`job.yaml` in `path` if that is a folder, else `path`."""
    return path / "job.yaml" if os.path.isdir(path) else path  # noqa: PTH112 (pathlib raises for what can be no path)


INIT = "rlplan init --gpus 8x8xH100 --model Qwen2.5-32B FOLDER"
"""A command that writes a cluster and a job to begin with."""


def need_job(path: Path) -> None:
    """Raise InputError, with the command that writes a job, where there is no file at `path`."""
    need(path, f"{INIT} writes a job and its cluster to begin with")


def need_cluster(path: Path) -> None:
    """Likewise of a cluster."""
    need(path, f"name one with --cluster; {INIT} writes one to begin with")


def need_profile(path: Path, job_path: Path, job: Job | None) -> None:
    """Likewise of the profile of a job; None for a job that cannot be read."""
    from ...profiles.library import shipped_model

    model = (job and shipped_model(job.model.path)) or "MODEL"
    need(
        path,
        f"rlplan profile {job_path} measures one on this machine, rlplan profile {job_path} --shipped {model} takes "
        "one that ships and needs no GPU, --profile names another",
    )


def need_trace(path: Path, job_path: Path) -> None:
    """Likewise of a length trace that the command line names."""
    how = (
        f"rlplan profile {job_path} measures one, rlplan lengths import makes one of a log, "
        f"rlplan solve {job_path} --lengths NAME takes lengths that ship (rlplan lengths list)"
    )
    need(path, how)


def need(path: Path, how: str) -> None:
    """Raise InputError, with `how` to get one, where there is no file at `path`."""
    if not os.path.exists(path):  # noqa: PTH110 (pathlib raises for what can be no path)
        raise InputError(f"no such file; {how}", str(path))


def check_target(path: Path, *inputs: Path, kind: Written | None = None, force: bool = False) -> None:
    """Raise InputError unless a file can be written at `path`, which must be none of the inputs, and no file that
    rlplan did not write (unless `force`); `kind`: of which kind a file there may be, None: any of rlplan's."""
    if path != STDOUT and any(_same(path, file) for file in inputs):
        raise InputError("is an input of this command; choose another name", str(path))
    must_take_file(path, kind, force)


def check_stdout(path: Path | None, option: str, as_json: bool) -> None:
    """Raise InputError if a result and the file of `option` would both go to standard output."""
    if path == STDOUT and as_json:
        raise InputError(f"{option} - and --json both write to standard output; give one of them")


def must_be_file(path: Path, why: str) -> None:
    """Raise InputError if `path` is standard output or a device, beside which nothing else can be written."""
    if path == STDOUT or (path.exists() and not path.is_file()):
        raise InputError(f"is no file, and {why}; name a file", str(path))


def tell(text: str, *files: Path | None) -> None:
    """Print what a command says of its result: to standard error if one of its files went to standard output."""
    click.echo(text, err=STDOUT in files)


@contextmanager
def at_its_line(job_path: Path, cluster_path: Path) -> Iterator[None]:
    """What the planner refuses of a job or of its cluster within the block, as an InputError with file and line."""
    from ...planner.choose.candidates.job_limits import Unplannable

    try:
        yield
    except Unplannable as error:
        path = job_path if error.document == "job" else cluster_path
        raise error_at(path, error.loc, error.message) from None


def accelerators_must_be_known(cluster: Cluster, cluster_path: Path) -> None:
    """Raise InputError, with the line, if accelerators cannot be what they are called."""
    from ...planner.check.accelerator_rules import unlike_names

    for fault in unlike_names(cluster):
        raise error_at(cluster_path, fault.location, f"{fault.key}: {fault.text}")


def see_it(out: Path) -> list[str]:
    """The command that shows a plan that was written to `out`; none for standard output."""
    return [] if out == STDOUT else [f"see it: rlplan show {out}"]


def _same(path: Path, file: Path) -> bool:
    """Whether two paths lead to one file that is there."""
    return os.path.exists(path) and os.path.exists(file) and os.path.samefile(path, file)  # noqa: PTH110, PTH121


def job_inputs(job: Job, job_path: Path) -> list[Path]:
    """Files that a job names."""
    paths = job_paths(job, job_path)
    config = paths.model_folder / "config.json" if paths.model_folder else None
    return [path for path in (paths.data, config) if path is not None]


def trace_inputs(profile: Profile, profile_path: Path, trace_path: Path | None) -> list[Path]:
    """The length traces of a profile, and of the command line."""
    own = [profile_path.with_name(profile.lengths.path)] if profile.lengths else []
    return [*own, *([trace_path] if trace_path else [])]


def plan_inputs(plan_path: Path) -> list[Path]:
    """A plan and the files that it was solved from."""
    return [plan_path, *(input_path(file, plan_path) for _, file in input_files(load_plan(plan_path)))]
