"""Seconds that each step loses because engines and trainers take turns on the same GPUs, and those of checkpoints.

Before an update the engines sleep: their weights go to host memory and their KV cache is freed. After it they wake, and
the trainer's optimizer states, where they live on the GPU, go to host memory and come back for the next update. So each
step pays, whichever layouts follow each other:

    sleep and wake   2 x bytes of an engine's weights on one GPU / rate
    optimizer        2 x bytes of a rank's states / rate

The rate is the one at which vLLM's sleep mode was seen to move weights between host and GPU (profiles/hardware.py,
HOST_LINK_SHARE), which is off by sqrt(2) either way. Moments that are offloaded move while the optimizer steps, which
the training law prices; of such a trainer only the weights take turns with engines.

Measured profiles are not charged: their weight transfer was measured from trainer to engines end to end. On a CPU
engines do not sleep.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...profiles.hardware import GPUS, Gpu, gpu_of
from ...profiles.laws.rank_memory import MASTER_BYTES, STATE_BYTES
from ...profiles.profile_schema import Profile

LINK_ERROR = 0.35
"""Relative standard deviation of `HOST_LINK_SHARE`: the logarithm of sqrt(2), by which both measurements differ from
it."""

HOST_COPY_BYTES_PER_S = 3e9
"""Bytes a second at which a trainer's rank copies a state that is in host memory, and sees that it is finite. Measured
on two busy cores: 3 to 8 GB/s with one rank, 2 to 5 GB/s for each of two."""

WEIGHT_BYTES = 2
"""Engines hold weights in 16 bits."""


def shares_gpus(profile: Profile) -> bool:
    """Whether engines and trainers that take turns on one GPU are priced beside the profile: not if it was measured."""
    return profile.machine.kind == "cuda" and profile.provenance != "measured"


def host_bytes_per_s(gpu: Gpu) -> float:
    """Bytes a second at which weights and optimizer states move between a GPU and host memory."""
    return gpu.host_copy_bytes_per_s


def sleep_and_wake_s(profile: Profile, tp: int) -> float:
    """Seconds a step for engines of `tp` GPUs to sleep and to wake; 0 where that is not priced.

    An accelerator that is in no table of data sheets is taken for the A100 that sleep mode was measured on.
    """
    if not shares_gpus(profile):
        return 0.0
    return 2 * WEIGHT_BYTES * profile.model_parameters / tp / host_bytes_per_s(_gpu(profile))


def _gpu(profile: Profile) -> Gpu:
    return gpu_of(profile.machine.accelerator) or GPUS["A100"]


def optimizer_moves_s(gpu: Gpu, parameters: float, ranks: int, offload: bool) -> float:
    """Seconds a step to bring the float32 weights and both moments of AdamW of a rank to its GPU and back to its host.

    `offload`: moments stay in host memory between updates, so weights move alone.
    """
    return 2 * (MASTER_BYTES if offload else STATE_BYTES) * parameters / ranks / host_bytes_per_s(gpu)


def staging_s(profile: Profile, parameters: float, ranks: int, offload: bool) -> float:
    """Seconds for which training stands still at a checkpoint, while each rank copies its states to host memory.

    States on a GPU come over its host link; those of a CPU, and moments that are offloaded, are copied within the host.
    """
    on_cpu = profile.machine.kind != "cuda"
    device_bytes = 0 if on_cpu else MASTER_BYTES if offload else STATE_BYTES
    link_s = device_bytes / host_bytes_per_s(_gpu(profile))
    return (link_s + (STATE_BYTES - device_bytes) / HOST_COPY_BYTES_PER_S) * parameters / ranks


def turns_text(profile: Profile, kinds: Sequence[tuple[int, int, bool]]) -> str | None:
    """Text on the seconds of a step in which engines and trainers take turns; None where they are not priced.

    `kinds`: of each kind of round (GPUs of an engine, ranks of the trainer, whether its optimizer is offloaded).
    """
    if not shares_gpus(profile):
        return None
    sleeps = [sleep_and_wake_s(profile, tp) for tp, _, _ in kinds]
    moves = [0.0] * len(kinds)
    if profile.train_law is not None:
        gpu = _gpu(profile)
        moves = [optimizer_moves_s(gpu, profile.model_parameters, ranks, offload) for _, ranks, offload in kinds]
    states = "trainers' weights" if all(offload for *_, offload in kinds) else "optimizer states"
    return (
        f"engines sleep and wake in {_seconds(sleeps)} of each step, {states} leave the GPUs and come back in "
        f"{_seconds(moves)}"
    )


def _seconds(values: Sequence[float]) -> str:
    """Text: one figure, or one for each kind of round if they differ."""
    texts = list(dict.fromkeys(f"{value:.2g} s" for value in values))
    return texts[0] if len(texts) == 1 else f"{texts[0]} (short rounds) or {texts[-1]} (long rounds)"
