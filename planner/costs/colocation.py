"""Seconds that each step loses because engines and trainers take turns on the same GPUs, and those of checkpoints.

The order of the turns, and the bytes that each of them frees, takes and moves, are those of the executor
(rounds/step_order.py on the ledger of rounds/device_ledger.py). A step pays for them whichever layouts follow each
other:

    engines     sleep drops weights and KV cache (level 2), so nothing crosses the host link: memory is unmapped, and
                mapped again when they wake: bytes / MAP_BYTES_PER_S. The new weights come with the weight transfer
    trainer     what does not fit on the GPU beside the engines (memory_table.py) goes to host memory, and comes back
                for the next update: bytes / rate of the host link

That rate is the one at which vLLM's sleep mode of level 1 was seen to move weights between host and GPU
(profiles/hardware.py, HOST_LINK_SHARE), which is off by sqrt(2) either way. Moments that are offloaded move while the
optimizer steps, which the training law prices at the same rate; of such a trainer only the weights take turns with
engines.

Of a measured profile both are as they were measured; one that does not say is not charged. On a CPU engines do not
sleep. Trainers with a pool of their own (job_pools.py) take no turns, and nothing here is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ...plans.schema.cluster import Pool
from ...plans.schema.levers import UpdateLayout
from ...profiles.hardware import GPUS, Gpu, gpu_of
from ...profiles.laws.rank_memory import MASTER_BYTES, STATE_BYTES
from ...profiles.laws.train_layouts import train_physics
from ...profiles.profile_schema import Profile
from .memory_table import DeviceMemory, Engines, device_bytes, reference_bytes, trained_parameters

LINK_ERROR = 0.35
"""Relative standard deviation of `HOST_LINK_SHARE`: the logarithm of sqrt(2), by which both measurements differ from
it. Those of `MAP_BYTES_PER_S` differ from it by a factor of 1.3."""

MAP_BYTES_PER_S = 217e9
"""Bytes of a GPU a second that an engine frees at sleep level 2, or takes when it wakes.

Sleep of level 2 on an A100 freed 32.13 GiB in 0.12 s and 47.40 GiB in 0.31 s (vllm-project/vllm pull request 48337):
287 and 164 GB/s, of which this is the geometric mean. Waking took 1.6 times as long as sleeping where both were seen
without the weights' reload (0.085 s and 0.053 s, issue 29341).
"""

HOST_COPY_BYTES_PER_S = 3e9
"""Bytes a second at which a trainer's rank copies a state that is in host memory, and sees that it is finite. Measured
on two busy cores: 3 to 8 GB/s with one rank, 2 to 5 GB/s for each of two."""


def shares_gpus(profile: Profile) -> bool:
    """Whether engines and trainers that take turns on one GPU are priced by data sheets: not if it was measured."""
    return profile.machine.kind == "cuda" and profile.provenance != "measured"


def turns_known(profile: Profile) -> bool:
    """Whether seconds of turns on shared GPUs are known, by data sheets or as measured."""
    return shares_gpus(profile) or any(entry.wake_s is not None for entry in profile.rollout)


def sleep_and_wake_s(profile: Profile, tp: int) -> float:
    """Seconds a step for engines of `tp` GPUs to sleep and to wake: as measured, else by data sheets; 0 where neither
    tells.

    An accelerator that is in no table of data sheets is taken for the A100 that sleep mode was measured on.
    """
    entry = next(entry for entry in profile.rollout if entry.tp == tp)
    if not shares_gpus(profile):
        return (entry.sleep_s or 0.0) + (entry.wake_s or 0.0)
    device = DeviceMemory(profile, _gpu(profile).memory_bytes)
    moves, _ = device.step(device.engine(Engines(entry, entry.layout)))
    link_s = sum(move.link_bytes for move in moves) / _gpu(profile).host_copy_bytes_per_s
    return link_s + sum(move.mapped_bytes for move in moves) / MAP_BYTES_PER_S


def _gpu(profile: Profile) -> Gpu:
    return gpu_of(profile.machine.accelerator) or GPUS["A100"]


def state_moves_s(profile: Profile, layout: UpdateLayout) -> float:
    """Seconds a step to bring a trainer rank's states to its GPU and back to its host beside engines that take turns
    with it, as measured or by the training law; 0 where they stay on the GPU, and where neither tells.

    By the law, whether they stay is told by the data sheet of the law's GPU, as its other seconds are.
    """
    measured = [
        entry.moves_s for entry in profile.train if entry.layout == layout.trained and entry.moves_s is not None
    ]
    physics = train_physics(profile.train_law)
    if measured or physics is None:
        return measured[0] if measured else 0.0
    device = DeviceMemory(profile, physics.gpu.memory_bytes)
    moves, _ = device.step(trainer=device.trainer(layout))
    return sum(move.link_bytes for move in moves) / physics.gpu.host_copy_bytes_per_s


def reference_move_s(profile: Profile, layout: UpdateLayout) -> float:
    """Seconds of an update to bring a rank's part of the reference from host memory to its device; 0 where it stays
    there. On a CPU it is copied within the host."""
    if layout.reference != "host":
        return 0.0
    rate = _gpu(profile).host_copy_bytes_per_s if profile.machine.kind == "cuda" else HOST_COPY_BYTES_PER_S
    return reference_bytes(profile, layout) / rate


def staging_s(profile: Profile, layout: UpdateLayout) -> float:
    """Seconds for which training stands still at a checkpoint, while each rank copies its states to host memory.

    States on a GPU come over its host link; those of a CPU, and moments that are offloaded, are copied within the host.
    """
    on_cpu = profile.machine.kind != "cuda"
    device_bytes = 0 if on_cpu else MASTER_BYTES if layout.offload else STATE_BYTES
    link_s = device_bytes / _gpu(profile).host_copy_bytes_per_s
    return (link_s + (STATE_BYTES - device_bytes) / HOST_COPY_BYTES_PER_S) * trained_parameters(profile, layout)


class TurnsTake(NamedTuple):
    """Seconds of a step in which engines sleep and wake, and in which trainers' states leave a GPU and come back."""

    engines_s: float
    trainers_s: float


