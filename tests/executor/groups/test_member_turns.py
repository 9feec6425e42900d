"""A job's turns in its group, with the ledger and the order as they are: when others are told that devices are free.

Permits are given by the test, and actors and ranks answer as it has them (test_device_turns.py).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from rlplan.executor.groups.member_turns import GroupTurns, before_restart, begin_turn, end_turn, switched_in
from rlplan.executor.groups.permit_actor import MemberPermits
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.rounds.device_holders import MOMENTS, PARAMETERS

from ..test_device_turns import Stage, play


class GivenPermits(MemberPermits):
    """Permits that are given at once; `log` has what the actor was told."""

    def __init__(self, log):
        super().__init__("actor", "a", "process")
        self.log = log

    async def _ask(self, method, *arguments):
        await asyncio.sleep(0)
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

    def __init__(self, bounded=True):
        super().__init__(bounded=bounded, shared=True)
        self.permits = GivenPermits(self.log)
        self.run.turns, self.run.trainer = self.turns, Lives()
        self.run.permits = GroupTurns(self.permits, self.turns)

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
        return [self.turns.ledgers.state(name) for name in (self.short[0].name, self.long[0].name, "trainer a")]


def played(body, **options):
    play(body, start=False, stage=Member, **options)


def of_permits(stage):
    """What the group was told, each with the last thing that was done on the devices before."""
    done, told = None, []
    for who, what in stage.log:
        if who == "permits":
            told.append((what, done))
        else:
            done = what
    return told


def test_on_devices_with_memory_engines_start_in_a_turn_for_rollout_and_trainers_in_one_for_training():
    async def body(stage):
        await stage.permits.ready()
        await stage.run.permits.start()
        starts = [index for index, (_, what) in enumerate(stage.log) if what == "start"]
        over = [index for index, entry in enumerate(stage.log) if entry == ("permits", "done")]
        assert len(starts) == 4 and len(over) == 2
        assert max(starts[:3]) < over[0] < starts[3] < over[1], "three engines, and then the trainer"
        assert of_permits(stage) == [("ready", None), ("done", "sleep"), ("done", [])]
        assert stage.states() == ["asleep", "asleep", "offloaded"] and stage.run.events == []

    played(body)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_turn_is_told_to_be_over_when_nothing_is_left_on_its_devices_and_its_switches_are_measured(bounded):
    async def body(stage):
        await stage.turns.start()
        await stage.permits.ready()
        stage.log.clear()
        came = [await stage.rollout()]
        assert stage.states() == ["awake", "asleep", "offloaded"]
        left = [await end_turn(stage.run)]
        assert stage.states() == ["asleep", "asleep", "offloaded"]
        came.append(await stage.train())
        assert stage.states() == ["asleep", "asleep", "training"]
        left.append(await end_turn(stage.run))
        assert stage.states() == ["asleep", "asleep", "offloaded"]
        assert of_permits(stage) == [("done", "sleep"), ("done", [])], "engines, then the trainer's parts on the device"
        if bounded:
            assert stage.of("a") == [[MOMENTS, PARAMETERS], []], "to the device, and all of it to the host"
        permits = stage.run.told("permit")
        assert [(event["step"], event["phase"]) for event in permits] == [(1, "rollout"), (1, "train")]
        assert [event["switch_in_s"] for event in permits] == pytest.approx(came, abs=1e-5)
        assert [event["switch_out_s"] for event in permits] == pytest.approx(left, abs=1e-5)
        assert permits[0]["switch_in_s"] > 0 and permits[0]["switch_out_s"] > 0, "an engine of the test takes its time"

    played(body, bounded=bounded)


def test_a_turn_that_is_given_back_unused_leaves_its_devices_too():
    async def body(stage):
        await stage.turns.start()
        await stage.permits.ready()
        await stage.rollout()
        await stage.rollout()  # the same turn still
        stage.log.clear()
        await begin_turn(stage.run, "train")
        assert of_permits(stage) == [("done", "sleep")]
        await begin_turn(stage.run, "rollout")  # nothing was to be trained
        assert stage.states() == ["asleep", "asleep", "offloaded"] and len(of_permits(stage)) == 2

    played(body)


def test_a_trainer_that_died_while_engines_decoded_starts_again_in_a_turn_for_training():
    async def body(stage):
        await stage.turns.start()
        await stage.permits.ready()
        await stage.rollout()
        stage.log.clear()
        stage.run.trainer.dead.set()
        await before_restart(stage.run)
        assert of_permits(stage) == [("done", "sleep")] and stage.permits.phase == "train"
        assert stage.states() == ["asleep", "asleep", "loaded"], "room is booked for its ranks"
        stage.run.trainer.dead.clear()
        await stage.rollout()
        assert of_permits(stage)[1] == ("done", []) and stage.states()[2] == "offloaded"

    played(body)


def test_a_trainer_that_dies_as_it_leaves_keeps_the_turn_for_the_start_of_another():
    async def body(stage):
        await stage.turns.start()
        await stage.permits.ready()
        await stage.rollout()
        await stage.train()
        ranks = stage.turns._trainers["trainer a"]

        async def dies(parts):
            raise TrainerDied("trainer a", "it died as its states left the device")

        ranks.place = dies
        with pytest.raises(TrainerDied):
            await end_turn(stage.run)
        assert stage.permits.phase == "train"
        await before_restart(stage.run)
        assert stage.permits.phase == "train" and stage.states()[2] == "loaded"

    played(body)


def test_an_engine_that_died_is_replaced_in_a_turn_of_the_job_only():
    async def body(stage):
        await stage.turns.start()
        await stage.permits.ready()
        await stage.rollout()
        await end_turn(stage.run)
        one = stage.short[0]
        one.fail("it died while it slept")
        await asyncio.sleep(0.05)
        assert not one.alive, "another job has the devices"
        await stage.rollout()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(one.repair), 5)
        assert one.alive and stage.permits.phase == "rollout"
        await end_turn(stage.run)
        assert stage.turns.ledgers.state(one.name) == "asleep"

    played(body)


def test_a_run_in_no_group_waits_for_nobody_and_its_switches_are_its_own():
    async def body(stage):
        await stage.turns.start()
        stage.run.permits = None
        stage.log.clear()
        assert await begin_turn(stage.run, "rollout") == 0.0 and switched_in(stage.run, 3.0) == 0.0
        assert await end_turn(stage.run) == 0.0 and stage.log == []

    played(body)
