"""Where a job's files are, and what its model's config says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.yaml.errors import InputError


def test_paths_are_relative_to_the_jobs_folder(folder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    paths = job_paths(load_job("../job.yaml"), "../job.yaml")
    assert paths.model == str(folder.root / "model")
    assert paths.model_folder == folder.root / "model"
    assert paths.data == folder.root / "data.jsonl"


def test_a_model_that_is_no_folder_but_has_an_owner_is_a_hub_id(folder: Any) -> None:
    folder.edit("job.yaml", "path: model,", "path: Qwen/Qwen2.5-0.5B,")
    paths = job_paths(load_job(folder.path("job.yaml")), folder.path("job.yaml"))
    assert paths.model == "Qwen/Qwen2.5-0.5B"
    assert paths.model_folder is None


@pytest.mark.parametrize("path", ["models", "./models", "../a/b", "a/b/c", "/a/b"])
def test_a_local_model_that_is_missing_is_reported_at_its_line(folder: Any, path: str) -> None:
    line = folder.edit("job.yaml", "path: model,", f"path: {path},")
    with pytest.raises(InputError, match="no such folder") as caught:
        job_paths(load_job(folder.path("job.yaml")), folder.path("job.yaml"))
    assert caught.value.line == line


def test_missing_data_is_reported_at_its_line(folder: Any) -> None:
    line = folder.edit("job.yaml", "data.jsonl", "dta.jsonl")
    with pytest.raises(InputError, match=r"no such file: 'dta\.jsonl'") as caught:
        job_paths(load_job(folder.path("job.yaml")), folder.path("job.yaml"))
    assert caught.value.line == line
