"""The jobs: the demo's model under different loads, with trainers on a pool of their own, and their workload."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlplan.executor.example.write import write_example
from rlplan.executor.rewards.keyhunt import score
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.yaml_io import dump, sha256_file

from ..faults.example import shipped_plan

SAMPLES_PER_PROMPT, MICRO_BATCH_TOKENS = 8, 8192
SLOW_REWARD_S = 0.004
STATE_BYTES, WARM_S = 500_000_000, 0.05
"""What a job's phase holds in host memory between turns (nothing leaves it on a CPU), and seconds of a switch, which
the workload states. Seconds of a start are those of the runs alone."""


class Load(NamedTuple):
    """A job's load: prompts of a step, cap of a response, whether a reward takes SLOW_REWARD_S, bound on slowdown."""

    prompts: int
    most_tokens: int
    slow_reward: bool
    slo: float


LOADS: Mapping[int, Mapping[str, Load]] = {
    2: {"short": Load(64, 96, False, 1.6), "brief": Load(72, 64, False, 1.6)},
    3: {"short": Load(64, 96, False, 2.4), "brief": Load(72, 64, False, 2.4), "slow": Load(56, 64, True, 2.4)},
}
"""Jobs by the number of them in a group. Answers are short, so that training is about as long as decoding: of jobs that
decode three quarters of the time two share two cores no better than 1.33 times."""


MOVING: Mapping[str, Load] = {
    "short": LOADS[3]["short"], "middle": Load(64, 128, False, 2.4), "brief": LOADS[3]["brief"],
}  # fmt: skip
"""Jobs that join and leave."""


def slow_score(prompt: str, response: str, answer: Any = None) -> float:
    """The demo's reward, after a while of computing nothing, as a call of a service is."""
    import time

    time.sleep(SLOW_REWARD_S)
    return score(prompt, response, answer)


def write_jobs(folder: Path, loads: Mapping[str, Load]) -> dict[str, Path]:
    """Write each job with its plan into `folder/NAME`; returns the plans by name."""
    first = folder / next(iter(loads))
    write_example(first)
    for name in loads:
        if not (folder / name).exists():
            shutil.copytree(first, folder / name)
    return {name: _write(folder / name, name, load) for name, load in loads.items()}


def _write(folder: Path, name: str, load: Load) -> Path:
    job = load_job(folder / "job.yaml").model_dump(mode="json") | {"name": name}
    job["rollout"] |= {
        "prompts_per_step": load.prompts,
        "samples_per_prompt": SAMPLES_PER_PROMPT,
        "max_response_tokens": load.most_tokens,
    }
    if load.slow_reward:
        job["reward"] |= {"function": f"{__name__}:slow_score"}
    dump(Job.model_validate(job), folder / "job.yaml")
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"]
    pool |= {"nodes": 1, "cores": 1}
    pool["accelerators"]["per_node"] = 1
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")
    plan = shipped_plan(folder, "sync").model_dump(mode="json")
    cluster["pools"]["train"] = pool
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")
    short = plan["job"]["rounds"]["short"]
    short["rollout"] |= {"engines": 1, "tp": 1, "max_num_seqs": load.prompts * SAMPLES_PER_PROMPT}
    short["train"] |= {"dp": 1, "tp": 1, "sp": 1, "micro_batch_tokens": MICRO_BATCH_TOKENS}
    short["train"] |= {"recompute": "full", "offload": False}
    plan["inputs"]["cluster"]["sha256"] = sha256_file(folder / "cluster.yaml")
    plan["job"]["placement"] = {"train_pool": "train", "streams": False}
    dump(Plan.model_validate(plan), folder / "plan.yaml")
    return folder / "plan.yaml"


def write_workload(folder: Path, loads: Mapping[str, Load], runs: Mapping[str, Path], interference: float) -> Path:
    """Write the workload of jobs whose runs alone are `runs`, below `folder`, on cores that slow each other by
    `interference`; returns its path."""
    first = next(iter(loads))
    dump(load_cluster(folder / first / "cluster.yaml"), folder / "cluster.yaml")
    phase = {"nodes": 1, "resident_bytes": STATE_BYTES, "warm_s": WARM_S}
    workload = {
        "rlplan_workload": 1,
        "cluster": "cluster.yaml",
        "rules": {"interference": round(interference, 3)},
        "jobs": {
            name: {
                "slo": load.slo,
                "source": {"run": runs[name].relative_to(folder).as_posix()},
                "phases": {"rollout": {"pool": "main", **phase}, "train": {"pool": "train", **phase}},
            }
            for name, load in loads.items()
        },
    }
    dump(Workload.model_validate(workload), folder / "workload.yaml")
    return folder / "workload.yaml"


def names(counts: Sequence[int]) -> dict[str, Load]:
    """All jobs of groups of these sizes; a name has the same load in all of them, but for its bound."""
    return {name: load for count in counts for name, load in LOADS[count].items()}
