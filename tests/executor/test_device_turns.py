"""Engines and trainers of a run take turns: in order, by the ledger's leave, and whoever fails is replaced."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import rlplan
from rlplan.executor.engines.fleet import FleetConfig
from rlplan.executor.memory.device_holds import device_ledger, trainer_name
from rlplan.executor.memory.device_turns import no_turns
from rlplan.executor.processes.faults import ActorFailed
from rlplan.planner.costs.colocation import turns_take
from rlplan.planner.costs.decode_costs import engines_of
from rlplan.planner.costs.memory_table import DeviceMemory
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.profiles.laws.train_layouts import trained_parameters
from rlplan.profiles.library import library_profile
from rlplan.rounds.device_ledger import KV_CACHE, MOMENTS, PARAMETERS
from rlplan.rounds.step_order import to_decoding, to_tail

from .conftest import RunInMemory
from .engines.engine_fakes import until
from .stage import Stage, staged
from .virtual_loop import now_s

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
TRAINER = trainer_name("a")


async def stepped(stage, engines, next_engines):
    await stage.decoding(engines)
    await stage.turns.to_training(stage.run)
    await stage.turns.to_sending(stage.run, next_engines)


async def ready(stage, engines):
    """Until one of `engines` can receive weights, as loop.py and WeightSync do it."""
    await stage.turns.to_sending(stage.run, engines)
    while not any(engine.alive for engine in engines):
        await stage.turns.to_sending(stage.run, engines)


@staged()
async def test_engines_start_by_tp_size_and_leave_the_device_to_the_next(stage):
    names = [handle.name for handle in stage.short]
    assert stage.log[:2] == [(name, "start") for name in names]
    assert sorted(stage.log[2:4]) == [(name, "sleep") for name in names]
    long = stage.long[0].name
    assert stage.log[4:] == [(long, "start"), (long, "sleep"), ("a", "start"), ("a", [PARAMETERS])]
    assert set(stage.turns.ledger.states.values()) == {"asleep", "offloaded"}


START_S = 3.0


class SideBySide(Stage):
    """A stage on which engines have caches of a planned size, the trainer beside them, and starts take time."""

    def __init__(self, capacity=200.0, **options):
        super().__init__(capacity=capacity, room=capacity, **options)
        for engine in (*self.short, *self.long):
            engine.config = replace(engine.config, memory_share=0.3)
        self.began = []
        begin = self.ranks.start

        async def slow(actor_start, name):
            self.began.append((name, now_s()))
            await asyncio.sleep(START_S)
            return await actor_start()

        self.ranks.start = lambda: slow(begin, "a")

        def prepare(actor):
            start = actor._start
            actor._start = lambda: slow(start, actor.name)

        self.prepare = prepare


@staged(SideBySide, start=False, capacity=270.0)
async def test_who_fits_side_by_side_starts_side_by_side(stage):
    began_s = now_s()
    await stage.turns.start()
    assert {name for name, _ in stage.began} == {"a", *(handle.name for handle in (*stage.short, *stage.long))}
    assert now_s() - began_s < 2 * START_S, "one after the other they would take four starts, or three"
    assert stage.state(TRAINER) == "loaded" and {stage.state(each) for each in stage.short} == {"asleep"}


@staged(SideBySide, start=False, capacity=150.0)
async def test_who_finds_no_room_beside_the_first_starts_after_them(stage):
    began_s = now_s()
    await stage.turns.start()
    late = stage.long[0].name
    first = {name for name, at_s in stage.began if at_s < began_s + START_S}
    assert first == {"a", *(handle.name for handle in stage.short)}, "the trainer goes before engines that do not fit"
    assert [name for name, at_s in stage.began if at_s >= began_s + START_S] == [late]


@staged(SideBySide, start=False)
async def test_a_start_that_fails_ends_those_beside_it(stage):
    async def fails():
        await asyncio.sleep(1)
        raise InputError("the model has no such layer")

    stage.ranks.start, began_s = fails, now_s()
    with pytest.raises(InputError, match="no such layer"):
        await stage.turns.start()
    assert not any(engine.alive for engine in stage.short) and now_s() < began_s + START_S


@staged(SideBySide, capacity=190.0)
async def test_engines_and_trainers_that_fit_side_by_side_move_nothing(stage):
    stage.log.clear()
    await stage.decoding(stage.short)
    for _ in range(2):
        await stage.turns.to_training(stage.run)
        assert stage.state(TRAINER) == "training" and {stage.state(each) for each in stage.short} == {"awake"}
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
    after = [entry for entry in stage.log if entry[1] != "wake weights" and entry[1] != "wake kv_cache"]
    assert not after, "engines wake once, after the start of all sizes"


@staged(SideBySide, start=False, capacity=70.0)
async def test_a_start_without_room_on_its_device_ends_the_run(stage):
    with pytest.raises(RunFailed, match=r"GPU 0: engine starts would take .* more for rollout-tp1-0"):
        await stage.turns.start()


@staged(start=False)
async def test_engines_of_one_size_start_once_those_of_another_ended(stage):
    await stage.turns.start(stage.short, ["a"])
    assert [who for who, what in stage.log if what == "start"] == [*(h.name for h in stage.short), "a"]
    await stepped(stage, stage.short, stage.short)
    await stage.turns.end(stage.short)
    assert {stage.state(handle) for handle in stage.short} == {"absent"}
    stage.log.clear()
    await stage.turns.start(stage.long, [])
    assert stage.log == [("a", [PARAMETERS]), (stage.long[0].name, "start"), (stage.long[0].name, "sleep")]
    await stepped(stage, stage.long, stage.long)
    await stage.turns.end(stage.long, ["a"])
    assert set(stage.turns.ledger.states.values()) == {"absent"} and stage.log[-1] == ("a", "end")


@pytest.mark.parametrize("bounded", [True, False])
@staged(start=False)
async def test_a_trainer_that_dies_while_engines_start_is_left_to_its_run(stage, bounded):
    stage.ranks.dead = True
    await stage.turns.start()
    stage.ranks.dead = False
    await stage.turns.before_restart(stage.run)
    await stepped(stage, stage.short, stage.short)
    assert stage.state(TRAINER) == "sending"


@staged()
async def test_a_step_wakes_who_is_next_after_all_others_left(stage):
    stage.log.clear()
    sending = await stage.turns.to_sending(stage.run, stage.short)
    for engine in stage.short:
        engine.version = "v"
    took = [sending, await stage.turns.to_decoding(stage.run, stage.short)]
    took.append(await stage.turns.to_training(stage.run))
    assert [tuple(each) for each in took] == [pytest.approx((0.01, 0.003))] * 3, "engines, then the trainer"
    await stage.turns.to_sending(stage.run, stage.long)
    one, other = (handle.name for handle in stage.short)
    assert stage.log[0] == ("a", [PARAMETERS]), "sends"
    assert sorted(stage.log[1:3]) == [(one, "wake weights"), (other, "wake weights")]
    assert stage.log[3] == ("a", [PARAMETERS]), "leaves"
    assert sorted(stage.log[4:6]) == [(one, "wake kv_cache"), (other, "wake kv_cache")]
    assert sorted(stage.log[6:8]) == [(one, "sleep"), (other, "sleep")]
    long = (stage.long[0].name, "wake weights")
    assert stage.log[8:] == [("a", [MOMENTS, PARAMETERS]), ("a", [PARAMETERS]), long]
    turns = stage.run.told("turn")
    assert [fields["turn"] for fields in turns] == [
        "trainer_sends", "engine_wakes_weights", "trainer_offloads", "engine_wakes_kv",
        "engine_sleeps", "trainer_loads", "trainer_trains", "trainer_sends", "engine_wakes_weights",
    ]  # fmt: skip
    assert [len(fields["whom"]) for fields in turns[:4]] == [1, 2, 1, 2]
    assert [fields["seconds"] for fields in turns[:4]] == [0.003, 0.01, 0.003, 0.01]
    assert [(turns[n]["link_bytes"], turns[n]["device_bytes"], turns[n]["step"]) for n in (5, 1)] == [
        (20.0, 20.0, 1), (0.0, 20.0, 1),
    ]  # fmt: skip


@staged(training=120.0)
async def test_an_update_that_would_not_fit_ends_the_run_before_training(stage):
    await stage.decoding(stage.short)
    refused = r"GPU 0: trainer trains would take .* GB more for trainer a, and .* are free; plan with fewer"
    with pytest.raises(RunFailed, match=refused):
        await stage.turns.to_training(stage.run)
    assert stage.state(TRAINER) == "loaded"


@pytest.mark.parametrize("fails_at", ["wake weights", "sleep"])
@staged()
async def test_an_engine_that_cannot_wake_or_sleep_is_replaced(stage, fails_at):
    one, other = stage.short
    if fails_at == "wake weights":
        stage.actor(one).fails_at = fails_at
    await stage.decoding(stage.short)
    if fails_at == "sleep":
        stage.actor(one).fails_at = fails_at
        await stage.turns.to_training(stage.run)
        assert stage.state(TRAINER) == "training"
        await asyncio.sleep(60)
        assert not one.alive, "its replacement waits until the device has room for it"
        await stage.turns.to_sending(stage.run, stage.short)
        await asyncio.sleep(60)
        assert not one.alive, "nor has the device room beside a trainer that sends"
        await stage.turns.to_decoding(stage.run, stage.short)
    assert stage.state(other) == "awake"
    await one.repair
    assert one.alive and stage.state(one) == "awake"
    await stage.turns.to_training(stage.run)
    assert stage.of(one.name)[-2:] == ["start", "sleep"]
    assert [death.engine for death in stage.fleet.take_missed()] == [one]


@staged()
async def test_a_layout_whose_engines_are_all_gone_is_started_before_sending(stage):
    (long,) = stage.long
    await stage.decoding(stage.long)
    stage.actor(long).fails_at = "sleep"
    await stage.turns.to_training(stage.run)
    assert not long.alive
    await stage.turns.to_sending(stage.run, stage.long)
    assert stage.of(long.name)[-3:] == ["start", "sleep", "wake weights"]


@staged()
async def test_a_trainer_that_died_is_started_again_while_engines_sleep(stage):
    seats = stage.seats()
    await stage.decoding(stage.short)
    await stage.turns.before_restart(stage.run)
    states = dict(stage.turns.ledger.states)
    assert states.pop(TRAINER) == "loaded" and set(states.values()) == {"asleep"}
    await stepped(stage, stage.short, stage.short)
    seats.free.clear()
    asyncio.get_running_loop().call_later(0.2, seats.free.set)
    stage.short[0].fail("its node is to be taken away")
    await stage.turns.before_restart(stage.run)
    assert stage.state(TRAINER) == "loaded", "though an engine is being replaced"


@staged(bounded=False)
async def test_where_no_memory_is_bounded_nobody_waits_for_a_replacement(stage):
    one, other = stage.short
    assert not stage.turns.bounded
    await stepped(stage, stage.short, stage.short)
    turns = [fields["turn"] for fields in stage.run.told("turn")]
    assert turns[4:7] == ["engine_sleeps", "trainer_loads", "trainer_trains"]
    one.alive = False  # gone, and not back yet
    await stage.turns.to_training(stage.run)
    assert stage.state(one) == "absent"
    one.alive = True
    await stage.turns.to_sending(stage.run, stage.short)
    assert stage.state(one) == stage.state(other) == "loading"


def test_a_run_that_shares_nothing_takes_no_turns():
    async def body():
        run, turns = RunInMemory(), no_turns()
        took = [await turns.to_sending(run, []), await turns.to_decoding(run, []), await turns.to_training(run)]
        took.append(await turns.in_round(run, to_tail))
        await turns.before_restart(run)
        assert [sum(each) for each in took] == [0.0] * 4 and turns.could(run, to_tail) and not run.events

    asyncio.run(body())


@pytest.mark.parametrize("dead", [None, "short", "long"])
@staged()
async def test_turns_in_mid_round_are_refused_while_an_engine_there_starts(stage, dead):
    names = [handle.name for handle in stage.long]
    orders = [partial(order, engines=names) for order in (to_tail, to_decoding)]
    await stage.decoding(stage.short)
    assert stage.turns.could(stage.run, *orders)
    if dead is None:
        await stage.turns.in_round(stage.run, orders[0], [handle.name for handle in stage.short])
        stage.short[0].fail("the test ends it")
        await asyncio.sleep(60)
        assert not stage.short[0].alive, "its devices are those of the tail now"
        await stage.turns.in_round(stage.run, orders[1])
        assert stage.state(names[0]) == "awake"
        await stage.turns.to_training(stage.run)
        await stage.decoding(stage.short)
        await stage.short[0].repair
        return
    (handle, *_) = stage.short if dead == "short" else stage.long
    hold = asyncio.Event()
    stage.prepare = lambda actor: setattr(actor, "answers", hold)
    handle.fail("the test ends it")
    await asyncio.sleep(1)
    # One of the round starts on its devices, which are booked for it; one that sleeps finds no room there.
    assert stage.state(handle) == ("awake" if dead == "short" else "absent")
    assert stage.turns.could(stage.run, *orders) == (dead == "long"), "whether it is up is another question"
    hold.set()


@pytest.mark.parametrize("found", [True, False])
@staged()
async def test_an_engine_whose_node_is_lost_keeps_no_memory_booked(stage, found):
    seats = stage.seats()
    await stage.decoding(stage.short)
    seats.free.clear()
    stage.short[0].fail("its node is gone")
    if found:
        asyncio.get_running_loop().call_later(0.2, seats.free.set)
    await stage.turns.to_training(stage.run)
    assert stage.state(TRAINER) == "training" and stage.state(stage.short[0]) == "absent"


@staged()
async def test_a_replacement_that_dies_in_its_start_holds_up_no_update(stage):
    await stage.decoding(stage.short)
    one = stage.short[0]
    launch = one.launch

    async def fails_once():
        one.launch = launch
        await asyncio.sleep(0.3)
        raise ActorFailed(one.name, "its process died as it started")

    one.launch = fails_once
    one.fail("its process died")
    await asyncio.sleep(0.1)
    assert stage.state(one) == "awake" and not one.alive, "its memory is booked"
    await stage.turns.to_training(stage.run)
    assert stage.state(TRAINER) == "training"


@pytest.mark.parametrize("dies_in", ["waking", "the transfer"])
@staged()
async def test_an_only_engine_that_dies_before_it_has_weights_is_replaced(stage, dies_in):
    (only,) = stage.long
    if dies_in == "waking":
        stage.actor(only).fails_at = "wake weights"
    await ready(stage, stage.long)
    if dies_in == "the transfer":
        only.fail("it died as it received weights")
        await ready(stage, stage.long)
    assert only.alive and stage.state(only) == "loading" and stage.state(TRAINER) == "sending"


@staged()
async def test_an_engine_of_the_tail_books_its_room_before_the_trainer_sends(stage):
    (tail,) = stage.long
    await stage.decoding(stage.short)
    tail.fail("it died while it slept")
    await asyncio.sleep(60)
    assert not tail.alive, "there is no room beside engines that decode"
    await stage.turns.to_training(stage.run)
    await stage.turns.to_sending(stage.run, stage.short, stage.long)
    await until(lambda: tail.alive)
    assert stage.state(tail) == "asleep" and stage.state(TRAINER) == "sending"


@pytest.fixture(scope="module")
def shipped():
    """The 32B example: its plan and pool, and the fleet of engines of these layouts."""
    plan = load_plan(EXAMPLES / "math-32b.yaml")
    pool = load_cluster(EXAMPLES / "math-32b" / "cluster.yaml").pools["h100"]
    first = plan.job.rounds.short.rollout.layout

    def fleet(*further):
        return FleetConfig((first, *further), "", "bfloat16", "cuda", 8, 8, 1)

    return plan, pool, fleet


def test_planner_and_executor_state_the_same_bytes_of_a_shipped_plan(shipped):
    plan, pool, fleet = shipped
    profile, layout = library_profile("H100", "Qwen2.5-32B"), plan.job.rounds.short.train
    ledger = device_ledger(fleet(), {"math": plan}, pool)
    trainer, engine = ledger.holders["trainer math"], ledger.holders["rollout-tp8-0"]
    assert len(ledger.devices) == 64 and len(ledger.where["trainer math"]) == 64
    assert [device.name for device in ledger.where["rollout-tp8-1"]] == [f"GPU {number}" for number in range(8, 16)]
    planned = DeviceMemory(profile, pool.accelerators.memory_bytes).trainer(layout).on_device["offloaded"]
    assert trainer.on_device["offloaded"] == planned == {}, "2 GB of parameters leave too little slack"
    left = trainer.host_bytes("offloaded")
    assert left == pytest.approx(12 * trained_parameters(profile, layout), rel=1e-5)
    assert MOMENTS not in plan.predicted.host_memory.holds_bytes, "beside the plan's own caches they stay"
    parts = plan.predicted.rounds.short.memory.train.holds_bytes
    of_trainer = sum(size for part, size in parts.items() if part.startswith("trainer_"))
    assert trainer.device_bytes("training") == pytest.approx(of_trainer, rel=1e-5)
    assert engine.device_bytes("asleep") == engine.host_bytes("asleep") == 0.0, "level 2 keeps no weights anywhere"
    assert engine.device_bytes("awake") == 0.9 * 80e9


def test_planner_and_executor_state_the_same_bytes_by_need(shipped):
    plan, pool, fleet = shipped
    profile, rounds, capacity = library_profile("H100", "Qwen2.5-32B"), plan.job.rounds, pool.accelerators.memory_bytes
    engines = engines_of(profile, rounds.short.rollout.layout, 400_000)
    device = DeviceMemory(profile, capacity)
    planned = device.engine(engines).on_device["awake"]
    kv_bytes = int(planned[KV_CACHE])
    ledger = device_ledger(replace(fleet(), kv_bytes={8: kv_bytes}), {"math": plan}, pool)
    awake = ledger.holders["rollout-tp8-0"].on_device["awake"]
    assert sum(awake.values()) == pytest.approx(sum(planned.values()), rel=1e-5) and awake[KV_CACHE] == kv_bytes
    layout = rounds.short.train
    stays = device.trainer(layout, [engines]).on_device["offloaded"]
    assert ledger.holders["trainer math"].on_device["offloaded"] == pytest.approx(stays, rel=1e-5)
    assert set(stays) == {PARAMETERS, MOMENTS} != set(device.trainer(layout).on_device["offloaded"]), "more stays"
    beside = not turns_take(profile, pool, engines, layout).engines_s
    assert beside == (not ledger.beside["trainer math"])


def test_a_tails_engines_divide_weights_and_have_more_cache(shipped):
    plan, pool, fleet = shipped
    tp = plan.job.rounds.short.rollout.layout.tp
    where = {f"rollout-tp{2 * tp}-0": ["GPU 0", "GPU 1"]}
    holders = device_ledger(fleet(EngineLayout(2 * tp, 1)), {"math": plan}, pool, where=where).holders
    small, large = (holders[f"rollout-tp{each}-0"].on_device["awake"] for each in (tp, 2 * tp))
    assert large["engine_weights"] == pytest.approx(small["engine_weights"] / 2) and small["engine_weights"] > 0
    assert sum(large.values()) == pytest.approx(sum(small.values())) and large[KV_CACHE] > small[KV_CACHE]


def test_a_trainer_keeps_its_states_on_devices_of_its_own(shipped):
    plan, pool, fleet = shipped
    larger = pool.accelerators.model_copy(update={"memory_bytes": 140_000_000_000})
    apart = device_ledger(fleet(), {"math": plan}, pool, pool.model_copy(update={"accelerators": larger}))
    trainer = apart.holders["trainer math"]
    assert trainer.on_device["offloaded"] == trainer.on_device["loaded"] and trainer.host_bytes("offloaded") == 0.0
    assert not any(apart.beside.values()) and len(apart.devices) == 128
    assert {device.capacity_bytes for device in apart.where["trainer math"]} == {140e9}
    assert {device.capacity_bytes for device in apart.where["rollout-tp8-0"]} == {80e9}
    for plans, shared in (({"math": plan, "sync": plan}, False), ({"math": plan}, True)):
        holder = device_ledger(fleet(), plans, pool, pool, shared=shared).holders["trainer math"]
        assert holder.on_device["offloaded"] != holder.on_device["loaded"], "two trainers, or jobs, take turns"
