"""Documents that the corpus solves: small, written on the fly, and the same on every machine."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlplan.plans.schema.job import job_paths, load_job
from rlplan.profiles.fitness import subject_digest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "plans" / "examples"
CAP = 1024

GRPO = {"name": "grpo", "learning_rate": 1e-3}
SEARCH = {"tp": [1, 2], "micro_batch_tokens": [2048, 4096]}
MATH = {"kind": "math", "workers": 1, "deadline_s": 2.0}
CODE = {"kind": "code", "deadline_s": 30.0, "shortest_deadline_s": 2.0}
JUDGE = {"kind": "judge", "model": "m/m", "prompt": "{response}?", "scale": [0, 1], "deadline_s": 5.0, "weight": 0.1}
EXECUTIONS = {"correct_s": [0.1, 0.2, 4.0], "wrong_s": [0.1, 9.0], "correct": 0.6, "unsolved": 0.2, "scatter": 1.4}
LINKS = [
    {"pools": ["main", "learn"], "stream_bytes_per_s": 4e6}, {"pools": ["main", "main"], "stream_bytes_per_s": 1e9},
]  # fmt: skip


def write(folder: Path, name: str, document: Mapping[str, Any]) -> Path:
    """Write a document as YAML."""
    path = folder / name
    path.write_text(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False, width=120))
    return path


def changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with values at dotted keys replaced; None removes one."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    for key, value in changes.items():
        *path, last = key.split(".")
        part = copy
        for name in path:
            part = part[name]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return copy


def write_lengths(path: Path, prompts: int = 48, samples: int = 8, cap: int = CAP, seed: int = 0) -> None:
    """Log-normal lengths of which 0.6 of the log variance lies between prompts; about 1 % reach the cap."""
    rng = np.random.default_rng(seed)
    sigma, icc, rows = 1.3, 0.6, []
    for prompt in range(prompts):
        location = np.log(cap / 23) + sigma * np.sqrt(icc) * rng.normal()
        for sample in range(samples):
            tokens = 1 + int(np.exp(location + sigma * np.sqrt(1 - icc) * rng.normal()))
            rows.append({
                "prompt": f"k{prompt:04d}", "epoch": 0, "sample": sample, "tokens": min(tokens, cap),
                "truncated": tokens >= cap, "reward": float(rng.random() < 0.5), "prompt_tokens": 18,
            })  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pool(kind: str = "cpu", name: str = "cpu", per_node: int = 2, memory_bytes: int = 10**9, **changes: Any) -> Any:
    """A pool of a cluster: by default one node with two cores as accelerators."""
    accelerators = {"kind": kind, "name": name, "per_node": per_node, "memory_bytes": memory_bytes}
    size = {"nodes": 1, "cores": 2, "host_memory_bytes": 24 * 10**9, "usd_per_node_hour": 0.36}
    return {**size, "accelerators": accelerators, **changes}


def gpus(name: str, memory_bytes: int = 80 * 10**9, **changes: Any) -> Any:
    """A pool of nodes of eight GPUs."""
    size = {"cores": 96, "host_memory_bytes": 10**12, "usd_per_node_hour": 40.0}
    return pool("cuda", name, 8, memory_bytes, **{**size, **changes})


def cluster(links: Any = None, **pools: Any) -> dict[str, Any]:
    """The document of a cluster."""
    return {"rlplan_cluster": 1, "name": "cluster", "pools": pools, **({"links": links} if links else {})}


def job(prompts: int = 8, samples: int = 4, cap: int = CAP, **changes: Any) -> dict[str, Any]:
    """The document of a job of `prompts` x `samples` a step."""
    size = {
        "prompts_per_step": prompts, "samples_per_prompt": samples, "max_prompt_tokens": 96, "max_response_tokens": cap,
    }  # fmt: skip
    return {
        "rlplan_job": 1, "name": "toy", "model": {"path": "m/m", "dtype": "bfloat16"}, "data": {"path": "data.jsonl"},
        "reward": MATH, "rollout": size, "algorithm": GRPO, "search": SEARCH, **changes,
    }  # fmt: skip


def write_data(folder: Path, rows: int = 256) -> None:
    """Write the prompts of a job."""
    lines = (json.dumps({"id": f"b{k}", "prompt": f"{k}+2", "answer": k + 2}) for k in range(rows))
    (folder / "data.jsonl").write_text("".join(line + "\n" for line in lines))


def write_profile(folder: Path, name: str = "laptop", more_reward: Mapping[str, Any] | None = None) -> None:
    """Write a profile of a machine of two cores, of lengths that stand beside it; `more_reward`: further keys."""
    digest = hashlib.sha256((folder / "lengths.jsonl").read_bytes()).hexdigest()
    path = folder / "job.yaml"
    document = load_job(path)
    subject = subject_digest(document, job_paths(document, path))
    text = (HERE / f"{name}.profile.yaml").read_text().replace("LENGTHS", digest).replace("SUBJECT", subject)
    if more_reward:
        text = text.replace(
            "  per_sample_s: 0.0001\n", f"  per_sample_s: 0.0001\n  executions: {json.dumps(EXECUTIONS)}\n"
        )
    (folder / "profile.yaml").write_text(text)


def write_laptop(folder: Path, document: Mapping[str, Any], machines: Any = None, profile: str = "laptop") -> None:
    """Write a job on a small machine: cluster, job, data, lengths and profile."""
    write(folder, "cluster.yaml", machines or cluster(main=pool()))
    write(folder, "job.yaml", document)
    write_data(folder)
    write_lengths(folder / "lengths.jsonl")
    kinds = document["reward"] if isinstance(document["reward"], list) else [document["reward"]]
    executed = EXECUTIONS if any(kind["kind"] == "code" for kind in kinds) else None
    write_profile(folder, profile, executed)


def write_gpus(folder: Path, document: Mapping[str, Any], machines: Any) -> None:
    """Write a job on GPUs that nobody profiled: cluster, job, data, lengths."""
    write(folder, "cluster.yaml", machines)
    write(folder, "job.yaml", document)
    write_data(folder)
    write_lengths(folder / "lengths.jsonl", cap=document["rollout"]["max_response_tokens"])


def write_example(folder: Path, name: str, changes: Mapping[str, Any]) -> None:
    """Copy the documents of an example that ships, with other values of its job."""
    shutil.copytree(EXAMPLES / name, folder, dirs_exist_ok=True)
    document = yaml.safe_load((folder / "job.yaml").read_text())
    write(folder, "job.yaml", changed(document, changes))


def workload(jobs: Mapping[str, Any], **rules: Any) -> dict[str, Any]:
    """The document of a workload on the cluster beside it."""
    return {"rlplan_workload": 1, "cluster": "cluster.yaml", "rules": rules, "jobs": dict(jobs)}


def lab(roll_nodes: int = 3, train_nodes: int = 2) -> dict[str, Any]:
    """Two pools, to decode and to train."""
    roll = gpus("H20", 96 * 10**9, nodes=roll_nodes, slots=2, usd_per_node_hour=10.0)
    train = gpus("H800", nodes=train_nodes)
    return cluster([{"pools": ["roll", "train"], "stream_bytes_per_s": 2e9}], roll=roll, train=train)


def drawn_job(rng: np.random.Generator) -> dict[str, Any]:
    """A job of a workload with random seconds, bounds and other ways to run its rollout."""
    roll_s, train_s = (round(float(seconds), 1) for seconds in rng.uniform((60, 40), (300, 200)))
    rollout: dict[str, Any] = {"pool": "roll", "mean_s": roll_s}
    if rng.random() < 0.5:
        rollout |= {"p50_s": round(0.95 * roll_s, 1), "p95_s": round(1.3 * roll_s, 1)}
    if rng.random() < 0.6:
        rollout["ways"] = [{"pool": "roll", "slots": 1, "factor": 1.5}, {"pool": "train", "factor": 1.1}]
    found: dict[str, Any] = {
        "slo": round(float(rng.uniform(1.3, 2.5)), 2),
        "model": f"Qwen2.5-{rng.choice(['3B', '7B', '14B'])}",
        "phases": {"rollout": rollout, "train": {"pool": "train", "tp": 2, "mean_s": train_s}},
    }
    if rng.random() < 0.5:
        found["tail_share"] = 0.25
    if rng.random() < 0.5:
        found["remaining_s"] = 36000.0
    return found


def drawn_workload(jobs: int, seed: int, **rules: Any) -> dict[str, Any]:
    """A workload of so many random jobs."""
    rng = np.random.default_rng(seed)
    return workload({f"job-{k}": drawn_job(rng) for k in range(jobs)}, **rules)
