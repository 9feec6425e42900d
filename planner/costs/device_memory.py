"""Bytes that engines and trainers hold on an accelerator, by phase; memory_table.py lists the assumptions."""

from __future__ import annotations

from ...plans.schema.cluster import Pool
from ...plans.schema.sections.layouts import UpdateLayout
from ...profiles.laws.rank_memory import (
    GRADIENT_BYTES,
    MASTER_BYTES,
    MOMENT_BYTES,
    UTILISATION,
    rank_parameters,
)
from ...profiles.laws.train_law import TrainPhysics
from ...profiles.laws.train_layouts import MEMORY_SHARE, fitted_memory, physics_of
from ...profiles.profile_schema import Profile
from .memory_bars import Bar, Engines
from .update_costs import measured_update


def device_bars(
    profile: Profile, pool: Pool, weight_bytes: float, engines: Engines, trainers: UpdateLayout | None, kind: int = 0
) -> list[Bar]:
    """The memory bars of a device, one for each phase; without trainers, of engines alone. On CPUs only the KV space of
    engines is bounded."""
    if pool.accelerators.kind == "cpu":
        kv = engines.entry.kv_capacity_tokens * engines.entry.kv_bytes_per_token / engines.layout.tp
        # Each rank of an engine is given the space of all its cores (executor/engines/fleet.py; vLLM counts it by
        # rank).
        return [
            Bar("device", "rollout", kind, {"kv_cache": kv}, {}, engines.layout.tp * pool.accelerators.memory_bytes)
        ]
    capacity = device_bytes(profile, pool)
    held, asleep = engine_on_device(profile, pool, weight_bytes, engines), (1 - MEMORY_SHARE) * capacity
    decoding = {**held, "asleep": asleep}
    travelling = {name: size for name, size in decoding.items() if name != "kv_cache"}
    if trainers is None:
        return [
            Bar("device", "rollout", kind, decoding, {}, capacity),
            Bar("device", "sync", kind, travelling, {}, capacity),
        ]
    state = _state(profile, trainers)
    stays = state if stays_on_device(profile, pool, weight_bytes, trainers) else {}
    kept, moments, complete = trainer_on_device(profile, trainers)
    gathered = moments.get("loss", {}).get("trainer_gathered_weights", 0.0)
    parameters = {"trainer_parameters": state["trainer_parameters"], "trainer_gathered_weights": gathered}
    return [
        Bar("device", "rollout", kind, {**decoding, **stays}, {}, capacity),
        Bar("device", "train", kind, {**kept, "asleep": asleep}, moments, capacity, complete),
        Bar("device", "sync", kind, {**travelling, **parameters, **stays}, {}, capacity),
    ]


def device_bytes(profile: Profile, pool: Pool) -> int:
    """Memory of an accelerator that may be planned with: as the cluster says, and no more than the data sheet does of
    the one that a law is of."""
    stated, physics = pool.accelerators.memory_bytes, _physics(profile)
    return stated if physics is None else min(stated, physics.gpu.memory_bytes)


def engine_on_device(profile: Profile, pool: Pool, weight_bytes: float, engines: Engines) -> dict[str, float]:
    """Bytes that an engine that is awake holds on each of its GPUs, by what holds them."""
    entry, tp = engines.entry, engines.layout.tp
    physics = _physics(profile)
    shape = None if physics is None else physics.architecture
    # Ranks beyond the KV heads hold copies of them.
    ranks = tp if shape is None else min(tp, 1 if shape.latent_kv else shape.kv_heads)
    weights = weight_bytes * profile.model_parameters / tp
    kv = entry.kv_capacity_tokens * entry.kv_bytes_per_token / ranks
    left = UTILISATION * device_bytes(profile, pool) - weights - kv
    return {"engine_weights": weights, "kv_cache": kv, "engine_activations_and_graphs": max(0.0, left)}


def trainer_on_device(
    profile: Profile, layout: UpdateLayout
) -> tuple[dict[str, float], dict[str, dict[str, float]], bool]:
    """(bytes that a trainer's GPU holds while it trains, bytes more at one moment each, whether that is all of it).

    A measured update says its peak, or nothing; else the law tells, with its fitted factors.
    """
    entry, physics = measured_update(profile, layout), _physics(profile)
    if entry is None and physics is not None and profile.train_law is not None:
        memory = fitted_memory(physics, layout, profile.train_law.memory_factors)
        return memory.kept, memory.moments, True
    kept = {
        **_state(profile, layout),
        "trainer_gradients": GRADIENT_BYTES * trained_parameters(profile, layout),
    }
    if entry is None or not entry.peak_bytes:
        return kept, {}, False
    held = sum(kept.values())
    if held > entry.peak_bytes:  # it keeps less than float32 masters; of what was measured the shares are guessed
        return {name: size * entry.peak_bytes / held for name, size in kept.items()}, {}, True
    return kept, {"backward": {"trainer_activations": entry.peak_bytes - held}}, True


def stays_on_device(profile: Profile, pool: Pool, weight_bytes: float, layout: UpdateLayout) -> bool:
    """Whether what a trainer keeps on its GPU between updates stays there while engines decode, whichever these are.

    That is its parameters, and its optimizer if it is not offloaded.
    """
    if pool.accelerators.kind == "cpu":
        return False
    engines = (Engines(entry, entry.layout) for entry in profile.rollout)
    held = max(sum(engine_on_device(profile, pool, weight_bytes, each).values()) for each in engines)
    return sum(_state(profile, layout).values()) <= MEMORY_SHARE * device_bytes(profile, pool) - held


def trained_parameters(profile: Profile, layout: UpdateLayout) -> float:
    """Parameters that a trainer rank keeps in float32; an equal share where the profile names no known model."""
    physics = _physics(profile)
    if physics is None or not physics.trainer.sharded:
        return profile.model_parameters / layout.accelerators
    return rank_parameters(physics.architecture, layout)


def _state(profile: Profile, layout: UpdateLayout) -> dict[str, float]:
    """Bytes of a rank's parameters and optimizer on its GPU; of the optimizer none where it is offloaded."""
    share = trained_parameters(profile, layout)
    moments = 0.0 if layout.offload else share * MOMENT_BYTES
    return {"trainer_parameters": share * MASTER_BYTES, "trainer_optimizer": moments}


def _physics(profile: Profile) -> TrainPhysics | None:
    """Training physics of the profile's law; None without a law, or if its model or GPU is in no table."""
    if profile.train_law is None:
        return None
    try:
        return physics_of(profile.train_law)
    except ValueError:
        return None
