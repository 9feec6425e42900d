"""`rlplan init`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlplan.cli.init import init_command
from rlplan.executor.example import task, write
from rlplan.plans.facts.executable import FAMILIES
from rlplan.plans.facts.model_shape import shape_of
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.yaml.errors import InputError


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_init_refuses_a_folder_that_is_not_empty_and_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / "mine.txt").write_text("keep me")
    result = CliRunner().invoke(init_command, [str(target)])
    assert isinstance(result.exception, InputError)
    assert "not empty" in str(result.exception)
    assert listing(tmp_path) == ["demo", "demo/mine.txt"]
    assert (target / "mine.txt").read_text() == "keep me"


def test_init_refuses_a_file_and_a_place_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        result = CliRunner().invoke(init_command, [str(tmp_path / place)])
        assert isinstance(result.exception, InputError), place
    assert listing(tmp_path) == ["file"]


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "demo"
    with write.new_folder(target) as building:
        (building / "a").write_text("1")
        assert not target.exists()
    assert listing(tmp_path) == ["deep", "deep/demo", "deep/demo/a"]


def test_a_failure_on_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    with pytest.raises(RuntimeError, match="half way"), write.new_folder(target) as building:
        (building / "a").write_text("1")
        raise RuntimeError("half way")
    assert listing(tmp_path) == ["demo"]


def test_the_detected_cluster_has_the_cores_that_this_process_may_use() -> None:
    pytest.importorskip("torch")
    pool = write.detect_cluster().pools["main"]
    assert pool.cores == write.available_cores() >= 1
    if pool.accelerators.kind == "cpu":
        assert pool.accelerators.per_node == pool.cores


@pytest.mark.engine
def test_an_example_is_complete_and_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlplan.executor.example.warmup import Phase

    target = tmp_path / "demo"
    steps: list[int] = []
    short = (Phase(steps=2, rows=2, tokens=32, keys=8, hits=0.5),)
    facts = write.write_example(target, seed=1, phases=short, on_step=lambda done, total, loss: steps.append(done))
    assert steps == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    written = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert facts["files"] == [name for name in written if not name.startswith(".rlplan/")]
    assert {".rlplan/cluster.schema.json", ".rlplan/job.schema.json"} < set(written)

    job = load_job(target / "job.yaml")
    load_cluster(target / "cluster.yaml")
    paths = job_paths(job, target / "job.yaml")
    shape = shape_of(paths.model)
    assert shape is not None and shape.family in FAMILIES
    assert all(heads % tp == 0 for heads in (shape.heads, shape.kv_heads) for tp in job.search.tp)

    model = AutoModelForCausalLM.from_pretrained(paths.model)
    tokenizer = AutoTokenizer.from_pretrained(paths.model)
    assert sum(p.numel() for p in model.parameters()) == facts["parameters"] < 1_000_000
    assert model.config.max_position_embeddings >= job.rollout.longest_tokens
    rows = [json.loads(line) for line in paths.data.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 2048
    for row in rows:
        # Through AutoTokenizer from the folder, config.json included: it can override the tokenizer's class.
        tokens = tokenizer(row["prompt"])["input_ids"]
        assert tokens == [task.TOKEN[word] for word in row["prompt"].split()]
        assert len(tokens) <= job.rollout.max_prompt_tokens
