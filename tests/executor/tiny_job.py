"""A job of a tiny model in a folder, and plans of it by hand: what whole runs of tests execute."""

import json
import os
import shutil

from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump, sha256_file

from ..documents import EXPECTED_BESIDE, expected_round

ALONE = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
"""Environment of a command that starts a Ray of its own, also while the suite runs a cluster."""

CLUSTER = """\
rlplan_cluster: 1
name: test
pools:
  main:
    nodes: 1
    accelerators: {kind: cpu, name: any, per_node: 2, memory_bytes: 100000000}
    cores: 2
    host_memory_bytes: 8000000000
    usd_per_node_hour: 0.1
"""


def and_pool(cluster, name):
    """The text of a cluster, with another pool like its `main`."""
    return cluster + CLUSTER[CLUSTER.index("  main:") :].replace("main", name)


ONE_CORE = CLUSTER.replace("per_node: 2", "per_node: 1").replace("cores: 2", "cores: 1")
APART = ONE_CORE + ONE_CORE[ONE_CORE.index("  main:") :].replace("main", "learn")
"""Engines on a core of their own, trainers on the other."""


def write_job(folder, model, name="tiny", prompts=4, samples=2, longest=48, cluster=CLUSTER, rows=32, seed=3):
    """All that a plan names beside it: model, job, cluster, data, reward, and what is looked at by its digest only.

    `prompts`, `samples`: of a step and of a prompt; `longest`: tokens of a response; `rows`: of the data.
    """
    shutil.copytree(model, folder / "model")
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "job.yaml").write_text(
        f"""\
rlplan_job: 1
name: {name}
model: {{path: model, dtype: float32}}
data: {{path: data.jsonl, seed: {seed}}}
reward: {{kind: function, function: "my_reward:score", workers: 1, deadline_s: 5.0}}
rollout: {{prompts_per_step: {prompts}, samples_per_prompt: {samples}, max_prompt_tokens: 8,
  max_response_tokens: {longest}, seed_per_sample: true}}
algorithm: {{name: grpo, learning_rate: 0.001}}
search: {{tp: [1, 2], micro_batch_tokens: [256, 512]}}
"""
    )
    data = [{"id": f"q{i:02d}", "prompt": f"w{i} w{i + 1}", "answer": i} for i in range(rows)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    (folder / "my_reward.py").write_text(
        "def score(prompt, response, answer):\n    return float(len(response.split()) % 3 == 0)\n"
    )
    for file in ("profile.yaml", "lengths.jsonl"):
        (folder / file).write_text("looked at by its digest only\n")


def quantiles(value):
    return {"p50": value, "p95": value, "mean": value}


def make_plan(folder, name="tiny", prompts=4, samples=2, cutoff=30, engines=1, at_once=32, micro_batch=256):
    """A plan of the job in a folder as plain data, to be changed; without `cutoff` its rounds are plain ones."""
    files = {"cluster": "cluster.yaml", "job": "job.yaml", "profile": "profile.yaml", "lengths": "lengths.jsonl"}
    inputs = {key: {"path": file, "sha256": sha256_file(folder / file)} for key, file in files.items()}
    inputs["profile"]["provenance"] = "measured"
    kind = {
        "issue": {"prompts": prompts, "samples": samples},
        "rollout": {"pool": "main", "engines": engines, "tp": 1, "max_num_seqs": at_once, "kv_tokens": 1024},
        "train": {"dp": 1, "micro_batch_tokens": micro_batch},
    }
    rounds, mode = {"short": kind | {"cutoff_tokens": None}, "long": None}, "sync"
    if cutoff is not None:
        short, long = ({**kind, "rollout": {**kind["rollout"]}, "train": {**kind["train"]}} for _ in range(2))
        rounds, mode = {"short": short, "long": long}, "exact"
        short |= {"issue": {"prompts": prompts + 3, "samples": samples}, "cutoff_tokens": cutoff}
        long["issue"] = {"prompts": prompts, "samples": samples, "copies": 1}
    expected = expected_round(1.0 if cutoff is None else 0.5)
    return {
        "rlplan": 1,
        "inputs": inputs,
        "solver": {"name": "by hand", "status": "feasible", "gap": 0.0, "bound": 0.0, "reached": 0.0,
                   "objective": "seconds_per_sample", "candidates": 1},
        "decisions_sha256": "0" * 64,
        "job": {
            "name": name,
            "bias": {"mode": mode, "budget": 0.0},
            "issue": {"prompts_per_step": prompts, "samples_per_prompt": samples},
            "rounds": rounds,
            "reward": {"workers": 1, "deadline_s": 5.0},
            "loss": {"samples": prompts * samples, "tokens": prompts * samples * 30},
            "sync": {"checksum_every": 2},
            "why": {},
        },
        "predicted": {
            "step_s": quantiles(1.0), "seconds_per_sample": 0.1,
            "baseline": {"step_s": quantiles(1.0), "seconds_per_sample": 0.1},
            "phases_s": {"rollout": 1.0, "reward_exposed": 0.0, "train": 0.1, "sync": 0.1},
            "rounds": {"short": expected, "long": None if cutoff is None else expected},
            "length_ratio": 1.0, "nodes": 1, "usd_per_1k_samples": 0.1, **EXPECTED_BESIDE,
            "front": [{"mode": mode, "seconds_per_sample": 0.1, "usd_per_1k_samples": 0.1, "length_ratio": 1.0,
                       "rounds": 1, "chosen": True}],
        },
        "volatile": {"solved_at": "2026-01-01T00:00:00Z", "solve_s": 0.0, "rlplan": "0.1.0"},
    }  # fmt: skip


def train_apart(plan, pool="learn", streams=False):
    """Have a plan's trainer on a pool of its own."""
    plan["job"]["placement"] = {"train_pool": pool, "streams": streams}
    rollout_nodes = plan["predicted"]["nodes"]
    plan["predicted"] |= {"nodes": rollout_nodes + 1, "train_nodes": 1}
    return plan


def write_plan(plan, path):
    """Write a plan as `solve` does."""
    dump(Plan.model_validate(plan), path)
    return path


def check_steps(steps, asked):
    """Assert that a whole run of `asked` steps took each of them once, then long rounds until nothing was owed."""
    assert [step.step for step in steps] == list(range(1, len(steps) + 1)) and len(steps) >= asked
    assert {step.kind for step in steps[asked:]} <= {"long"} and steps[-1].deferred == 0
