"""Bytes that engines and trainers hold on an accelerator, by phase; memory_table.py lists the assumptions."""

from __future__ import annotations

from ...plans.schema.cluster import Pool
from ...plans.schema.sections.layouts import UpdateLayout
from ...profiles.laws.rank_memory import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES, UTILISATION, train_memory
from ...profiles.laws.train_law import TrainPhysics
from ...profiles.laws.train_layouts import MEMORY_SHARE, peak_bytes, physics_of
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
    gathered = moments.get("micro_batch", {}).get("trainer_gathered_weights", 0.0)
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

    A measured update says its peak, or nothing; else the law tells, whose peak is that of
    profiles/laws/train_layouts.py.
    """
    entry, physics = measured_update(profile, layout), _physics(profile)
    if entry is None and physics is not None and profile.train_law is not None:
        factors = profile.train_law.memory_factors
        memory, rest = train_memory(physics.architecture, layout, factors["activations"]), factors["rest"]
        kept = {name: rest * size for name, size in memory.kept.items()}
        moments = {moment: {n: rest * size for n, size in held.items()} for moment, held in memory.moments.items()}
        batch = moments["micro_batch"]
        activations = memory.moments["micro_batch"]["trainer_activations"]
        batch["trainer_activations"] = 0.0
        # The factor of the rest is that of the largest moment, which activations may make another one.
        room = peak_bytes(physics, layout, factors) - sum(kept.values()) - sum(batch.values())
        batch["trainer_activations"] = max(0.0, min(activations, room))
        return kept, moments, True
    kept = {
        **_state(profile, layout),
        "trainer_gradients": GRADIENT_BYTES * profile.model_parameters / layout.accelerators,
    }
    if entry is None or not entry.peak_bytes:
        return kept, {}, False
    held = sum(kept.values())
    if held > entry.peak_bytes:  # it keeps less than float32 masters; of what was measured the shares are guessed
        return {name: size * entry.peak_bytes / held for name, size in kept.items()}, {}, True
    return kept, {"micro_batch": {"trainer_activations": entry.peak_bytes - held}}, True


def stays_on_device(profile: Profile, pool: Pool, weight_bytes: float, layout: UpdateLayout) -> bool:
    """Whether a trainer's parameters and optimizer stay on its GPU while engines decode there, whichever these are."""
    if layout.offload or pool.accelerators.kind == "cpu":
        return False
    engines = (Engines(entry, entry.layout) for entry in profile.rollout)
    held = max(sum(engine_on_device(profile, pool, weight_bytes, each).values()) for each in engines)
    return sum(_state(profile, layout).values()) <= MEMORY_SHARE * device_bytes(profile, pool) - held


def _state(profile: Profile, layout: UpdateLayout) -> dict[str, float]:
    """Bytes of a rank's parameters and optimizer on its GPU, none where they are offloaded."""
    share = 0.0 if layout.offload else profile.model_parameters / layout.accelerators
    return {"trainer_parameters": share * MASTER_BYTES, "trainer_optimizer": share * MOMENT_BYTES}


def _physics(profile: Profile) -> TrainPhysics | None:
    """Training physics of the profile's law; None without a law, or if its model or GPU is in no table."""
    if profile.train_law is None:
        return None
    try:
        return physics_of(profile.train_law)
    except ValueError:
        return None
