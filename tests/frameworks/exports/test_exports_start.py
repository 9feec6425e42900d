"""Exports of plans of other kinds than the shipped ones: what frameworks refuse, or overlook, when they start."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import rlplan
from rlplan.frameworks.exports.draft import ExportDraft, ExportSource
from rlplan.frameworks.exports.export_plan import EXPORTS, export_plan
from rlplan.plans.schema.algorithm import ImportanceSampling, LearningRateSchedule
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.planned_job import PlacementSpec
from rlplan.plans.yaml.errors import InputError

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
COSINE = LearningRateSchedule(kind="cosine", warmup_steps=10, decay_steps=100, final_share=0.1)


def varied(
    tmp_path, framework, *, train=None, placement=None, cluster=None, plugin=True, dtype="bfloat16", **algorithm
):
    """The export of math-32b with another algorithm, layout of the trainers, placement or cluster."""
    source = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path)
    job = source.job.model_copy(
        update={
            "algorithm": source.job.algorithm.model_copy(update=algorithm),
            "model": source.job.model.model_copy(update={"dtype": dtype}),
        }
    )
    rounds = source.plan.job.rounds
    kinds = {
        name: kind.model_copy(update={"train": kind.train.model_copy(update=train or {})})
        for name, kind in rounds.kinds
    }
    planned = source.plan.job.model_copy(
        update={"rounds": rounds.model_copy(update=kinds), "placement": placement or source.plan.job.placement}
    )
    plan = source.plan.model_copy(update={"job": planned})
    source = replace(source, plan=plan, job=job, cluster=cluster or source.cluster)
    return EXPORTS[framework](ExportDraft(framework, source=source, plugin=plugin))


def decision(export, name):
    (found,) = [each for each in export.decisions if each.decision == name]
    return found


def copied(tmp_path, **data):
    """The demo's plan with a job.yaml of its own, beside data of `data`: its name and bytes."""
    job = yaml.safe_load((EXAMPLES / "cpu-demo" / "job.yaml").read_text())
    (name, content), *_ = data.items() or [("data.jsonl", (EXAMPLES / "cpu-demo" / "data.jsonl").read_bytes())]
    job["data"]["path"] = name.replace("_", ".")
    folder = tmp_path / "cpu-demo"
    folder.mkdir()
    (folder / job["data"]["path"]).write_bytes(content)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "cluster.yaml").write_bytes((EXAMPLES / "cpu-demo" / "cluster.yaml").read_bytes())
    (tmp_path / "plan.yaml").write_bytes((EXAMPLES / "cpu-demo.yaml").read_bytes())
    return tmp_path / "plan.yaml"


def run_module(out, text, name="__main__"):
    namespace = {"__file__": str(out / "x.py"), "__name__": name}
    exec(compile(text, "x.py", "exec"), namespace)
    return namespace


# -- keys --------------------------------------------------------------------------------------------------------------


def test_megatron_in_verl_has_its_own_keys_of_the_schedule(tmp_path):
    optim = "actor_rollout_ref.actor.optim."
    settings = varied(tmp_path, "verl", train={"dp": 16, "tp": 4}, schedule=COSINE).settings
    assert f"{optim}lr_scheduler_type" not in settings
    assert settings[f"{optim}lr_decay_style"] == "cosine"
    assert (settings[f"{optim}lr_decay_steps"], settings[f"{optim}min_lr"]) == (110, pytest.approx(1e-7))
    fsdp = varied(tmp_path, "verl", schedule=COSINE).settings
    # The trainer overwrites the optimizer's total by its own.
    assert (fsdp[f"{optim}lr_scheduler_type"], fsdp["trainer.total_training_steps"]) == ("cosine", 110)
    assert fsdp[f"{optim}clip_grad"] == 1.0


@pytest.mark.parametrize("plugin", [True, False])
def test_verl_finds_rewards_to_filter_groups_by(tmp_path, plugin):
    settings = varied(tmp_path, "verl", plugin=plugin, dynamic_sampling=True).settings
    assert settings["algorithm.filter_groups.metric"] == "reward"


def test_masked_importance_weights_have_two_bounds(tmp_path):
    sampling = ImportanceSampling(cap=3.0, beyond="mask")
    verl = varied(tmp_path, "verl", importance_sampling=sampling).settings
    assert verl["algorithm.rollout_correction.rollout_rs"] == "token_k1"
    assert verl["algorithm.rollout_correction.rollout_rs_threshold"] == "1e-08_3.0"
    flags = varied(tmp_path, "openrlhf", importance_sampling=sampling).settings
    assert flags["--algo.advantage.is_correction_threshold"] == [0.0, 3.0]
    assert decision(
        varied(tmp_path, "skyrl", importance_sampling=sampling), "algorithm.importance_sampling.beyond"
    ).cost


