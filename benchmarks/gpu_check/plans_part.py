"""The parts of the GPU check that plan and run the job: `rlplan solve`, `execute` of two plans, and `profile`.

Plans are made before anything is measured, from the lengths that the policy was made for and a stand-in profile of what
the device should reach. What they predict is a guess; that they run, and how long a step takes, do not rest on it.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump
from rlplan.profiles.fitness import machine_of
from rlplan.profiles.hardware import gpu_of
from rlplan.profiles.laws.hardware_peaks import shape_of_policy, work_of_shape
from rlplan.profiles.phase_schema import Reward, Rollout, Spread, Train
from rlplan.profiles.profile_schema import Dtype, Profile

from .command_parts import RLPLAN, Fragment, JsonLines, Parts

MODES = ("sync", "exact")
LEAST_STEP_S, STEP_S_PER_SEQUENCE = 2.5e-3, 2e-5
"""Seconds of a decode step that no small model falls below, and what each sequence adds (H100, vLLM 0.24: measured)."""
MFU, BANDWIDTH_SHARE = 0.3, 0.6
CPU_FLOPS, CPU_BYTES_PER_S = 3e10, 1e10
MOST_SEQUENCES = 1024
NOT_MEASURED = Spread(p50=1.0, p95=2.0, repeats=0)


def stand_in(job: Path, shape: Architecture, micro_batch_tokens: Sequence[int]) -> Path:
    """Write `stand-in.yaml` into the folder of a job, for a model of `shape` on its cluster.yaml; returns its path."""
    pool = load_cluster(job / "cluster.yaml").pools["main"]
    gpu = gpu_of(pool.accelerators.name)
    flops, bytes_per_s = (CPU_FLOPS, CPU_BYTES_PER_S) if gpu is None else (gpu.bf16_flops, gpu.memory_bytes_per_s)
    dtype: Dtype = "float32" if pool.accelerators.kind == "cpu" else "bfloat16"
    work = work_of_shape(shape_of_policy(shape, shape.parameters, dtype), shape.parameters, dtype)
    kv_bytes = work.weight_bytes * shape.kv_values_per_token
    step_s = max(LEAST_STEP_S, work.weight_bytes * shape.parameters / (BANDWIDTH_SHARE * bytes_per_s))
    profile = Profile(
        rlplan_profile=1,
        job=f"stand-in.{shape.name.lower()}",
        provenance="derived",
        note="A guess by data sheets, so that plans can be made before anything is measured.",
        machine=machine_of(pool),
        model_parameters=shape.parameters,
        rollout=(
            Rollout(
                tp=1, engines=1,
                step_s=step_s, step_s_per_sequence=STEP_S_PER_SEQUENCE,
                curve_sequences=(1, MOST_SEQUENCES),
                curve_s=tuple(step_s + STEP_S_PER_SEQUENCE * n for n in (1, MOST_SEQUENCES)),
                step_s_per_kv_token=kv_bytes / (BANDWIDTH_SHARE * bytes_per_s),
                prefill_s=5e-4, prefill_s_per_token=2.0 * shape.parameters / (MFU * flops),
                kv_capacity_tokens=int(0.5 * pool.accelerators.memory_bytes / kv_bytes), kv_bytes_per_token=kv_bytes,
                start=NOT_MEASURED, sync=NOT_MEASURED, error=0.5,
            ),
        ),
        train=tuple(
            Train(
                dp=1, micro_batch_tokens=tokens, step_s=0.2, error=0.5,
                step_s_per_token=work.update_flops(1.0, 0.0) / (MFU * flops),
                step_s_per_token_squared=work.update_flops(0.0, 1.0) / (MFU * flops),
            )
            for tokens in micro_batch_tokens
        ),
        reward=Reward(workers=1, latency=Spread(p50=1e-3, p95=2e-3, repeats=0), per_sample_s=1e-3),
    )  # fmt: skip
    path = job / "stand-in.yaml"
    dump(profile, path, WRITTEN_DIGITS)
    return path


def solve(parts: Parts, job: Path, shape: Architecture, modes: Sequence[str], name: str = "solve") -> bool:
    """Solve a plan of each mode for the job in a folder, by a stand-in profile; whether all could be."""
    stand_in(job, shape, load_job(job / "job.yaml").search.micro_batch_tokens or ())
    # Forced: without a data sheet of the accelerator a derived profile is taken for one of another machine.
    inputs = ("--force", "--profile", job / "stand-in.yaml", "--trace", job / "lengths.jsonl")
    return all(
        parts.run(f"{name} {mode}", *RLPLAN, "solve", job, *inputs, "--mode", mode, "-o", job / f"{mode}.yaml")
        for mode in modes
    )


def run_figures(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a run's `step` events (at least one): how many of each kind, medians of their seconds, log-probs, weights."""
    metrics = [step["metrics"] for step in steps if "logprob_mean_abs_diff" in step["metrics"]]
    kinds = [str(step["kind"]) for step in steps]
    return {
        "steps": len(steps),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "step_s": statistics.fmean(step["total_s"] for step in steps),
        "seconds": {
            phase: [round(step[f"{phase}_s"], 3) for step in steps] for phase in ("total", "rollout", "train", "sync")
        },
        "tokens": [metric["tokens"] for metric in metrics],
        "logprob_mean": [metric["logprob_mean_abs_diff"] for metric in metrics],
        "weights": sorted({f"{step.get('weights_way', '')} {step.get('weights_slots', '')}".strip() for step in steps}),
    }


