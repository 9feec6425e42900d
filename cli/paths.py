"""Arguments that may be a file or the folder that holds it."""

from __future__ import annotations

from pathlib import Path


def job_file(path: Path) -> Path:
    """`job.yaml` in `path` if that is a folder, else `path`."""
    return path / "job.yaml" if path.is_dir() else path
