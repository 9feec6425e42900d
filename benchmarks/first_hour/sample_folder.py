"""The sample folder in which mistakes are made: small, with every kind of document, built once and copied.

cluster.yaml job.yaml data.jsonl lengths.jsonl profile.yaml   a 7B job on one node of 8 H100s
plan.yaml sync.yaml                                           solved from them
workload.yaml lab.yaml groups.yaml                            two jobs that share nodes, and their plan
team.policy.yaml                                              site rules
run/                                                          a run of sync.yaml, as the executor would leave it
together/                                                     a run of groups.yaml, whose jobs are ready
notes.txt                                                     a file that is not rlplan's
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.copula_trace import copula_lengths
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.plan import load_plan
from rlplan.profiles.length_trace import write_lengths
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS
from rlplan.traces.run_log import PLAN_COPY, TRACE
from rlplan.traces.trace import TraceWriter

CLUSTER = """\
rlplan_cluster: 1
name: small
pools:
  h100:
    nodes: 1
    accelerators: {kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}
    cores: 112
    host_memory_bytes: 2000000000000
    usd_per_node_hour: 20.4
"""
JOB = """\
rlplan_job: 1
name: small-7b
model: {path: Qwen/Qwen2.5-7B-Instruct, dtype: bfloat16}
data: {path: data.jsonl, seed: 0}
reward: {kind: math, workers: 8, deadline_s: 5.0}
rollout: {prompts_per_step: 8, samples_per_prompt: 4, max_prompt_tokens: 256, max_response_tokens: 1024}
algorithm: {name: grpo, learning_rate: 1.0e-6}
search: {tp: [2], micro_batch_tokens: [4096]}
"""
LAB = """\
rlplan_cluster: 1
name: lab
pools:
  roll:
    nodes: 3
    accelerators: {kind: cuda, name: H20, per_node: 8, memory_bytes: 96000000000}
    cores: 96
    host_memory_bytes: 1000000000000
    usd_per_node_hour: 10.0
    slots: 2
  train:
    nodes: 2
    accelerators: {kind: cuda, name: H800, per_node: 8, memory_bytes: 80000000000}
    cores: 96
    host_memory_bytes: 1000000000000
    usd_per_node_hour: 40.0
links:
  - {pools: [roll, train], stream_bytes_per_s: 2000000000.0}
"""
WORKLOAD = """\
rlplan_workload: 1
cluster: lab.yaml
rules: {policy: multi_rate, group_cap: 4}
jobs:
  big:
    slo: 1.5
    model: Qwen2.5-14B
    phases:
      rollout: {pool: roll, mean_s: 200.0, p50_s: 190.0, p95_s: 260.0}
      train: {pool: train, tp: 2, mean_s: 150.0}
  small:
    slo: 1.9
    model: Qwen2.5-3B
    phases:
      rollout: {pool: roll, mean_s: 60.0}
      train: {pool: train, mean_s: 40.0}