def execute_figures(steps: dict[str, list[dict[str, Any]]]) -> Fragment:
    """Of the runs' `step` events by plan: each run's figures; `step_ratio`, seconds of a step of sync over those of one
    of exact; `logprob_mean`, the largest mean of a step's differences between engine and trainer, nats."""
    found: Fragment = {name: run_figures(each) for name, each in steps.items() if each}
    if all(mode in found for mode in MODES):
        found["exact"]["step_ratio"] = round(found["sync"]["step_s"] / found["exact"]["step_s"], 3)
    differences = [value for run in found.values() for value in run["logprob_mean"]]
    return found | ({"logprob_mean": max(differences)} if differences else {})


def follow(out: Path, tell: Callable[[Fragment], None]) -> Callable[[], None]:
    """Returns a function that tells the figures of the runs of `MODES` under `out` whenever one has done a step."""
    traces = {mode: JsonLines(out / mode / "trace.jsonl") for mode in MODES}
    steps: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}

    def look() -> None:
        new = {mode: [event for event in trace.new() if event.get("event") == "step"] for mode, trace in traces.items()}
        for mode, events in new.items():
            steps[mode] += events
        if any(new.values()):
            tell({"execute": execute_figures(steps)})

    return look


def execute(parts: Parts, job: Path, steps: int, out: Path) -> None:
    """Run the plans of `MODES` side by side for so many steps, then report on them. `speedup` is by seconds of a
    trained sample over a cycle, with the long rounds that exact still owes as its plan predicts them."""
    plans = [job / f"{mode}.yaml" for mode in MODES]
    command = (*RLPLAN, "execute", *plans, "--steps", steps, "--out", out, "--json")
    parts.run("execute", *command, look=follow(out, parts.tell))
    if parts.run("report", *RLPLAN, "report", out, "--json"):
        runs = json.loads(parts.outputs["report"])["runs"]
        keys = ("speedup", "on_policy_violations", "conservation_violations", "checksum_mismatches", "restarts")
        parts.tell({"execute": {name: {key: run[key] for key in keys if key in run} for name, run in runs.items()}})


def profile(parts: Parts, job: Path) -> None:
    """Measure the job's profile in the least time; it stays beside the job, with its length trace."""
    command = (*RLPLAN, "profile", job, "--trace-rounds", 1, "--minutes", 1, "--json")
    if parts.run("profile", *command):
        summary = json.loads(parts.outputs["profile"].splitlines()[-1])
        kept = parts.folder / "profiles"
        kept.mkdir()
        for name in ("profile.yaml", "profile.lengths.jsonl"):
            shutil.copy2(job / name, kept)
        parts.tell({"profile": summary | {"path": str(kept / "profile.yaml")}})