def test_no_export_asks_for_an_account(tmp_path):
    assert varied(tmp_path, "verl").settings["trainer.logger"] == ["console"]
    skyrl = varied(tmp_path, "skyrl").settings
    assert (skyrl["trainer.logger"], skyrl["trainer.eval_interval"]) == ("console", -1)


def test_a_sum_over_a_constant_is_divided_by_the_cap(tmp_path):
    summed = {"name": "dr_grpo", "loss_aggregation": "seq-mean-token-sum-norm"}
    assert varied(tmp_path, "verl", **summed).settings["actor_rollout_ref.actor.loss_scale_factor"] == 16384
    assert varied(tmp_path, "skyrl", **summed).settings["trainer.algorithm.max_seq_len"] == 16384
    loss = decision(varied(tmp_path, "slime", **summed), "loss")
    assert loss.status == "approximated" and "12.8 times" in loss.cost  # 1024 x 16384 tokens over the plan's


def test_slime_knows_when_to_end_and_how_to_divide(tmp_path):
    export = varied(tmp_path, "slime", loss_aggregation="token-mean")
    assert export.settings["--num-rollout"] == 20000 // 128
    # The plug-in's reducer refuses slime's own division, and reads the plan's path from the environment.
    assert "--calculate-per-token-loss" not in export.settings
    assert 'export RLPLAN_PLAN="$PWD/plan.yaml"' in export.files["run.sh"]
    assert varied(tmp_path, "slime", schedule=COSINE).settings["--num-rollout"] == 110
    assert export_plan(EXAMPLES / "cpu-demo.yaml", "slime", tmp_path).settings["--num-epoch"] == 1


def test_experts_limit_the_tp_that_makes_a_model_fit(tmp_path):
    # With TP 2 the model would fit, but Megatron wants GPUs for TP x EP.
    export = varied(tmp_path, "slime", train={"dp": 4, "ep": 4, "offload": True})
    assert export.settings["--tensor-model-parallel-size"] == 1


@pytest.mark.parametrize("framework", ["slime", "vime", "skyrl", "openrlhf"])
def test_a_type_that_a_framework_has_not_is_named(tmp_path, framework):
    assert decision(varied(tmp_path, framework, dtype="float32"), "model.dtype").status == "not expressible"


@pytest.mark.parametrize("framework", EXPORTS)
def test_trainers_on_a_pool_of_their_own_keep_its_size(tmp_path, framework):
    cluster = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path).cluster.model_dump(mode="json")
    small = json.loads(json.dumps(cluster["pools"]["h100"]))
    small |= {"nodes": 1, "accelerators": small["accelerators"] | {"per_node": 4}}
    two = Cluster.model_validate(cluster | {"pools": cluster["pools"] | {"small": small}})
    export = varied(tmp_path, framework, train={"dp": 4}, placement=PlacementSpec(train_pool="small"), cluster=two)
    where = {
        "slime": ("--actor-num-nodes", "--actor-num-gpus-per-node"),
        "vime": ("--actor-num-nodes", "--actor-num-gpus-per-node"),
        "skyrl": ("trainer.placement.policy_num_nodes", "trainer.placement.policy_num_gpus_per_node"),
        "openrlhf": ("--actor.num_nodes", "--actor.num_gpus_per_node"),
    }
    if framework in where:
        assert tuple(export.settings[key] for key in where[framework]) == (1, 4)
    else:
        assert decision(export, "placement.train_pool").status == "not expressible"


def test_processes_of_trl_divide_by_nodes_and_engines(tmp_path):
    export = varied(tmp_path, "trl")
    accelerate = yaml.safe_load(export.files["accelerate.yaml"])
    assert (accelerate["num_machines"], accelerate["num_processes"]) == (8, 64)
    assert "--machine_rank RANK --main_process_ip ADDRESS" in export.launch and "on each node" in export.launch
    cosine = varied(tmp_path, "trl", schedule=COSINE).settings
    assert (cosine["lr_scheduler_type"], cosine["lr_scheduler_kwargs"]) == ("cosine_with_min_lr", {"min_lr_rate": 0.1})


@pytest.mark.parametrize("framework", ["slime", "skyrl", "openrlhf"])
def test_samples_that_replicas_do_not_share_evenly_are_named(tmp_path, framework):
    assert not [each for each in varied(tmp_path, framework).decisions if each.decision == "train.dp, issue.samples"]
    uneven = varied(tmp_path, framework, train={"dp": 60})
    assert "1024 samples a step are no multiple of" in decision(uneven, "train.dp, issue.samples").cost


def test_rows_that_are_not_there_are_named(tmp_path):
    export = export_plan(EXAMPLES / "math-32b.yaml", "verl", tmp_path)
    assert "math-32b/data.jsonl" in decision(export, "data.path").cost
    demo = export_plan(EXAMPLES / "cpu-demo.yaml", "verl", tmp_path)
    assert not [each for each in demo.decisions if each.decision == "data.path"]


