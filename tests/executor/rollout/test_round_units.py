"""A round whose job gives units of its group away in mid-round, or gets them: permits are real, engines are fakes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from rlplan.executor.groups.live_permits import LivePermits
from rlplan.executor.rollout.changes.round_units import EngineUnits, round_units
from rlplan.executor.rollout.round_runner import RoundRunner
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.permits.permit_events import Seat
from rlplan.traces.trace import read_trace

from .test_engine_tail import GROUP, LONGEST, PROMPTS, ROUND, Rewards, Stage, check, until

SEATS = [Seat(job, ((0, 1), (2,)), (10.0, 1.0), keep=1) for job in "ab"]


class Turns:
    """A job's side of the group, as MemberPermits has it, in this process."""

    def __init__(self, live, job):
        self.live, self.job = live, job
        self.arrival, self.turn = live.ready(job, job), 0

    async def holding(self, since_s=-1.0):
        while (held := self.live.holding(self.job, self.arrival, self.turn)) is not None and held.since_s <= since_s:
            await asyncio.sleep(0.005)
        return held

    async def tail(self):
        self.live.tail(self.job, self.arrival, self.turn)

    async def cleared(self, since_s):
        self.live.cleared(self.job, self.arrival, self.turn, since_s)

    def given(self):
        return self.live.given(self.job, self.arrival, self.turn)

    def end(self):
        self.live.done(self.job, self.arrival, self.turn)
        self.turn += 1


class Shared(Stage):
    """Two engines on two units of a group, which job b wants as well; `a` has the first turn."""

    pauses, stall_s = False, 20.0

    def __init__(self, tmp_path, bounded, prepare=lambda actor: None):
        super().__init__(tmp_path, bounded, prepare)
        self.journal, self.rewards = tmp_path / "turns.jsonl", Rewards()
        self.begin_group()

    def begin_group(self):
        self.live = LivePermits("g1", "first_come", SEATS, self.journal)
        self.a = Turns(self.live, "a")
        self.b = Turns(self.live, "b")

    async def units(self, permits, at_finished=0.25):
        one, other = (engine.name for engine in self.first)
        pauses = permits.job == "a" and self.pauses
        where = EngineUnits({one: frozenset({0}), other: frozenset({1})}, 1, at_finished, pauses)
        return await round_units(self.run, permits, where, self.first, self.turns, self.give_all)

    async def decode(self, permits, version="v", during=None, at_finished=0.25):
        """A round of a job in its turn."""
        units = await self.units(permits, at_finished)
        await self.turns.to_sending(self.run, units.here)
        for engine in units.here:
            await self.give(engine, version)
        await self.turns.to_decoding(self.run, units.here)
        units.samples = len(PROMPTS) * GROUP
        machine = RaceRound(list(PROMPTS), len(PROMPTS), GROUP, GROUP, max_tokens=LONGEST)
        runner = RoundRunner(self.fleet, self.rewards, PROMPTS, str, temperature=1.0, stall_s=self.stall_s)
        task = asyncio.create_task(runner.run(machine, ROUND, version, self.give, version, max_num_seqs=8, units=units))
        try:
            if during is not None:
                await during(task)
            result = await asyncio.wait_for(task, 20)
            units.tell(self.run, result.samples.values())
            return result
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunFailed):
                await task

    def words(self):
        return [event["event"] for event in read_trace(self.journal) if event["event"] in ("tail", "cleared")]


def share(body, tmp_path, kind=Shared, bounded=False, **options):
    async def scene():
        stage = kind(tmp_path, bounded, **options)
        try:
            await stage.turns.start()
            await body(stage)
        finally:
            await stage.fleet.close()
            stage.live.close()

    asyncio.run(asyncio.wait_for(scene(), 40))


def test_the_rest_of_a_round_moves_together_and_the_next_job_begins_on_what_is_free(tmp_path):
    async def body(stage):
        one, other = stage.first

        async def during(task):
            assert not stage.b.given()
            await until(stage.b.given)
            assert not task.done() and stage.live.held["b"].units == (1,)
            assert not stage.actor(other).running, "nothing of the job decodes on what it gave away"

        check(await stage.decode(stage.a, during=during))
        moved = [name for name in stage.submitted(one) if name.endswith(".1")]
        assert moved and not [name for name in stage.submitted(other) if name.endswith(".1")]
        assert stage.words() == ["tail", "cleared"]
        (told,) = stage.run.told("units")
        assert told["fits"] and told["moved"] == len(moved) and told["began"] == [one.name, other.name]
        (change,) = told["changes"]
        assert change[1] == [one.name] and 0 < told["tail_s"] <= change[0]

    share(body, tmp_path)


def test_a_round_that_begins_without_what_a_tail_keeps_gets_it_when_the_tail_has_ended(tmp_path):
    async def body(stage):
        one, other = stage.first
        stage.live.tail("a", stage.a.arrival, 0)
        stage.live.cleared("a", stage.a.arrival, 0, stage.live.now_s())

        async def during(task):
            await until(lambda: len(stage.submitted(other)) == len(PROMPTS) * GROUP)
            assert stage.given == [] and one.version == "", "no weights go to where another job decodes"
            stage.a.end()
            await until(lambda: stage.submitted(one))

        check(await stage.decode(stage.b, "w", during, at_finished=1.0), "w")
        assert stage.given == [[one.name]]
        assert all(name.endswith(".1") for name in stage.submitted(one)), "they come from the other engine"
        assert 2 <= len(stage.submitted(one)) <= len(PROMPTS) * GROUP // 2
        (told,) = stage.run.told("units")
        assert told["began"] == [other.name] and [names for _, names in told["changes"]] == [[one.name, other.name]]

    share(body, tmp_path)


def test_a_tail_that_does_not_fit_into_what_would_be_kept_is_not_said(tmp_path):
    def prepare(actor):
        actor.capacity = 1  # token: not for a single sample, however late it is looked at

    async def body(stage):
        check(await stage.decode(stage.a, at_finished=0.25))
        assert stage.words() == []
        (told,) = stage.run.told("units")
        assert (told["fits"], told["tail_s"], told["changes"], told["moved"]) == (False, None, [], 0)

    share(body, tmp_path, prepare=prepare)


def test_a_round_that_is_left_says_that_what_was_taken_is_clear(tmp_path):
    def prepare(actor):
        async def hangs(request_ids):
            await asyncio.sleep(60)

        actor._release = hangs

    async def body(stage):
        async def during(task):
            await until(lambda: "b" in stage.live.held)
            assert not stage.b.given()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise RunFailed("left")

        with pytest.raises(RunFailed, match="left"):
            await stage.decode(stage.a, during=during)
        assert stage.words() == ["tail", "cleared"] and stage.b.given()

    share(body, tmp_path, prepare=prepare)


def test_an_actor_that_is_gone_ends_the_round_with_the_reason(tmp_path):
    async def body(stage):
        async def gone():
            raise RunFailed("the actor that gives permits is gone")

        stage.a.tail = gone
        with pytest.raises(RunFailed, match="the actor that gives permits is gone"):
            await stage.decode(stage.a)

    share(body, tmp_path)


def test_a_round_that_has_all_its_units_says_nothing(tmp_path):
    async def body(stage):
        check(await stage.decode(stage.a, at_finished=None))
        assert stage.words() == [] and stage.run.told("units") == []

    share(body, tmp_path)
