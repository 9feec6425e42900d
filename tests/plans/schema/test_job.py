"""Where a job's files are, and what its model's config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlplan.plans.schema.job import job_paths, load_job, model_heads
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
    assert model_heads(paths.model) is None


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


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, (8, 2)),
        ({"num_attention_heads": 8}, (8, 8)),
        ({"num_attention_heads": 8, "num_key_value_heads": None}, (8, 8)),
        ({"n_head": 12}, (12, 12)),
        ({"text_config": {"num_attention_heads": 16, "num_key_value_heads": 4}, "num_attention_heads": 3}, (16, 4)),
        ({"d_state": 16}, None),
    ],
)
def test_heads_come_from_the_models_config(
    tmp_path: Path, config: dict[str, Any], heads: tuple[int, int] | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_heads(tmp_path) == heads


def test_a_model_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        model_heads(tmp_path)


def test_a_config_that_is_no_json_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{\n"num_attention_heads": 8,\n')
    with pytest.raises(InputError, match=r"config\.json:\d: not valid JSON"):
        model_heads(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="one JSON object"):
        model_heads(tmp_path)
