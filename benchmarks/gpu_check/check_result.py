"""Puts the result of the GPU check together, from what `rlplan report --json` and the traces say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Lines = list[tuple[int, dict[str, Any]]]

REPORTED = (
    "steps", "step_s", "step_s_predicted", "prediction_error", "phases_s", "speedup", "speedup_predicted",
    "logprob_max_abs_diff", "logprob_mean_abs_diff", "logprob_p99_abs_diff", "logprob_beyond_share",
    "on_policy_violations", "conservation_violations", "checksum_mismatches", "skipped_steps", "restarts",
    "trained_mean_tokens", "incidents",
)  # fmt: skip
"""Figures of a run that are taken over from its report, where it has them."""


def trace_lines(path: Path) -> Lines:
    """The events of a trace, each with the bytes of the file up to its end; a torn last line is left out."""
    lines: Lines = []
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        if line.endswith(b"\n"):
            lines.append((end, json.loads(line)))
    return lines


def weights_figures(lines: Lines) -> dict[str, Any]:
    """How weights went to the engines in a run's steps: ways with their counts, bytes, and the median of the seconds;
    and, where they could not go on the way that was wanted, why."""
    steps = [event for _, event in lines if event["event"] == "step"]
    ways = [str(step.get("weights_way", "")) for step in steps]
    why = [str(event["reason"]) for _, event in lines if event["event"] == "weights"]
    return {
        "ways": {way: ways.count(way) for way in sorted(set(ways))},
        "bytes": max((int(step.get("weights_bytes", 0)) for step in steps), default=0),
        "sync_s": statistics.median(float(step["sync_s"]) for step in steps) if steps else None,
        **({"reasons": why} if why else {}),
    }


def run_figures(report: Mapping[str, Any], traces: Mapping[str, Lines]) -> dict[str, dict[str, Any]]:
    """Of each run of a report: its figures beside what was predicted, and how its weights went."""
    return {
        name: {key: detail[key] for key in REPORTED if key in detail}
        | {"weights": weights_figures(traces.get(name, []))}
        for name, detail in report["runs"].items()
    }


def assembled(machine: Mapping[str, Any], shapes: Mapping[str, Any], untried: Mapping[str, str]) -> dict[str, Any]:
    """The whole result. `ok`: at least one shape was tried, no part failed, and no run broke an invariant."""
    failed = [
        f"{name} {part}"
        for name, shape in shapes.items()
        for part, outcome in shape["parts"].items()
        if not outcome["ok"]
    ]
    broken = [
        f"{name} {run}: {key}"
        for name, shape in shapes.items()
        for run, figures in shape.get("runs", {}).items()
        for key in ("on_policy_violations", "conservation_violations", "checksum_mismatches")
        if figures.get(key)
    ]
    return {
        "machine": dict(machine),
        "shapes": dict(shapes),
        "untried": dict(untried),
        "failed": failed,
        "broken": broken,
        "ok": bool(shapes) and not failed and not broken,
    }


def untried_ways(devices: int, kind: str, ways: Sequence[str]) -> dict[str, str]:
    """What the check has not tried of how weights can travel, with the reason. `ways`: those that runs used."""
    untried = {}
    if kind == "cpu":
        untried["sleep"] = "engines on a CPU hold no device memory that sleep could free; needs --device cuda"
    if devices < 2:
        untried["nccl"] = f"NCCL between a trainer and an engine needs two GPUs, and {devices} is there"
    elif kind == "cuda":
        untried["nccl"] = "the executor has no way of weights by NCCL yet; they go through the memory of the node"
    untried["ipc"] = "the executor has no way of weights by CUDA IPC yet; they go through the memory of the node"
    for way in ("broadcast", "file"):
        if ways and way not in ways:
            untried[f"weights by {way}"] = "no run of the check used it"
    return untried
