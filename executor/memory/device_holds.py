"""The ledger of a run's devices: what its engines and trainers hold in each state, as the plans were solved for.

A plan says how much a rank's parameters and moments take (`predicted.checkpoint`), a trainer's GPU at its peak and an
engine's KV cache (`predicted.rounds`); the cluster says how much a GPU has. Which of the trainer's states stay on it
while engines decode follows from these by the planner's own rule (rounds/device_ledger.py).

On a CPU nothing is bounded by a device and nothing moves: the ledger holds no bytes there, and keeps the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ...plans.facts.device_shares import ENGINE_SHARE, PLANNED_SHARE
from ...plans.schema.cluster import Pool
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.schema.plan import Plan
from ...plans.schema.predicted import MemoryBar
from ...rounds.device_ledger import (
    KV_CACHE,
    Device,
    DeviceLedger,
    Holder,
    OutOfMemory,
    Parts,
    engine_holder,
    trainer_holder,
)
from ..engines.fleet import FleetConfig

MASTER_BYTES, MOMENT_BYTES = 4.0, 8.0
"""Of a parameter: its float32 weight and both moments of AdamW, which together are what a checkpoint has of it."""


def trainer_name(run: str) -> str:
    """How the ledger calls the trainer of a run."""
    return f"trainer {run}"


def device_ledger(
    fleet: FleetConfig,
    plans: Mapping[str, Plan],
    pool: Pool,
    train_pool: Pool | None = None,
    where: Mapping[str, Sequence[str]] | None = None,
    shared: bool = False,
    others: Mapping[str, float] | None = None,
) -> DeviceLedger:
    """The ledger of all devices that engines of `fleet` and the trainers of `plans` (by name of the run) are on.

    Args:
        fleet: the engines.
        plans: the plans, by name of the run.
        pool: of the engines.
        train_pool: of the trainers, if they have one to themselves; None: they are on the engines'.
        where: names of the devices of each engine and trainer; None: the engines of each TP size, and the ranks of each
            trainer, take the devices of their pool from the first one on.
        shared: whether other jobs have the devices too, in turns that a group gives: then nothing stays on them.
        others: bytes that other processes hold, by name of the device.
    """
    most_of_others = max((others or {}).values(), default=0.0)
    capacity = float(pool.accelerators.memory_bytes)
    train_capacity = capacity if train_pool is None else float(train_pool.accelerators.memory_bytes)
    # A trainer whose GPUs nobody else uses, engines or other trainers, has no reason to leave them.
    alone = train_pool is not None and len(plans) == 1
    engines = {
        tp: _engine(tp, fleet.share * capacity, plans.values(), fleet.kv_bytes.get(tp)) for tp in fleet.engines()
    }
    held = (
        max(sum(parts.values()) for parts in engines.values()) if train_pool is None else ENGINE_SHARE * train_capacity
    )
    free = PLANNED_SHARE * train_capacity - held - most_of_others
    room = 0.0 if shared else math.inf if alone else max(0.0, free)
    trainers = {
        run: (
            _trainer(trainer_name(run), plan, room),
            max(update.accelerators for _, update in _layouts(plan)),
        )
        for run, plan in plans.items()
    }
    # Of trainers of which the plan knows no peak nobody can tell that they fit beside engines.
    known = all(bar is not None for plan in plans.values() for bar in _trainer_bars(plan))
    by_need = known and not shared and bool(fleet.kv_bytes)
    return ledger_of(fleet, engines, trainers, pool, train_pool, where, shared, by_need, others)


def ledger_of(
    fleet: FleetConfig,
    engines: Mapping[int, Parts],
    trainers: Mapping[str, tuple[Holder, int]],
    pool: Pool,
    train_pool: Pool | None = None,
    where: Mapping[str, Sequence[str]] | None = None,
    shared: bool = False,
    by_need: bool = False,
    others: Mapping[str, float] | None = None,
) -> DeviceLedger:
    """The ledger of all devices that engines of `fleet` and `trainers` are on.

    Args:
        fleet: the engines.
        engines: by TP size, bytes that an engine holds on each of its GPUs while it decodes, by what holds them.
        trainers: by name of the run, what a rank holds on its GPU, and the number of ranks.
        pool, train_pool, where, shared, others: as in `device_ledger`.
        by_need: whether engines and trainers stay side by side where both fit on a device.

    Raises OutOfMemory where other processes hold all of a device.
    """
    on_gpu = pool.accelerators.kind == "cuda"
    kind = "GPU" if on_gpu else "core"
    holders: dict[str, Holder] = {}
    places: dict[str, Sequence[str]] = {}
    for tp, of_size in fleet.engines().items():
        for number, engine in enumerate(of_size):
            holders[engine.name] = engine_holder(engine.name, engines[tp] if on_gpu else {})
            places[engine.name] = [f"{kind} {device}" for device in range(number * tp, (number + 1) * tp)]
    of_trainers = kind if train_pool is None else f"trainers' {kind}"
    for run, (holder, ranks) in trainers.items():
        name = trainer_name(run)
        holders[name] = holder if on_gpu else Holder(name, "trainer")
        places[name] = [f"{of_trainers} {device}" for device in range(ranks)]
    places |= dict(where or {})
    devices = []
    for device in dict.fromkeys(device for named in places.values() for device in named):
        there = [holder for name, holder in holders.items() if device in places[name]]
        trained_only = all(holder.kind == "trainer" for holder in there)
        capacity = float((train_pool if train_pool and trained_only else pool).accelerators.memory_bytes)
        if not on_gpu:
            devices.append(Device(device, math.inf, there))
            continue
        asleep, taken = (1 - PLANNED_SHARE) * capacity, (others or {}).get(device, 0.0)
        if asleep > capacity - taken:
            raise OutOfMemory(device, "contexts", "engine_starts", asleep, capacity - taken)
        room = capacity - taken if by_need else 0.0
        devices.append(Device(device, capacity - taken, there, {"asleep": asleep}, room))
    return DeviceLedger(devices, places=places, shared=shared)


def _layouts(plan: Plan) -> list[tuple[EngineLayout, UpdateLayout]]:
    rounds = plan.job.rounds
    kinds = [rounds.short] + ([rounds.long] if rounds.long is not None else [])
    return [(kind.rollout.layout, kind.train) for kind in kinds]


def _trainer_bars(plan: Plan) -> list[MemoryBar | None]:
    rounds = plan.predicted.rounds
    return [rounds.short.memory.train, *([] if rounds.long is None else [rounds.long.memory.train])]


def _engine(tp: int, share: float, plans: Iterable[Plan], kv_bytes: int | None) -> dict[str, float]:
    """What is on each GPU of an engine of `tp` ranks: all of its `share` in bytes, of which its KV cache wakes last;
    of that, `kv_bytes` where its size is planned.

    Plans predict the KV cache of engines that rounds begin on. Of others, which decode a tail, the weights are divided
    over more ranks than in those, and the cache has the rest.
    """
    caches = dict[int, float]()
    for plan in plans:
        rounds = plan.predicted.rounds
        predicted = [rounds.short] + ([rounds.long] if rounds.long is not None else [])
        for (engines, _), expected in zip(_layouts(plan), predicted, strict=True):
            cache = min(expected.memory.kv.capacity_bytes / engines.tp, share)
            caches[engines.tp] = max(caches.get(engines.tp, 0.0), cache)
    weights = share - caches[tp] if tp in caches else min((share - cache) * of / tp for of, cache in caches.items())
    return {"engine_weights": weights, KV_CACHE: share - weights if kv_bytes is None else float(kv_bytes)}


def _trainer(name: str, plan: Plan, room_bytes: float) -> Holder:
    """A trainer's rank on a GPU, where its states have so much room while others have the GPU.

    A plan that was solved before checkpoints were priced states no bytes: then it has none.
    """
    expected = plan.predicted.checkpoint
    parameters = expected.rank_bytes / (MASTER_BYTES + MOMENT_BYTES) if expected is not None else 0.0
    offload = all(update.offload for _, update in _layouts(plan))
    frozen = expected.frozen_rank_bytes if expected is not None else 0.0
    states, moments = parameters * MASTER_BYTES + frozen, parameters * MOMENT_BYTES
    training: Parts | None = None
    kept = dict[str, float]()
    most, gathered = states if offload else states + moments, 0.0
    for bar in _trainer_bars(plan):
        if bar is None:
            continue
        held = {part: size for part, size in bar.holds_bytes.items() if part.startswith("trainer_")}
        gathered = max(gathered, held.get("trainer_gathered_weights", 0.0))
        if plan.job.rounds.short.train.reference == "device":
            kept = {"trainer_reference": held.get("trainer_reference", 0.0)}
        if sum(held.values()) > most:
            training, most = held, sum(held.values())
    sending = {"trainer_gathered_weights": gathered}
    return trainer_holder(
        name,
        states,
        moments,
        room_bytes,
        offload=offload,
        training=training,
        sending=sending,
        kept=kept,
        gradients=parameters * MASTER_BYTES,
    )
