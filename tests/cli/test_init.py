"""`rlplan init`: an example on this machine, or with --gpus and --model a job that is planned without GPUs and data."""

import json
from pathlib import Path

import pytest

from rlplan.executor.example import task, write
from rlplan.plans.facts.executable import FAMILIES
from rlplan.plans.facts.model_shape import shape_of
from rlplan.plans.facts.node_price import usd_per_node_hour
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.schema.plan import load_plan

from .command_line import data, printed, refused, rlplan
from .solved_folder import harmed


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_folder_that_holds_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    for options in ((), ("--gpus", "8xH100", "--model", "Qwen2.5-7B")):
        refused(rlplan("init", tmp_path, *options), "is not empty")
    assert listing(tmp_path) == ["mine.txt"] and (tmp_path / "mine.txt").read_text() == "keep me"


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


def test_the_detected_cluster_has_the_cores_of_this_process() -> None:
    pytest.importorskip("torch")
    pool = write.detect_cluster().pools["main"]
    assert pool.cores == write.available_cores() >= 1
    if pool.accelerators.kind == "cpu":
        assert pool.accelerators.per_node == pool.cores


def test_the_example_is_written_as_asked(tmp_path, monkeypatch):
    facts = {"parameters": 12345, "warmup_s": 2.0, "prompts": 7, "accelerators": 2, "kind": "cpu"}
    asked = []

    def write_example(folder, seed, on_step):
        asked.append((folder, seed))
        on_step(1, 2, 0.5)
        return facts

    monkeypatch.setattr("rlplan.executor.example.write.write_example", write_example)
    folder = tmp_path / "demo"
    assert printed("init", folder) == (
        f"{folder}: model with 12,345 parameters (warmed up in 2.00 s), 7 prompts, 2 x cpu\n"
        f"next: rlplan profile {folder}/job.yaml\n"
    )
    assert data("init", folder, "--seed", "4") == facts and asked == [(folder, 0), (folder, 4)]


# -- a job of one's own ------------------------------------------------------------------------------------------------


def test_a_job_is_planned_without_data_at_the_price_per_gpu(begun_once):
    job, plan = load_job(begun_once / "job.yaml"), load_plan(begun_once / "plan.yaml")
    assert not (begun_once / "data.jsonl").exists() and job.data.prompts == 12_000
    pool = load_cluster(begun_once / "cluster.yaml").pools["h100"]
    assert pool.usd_per_gpu_hour and plan.predicted.usd_per_hour == pytest.approx(usd_per_node_hour(pool), rel=1e-5)
    assert data("check", begun_once / "plan.yaml", begun_once / "job.yaml")["findings"] == 0
    printed("simulate", begun_once / "plan.yaml", "--steps", "5")


def test_data_that_is_there_counts_by_its_rows(begun):
    policy = begun / "policy.yaml"
    policy.write_text("rlplan_policy: 1\nrequire_job_files: true\n")
    found = printed("check", begun / "plan.yaml", "--policy", policy, code=1)
    assert "[policy-job-files]" in found and "data.jsonl" in found
    rows = [{"id": f"r{k}", "prompt": f"{k} + 1", "answer": k + 1} for k in range(600)]
    (begun / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    solve = ("solve", begun, "--trace", begun / "lengths.jsonl", "--mode", "sync")
    refused(rlplan(*solve), "job.yaml:", "is 12000", "has 600 rows; write 600")
    assert "[prompts-miscounted]" in printed("check", begun / "job.yaml", code=1)
    harmed(begun, [("job.yaml", ", prompts: 12000", "")])
    printed("check", begun / "job.yaml")
    printed(*solve)


def test_without_a_folder_the_models_name_is_taken(tmp_path):
    options = ("--gpus", "2x8xA100", "--model", "meta-llama/Llama-3.1-70B", "--reward", "code")
    assert "rlplan profile llama-3.1-70b --shipped Llama-3.1-70B" in printed("init", *options, folder=tmp_path)
    made = tmp_path / "llama-3.1-70b"
    assert sorted(path.name for path in made.glob("*.yaml")) == ["cluster.yaml", "job.yaml"]
    assert (made / ".rlplan" / "job.schema.json").is_file() and (made / ".rlplan" / "cluster.schema.json").is_file()


@pytest.mark.engine
def test_an_example_is_complete_and_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlplan.executor.example.warmup import WarmupPhase

    target = tmp_path / "demo"
    steps: list[int] = []
    short = (WarmupPhase(steps=2, rows=2, tokens=32, keys=8, hits=0.5),)
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