"""
POLICY = "rlplan_policy: 1\nmax_usd_per_hour: 500.0\nmax_bias: 0.5\n"
NOTES = "call the landlord\nrlplan looks nice\n"
STEPS = 6


def rlplan(*arguments: object) -> None:
    """Run a command in this process. Raises RuntimeError, with the command's output, unless it succeeds."""
    from rlplan.cli.main import main

    out, before = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), sys.argv
    sys.argv = ["rlplan", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main()
    except SystemExit as ended:
        if ended.code:
            out.flush()
            output = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
            raise RuntimeError(f"rlplan {' '.join(map(str, arguments))}: {output}") from None
    finally:
        sys.argv = before


def build(folder: Path) -> None:
    """Make the sample folder at `folder`. Afterwards the simulator is compiled, so that forks of this process start
    quickly."""
    folder.mkdir(parents=True)
    for name, text in (
        ("cluster.yaml", CLUSTER),
        ("job.yaml", JOB),
        ("lab.yaml", LAB),
        ("workload.yaml", WORKLOAD),
        ("team.policy.yaml", POLICY),
        ("notes.txt", NOTES),
    ):
        (folder / name).write_text(text)
    rows = (json.dumps({"id": f"p{i}", "prompt": f"{i} + 1?", "answer": str(i + 1)}) for i in range(64))
    (folder / "data.jsonl").write_text("".join(row + "\n" for row in rows))
    lengths = copula_lengths([(10, 0.05), (100, 0.5), (1024, 0.98)], 0.5, 1024, 24, 4)
    write_lengths(folder / "lengths.jsonl", lengths.rows)
    rlplan("profile", folder, "--shipped", "Qwen2.5-7B")
    trace = ("--trace", folder / "lengths.jsonl")
    rlplan("solve", folder, *trace, "--mode", "sync", "-o", folder / "sync.yaml")
    rlplan("solve", folder, *trace, "-o", folder / "plan.yaml")
    rlplan("solve", folder / "workload.yaml", "-o", folder / "groups.yaml")
    _write_run(folder / "run", folder / "sync.yaml")
    _write_groups_run(folder / "together", folder / "groups.yaml")


def _write_groups_run(home: Path, plan_path: Path) -> None:
    """Write a run of groups of which no job has ended an iteration."""
    home.mkdir()
    (home / GROUPS_COPY).write_bytes(plan_path.read_bytes())
    plan = load_groups_plan(plan_path)
    for key, group in plan.groups.items():
        (home / key).mkdir()
        (home / key / GROUPS_COPY).write_bytes(plan_path.read_bytes())
        seats = [
            {"job": name, "units": [list(job.rollout.units), list(job.train.units)], "pace_s": job.pace_s}
            for name, job in group.jobs.items()
        ]
        writer = TraceWriter(home / key / TURNS)
        writer.write("group", 0.0, began_s=1.7e9, group=key, rule=plan.rules.policy, seats=seats)
        for name in group.jobs:
            writer.write("ready", 1.0, job=name, process=name)
        writer.close()


def _write_run(home: Path, plan_path: Path) -> None:
    """Write a run of a plain plan: each step trains all that it issues, in about the predicted seconds."""
    plan = load_plan(plan_path)
    home.mkdir()
    (home / PLAN_COPY).write_bytes(plan_path.read_bytes())
    rng = np.random.default_rng(0)
    issue, phases = plan.job.issue, plan.predicted.phases_s
    writer = TraceWriter(home / TRACE)
    writer.write("run", 0.0, name="run", mode="sync", plan=f"../{plan_path.name}")
    size = issue.samples_per_prompt
    for step in range(1, STEPS + 1):
        names = [f"p{(step * issue.prompts_per_step + i) % 64}" for i in range(issue.prompts_per_step)]
        rows = [
            {"step": step, "prompt": name, "epoch": 0, "draw": draw, "sample": sample,
             "tokens": int(np.clip(np.exp(rng.normal(4.6, 0.9)), 1, 1023)), "truncated": False, "prompt_tokens": 64,
             "reward": float(rng.integers(2)), "fate": "trained"}
            for draw, name in enumerate(names) for sample in range(size)
        ]  # fmt: skip
        for row in rows:
            writer.write("sample", float(step), **row)
        tokens = [row["tokens"] for row in rows]
        factor = float(np.exp(0.05 * rng.normal()))
        seconds = {
            "rollout_s": factor * phases.rollout, "reward_exposed_s": factor * phases.reward_exposed,
            "train_s": factor * phases.train, "sync_s": factor * phases.sync,
        }  # fmt: skip
        writer.write(
            "step", float(step), step=step, kind="short", epochs=[0], **seconds, other_s=0.0,
            total_s=sum(seconds.values()), trained_samples=len(rows), trained_tokens=sum(tokens), reward_mean=0.5,
            max_tokens=max(tokens), median_tokens=float(np.median(tokens)), decoded_tokens=sum(tokens), deferred=0,
            prompts={"trained": len(names)}, samples={"trained": len(rows)}, conservation_violations=[],
            on_policy_violations=0, checksum_mismatches=0, exhausted=0, restarts=[], metrics={},
        )  # fmt: skip
    writer.write("end", float(STEPS), step=STEPS, finished=True)
    writer.close()
