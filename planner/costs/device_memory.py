"""Bytes that engines and trainers hold on an accelerator, by phase; memory_table.py lists the assumptions.

What is held in a phase follows from the order in which they take turns (rounds/step_order.py), as the executor does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ...plans.facts.device_shares import ASLEEP_SHARE, SLACK_SHARE
from ...plans.schema.cluster import Pool
from ...plans.schema.levers import UpdateLayout
from ...profiles.laws.rank_memory import GRADIENT_BYTES
from ...profiles.laws.train_layouts import fitted_memory
from ...profiles.profile_schema import Profile
from ...rounds.device_ledger import DeviceLedger, Holder, engine_holder
from ...rounds.step_order import step_moves
from .colocation import (
    NO_ENGINE,
    NO_TRAINER,
    WEIGHT_BYTES,
    TurnsTake,
    engine_on_device,
    shared_device,
    sleep_and_wake_s,
    state_moves_s,
    stays_on_device,
    train_physics,
    trained_parameters,
    trainer_on_turns,
    trainer_state,
)
from .memory_bars import Bar, Engines, Side
from .update_costs import measured_update


def device_bars(
    profile: Profile,
    pool: Pool,
    weight_bytes: float,
    engines: Engines,
    trainers: UpdateLayout | None,
    kind: int = 0,
    side: Side = "both",
    beside: Sequence[Engines] = (),
) -> list[Bar]:
    """The memory bars of a device, one for each phase; without trainers, of engines alone. On CPUs only the KV space of
    engines is bounded. `beside`: engines of all kinds of round, beside which trainers keep what fits; none: any of the
    profile's."""
    if pool.accelerators.kind == "cpu":
        kv = engines.kv_bytes / engines.layout.tp
        # Each rank of an engine is given the space of all its cores (executor/engines/fleet.py; vLLM counts it by
        # rank).
        return [
            Bar(
                "device",
                "rollout",
                kind,
                {"kv_cache": kv},
                {},
                engines.layout.tp * pool.accelerators.memory_bytes,
                side=side,
            )
        ]
    capacity = device_bytes(profile, pool)
    if trainers is None:
        engine = _engine(profile, capacity, weight_bytes, engines)
        _, held = step_moves(shared_device(engine, NO_TRAINER, _reserve(capacity)), NO_TRAINER.name, [engine.name])
        return [Bar("device", phase, kind, held[phase], {}, capacity, side=side) for phase in ("rollout", "sync")]
    shared, moments, complete = _shared(profile, capacity, weight_bytes, engines, trainers, beside)
    _, held = step_moves(shared, "trainer", ["engine"])
    return [
        Bar("device", "rollout", kind, held["rollout"], {}, capacity),
        Bar("device", "train", kind, held["train"], moments, capacity, complete),
        Bar("device", "sync", kind, held["sync"], {}, capacity),
    ]


def _shared(
    profile: Profile,
    capacity: float,
    weight_bytes: float,
    engines: Engines,
    trainers: UpdateLayout,
    beside: Sequence[Engines],
) -> tuple[DeviceLedger, dict[str, dict[str, float]], bool]:
    """The ledger of a device that `engines` and `trainers` share: they take no turns where both fit on it at once, the
    trainers' worst moment included, as far as all of it is known; and the moments as of `trainer_on_device`."""
    trainer, moments, complete = _trainer(profile, capacity, weight_bytes, trainers, beside)
    worst = max((sum(held.values()) for held in moments.values()), default=0.0)
    # The worst moment is no part of what is kept, so the room is less by it.
    room = max(0.0, capacity - worst) if complete and engines.kv_tokens is not None else 0.0
    engine = _engine(profile, capacity, weight_bytes, engines)
    return shared_device(engine, trainer, _reserve(capacity), room), moments, complete


def _engine(profile: Profile, capacity: float, weight_bytes: float, engines: Engines) -> Holder:
    return engine_holder("engine", engine_on_device(profile, capacity, weight_bytes, engines))


def _trainer(
    profile: Profile,
    capacity: float,
    weight_bytes: float,
    layout: UpdateLayout,
    engines: Sequence[Engines] = (),
    alone: bool = False,
) -> tuple[Holder, dict[str, dict[str, float]], bool]:
    """A trainer's rank by its states (`trainer_on_turns`), and the moments as of `trainer_on_device`."""
    kept, moments, complete = trainer_on_device(profile, layout)
    gathered = {"trainer_gathered_weights": moments.get("loss", {}).get("trainer_gathered_weights", 0.0)}
    rank = trainer_on_turns(profile, capacity, weight_bytes, layout, kept, gathered, alone, engines)
    return rank, moments, complete


def _reserve(capacity: float) -> dict[str, float]:
    """What of a device is planned for nobody: contexts, communicators and captured graphs of whoever is there, and
    slack."""
    return {"reserve": ASLEEP_SHARE * capacity, "slack": SLACK_SHARE * capacity}


def turns_take(
    profile: Profile, pool: Pool, engines: Engines, trainers: UpdateLayout, weight_bytes: float = WEIGHT_BYTES
) -> TurnsTake:
    """What the turns of engines and trainers on a pool take: nothing where both fit on a device at once, and nothing
    for states that stay beside engines whose KV cache is as large as their rounds need."""
    sleep_s, moves_s = sleep_and_wake_s(profile, engines.layout.tp), state_moves_s(profile, trainers)
    if pool.accelerators.kind != "cuda" or engines.kv_tokens is None or not (sleep_s or moves_s):
        return TurnsTake(sleep_s, moves_s)
    capacity = device_bytes(profile, pool)
    shared, _, _ = _shared(profile, capacity, weight_bytes, engines, trainers, [engines])
    if not shared.beside["trainer"]:
        return TurnsTake(0.0, 0.0)
    state = trainer_state(profile, trainers)
    stays = stays_on_device(profile, capacity, weight_bytes, trainers, [engines])
    return TurnsTake(sleep_s, 0.0 if stays == state else moves_s)


def turns_of(profile: Profile, pool: Pool, engines: Engines) -> Callable[[int, UpdateLayout], TurnsTake]:
    """What turns take (`turns_take`), by KV tokens of an engine and layout of trainers."""

    @cache
    def seconds(kv_tokens: int, trainers: UpdateLayout) -> TurnsTake:
        return turns_take(profile, pool, replace(engines, kv_tokens=kv_tokens), trainers)

    return seconds


def trainer_bars(profile: Profile, pool: Pool, weight_bytes: float, trainers: UpdateLayout, kind: int = 0) -> list[Bar]:
    """The memory bars of a device of a pool that trainers have to themselves, where nothing leaves it for engines."""
    if pool.accelerators.kind == "cpu":
        return []
    capacity = device_bytes(profile, pool)
    trainer, moments, complete = _trainer(profile, capacity, weight_bytes, trainers, alone=True)
    _, held = step_moves(shared_device(NO_ENGINE, trainer, _reserve(capacity)), trainer.name, [NO_ENGINE.name])
    return [
        Bar("device", "train", kind, held["train"], moments, capacity, complete, "trainers"),
        Bar("device", "sync", kind, held["sync"], {}, capacity, side="trainers"),
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
