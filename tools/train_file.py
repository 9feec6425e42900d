"""Reads public trainer measurements and fits the training law to them.

CSV, one row per run: device, num_gpus, model, lora_rank (empty: all parameters are trained), seq_len, ac (activation
checkpointing), attn, micro_batches, success, step_time_s, peak_mem_gib, type. Each GPU trains `micro_batches` sequences
of `seq_len` tokens a step under fully sharded data parallelism. Runs of what rlplan does not do are left out: adapters,
activations kept in host memory, and on Hopper the attention kernels of the generation before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.hardware import Gpu, gpu_of
from rlplan.profiles.laws.factor_fit import Factor, Factors, fit_factors
from rlplan.profiles.laws.rank_memory import train_memory
from rlplan.profiles.laws.train_law import FACTORS, TrainPhysics

from .published_csv import csv_rows, not_a_number

Array = NDArray[np.float64]

COLUMNS = (
    "type", "device", "num_gpus", "model", "lora_rank", "seq_len", "ac", "attn", "micro_batches", "success",
    "step_time_s", "peak_mem_gib",
)  # fmt: skip
HOPPER = ("H100", "H200", "H800", "H20", "GH200")  # flash attention 3 is for these
MEMORY_FACTORS = (Factor("activations", 0.0, 0.3), Factor("rest", 0.0, 0.15))


@dataclass(frozen=True)
class TrainRun:
    """One public measurement of a training step."""

    model: str
    device: str
    architecture: Architecture
    gpu: Gpu
    layout: UpdateLayout
    micro_batches: int
    policy_loss: bool
    seconds: float
    peak_bytes: float

    def predict_s(self, factors: dict[str, float]) -> float:
        """Seconds of the step under these factors."""
        physics = TrainPhysics(self.architecture, self.gpu, factors)
        length = self.layout.micro_batch_tokens
        batch_s = physics.micro_batch_s(self.layout) + length * physics.token_s(self.layout, self.policy_loss)
        batch_s += length**2 * physics.pair_s(self.layout)
        return physics.step_s(self.layout) + self.micro_batches * batch_s


def read_runs(path: str | Path) -> list[TrainRun]:
    """The runs that this model is for (see above), of models and GPUs that are known. Raises InputError."""
    runs: list[TrainRun] = []
    for line, row in csv_rows(path, COLUMNS):
        try:
            run = _run(row)
        except ValueError as error:
            raise not_a_number(error, path, line) from None
        if run is not None:
            runs.append(run)
    if not runs:
        raise InputError("has no run of a known model on a known GPU", str(path))
    return runs


def _run(row: dict[str, str]) -> TrainRun | None:
    architecture, gpu = architecture_of(row["model"]), gpu_of(row["device"])
    is_known = architecture is not None and not architecture.guessed and gpu is not None
    alike = row["success"] == "True" and row["ac"] == "Recompute" and not row["lora_rank"]
    if not is_known or not alike:
        return None
    assert architecture is not None and gpu is not None
    if row["attn"] == "flash_attention_2" and gpu.name.partition("-")[0] in HOPPER:
        return None
    return TrainRun(
        model=architecture.name,
        device=gpu.name,
        architecture=architecture,
        gpu=gpu,
        layout=UpdateLayout(dp=int(row["num_gpus"]), micro_batch_tokens=int(row["seq_len"]), recompute="full"),
        micro_batches=int(row["micro_batches"]),
        policy_loss=row["type"] == "rl",
        seconds=float(row["step_time_s"]),
        peak_bytes=float(row["peak_mem_gib"]) * 2**30,
    )


def fit_time(runs: Sequence[TrainRun]) -> Factors:
    """Fitted factors of the training formula's seconds."""
    return fit_factors(FACTORS, lambda logs: _seconds(runs, logs), np.array([run.seconds for run in runs]))


def _seconds(runs: Sequence[TrainRun], logs: Array) -> Array:
    factors = {factor.name: math.exp(value) for factor, value in zip(FACTORS, logs.tolist(), strict=True)}
    return np.array([run.predict_s(factors) for run in runs])


def fit_memory(runs: Sequence[TrainRun]) -> Factors:
    """Fitted memory factors (activations, rest), from runs with a policy loss, which is computed in chunks."""
    return fit_factors(MEMORY_FACTORS, lambda logs: _peaks(runs, logs), np.array([run.peak_bytes for run in runs]))


def _peaks(runs: Sequence[TrainRun], logs: Array) -> Array:
    factors = {factor.name: math.exp(value) for factor, value in zip(MEMORY_FACTORS, logs.tolist(), strict=True)}
    # What was measured is what torch reserved (prime-rl logs max_memory_reserved): no context is part of it.
    memories = (
        train_memory(run.architecture, run.layout, on_gpu=False, micro_batches=run.micro_batches) for run in runs
    )
    return np.array([float(memory.scaled(factors).peak_bytes) for memory in memories])


def left_out_errors(
    runs: Sequence[TrainRun],
    key: Callable[[TrainRun], str],
    fit: Callable[[Sequence[TrainRun]], Factors],
    predict: Callable[[Sequence[TrainRun], Array], Array],
    measured: Callable[[TrainRun], float],
) -> dict[str, float]:
    """Mean relative error on the runs of each value of `key`, fitted on the others."""
    errors = {}
    for value in sorted({key(run) for run in runs}):
        out = [run for run in runs if key(run) == value]
        rest = [run for run in runs if key(run) != value]
        if rest:
            predicted = predict(out, fit(rest).logs)
            errors[value] = float(np.mean(np.abs(predicted / np.array([measured(run) for run in out]) - 1)))
    return errors


def time_errors(runs: Sequence[TrainRun], key: Callable[[TrainRun], str]) -> dict[str, float]:
    """Mean relative error of step seconds on left-out runs, by value of `key`."""
    return left_out_errors(runs, key, fit_time, _seconds, lambda run: run.seconds)


def memory_errors(runs: Sequence[TrainRun], key: Callable[[TrainRun], str]) -> dict[str, float]:
    """Mean relative error of peak memory on left-out runs, by value of `key`."""
    return left_out_errors(runs, key, fit_memory, _peaks, lambda run: run.peak_bytes)
