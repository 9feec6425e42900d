"""Compare the samples and weights of a run under faults with those of the same run without faults."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from rlplan.executor.records.checkpoints import checkpoints
from rlplan.traces.run_log import TRACE, RunLog, read_run

from .campaign import Campaign

Sample = tuple[str, int, int]

ROUNDING = 1e-6
MOST_BEYOND = 1e-3
"""Share of weights that may differ by more than ROUNDING. How an engine rounds depends on the batch that a sample
decodes in, and Adam turns the rounding of a tiny gradient into a whole step; a step of the demo moves weights by 50
times ROUNDING."""


def trained(log: RunLog) -> Counter[Sample]:
    """How often each (prompt, epoch, place in its group) was trained; steps that a resume repeated count once."""
    samples: Counter[Sample] = Counter()
    for step in log.steps:
        groups: dict[tuple[str, int], int] = {}
        for sample in log.samples.get(step.step, []):
            if sample.fate == "trained":
                group = (sample.prompt, sample.epoch)
                samples[(*group, groups.get(group, 0))] += 1
                groups[group] = groups.get(group, 0) + 1
    return samples


def responses(log: RunLog) -> dict[tuple[str, int, int], list[str]]:
    """By prompt, epoch and step: number, tokens and reward of each trained sample, in the order of the group."""
    found: dict[tuple[str, int, int], list[str]] = {}
    for step in log.steps:
        rows = [sample for sample in log.samples.get(step.step, []) if sample.fate == "trained"]
        for sample in sorted(rows, key=lambda each: each.sample):
            row = f"{sample.sample}: {sample.tokens} tokens, reward {sample.reward}"
            found.setdefault((sample.prompt, sample.epoch, step.step), []).append(row)
    return found


def off_policy(log: RunLog) -> int:
    """Trained samples that were not decoded, from first to last token, by the weights of their step."""
    return sum(
        len(set(sample.version)) != 1 or not sample.version[0].endswith(f":{step - 1}")
        for step, samples in log.samples.items()
        for sample in samples
        if sample.fate == "trained"
    ) + sum(step.on_policy_violations for step in log.steps)


def compare(reference_out: Path, faults: Path, done: Campaign) -> dict[str, Any]:
    """The JSON result of the benchmark."""
    reference, log = read_run(reference_out / TRACE), read_run(faults / TRACE)
    wanted, actual = trained(reference), trained(log)
    drawn, drawn_again = responses(reference), responses(log)
    return {
        "faults": sum(done.faults.values()),
        "kinds": len(done.faults),
        "lost": sum((wanted - actual).values()),
        "double": sum((actual - wanted).values()),
        "off_policy": off_policy(log),
        "unrecovered": done.unrecovered,
        "left_processes": done.left_processes,
        "steps": len(log.steps),
        "samples": sum(actual.values()),
        "different": sum(drawn.get(key) != drawn_again.get(key) for key in drawn.keys() | drawn_again.keys()),
        **weights_difference(reference_out, faults),
        "weights_moved": weights_moved(reference_out),
        "seconds_with_faults": round(done.seconds, 1),
        "driver_starts": done.driver_starts,
        "by_kind": dict(sorted(done.faults.items())),
    }


def wrong(verdict: dict[str, Any], count: int) -> list[str]:
    """Texts on each sign that the run did not recover from every fault; [] if it did. `count`: faults requested."""
    complaints = [f"{verdict['faults']} of {count} faults struck"] if verdict["faults"] != count else []
    complaints += [
        f"{name} is {verdict[name]} and not 0"
        for name in ("lost", "double", "off_policy", "unrecovered", "left_processes", "different")
        if verdict[name] != 0
    ]
    if verdict["weights_beyond"] > MOST_BEYOND:
        share = f"{verdict['weights_beyond']:.2%} of the weights"
        complaints.append(f"{share} differ by more than {ROUNDING:g}, which is no rounding")
    return complaints


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The model's parameters in a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.pt"
        dcp_to_torch_save(checkpoint / "trainer", whole)
        state: dict[str, dict[str, torch.Tensor]] = torch.load(whole, weights_only=True)
    return state["model"]


def weights_difference(reference_out: Path, faults: Path) -> dict[str, float]:
    """The largest difference of any weight at the runs' ends, and the share of weights beyond ROUNDING."""
    first, second = (weights(checkpoints(run)[-1]) for run in (reference_out, faults))
    apart = torch.cat([(first[name] - second[name]).abs().flatten() for name in first])
    return {"weights_max_difference": float(apart.max()), "weights_beyond": float((apart > ROUNDING).double().mean())}


def weights_moved(run: Path) -> float:
    """The mean distance by which a run's last step moved a weight, to compare `weights_max_difference` with."""
    before, after = (weights(checkpoint) for checkpoint in checkpoints(run)[-2:])
    moved = torch.cat([(after[name] - before[name]).abs().flatten() for name in after])
    return float(moved.mean())
