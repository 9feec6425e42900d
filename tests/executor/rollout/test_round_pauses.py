"""A round that is paused for a more urgent job, and goes on; permits are real, engines are fakes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from rlplan.executor.groups.live_permits import LivePermits
from rlplan.executor.rollout import live_round
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.permits.permit_events import Seat

from .test_engine_tail import GROUP, PROMPTS, Rewards, check, until
from .test_round_units import Shared, Turns, share

PATIENT = Seat("a", ((0, 1), (2,)), (100.0, 1.0), pace_s=1000.0, resume_s=(1.0, None))
URGENT = Seat("b", ((0,), (3,)), (5.0, 1.0), pace_s=7.0)


class Urgent(Shared):
    """Two engines on two units, of which job b, which is in a hurry, wants one once it has come: `a` is paused then."""

    pauses, patient = True, PATIENT

    def begin_group(self):
        self.live = LivePermits("g1", "multi_rate", [self.patient], self.journal)
        self.a = Turns(self.live, "a")
        self.live.take_seat(URGENT)

    def come(self):
        """Job b comes."""
        self.b = Turns(self.live, "b")
        assert self.live.held["a"].units == ()

    def states(self):
        return [self.turns.ledgers.states[engine.name] for engine in self.first]


both = pytest.mark.parametrize("bounded", [False, True])


@both
def test_a_paused_round_leaves_its_engines_and_goes_on_with_its_tokens(tmp_path, bounded):
    async def body(stage):
        one, other = stage.first
        stood = []

        async def during(task):
            await until(lambda: stage.submitted(one) and stage.submitted(other))
            await asyncio.sleep(0.1)
            stage.come()
            assert not stage.b.given()
            await until(stage.b.given)
            assert not any(stage.actor(engine).running for engine in stage.first), "nothing of a decodes"
            assert stage.states() == ["asleep", "asleep"]
            stood.append(len(stage.log))
            await asyncio.sleep(0.5)
            assert len(stage.log) == stood[0] and not task.done(), "nothing of a is done in its pause"
            stage.b.end()

        result = await stage.decode(stage.a, during=during, at_finished=None)
        check(result)
        assert stage.given == [[one.name, other.name]] and stage.words() == ["cleared"]
        moved = [sample for sample in result.samples.values() if sample.moves]
        again = [name for engine in stage.first for name in stage.submitted(engine) if name.endswith(".1")]
        assert moved and len(again) == len(moved), "each goes on once, and none is drawn anew"
        assert all(sample.version_start == sample.version_end == "v" for sample in result.samples.values())
        (told,) = stage.run.told("units")
        assert [names for _, names in told["changes"]] == [[], [one.name, other.name]]
        assert told["paused_s"] >= 0.5 and told["moved"] == len(moved)
        assert max(sample.finished_s for sample in moved) == result.rollout_s
        assert stage.live.held["a"].ran_s(stage.live.now_s()) <= stage.live.now_s() - 0.5

    share(body, tmp_path, Urgent, bounded)


@both
def test_a_pause_is_longer_than_the_round_may_be_silent(tmp_path, bounded, monkeypatch):
    monkeypatch.setattr(live_round, "LOOK_S", 0.02)

    async def body(stage):
        stage.stall_s = 0.1

        async def during(task):
            await until(lambda: stage.submitted(stage.first[0]))
            stage.come()
            await until(stage.b.given)
            await asyncio.sleep(0.5)
            stage.b.end()

        check(await stage.decode(stage.a, during=during, at_finished=None))

    share(body, tmp_path, Urgent, bounded)


@both
def test_a_round_that_is_paused_again_and_again_loses_no_sample(tmp_path, bounded):
    async def body(stage):
        async def during(task):
            for number in range(3):
                await until(lambda: any(stage.actor(engine).running for engine in stage.first) or task.done())
                if number:
                    stage.b.turn += 1
                    stage.live.done("b", stage.b.arrival, stage.b.turn - 1)
                else:
                    stage.come()
                await until(lambda: task.done() or "a" not in stage.live.held or not stage.live.held["a"].units)
                if task.done():
                    return
                await until(lambda: stage.b.given() or task.done())
                stage.b.end()

        check(await stage.decode(stage.a, during=during, at_finished=None))
        (told,) = stage.run.told("units")
        assert [bool(names) for _, names in told["changes"]] == [False, True] * (len(told["changes"]) // 2)
        assert len(told["changes"]) >= 4 and len(stage.given) == len(told["changes"]) // 2

    share(body, tmp_path, Urgent, bounded)


@both
def test_a_round_that_is_paused_while_its_engines_come_back_goes_on_after_the_second_pause(tmp_path, bounded):
    async def body(stage):
        one, _ = stage.first

        async def during(task):
            await until(lambda: stage.submitted(one))
            stage.come()
            await until(stage.b.given)
            gate = stage.actor(one).gate = asyncio.Event()
            stage.b.end()
            await until(lambda: stage.given)
            stage.b.end()  # its training
            assert stage.live.held["a"].units == () and not stage.b.given()
            await asyncio.sleep(0.05)
            assert not stage.b.given(), "weights are on their way to what b is to have"
            gate.set()
            await until(stage.b.given)
            assert stage.states() == ["asleep", "asleep"] and not task.done()
            stage.b.end()

        check(await stage.decode(stage.a, during=during, at_finished=None))
        assert len(stage.given) == 2 and stage.words() == ["cleared", "cleared"]

    share(body, tmp_path, Urgent, bounded)


@both
def test_a_round_whose_last_rewards_come_while_it_is_paused_ends_in_its_pause(tmp_path, bounded):
    async def body(stage):
        stage.rewards = Rewards(held=True)

        async def during(task):
            await until(lambda: len(stage.rewards.pending) == len(PROMPTS) * GROUP)
            stage.come()
            await until(stage.b.given)
            stage.rewards.give()
            await asyncio.wait_for(asyncio.shield(task), 5)
            stage.a.end()
            assert stage.a.given() and stage.live.held["a"].phase == "train", "it trains while b decodes"

        check(await stage.decode(stage.a, during=during, at_finished=None))

    share(body, tmp_path, Urgent, bounded)


@both
def test_an_engine_that_dies_as_its_round_is_paused_costs_its_tokens_and_no_sample(tmp_path, bounded):
    async def body(stage):
        one, _ = stage.first

        async def during(task):
            await until(lambda: stage.submitted(one))
            stage.come()
            await until(lambda: any(entry[1] == "release" for entry in stage.log))
            one.fail("the test ends it")
            await until(stage.b.given)
            assert "awake" not in stage.states() and not task.done()
            stage.b.end()

        check(await stage.decode(stage.a, during=during, at_finished=None))

    share(body, tmp_path, Urgent, bounded)


def test_a_round_that_is_left_in_its_pause_leaves_nothing(tmp_path):
    async def body(stage):
        async def during(task):
            await until(lambda: stage.submitted(stage.first[0]))
            stage.come()
            await until(stage.b.given)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise RunFailed("left")

        with pytest.raises(RunFailed, match="left"):
            await stage.decode(stage.a, during=during)
        assert stage.b.given() and stage.states() == ["asleep", "asleep"]

    share(body, tmp_path, Urgent)


def test_a_rollout_that_is_paused_before_its_round_begins_says_that_nothing_of_it_runs(tmp_path):
    async def body(stage):
        stage.come()
        assert not stage.b.given()
        waiting = asyncio.create_task(stage.units(stage.a))
        await until(stage.b.given)
        assert not waiting.done()
        stage.b.end()
        units = await asyncio.wait_for(waiting, 5)
        assert [engine.name for engine in units.here] == [engine.name for engine in stage.first]

    share(body, tmp_path, Urgent)


def test_a_tail_that_is_said_while_the_group_pauses_the_round_is_said_again_when_it_goes_on(tmp_path):
    class WithTail(Urgent):
        patient = replace(PATIENT, keep=1)

    async def body(stage):
        said, heard = [], stage.a.tail

        async def tail():
            said.append(stage.live.now_s())
            if len(said) == 1:
                stage.come()
            await heard()

        stage.a.tail = tail

        async def during(task):
            await until(lambda: said and stage.b.given())
            assert "tail" not in stage.words(), "who is paused has no tail"
            stage.b.end()

        check(await stage.decode(stage.a, during=during))
        assert len(said) == 2 and stage.words() == ["cleared", "tail"]

    share(body, tmp_path, WithTail)