def turns_take(profile: Profile, pool: Pool, engines: Engines, trainers: UpdateLayout) -> TurnsTake:
    """What the turns of engines and trainers on a pool take: nothing where both fit on a device at once, and nothing
    for states that stay beside engines whose KV cache is as large as their rounds need."""
    sleep_s, moves_s = sleep_and_wake_s(profile, engines.layout.tp), state_moves_s(profile, trainers)
    if pool.accelerators.kind != "cuda" or engines.kv_tokens is None or not (sleep_s or moves_s):
        return TurnsTake(sleep_s, moves_s)
    shared, _, _ = DeviceMemory(profile, device_bytes(profile, pool)).shared(engines, trainers, [engines])
    if not shared.beside["trainer"]:
        return TurnsTake(0.0, 0.0)
    on_device = shared.holders["trainer"].on_device
    return TurnsTake(sleep_s, 0.0 if on_device["offloaded"] == on_device["loaded"] else moves_s)


def turns_of(profile: Profile, pool: Pool, engines: Engines) -> Callable[[int, UpdateLayout], TurnsTake]:
    """What turns take (`turns_take`), by KV tokens of an engine and layout of trainers."""

    @cache
    def seconds(kv_tokens: int, trainers: UpdateLayout) -> TurnsTake:
        return turns_take(profile, pool, replace(engines, kv_tokens=kv_tokens), trainers)

    return seconds


def turns_text(profile: Profile, kinds: Sequence[tuple[int, UpdateLayout, TurnsTake]]) -> str | None:
    """Text on the seconds of a step in which engines and trainers take turns, and on those that are saved by KV caches
    no larger than rounds need; None where turns are not priced.

    `kinds`: of each kind of round (GPUs of an engine, the trainers' layout, what its turns take).
    """
    if not turns_known(profile):
        return None
    states = "trainers' weights" if all(layout.offload for _, layout, _ in kinds) else "optimizer states"
    saved = [sleep_and_wake_s(profile, tp) + state_moves_s(profile, layout) - sum(take) for tp, layout, take in kinds]
    because = f"KV caches no larger than rounds need save {_seconds(saved)} of each step"
    if not any(sum(take) for _, _, take in kinds):
        return f"engines stay awake and {states} stay on the GPUs; {because}" if any(saved) else None
    text = f"engines sleep and wake in {_seconds([take.engines_s for _, _, take in kinds])} of each step"
    moves = [take.trainers_s for _, _, take in kinds]
    if any(moves):
        text = f"{text}, {states} leave the GPUs and come back in {_seconds(moves)}"
        return f"{text}; {because}" if any(saved) else text
    if any(saved):
        return f"{text}, {states} stay on the GPUs; {because}"
    return f"{text}, {states} stay on the GPUs" if profile.train_law is not None else text


def _seconds(values: Sequence[float]) -> str:
    """Text: one figure, or one for each kind of round if they differ."""
    texts = list(dict.fromkeys(f"{value:.2g} s" for value in values))
    return texts[0] if len(texts) == 1 else f"{texts[0]} (short rounds) or {texts[-1]} (long rounds)"
