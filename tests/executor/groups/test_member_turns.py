"""A job's turns in its group, with the ledger and the order as they are: when others are told that devices are free."""

import asyncio

import pytest

from rlplan.executor.groups.member_turns import (
    MemberTurns,
    before_restart,
    begin_turn,
    end_turn,
    switched_in,
    units_of_round,
)
from rlplan.executor.groups.permit_actor import MemberPermits
from rlplan.executor.rollout.unit_change import EngineUnits
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.rounds.device_ledger import MOMENTS, PARAMETERS

from ..stage import Stage, staged


class GivenPermits(MemberPermits):
    """Permits that are given after `wait_s`; `log` has what the actor was told."""

    wait_s, held = 0.0, ()

    def __init__(self, log):
        super().__init__("actor", "a", "process")
        self.log = log

    async def _ask(self, method, *arguments):
        await asyncio.sleep({"turn": self.wait_s, "holding": 5.0}.get(method, 0))
        if method == "holding":
            return ("a", 0, "rollout", 0.0, self.held, True, 1.0, 0.0)
        if method != "turn":
            self.log.append(("permits", method))
        return 1 if method == "ready" else True


class Lives:
    """A trainer that lives until the test ends it."""

    def __init__(self):
        self.dead = asyncio.Event()

    async def lost(self):
        await self.dead.wait()
        raise TrainerDied("trainer a", "the test ends it")


class Member(Stage):
    """A stage whose devices other jobs of a group have too."""

    def __init__(self, bounded=True, units=None):
        super().__init__(bounded=bounded, shared=True)
        self.permits = GivenPermits(self.log)
        self.run.turns, self.run.trainer = self.turns, Lives()
        self.run.permits = MemberTurns(self.permits, self.turns, units)

    async def begun(self):
        await self.turns.start()
        await self.permits.ready()
        self.log.clear()

    async def rollout(self):
        await begin_turn(self.run, "rollout")
        sending = await self.turns.to_sending(self.run, self.short)
        for engine in self.short:
            engine.version = "v"
        decoding = await self.turns.to_decoding(self.run, self.short)
        return switched_in(self.run, sending.engines_s + decoding.engines_s)

    async def train(self):
        await begin_turn(self.run, "train")
        return switched_in(self.run, (await self.turns.to_training(self.run)).trainers_s)

    def states(self):
        return [self.state(whom) for whom in (self.short[0], self.long[0], "trainer a")]

    def told(self):
        """What the group was told, each with the last thing that was done on the devices before."""
        done, told = None, []
        for who, what in self.log:
            if who == "permits":
                told.append((what, done))
            else:
                done = what
        return told


@staged(Member, start=False, units=EngineUnits({f"rollout-tp1-{n}": frozenset({n}) for n in range(2)}))
async def test_engines_start_in_a_turn_for_rollout_and_trainers_for_training(stage):
    stage.permits.held = (0,)  # another's tail is still on the other unit
    await stage.permits.ready()
    starting = asyncio.create_task(stage.run.permits.start())
    await asyncio.sleep(60)
    assert stage.log == [("permits", "ready")], "it waits for all units of its engines"
    stage.permits.held = (0, 1)
    await starting
    starts = [index for index, (_, what) in enumerate(stage.log) if what == "start"]
    over = [index for index, entry in enumerate(stage.log) if entry == ("permits", "done")]
    assert len(starts) == 4 and len(over) == 2
    assert max(starts[:3]) < over[0] < starts[3] < over[1], "three engines, and then the trainer"
    assert stage.told() == [("ready", None), ("done", "sleep"), ("done", [])]
    assert stage.states() == ["asleep", "asleep", "offloaded"] and stage.run.events == []


@pytest.mark.parametrize("bounded", [True, False])
@staged(Member, start=False)
async def test_a_turn_is_over_when_nothing_is_left_on_its_devices(stage, bounded):
    await stage.begun()
    stage.permits.wait_s = 7.0
    came = [await stage.rollout()]
    assert stage.states() == ["awake", "asleep", "offloaded"]
    left = [await end_turn(stage.run)]
    assert stage.states() == ["asleep", "asleep", "offloaded"]
    came.append(await stage.train())
    assert stage.states() == ["asleep", "asleep", "training"]
    left.append(await end_turn(stage.run))
    assert stage.states() == ["asleep", "asleep", "offloaded"]
    assert stage.told() == [("done", "sleep"), ("done", [])], "engines, then the trainer's parts on the device"
    if bounded:
        assert stage.of("a") == [[MOMENTS, PARAMETERS], []], "to the device, and all of it to the host"
    assert came == pytest.approx([0.02, 0.003]) and left == pytest.approx([0.01, 0.003])
    assert [tuple(event.values()) for event in stage.run.told("permit")] == [
        (1, "rollout", 7.0, 0.02, 0.01), (1, "train", 7.0, 0.003, 0.003),
    ]  # fmt: skip


@staged(Member, start=False)
async def test_a_turn_that_is_given_back_unused_leaves_its_devices_too(stage):
    await stage.begun()
    await stage.rollout()
    await stage.rollout()  # the same turn still
    stage.log.clear()
    await begin_turn(stage.run, "train")
    assert stage.told() == [("done", "sleep")]
    await begin_turn(stage.run, "rollout")  # nothing was to be trained
    assert stage.states() == ["asleep", "asleep", "offloaded"] and len(stage.told()) == 2


@staged(Member, start=False)
async def test_a_trainer_that_died_in_a_rollout_starts_again_in_its_turn(stage):
    await stage.begun()
    await stage.rollout()
    stage.log.clear()
    stage.run.trainer.dead.set()
    with pytest.raises(TrainerDied):
        await begin_turn(stage.run, "train")
    await before_restart(stage.run)
    assert stage.told() == [("done", "sleep")] and stage.permits.phase == "train"
    assert stage.states() == ["asleep", "asleep", "loaded"], "room is booked for its ranks"
    stage.run.trainer.dead.clear()
    await stage.rollout()
    assert stage.told()[1] == ("done", []) and stage.states()[2] == "offloaded"


@staged(Member, start=False)
async def test_a_trainer_that_dies_as_it_leaves_keeps_its_turn(stage):
    await stage.begun()
    await stage.rollout()
    await stage.train()
    stage.ranks.dead = True
    with pytest.raises(TrainerDied):
        await end_turn(stage.run)
    assert stage.permits.phase == "train"
    await before_restart(stage.run)
    assert stage.permits.phase == "train" and stage.states()[2] == "loaded"
    stage.ranks.dead = False


@staged(Member, start=False)
async def test_a_dead_engine_is_replaced_in_its_jobs_turn_only(stage):
    await stage.begun()
    await stage.rollout()
    await end_turn(stage.run)
    one = stage.short[0]
    one.fail("it died while it slept")
    await asyncio.sleep(60)
    assert not one.alive, "another job has the devices"
    await stage.rollout()
    await asyncio.wait_for(asyncio.shield(one.repair), 60)
    assert one.alive and stage.permits.phase == "rollout"
    await end_turn(stage.run)
    assert stage.state(one) == "asleep"


@staged(Member, start=False)
async def test_a_run_in_no_group_waits_for_nobody(stage):
    await stage.begun()
    stage.run.permits = None
    assert await begin_turn(stage.run, "rollout") == 0.0 and switched_in(stage.run, 3.0) == 0.0
    assert await units_of_round(stage.run, stage.short) is None
    assert await end_turn(stage.run) == 0.0 and stage.log == []
