"""Paths on the command line."""

from __future__ import annotations

import os
from pathlib import Path


def job_file(path: Path) -> Path:
    """`job.yaml` in `path` if that is a folder, else `path`."""
    return path / "job.yaml" if path.is_dir() else path


def check_target(path: Path, *inputs: Path) -> None:
    """Raise InputError unless a file can be written at `path`, which must be none of the inputs."""
    from ..plans.errors import InputError

    if path.is_dir():
        raise InputError("is a folder; name a file", str(path))
    if path.exists() and any(path.samefile(file) for file in inputs if file.exists()):
        raise InputError("is an input of this command; choose another name", str(path))
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError("cannot be written: its folder does not exist or is not writable", str(path))