def test_a_job_that_was_changed_is_no_longer_the_plans(tmp_path):
    plan = copied(tmp_path)
    text = (tmp_path / "cpu-demo" / "job.yaml").read_text()
    (tmp_path / "cpu-demo" / "job.yaml").write_text(text.replace("samples_per_prompt: 4", "samples_per_prompt: 3"))
    with pytest.raises(InputError, match="16 prompts of 4 samples a step, and its job now asks for 16 of 3; solve"):
        export_plan(plan, "verl", tmp_path / "out")


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["verl", "skyrl"])
def test_rows_are_read_as_the_plans_own_run_reads_them(tmp_path, monkeypatch, framework):
    rows = [json.loads(line) for line in (EXAMPLES / "cpu-demo" / "data.jsonl").read_text().splitlines()[:3]]
    rows[1]["prompt"] += "\u2028end"  # ends no row
    plan = copied(tmp_path, data_json=json.dumps(rows, ensure_ascii=False).encode())
    written = {}
    datasets = ModuleType("datasets")
    datasets.Dataset = SimpleNamespace(
        from_list=lambda rows: SimpleNamespace(to_parquet=lambda path: written.update({path.name: rows}))
    )
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    out = tmp_path / "out"
    out.mkdir()
    run_module(out, export_plan(plan, framework, out).files["prepare.py"])
    assert [each["prompt"][0]["content"] for each in written["data.parquet"]] == [row["prompt"] for row in rows]


def test_a_reward_of_verl_sees_the_prompt_as_it_is(tmp_path):
    out = tmp_path / "out"
    reward = run_module(out, export_plan(copied(tmp_path), "verl", out).files["reward.py"], "reward")
    seen = []
    reward["FUNCTIONS"][:] = [(1.0, lambda prompt, response, answer: seen.append((prompt, answer)) or 0.5)]
    assert reward["compute_score"]("rlplan", "r", '"a"', {"prompt": json.dumps("p")}) == 0.5
    chat = [{"role": "user", "content": "p"}]
    assert reward["compute_score"]("rlplan", "r", '"a"', {"prompt": json.dumps(chat)}) == 0.5
    assert seen == [("p", "a"), ("user: p", "a")]


def test_a_reward_of_openrlhf_is_a_dict_and_sees_no_end_token(tmp_path, monkeypatch):
    torch, transformers = ModuleType("torch"), ModuleType("transformers")
    torch.tensor = list
    transformers.AutoTokenizer = SimpleNamespace(
        from_pretrained=lambda name: SimpleNamespace(all_special_tokens=["<|end|>"])
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    out = tmp_path / "out"
    reward = run_module(out, export_plan(copied(tmp_path), "openrlhf", out).files["reward.py"], "reward")
    reward["FUNCTIONS"][:] = [(1.0, lambda prompt, response, answer: float(response == "yes"))]
    rewards = reward["reward_func"](["<|end|>p yes<|end|>"[7:]], ["p "], ['"a"'])
    assert rewards == {"rewards": [1.0], "scores": [1.0], "extra_logs": {}}


@pytest.mark.parametrize("framework", ["verl", "slime", "skyrl", "openrlhf"])
def test_run_sh_names_files_absolutely_and_makes_old_rows_anew(tmp_path, framework):
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" "" >> "{tmp_path}/said"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    models = tmp_path / "checkout" / "scripts" / "models"
    models.mkdir(parents=True)
    (models / "qwen2.5-32B.sh").write_text("MODEL_ARGS=(--layers 1)\n")
    out = tmp_path / "a folder"
    (out / "torch_dist").mkdir(parents=True)
    rows = out / ("data.parquet" if framework in ("verl", "skyrl") else "rows.jsonl")
    rows.write_text("")
    os.utime(rows, (0, 0))
    for name, text in export_plan(EXAMPLES / "math-32b.yaml", framework, out).files.items():
        (out / name).write_text(text)
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "SLIME_DIR": "checkout"}
    subprocess.run(["bash", "a folder/run.sh", "more"], cwd=tmp_path, env=environment, check=True)
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:2] == ["prepare.py", ""] and said[-2:] == ["more", ""]
    assert any(str(rows) in word for word in said)
    if framework == "slime":
        assert f"{tmp_path}/checkout/train.py" in said
        assert yaml.safe_load((out / "rlplan.yaml").read_text()) == {"rlplan_plan": f"{out}/plan.yaml"}


def test_skyrl_trains_with_the_jobs_reward(tmp_path):
    export = varied(tmp_path, "skyrl")
    assert export.settings["environment.env_class"] == "rlplan"
    assert 'register(id="rlplan", entry_point="reward:RewardEnv")' in export.files["main_rlplan.py"]
    assert "class RewardEnv(BaseTextEnv)" in export.files["reward.py"]
