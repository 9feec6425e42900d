"""The seats and the turns of what is measured, before anything is started."""

import asyncio
from dataclasses import replace

import pytest

from rlplan.executor.memory.device_holds import trainer_name
from rlplan.executor.memory.device_turns import DeviceTurns
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.measure.measure_site import (
    FIRST,
    Subject,
    engine_bytes,
    profiled_workers,
    site_of,
    trainer_bytes,
    update_name,
)
from rlplan.profiles.measure.measure_updates import moves_s
from rlplan.profiles.measure.time_budget import MOVES, TurnSeconds
from rlplan.rounds.device_ledger import KV_CACHE, MOMENTS, PARAMETERS, DeviceTurn
from rlplan.rounds.step_order import to_decoding, to_sending, to_starting, to_training

from .fakes import demo_job, pool

LAYOUTS = [EngineLayout(1, 1), EngineLayout(1, 4), EngineLayout(2, 1), EngineLayout(2, 2)]
UPDATES = [UpdateLayout(dp=1, micro_batch_tokens=4096), UpdateLayout(dp=2, tp=2, micro_batch_tokens=4096, offload=True)]
OTHER = f"{FIRST} dp 2, tp 2, offload"


def subject(pool, parameters=10**9):
    job, paths = demo_job()
    job = job.model_copy(update={"model": job.model.model_copy(update={"dtype": "bfloat16"})})
    return Subject(job, paths, "main", pool, parameters)


def site(**sizes):
    return site_of(subject(pool(2, nodes=2, memory_bytes=80 * 10**9), **sizes), LAYOUTS, UPDATES, 64)


def test_no_device_has_two_holders_in_a_phase():
    placement = site().seats.placement
    assert not placement.double_booked()
    assert {name: len(seats) for name, seats in placement.trainers.items()} == {FIRST: 1, OTHER: 4}
    assert [placement.engines[f"rollout-tp1-{number}"].node for number in range(4)] == [0, 0, 1, 1]
    with pytest.raises(InputError, match="pool 'main' has no room for what is measured: 4 engines of TP 1 need"):
        site_of(subject(pool(2)), LAYOUTS, UPDATES, 64)


def test_bytes_are_the_least_that_engines_and_trainers_can_take():
    of = subject(pool(2, memory_bytes=80 * 10**9))
    assert engine_bytes(of, 2) == {"engine_weights": 1e9, KV_CACHE: pytest.approx(0.9 * 80e9 - 1e9)}
    whole = trainer_bytes(of, FIRST, UPDATES[0])
    assert whole.on_device["training"] == {PARAMETERS: 4e9, MOMENTS: 8e9, "trainer_gradients": 4e9}
    shared = trainer_bytes(of, FIRST, UPDATES[1])
    assert (
        shared.on_device["loaded"] == {PARAMETERS: 1e9, MOMENTS: 0.0} == {**shared.on_device["offloaded"], MOMENTS: 0.0}
    )
    assert shared.on_host["training"] == {MOMENTS: 2e9}
    full = engine_bytes(subject(pool(2, memory_bytes=10**9)), 1)
    assert full == {"engine_weights": pytest.approx(0.9e9), KV_CACHE: 0.0}, "no more than its share"


def test_reward_workers_are_the_jobs_or_one_for_each_spare_core():
    job, _ = demo_job()
    open_job = job.model_copy(update={"reward": job.reward.model_copy(update={"workers": None})})
    assert profiled_workers(job, pool(2)) == 1
    assert [profiled_workers(open_job, each) for each in (pool(8), pool(16), pool(2, kind="cpu"))] == [8, 1, 16]


def test_layouts_of_trainers_are_named_by_sizes_and_savings():
    again = UpdateLayout(dp=1, sp=2, micro_batch_tokens=64, recompute="full")
    assert [update_name(each) for each in (*UPDATES, again)] == ["dp 1", "dp 2, tp 2, offload", "sp 2, recompute"]


def test_engines_and_trainers_in_turn_fit_on_a_gpu_that_holds_them():
    ledger = site(parameters=3 * 10**9).turns.ledger
    first, other = trainer_name(FIRST), trainer_name(OTHER)

    def lead(order, *whom):
        for turn in order(ledger, *whom):
            ledger.take(turn)
        ledger.check_invariants()

    ledger.take(DeviceTurn("trainer_starts", first))
    for tp in (1, 2):
        engines = [name for name in ledger.where if name.startswith(f"rollout-tp{tp}")]
        lead(to_starting)
        for name in engines:
            ledger.take(DeviceTurn("engine_starts", name))
        for _ in range(2):
            lead(to_training, first)
            lead(to_sending, first, engines)
            lead(to_decoding, engines)
        for name in engines:
            ledger.take(DeviceTurn("engine_ends", name))
    lead(to_starting)
    ledger.take(DeviceTurn("trainer_starts", other))
    lead(to_training, other)


class Ranks:
    """A trainer whose ranks note what they were told to keep on the device."""

    def __init__(self):
        self.kept = []

    async def start(self):
        self.kept.append({"start"})

    async def place(self, parts):
        self.kept.append({part for part, size in parts.items() if size})


def test_the_moves_of_a_trainer_are_timed_in_both_ways():
    found, ranks, log = site(parameters=3 * 10**9), Ranks(), TurnSeconds(FIRST)
    timed = replace(found, turns=DeviceTurns(found.turns.ledger, found.fleet, {FIRST: ranks}))

    async def train_and_move():
        await timed.turns.start([], [FIRST])
        await timed.turns.to_training(log)
        return await moves_s(timed, log)

    seconds = asyncio.run(train_and_move())
    assert ranks.kept[-4:] == [{PARAMETERS, MOMENTS}, set(), {PARAMETERS, MOMENTS}, set()]
    assert seconds == log.of_step(("trainer_loads",)) + log.of_step(("trainer_offloads",))
    assert log.of_step(("trainer_offloads",)) > 0.0
    assert timed.turns.ledger.states[trainer_name(FIRST)] == "offloaded"


def test_a_trainer_that_no_gpu_holds_is_refused_before_it_takes_memory():
    ledger = site(parameters=8 * 10**9).turns.ledger
    with pytest.raises(ValueError, match=r"GPU 0 of node 0: .* 96 GB more for trainer profile, and 73\.6 GB are free"):
        ledger.take(DeviceTurn("trainer_starts", trainer_name(FIRST)))


def test_cores_hold_no_bytes():
    holders = site_of(subject(pool(2, nodes=2, kind="cpu")), LAYOUTS, UPDATES, 64).turns.ledger.holders.values()
    assert not any(holder.on_device.get("awake") or holder.on_device.get("training") for holder in holders)


def test_seconds_of_a_step_are_medians_of_each_kind_of_turn():
    log = TurnSeconds("profile")
    for turn, seconds in (
        ("engine_sleeps", 0.1), ("engine_sleeps", 0.9), ("engine_sleeps", 0.2), ("engine_wakes_weights", 0.3),
        ("engine_wakes_kv", 0.4), ("trainer_loads", 2.0), ("trainer_offloads", 1.0),
    ):  # fmt: skip
        log.event("turn", turn=turn, whom=["a"], seconds=seconds)
    log.event("turn", turn="engine_sleeps", whom=[], seconds=99.0)
    log.event("step", turn="engine_sleeps", whom=["a"], seconds=99.0)
    assert log.of_engines == pytest.approx((0.2, 0.7)) and log.of_step(MOVES) == 3.0
