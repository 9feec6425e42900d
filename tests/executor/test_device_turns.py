"""Engines and trainers of a run take turns: in order, by the ledger's leave, and whoever fails is replaced.

The handles, their supervision and the ledger are real; actors and the trainer's ranks answer as the test has it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import rlplan
from rlplan.executor.engines.engine_handle import EngineHandle
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.executor.faults import ActorFailed
from rlplan.executor.memory.device_holds import device_ledgers, trainer_name
from rlplan.executor.memory.device_turns import DeviceTurns
from rlplan.executor.placement.seat_keeper import LiveSeat
from rlplan.executor.supervision import Patience, Supervisor
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.planner.costs.colocation import stays_on_device, trained_parameters
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.yaml.errors import RunFailed
from rlplan.profiles.library import library_profile
from rlplan.rounds.device_holders import KV_CACHE, MOMENTS, PARAMETERS, engine_holder, staying, trainer_holder
from rlplan.rounds.device_ledger import DeviceLedger, DeviceLedgers
from rlplan.rounds.step_order import to_decoding, to_tail

from .conftest import RunInMemory
from .engines.engine_fakes import FakeActor

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
CAPACITY = 100.0


class SleepyActor(FakeActor):
    """Sleeps and wakes as the test has it; `log` has what was done."""

    fails_at = ""

    async def _sleep(self):
        await self._turn("sleep")

    async def _wake(self, part):
        await self._turn(f"wake {part}")

    async def _start(self):
        self.log.append((self.name, "start"))
        return await super()._start()

    async def _turn(self, what):
        if what == self.fails_at:
            raise ActorFailed(self.name, f"vLLM could not {what}")
        await asyncio.sleep(0.01)
        self.log.append((self.name, what))


class Ranks:
    """A trainer group whose ranks note what they were told to keep on the device."""

    def __init__(self, name, log):
        self.name, self.log, self.dead = name, log, False

    async def start(self):
        self.log.append((self.name, "start"))

    async def place(self, parts):
        if self.dead:
            raise TrainerDied("trainer a", "killed")
        self.log.append((self.name, sorted(part for part, size in parts.items() if size)))

    async def close(self):
        self.log.append((self.name, "end"))


class Seats:
    """Seats for engines, while a node is free."""

    def __init__(self):
        self.free = asyncio.Event()
        self.free.set()

    async def engine(self, name):
        await self.free.wait()
        return LiveSeat("", "127.0.0.1", (), (), 1)


class Stage:
    """Engines `short` (TP 1, two of them) and `long` (TP 2) and trainer `a` on two devices of `CAPACITY`."""

    def __init__(self, training=90.0, bounded=True, shared=False):
        self.log, self.actors, self.run = [], [], RunInMemory()
        supervisor = Supervisor(Patience(stall_s=5.0), pause=lambda seconds: asyncio.sleep(0))

        def spawn(config):
            actor = SleepyActor(config.name, self.log)
            self.actors.append(actor)
            return actor

        def handle(config, tell, supervisor):
            return EngineHandle(config, tell, supervisor, spawn, lambda actor: None)

        layouts = (EngineLayout(1, 2), EngineLayout(2, 1))
        self.fleet = Fleet(FleetConfig(layouts, "", "float32", "cpu", 8, 8, 1), supervisor, handle)
        self.short, self.long = self.fleet.engines(layouts[0]), self.fleet.engines(layouts[1])
        states = {PARAMETERS: 10.0, MOMENTS: 20.0}
        stays = {} if shared else staying(states, 10.0)
        trainer = trainer_holder(trainer_name("a"), states, stays, {"all": training})
        trainer = trainer if bounded else type(trainer)(trainer.name, "trainer")
        parts = {"engine_weights": 20.0, KV_CACHE: 60.0} if bounded else {}
        devices = []
        for number in range(2):
            names = [self.short[number].name, self.long[0].name]
            holders = [*(engine_holder(name, parts) for name in names), *([] if shared else [trainer])]
            devices.append(DeviceLedger(f"GPU {number}", CAPACITY, holders))
        if shared:  # a group has rollout and training on nodes of their own
            devices.append(DeviceLedger("trainers' GPU", CAPACITY, [trainer]))
        self.ranks = Ranks("a", self.log)
        self.turns = DeviceTurns(DeviceLedgers(devices, shared=shared), self.fleet, {"a": self.ranks})

    def actor(self, handle):
        return [actor for actor in self.actors if actor.name == handle.name][-1]

    async def step(self, engines, next_engines):
        await self.turns.to_sending(self.run, engines)
        for engine in engines:
            engine.version = "v"
        await self.turns.to_decoding(self.run, engines)
        await self.turns.to_training(self.run)
        await self.turns.to_sending(self.run, next_engines)

    async def ready(self, engines):
        """Until one of `engines` can receive weights, as loop.py and WeightSync do it."""
        await self.turns.to_sending(self.run, engines)
        while not any(engine.alive for engine in engines):
            await self.turns.to_sending(self.run, engines)

    def seats(self):
        """Seats that engines find at once while this event is set; else they wait for a node."""
        found = Seats()
        for engine in self.fleet.all_engines():
            engine._seats = found
        return found

    def of(self, name):
        return [what for who, what in self.log if who == name]


def play(body, start=True, stage=Stage, **options):
    kind = stage

    async def scene():
        stage = kind(**options)
        try:
            if start:
                await stage.turns.start()
            await body(stage)
            for ledger in stage.turns.ledgers.ledgers:
                ledger.check_invariants()
        finally:
            await stage.fleet.close()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_engines_start_one_tp_size_after_another_and_leave_the_device_to_the_next():
    async def body(stage):
        names = [handle.name for handle in stage.short]
        assert stage.log[:2] == [(name, "start") for name in names]
        assert sorted(stage.log[2:4]) == [(name, "sleep") for name in names]
        assert stage.log[4:] == [
            (stage.long[0].name, "start"), (stage.long[0].name, "sleep"), ("a", "start"), ("a", [PARAMETERS]),
        ]  # fmt: skip
        assert set(stage.turns.ledgers.states.values()) == {"asleep", "offloaded"}

    play(body)


def test_engines_of_one_size_may_start_when_those_of_another_have_ended_beside_a_trainer_that_stays():
    async def body(stage):
        await stage.turns.start(stage.short, ["a"])
        assert [who for who, what in stage.log if what == "start"] == [*(h.name for h in stage.short), "a"]
        await stage.step(stage.short, stage.short)
        await stage.turns.end(stage.short)
        assert {stage.turns.ledgers.state(handle.name) for handle in stage.short} == {"absent"}
        stage.log.clear()
        await stage.turns.start(stage.long, [])
        assert stage.log == [("a", [PARAMETERS]), (stage.long[0].name, "start"), (stage.long[0].name, "sleep")]
        await stage.step(stage.long, stage.long)
        await stage.turns.end(stage.long, ["a"])
        assert set(stage.turns.ledgers.states.values()) == {"absent"} and stage.log[-1] == ("a", "end")

    play(body, start=False)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_trainer_that_dies_while_engines_start_is_left_to_its_run_to_start_again(bounded):
    async def body(stage):
        stage.ranks.dead = True
        await stage.turns.start()
        stage.ranks.dead = False
        await stage.turns.before_restart(stage.run)
        await stage.step(stage.short, stage.short)
        assert stage.turns.ledgers.state(trainer_name("a")) == "sending"

    play(body, start=False, bounded=bounded)


def test_turns_say_how_long_engines_and_how_long_trainers_took():
    async def body(stage):
        sending = await stage.turns.to_sending(stage.run, stage.short)
        for engine in stage.short:
            engine.version = "v"
        decoding = await stage.turns.to_decoding(stage.run, stage.short)
        training = await stage.turns.to_training(stage.run)
        for took in (sending, decoding, training):
            assert took.engines_s >= 0.01, "the engines of the test take so long"
            assert took.trainers_s > 0
        told = sum(fields["seconds"] for event, fields in stage.run.events if event == "turn")
        assert told == pytest.approx(sum(map(sum, (sending, decoding, training))), abs=1e-4)

    play(body)


def test_a_step_puts_all_engines_to_sleep_before_the_trainer_comes_and_wakes_the_next_layout_only():
    async def body(stage):
        stage.log.clear()
        await stage.step(stage.short, stage.long)
        one, other = (handle.name for handle in stage.short)
        assert stage.log[0] == ("a", [PARAMETERS]), "sends"
        assert sorted(stage.log[1:3]) == [(one, "wake weights"), (other, "wake weights")]
        assert stage.log[3] == ("a", [PARAMETERS]), "leaves"
        assert sorted(stage.log[4:6]) == [(one, "wake kv_cache"), (other, "wake kv_cache")]
        assert sorted(stage.log[6:8]) == [(one, "sleep"), (other, "sleep")]
        assert stage.log[8:] == [
            ("a", [MOMENTS, PARAMETERS]), ("a", [PARAMETERS]), (stage.long[0].name, "wake weights"),
        ]  # fmt: skip
        turns = [fields["turn"] for event, fields in stage.run.events if event == "turn"]
        assert turns == [
            "trainer_sends", "engine_wakes_weights", "trainer_offloads", "engine_wakes_kv",
            "engine_sleeps", "trainer_loads", "trainer_trains", "trainer_sends", "engine_wakes_weights",
        ]  # fmt: skip
        loads = [fields for _, fields in stage.run.events if fields["turn"] == "trainer_loads"]
        assert [(load["link_bytes"], load["device_bytes"], load["step"]) for load in loads] == [(20.0, 20.0, 1)]
        assert [len(fields["whom"]) for _, fields in stage.run.events[:4]] == [1, 2, 1, 2]

    play(body)


def test_an_update_that_would_not_fit_ends_the_run_before_the_trainer_is_told_to_train():
    async def body(stage):
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
        with pytest.raises(
            RunFailed, match=r"GPU 0: trainer trains would take .* GB more for trainer a, and .* are free"
        ):
            await stage.turns.to_training(stage.run)
        assert stage.turns.ledgers.state("trainer a") == "loaded"

    play(body, training=120.0)


@pytest.mark.parametrize("fails_at", ["wake weights", "sleep"])
def test_an_engine_that_cannot_wake_or_sleep_is_replaced_and_the_others_go_on(fails_at):
    async def body(stage):
        one, other = stage.short
        if fails_at == "wake weights":
            stage.actor(one).fails_at = fails_at
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
        if fails_at == "sleep":
            stage.actor(one).fails_at = fails_at
            await stage.turns.to_training(stage.run)
            assert stage.turns.ledgers.state("trainer a") == "training"
            await asyncio.sleep(0.05)
            assert not one.alive, "its replacement waits until the device has room for it"
            await stage.turns.to_sending(stage.run, stage.short)
            await asyncio.sleep(0.05)
            assert not one.alive, "nor has the device room beside a trainer that sends"
            await stage.turns.to_decoding(stage.run, stage.short)
        assert stage.turns.ledgers.state(other.name) == "awake"
        await one.repair
        assert one.alive and stage.turns.ledgers.state(one.name) == "awake"
        await stage.turns.to_training(stage.run)
        assert stage.of(one.name)[-2:] == ["start", "sleep"]
        assert [death.engine for death in stage.fleet.take_missed()] == [one]

    play(body)


def test_a_layout_whose_engines_are_all_gone_is_started_before_the_trainer_sends():
    async def body(stage):
        await stage.turns.to_sending(stage.run, stage.long)
        await stage.turns.to_decoding(stage.run, stage.long)
        (long,) = stage.long
        stage.actor(long).fails_at = "sleep"
        await stage.turns.to_training(stage.run)
        assert not long.alive
        await stage.turns.to_sending(stage.run, stage.long)
        assert stage.of(long.name)[-3:] == ["start", "sleep", "wake weights"]

    play(body)


def test_a_trainer_that_died_is_started_again_while_engines_sleep():
    async def body(stage):
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
        await stage.turns.before_restart(stage.run)
        states = stage.turns.ledgers.states
        assert states.pop("trainer a") == "loaded" and set(states.values()) == {"asleep"}
        await stage.turns.to_sending(stage.run, stage.short)

    play(body)


def test_where_no_memory_is_bounded_the_order_is_the_same_and_nobody_waits_for_a_replacement():
    async def body(stage):
        one, other = stage.short
        await stage.step(stage.short, stage.short)
        assert [fields["turn"] for _, fields in stage.run.events][4:7] == [
            "engine_sleeps", "trainer_loads", "trainer_trains",
        ]  # fmt: skip
        one.alive = False  # gone, and not back yet
        await stage.turns.to_training(stage.run)
        assert stage.turns.ledgers.state(one.name) == "absent"
        one.alive = True
        await stage.turns.to_sending(stage.run, stage.short)
        assert {stage.turns.ledgers.state(engine.name) for engine in (one, other)} == {"loading"}

    play(body, bounded=False)


def test_planner_and_executor_state_the_same_bytes_of_a_shipped_plan():
    plan = load_plan(EXAMPLES / "math-32b.yaml")
    pool = load_cluster(EXAMPLES / "math-32b" / "cluster.yaml").pools["h100"]
    profile, layout = library_profile("H100", "Qwen2.5-32B"), plan.job.rounds.short.train
    fleet = FleetConfig((plan.job.rounds.short.rollout.layout,), "", "bfloat16", "cuda", 8, 8, 1)
    ledgers = device_ledgers(fleet, {"math": plan}, pool)
    trainer, engine = ledgers.holders["trainer math"], ledgers.holders["rollout-tp8-0"]
    assert len(ledgers.ledgers) == 64 and len(ledgers.where["trainer math"]) == 64
    assert len(ledgers.where["rollout-tp8-0"]) == 8
    planned = stays_on_device(profile, pool.accelerators.memory_bytes, 2, layout)
    assert trainer.on_device["offloaded"] == pytest.approx(planned, rel=1e-5) and set(planned) == {PARAMETERS}
    left = trainer.host_bytes("offloaded")
    assert left == pytest.approx(8 * trained_parameters(profile, layout), rel=1e-5)
    assert plan.predicted.host_memory.holds_bytes[MOMENTS] == pytest.approx(8 * left, rel=1e-5), (
        "of a node's eight ranks"
    )
    bar = plan.predicted.rounds.short.memory.train
    assert trainer.device_bytes("training") == pytest.approx(bar.needed_bytes - bar.holds_bytes["asleep"], rel=1e-5)
    assert engine.device_bytes("asleep") == engine.host_bytes("asleep") == 0.0, "level 2 keeps no weights anywhere"
    assert engine.device_bytes("awake") == 0.9 * 80e9


def test_engines_of_a_tail_hold_their_weights_over_more_devices_and_the_rest_of_their_share_is_cache():
    plan = load_plan(EXAMPLES / "math-32b.yaml")
    pool = load_cluster(EXAMPLES / "math-32b" / "cluster.yaml").pools["h100"]
    first = plan.job.rounds.short.rollout.layout
    fleet = FleetConfig((first, EngineLayout(2 * first.tp, 1)), "", "bfloat16", "cuda", 8, 8, 1)
    holders = device_ledgers(
        fleet, {"math": plan}, pool, where={f"rollout-tp{2 * first.tp}-0": ["GPU 0", "GPU 1"]}
    ).holders
    small, large = (holders[f"rollout-tp{tp}-0"].on_device["awake"] for tp in (first.tp, 2 * first.tp))
    assert large["engine_weights"] == pytest.approx(small["engine_weights"] / 2) and small["engine_weights"] > 0
    assert sum(large.values()) == pytest.approx(sum(small.values())) and large[KV_CACHE] > small[KV_CACHE]


@pytest.mark.parametrize("dead", [None, "short", "long"])
def test_turns_in_mid_round_are_refused_while_an_engine_on_the_devices_starts(dead):
    async def body(stage):
        names = [handle.name for handle in stage.long]
        orders = (
            lambda holders, states, beside: to_tail(holders, states, beside, names),
            lambda holders, states, beside: to_decoding(holders, states, beside, names),
        )
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
        assert stage.turns.could(stage.run, *orders)
        if dead is None:
            await stage.turns.in_round(stage.run, orders[0], [handle.name for handle in stage.short])
            stage.short[0].fail("the test ends it")
            await asyncio.sleep(0.05)
            assert not stage.short[0].alive, "its devices are those of the tail now"
            await stage.turns.in_round(stage.run, orders[1])
            assert stage.turns.ledgers.state(names[0]) == "awake"
            await stage.turns.to_training(stage.run)
            await stage.turns.to_sending(stage.run, stage.short)
            await stage.turns.to_decoding(stage.run, stage.short)
            await stage.short[0].repair
            return
        (handle, *_) = stage.short if dead == "short" else stage.long
        spawn, hold = handle._spawn, asyncio.Event()

        def slow(config):
            actor = spawn(config)
            actor.hangs = hold
            return actor

        handle._spawn = slow
        handle.fail("the test ends it")
        await asyncio.sleep(0.05)
        # One of the round starts on its devices, which are booked for it; one that sleeps finds no room there.
        assert stage.turns.ledgers.state(handle.name) == ("awake" if dead == "short" else "absent")
        assert stage.turns.could(stage.run, *orders) == (dead == "long"), "whether it is up is another question"
        hold.set()

    play(body)


def test_a_trainer_with_a_pool_to_itself_keeps_all_of_its_states_on_its_devices():
    plan = load_plan(EXAMPLES / "math-32b.yaml")
    pool = load_cluster(EXAMPLES / "math-32b" / "cluster.yaml").pools["h100"]
    fleet = FleetConfig((plan.job.rounds.short.rollout.layout,), "", "bfloat16", "cuda", 8, 8, 1)
    larger = pool.accelerators.model_copy(update={"memory_bytes": 140_000_000_000})
    apart = device_ledgers(fleet, {"math": plan}, pool, pool.model_copy(update={"accelerators": larger}))
    trainer = apart.holders["trainer math"]
    assert trainer.on_device["offloaded"] == trainer.on_device["loaded"] and trainer.host_bytes("offloaded") == 0.0
    assert not any(apart.beside.values()) and len(apart.ledgers) == 128
    assert {ledger.capacity_bytes for ledger in apart.where["trainer math"]} == {140e9}
    assert {ledger.capacity_bytes for ledger in apart.where["rollout-tp8-0"]} == {80e9}
    two = device_ledgers(fleet, {"math": plan, "sync": plan}, pool, pool)
    assert two.holders["trainer math"].on_device["offloaded"] != two.holders["trainer math"].on_device["loaded"], (
        "two trainers take turns"
    )


@pytest.mark.parametrize("found", [True, False])
def test_an_engine_whose_node_is_lost_keeps_no_memory_booked_and_holds_up_no_update(found):
    async def body(stage):
        seats = stage.seats()
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
        seats.free.clear()
        stage.short[0].fail("its node is gone")
        if found:
            asyncio.get_running_loop().call_later(0.2, seats.free.set)
        await stage.turns.to_training(stage.run)
        assert stage.turns.ledgers.state("trainer a") == "training"
        assert stage.turns.ledgers.state(stage.short[0].name) == "absent"

    play(body)


def test_a_trainer_is_started_again_though_an_engine_is_being_replaced():
    async def body(stage):
        seats = stage.seats()
        await stage.step(stage.short, stage.short)
        seats.free.clear()
        asyncio.get_running_loop().call_later(0.2, seats.free.set)
        stage.short[0].fail("its node is to be taken away")
        await stage.turns.before_restart(stage.run)
        assert stage.turns.ledgers.state("trainer a") == "loaded"

    play(body)


def test_a_replacement_that_dies_as_it_starts_gives_its_memory_back_and_holds_up_no_update():
    async def body(stage):
        await stage.turns.to_sending(stage.run, stage.short)
        await stage.turns.to_decoding(stage.run, stage.short)
        one = stage.short[0]
        launch = one.launch

        async def fails_once():
            one.launch = launch
            await asyncio.sleep(0.3)
            raise ActorFailed(one.name, "its process died as it started")

        one.launch = fails_once
        one.fail("its process died")
        await asyncio.sleep(0.1)
        assert stage.turns.ledgers.state(one.name) == "awake" and not one.alive, "its memory is booked"
        await stage.turns.to_training(stage.run)
        assert stage.turns.ledgers.state("trainer a") == "training"

    play(body)


@pytest.mark.parametrize("dies_in", ["waking", "the transfer"])
def test_the_only_engine_of_a_layout_that_dies_before_it_has_weights_is_replaced_and_then_sent_to(dies_in):
    async def body(stage):
        (only,) = stage.long
        if dies_in == "waking":
            stage.actor(only).fails_at = "wake weights"
            await stage.ready(stage.long)
        else:
            await stage.ready(stage.long)
            only.fail("it died as it received weights")
            await stage.ready(stage.long)
        assert only.alive and stage.turns.ledgers.state(only.name) == "loading"
        assert stage.turns.ledgers.state("trainer a") == "sending"

    play(body)
