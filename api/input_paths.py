"""Paths of documents: default names, files that must exist, files that may be written, files that are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..plans.check.solved_rules import input_files, input_path
from ..plans.facts.model_shape import model_of_job
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job, RowSets, job_paths
from ..plans.schema.plan import load_plan
from ..plans.yaml.errors import InputError
from ..plans.yaml.input_files import is_file
from ..plans.yaml.output_files import Written, must_take_file
from ..plans.yaml.yaml_io import STDOUT, error_at
from ..profiles.library import nearest_shipped
from ..profiles.profile_schema import Profile


def job_file(path: Path) -> Path:
    """`job.yaml` in `path` if that is a folder, else `path`."""
    return path / "job.yaml" if os.path.isdir(path) else path  # noqa: PTH112 (pathlib raises for what can be no path)


INIT = "rlplan init --gpus 8x8xH100 --model Qwen2.5-32B FOLDER"
"""An example of the command that writes a cluster and a job."""


def need_job(path: Path) -> None:
    """Raise InputError, naming the command that writes a job, if there is no file at `path`."""
    need(path, f"{INIT} writes a job and its cluster to begin with")


def need_cluster(path: Path) -> None:
    """Raise InputError, naming the command that writes a cluster, if there is no file at `path`."""
    need(path, f"name one with --cluster; {INIT} writes one to begin with")


def need_profile(path: Path, job_path: Path, job: Job | None) -> None:
    """Raise InputError, naming the commands that write a profile, if there is none at `path`.

    `job` is None if it cannot be read.
    """
    shape = job and model_of_job(job, job_path).architecture
    model = (shape and nearest_shipped(shape)) or "MODEL"
    need(
        path,
        f"rlplan profile {job_path} measures one on this machine, rlplan profile {job_path} --shipped {model} takes "
        "one that ships and needs no GPU, --profile names another",
    )


def need_trace(path: Path, job_path: Path) -> None:
    """Raise InputError, naming the commands that write a length trace, if there is none at `path`."""
    how = (
        f"rlplan profile {job_path} measures one, rlplan lengths import makes one of a log, "
        f"rlplan solve {job_path} --lengths NAME takes lengths that ship (rlplan lengths list)"
    )
    need(path, how)


def need(path: Path, how: str) -> None:
    """Raise InputError if there is no file at `path`; `how` to get the file completes the message."""
    if not (is_file(path) or os.path.exists(path)):  # noqa: PTH110 (pathlib raises for what can be no path)
        raise InputError(f"no such file; {how}", str(path))


def check_target(path: Path, *inputs: Path, kind: Written | None = None, force: bool = False) -> None:
    """Raise InputError unless a file may be written at `path`.

    `path` must not be one of the inputs, nor, without `force`, a file that rlplan did not write. `kind` is the kind of
    rlplan's files that may be overwritten; None allows every kind.
    """
    if path != STDOUT and any(_same(path, file) for file in inputs):
        raise InputError("is an input of this command; choose another name", str(path))
    must_take_file(path, kind, force)


@contextmanager
def at_its_line(job_path: Path, cluster_path: Path) -> Iterator[None]:
    """Within the block, turn the planner's refusals of a job or its cluster into an InputError with file and line."""
    from ..planner.choose.candidates.pool_choice import Unplannable

    try:
        yield
    except Unplannable as error:
        path = job_path if error.document == "job" else cluster_path
        raise error_at(path, error.loc, error.message) from None


def accelerators_must_be_known(
    cluster: Cluster, cluster_path: Path, profile: Profile | None = None, measures: bool = False
) -> None:
    """Raise InputError, with the line, if figures of an accelerator contradict its name, or its name is probably
    misspelt; `profile` and `measures` as in `unlike_names`."""
    from ..planner.check.accelerator_rules import unlike_names

    for fault in unlike_names(cluster, profile, measures):
        raise error_at(cluster_path, fault.location, f"{fault.key}: {fault.text}")


def _same(path: Path, file: Path) -> bool:
    """Whether two paths lead to the same existing file."""
    return os.path.exists(path) and os.path.exists(file) and os.path.samefile(path, file)  # noqa: PTH110, PTH121


def job_inputs(job: Job, job_path: Path) -> list[Path]:
    """Files that a job names."""
    paths = job_paths(job, job_path)
    config = paths.model_folder / "config.json" if paths.model_folder else None
    data = [path for _, path, _ in paths.data.sets] if isinstance(paths.data, RowSets) else [paths.data]
    return [path for path in (*data, config) if path is not None]


def trace_inputs(profile: Profile, profile_path: Path, trace_path: Path | None) -> list[Path]:
    """The length traces of a profile and of the command line."""
    of_profile = [profile_path.with_name(profile.lengths.path)] if profile.lengths else []
    return [*of_profile, *([trace_path] if trace_path else [])]


def plan_inputs(plan_path: Path) -> list[Path]:
    """A plan and the files that it was solved from."""
    return [plan_path, *(input_path(file, plan_path) for _, file in input_files(load_plan(plan_path)))]
