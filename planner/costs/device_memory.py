"""Bytes that engines and trainers hold on an accelerator, by phase; memory_table.py lists the assumptions."""

from __future__ import annotations

from ...plans.schema.cluster import Pool
from ...plans.schema.sections.layouts import UpdateLayout
from ...profiles.laws.rank_memory import GRADIENT_BYTES
from ...profiles.laws.train_layouts import MEMORY_SHARE, fitted_memory
from ...profiles.profile_schema import Profile
from .colocation import engine_on_device, stays_on_device, train_physics, trained_parameters, trainer_state
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
    held, asleep = engine_on_device(profile, capacity, weight_bytes, engines), (1 - MEMORY_SHARE) * capacity
    decoding = {**held, "asleep": asleep}
    travelling = {name: size for name, size in decoding.items() if name != "kv_cache"}
    if trainers is None:
        return [
            Bar("device", "rollout", kind, decoding, {}, capacity),
            Bar("device", "sync", kind, travelling, {}, capacity),
        ]
    state = trainer_state(profile, trainers)
    stays = stays_on_device(profile, capacity, weight_bytes, trainers)
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
    stated, physics = pool.accelerators.memory_bytes, train_physics(profile)
    return stated if physics is None else min(stated, physics.gpu.memory_bytes)


def trainer_on_device(
    profile: Profile, layout: UpdateLayout
) -> tuple[dict[str, float], dict[str, dict[str, float]], bool]:
    """(bytes that a trainer's GPU holds while it trains, bytes more at one moment each, whether that is all of it).

    A measured update says its peak, or nothing; else the law tells, with its fitted factors.
    """
    entry, physics = measured_update(profile, layout), train_physics(profile)
    if entry is None and physics is not None and profile.train_law is not None:
        memory = fitted_memory(physics, layout, profile.train_law.memory_factors)
        return memory.kept, memory.moments, True
    kept = {
        **trainer_state(profile, layout),
        "trainer_gradients": GRADIENT_BYTES * trained_parameters(profile, layout),
    }
    if entry is None or not entry.peak_bytes:
        return kept, {}, False
    held = sum(kept.values())
    if held > entry.peak_bytes:  # it keeps less than float32 masters; of what was measured the shares are guessed
        return {name: size * entry.peak_bytes / held for name, size in kept.items()}, {}, True
    return kept, {"backward": {"trainer_activations": entry.peak_bytes - held}}, True
