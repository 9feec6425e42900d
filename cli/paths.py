"""Paths on the command line."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..plans.checks.inputs import input_files, input_path
from ..plans.errors import InputError
from ..plans.job import Job, job_paths
from ..plans.plan import load_plan

if TYPE_CHECKING:
    from ..profiles.schema import Profile


def job_file(path: Path) -> Path:
    """`job.yaml` in `path` if that is a folder, else `path`."""
    return path / "job.yaml" if path.is_dir() else path


INIT = "rlplan init --gpus 8x8xH100 --model Qwen2.5-32B FOLDER"
"""A command that writes a cluster and a job to begin with."""


def need_job(path: Path) -> None:
    """Raise InputError, with the command that writes a job, where there is no file at `path`."""
    _need(path, f"{INIT} writes a job and its cluster to begin with")


def need_cluster(path: Path) -> None:
    """Likewise of a cluster."""
    _need(path, f"name one with --cluster; {INIT} writes one to begin with")


def need_profile(path: Path, job_path: Path, job: Job) -> None:
    """Likewise of the profile of a job."""
    from ..profiles.library import shipped_model

    model = shipped_model(job.model.path) or "MODEL"
    _need(
        path,
        f"rlplan profile {job_path} measures one on this machine, rlplan profile {job_path} --shipped {model} takes "
        "one that ships and needs no GPU, --profile names another",
    )


def need_trace(path: Path, job_path: Path) -> None:
    """Likewise of a length trace that the command line names."""
    how = f"rlplan profile {job_path} measures one; rlplan solve {job_path} --lengths math-16k takes one that ships"
    _need(path, how)


def _need(path: Path, how: str) -> None:
    if not os.path.exists(path):  # noqa: PTH110 (pathlib raises for what can be no path)
        raise InputError(f"no such file; {how}", str(path))


def check_target(path: Path, *inputs: Path) -> None:
    """Raise InputError unless a file can be written at `path`, which must be none of the inputs."""
    if path.is_dir():
        raise InputError("is a folder; name a file", str(path))
    if path.exists() and any(path.samefile(file) for file in inputs if file.exists()):
        raise InputError("is an input of this command; choose another name", str(path))
    if not path.parent.is_dir():
        raise InputError("cannot be written: its folder does not exist", str(path))
    try:  # permissions alone do not tell: some file systems take no new files whatever they say
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot be written: its folder takes no new file ({error.strerror})", str(path)) from None


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
