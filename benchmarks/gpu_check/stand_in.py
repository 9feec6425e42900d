"""A profile to go on with where `rlplan profile` failed, so that plans can be solved and executed all the same.

It is the shipped profile of Qwen2.5-7B on the same GPU, with decoding, prefill and the bytes of KV scaled to the shape.
What it predicts is a guess; that plans run, log-probs agree, engines sleep and weights travel does not rest on it.
"""

from __future__ import annotations

import math
from pathlib import Path

from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump
from rlplan.profiles.hardware import gpu_of
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import Rollout
from rlplan.profiles.profile_schema import Profile

from .random_policy import CAP, MEAN_TOKENS
from .shapes import Shape

SHIPPED = "Qwen2.5-7B"
LEAST_STEP_S = 2e-3
"""Seconds of a decode step that no small model falls below: the launches of its kernels, and the engine's own work."""


def write_stand_in(job: Path, shape: Shape) -> Path:
    """Write `stand-in.yaml` into the folder of a job, for a model of `shape` on the GPU of its cluster.yaml.

    Returns its path. Raises InputError if no profile of that GPU ships.
    """
    accelerator = load_cluster(job / "cluster.yaml").pools["main"].accelerators
    gpu = gpu_of(accelerator.name)
    if gpu is None:
        raise InputError(f"no profile of accelerator {accelerator.name!r} ships that could stand in")
    path = job / "stand-in.yaml"
    dump(stand_in(library_profile(gpu.name, SHIPPED), shape), path, WRITTEN_DIGITS)
    return path


def stand_in(shipped: Profile, shape: Shape) -> Profile:
    """The shipped profile, scaled to a shape by its parameters."""
    architecture = shape.architecture
    assert shipped.train_law is not None, "shipped profiles have a law of the trainer"
    ratio = architecture.parameters / shipped.model_parameters
    kv_bytes = 2 * architecture.kv_values_per_token
    return shipped.model_copy(
        update={
            "job": f"stand-in.{architecture.name.lower()}",
            "note": f"{SHIPPED} scaled to {architecture.name}: a guess, because rlplan profile failed.",
            "model_parameters": architecture.parameters,
            "rollout": tuple(_scaled(entry, ratio, kv_bytes) for entry in shipped.rollout if entry.tp == 1),
            "train_law": shipped.train_law.model_copy(update={"model": architecture.name}),
        }
    )


def _scaled(entry: Rollout, ratio: float, kv_bytes: int) -> Rollout:
    """The costs of an engine whose model has `ratio` times the parameters, and `kv_bytes` bytes of KV a token."""
    kv_ratio = kv_bytes / entry.kv_bytes_per_token
    return entry.model_copy(
        update={
            "step_s": max(entry.step_s * ratio, LEAST_STEP_S),
            "step_s_per_sequence": entry.step_s_per_sequence * ratio,
            "step_s_per_kv_token": entry.step_s_per_kv_token * kv_ratio,
            "prefill_s_per_token": entry.prefill_s_per_token * ratio,
            "kv_capacity_tokens": int(entry.kv_capacity_tokens / kv_ratio),
            "kv_bytes_per_token": kv_bytes,
            "curve_s": tuple(max(seconds * ratio, LEAST_STEP_S) for seconds in entry.curve_s),
        }
    )


def guessed_lengths(device: str) -> str:
    """What `rlplan solve --lengths` takes for lengths that are geometric with the mean that the policy was given,
    whatever the prompt."""
    cap = CAP[device]
    p50, p95 = (min(cap, math.ceil(MEAN_TOKENS[device] * math.log(1 / (1 - share)))) for share in (0.5, 0.95))
    return f"p50={p50},p95={p95},max={cap},icc=0.05"
