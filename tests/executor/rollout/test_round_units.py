"""A round whose job gives units of its group away in mid-round, gets them, or is paused for a more urgent job."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlplan.executor.rollout.unit_change import EngineUnits
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.hand_over import HandOver
from rlplan.rounds.permits.permit_events import PlacedJob

from ..engines.engine_fakes import until
from ..stage import staged
from .round_stage import SAMPLES, GroupSide, Shared, check, left


@staged(Shared)
async def test_the_next_job_begins_on_units_the_tail_left(stage):
    one, other = stage.short

    async def during(task):
        assert not stage.b.granted()
        await until(stage.b.granted)
        assert not task.done() and stage.live.held["b"].units == (1,)
        assert not stage.actor(other).running, "nothing of the job decodes on what it gave away"

    result = await stage.round(permits=stage.a, during=during)
    check(result)
    moved = [name for name in stage.submitted(one) if name.endswith(".1")]
    assert moved and not [name for name in stage.submitted(other) if name.endswith(".1")]
    assert stage.words() == ["tail", "cleared"]
    (told,) = stage.run.told("units")
    assert told["fits"] and told["moved"] == len(moved) and told["began"] == [one.name, other.name]
    ((at_s, decoding),) = told["changes"]
    assert decoding == [one.name] and told["tail_s"] == 0.04, "when two of eight samples had ended"
    assert told["tail_s"] <= at_s < told["tail_s"] + 0.01 and told["paused_s"] == 0.0 and told["step"] == 1


@staged(Shared, bounded=False)
async def test_a_round_gets_units_when_anothers_tail_has_ended(stage):
    one, other = stage.short
    stage.live.tail("a", stage.a.arrival, 0)
    stage.live.released("a", stage.a.arrival, 0, stage.live.now_s())

    async def during(task):
        await until(lambda: len(stage.submitted(other)) == SAMPLES)
        assert stage.given == [] and one.version == "", "no weights go to where another job decodes"
        stage.a.end()
        await until(lambda: stage.submitted(one))

    check(await stage.round("w", during, permits=stage.b, at_finished=0.99), "w")
    assert stage.given == [[one.name]]
    assert all(name.endswith(".1") for name in stage.submitted(one)), "they come from the other engine"
    assert len(stage.submitted(one)) == SAMPLES // 2, "its fair share"
    (told,) = stage.run.told("units")
    assert told["began"] == [other.name] and [names for _, names in told["changes"]] == [[one.name, other.name]]


@staged(Shared, prepare=lambda actor: setattr(actor, "capacity", 1))  # token: not for a single sample, however late
async def test_a_tail_that_does_not_fit_into_units_kept_is_not_said(stage):
    check(await stage.round(permits=stage.a))
    assert stage.words() == []
    (told,) = stage.run.told("units")
    assert (told["fits"], told["tail_s"], told["changes"], told["moved"]) == (False, None, [], 0)


async def hangs(request_ids):
    await asyncio.sleep(1000)


@staged(Shared, prepare=lambda actor: setattr(actor, "_release", hangs))
async def test_a_round_that_is_left_says_that_what_was_taken_is_clear(stage):
    async def during(task):
        await until(lambda: "b" in stage.live.held)
        assert not stage.b.granted()
        await left(task)
        raise RunFailed("left")

    with pytest.raises(RunFailed, match="left"):
        await stage.round(permits=stage.a, during=during)
    assert stage.words() == ["tail", "cleared"] and stage.b.granted()


@pytest.mark.parametrize("word", ["tail", "holding"])
@staged(Shared)
async def test_an_actor_that_is_gone_ends_the_round_with_the_reason(stage, word):
    asked = getattr(stage.a, word)

    async def gone(*since_s):
        if since_s == (-1.0,):  # the round has not begun
            return await asked(*since_s)
        raise RunFailed("the actor that gives permits is gone")

    setattr(stage.a, word, gone)
    with pytest.raises(RunFailed, match="the actor that gives permits is gone"):
        await stage.round(permits=stage.a)


@staged(Shared)
async def test_a_round_that_has_all_its_units_says_nothing(stage):
    check(await stage.round(permits=stage.a, at_finished=None))
    assert stage.words() == [] and stage.run.told("units") == []


PATIENT = PlacedJob("a", ((0, 1), (2,)), (100.0, 1.0), pace_s=1000.0, resume_s=(1.0, None))
URGENT = PlacedJob("b", ((0,), (3,)), (5.0, 1.0), pace_s=7.0)


class Urgent(Shared):
    """Job b, which is in a hurry, wants one of the units once it has come: `a` is paused then."""

    pauses, patient = True, PATIENT

    def begin_group(self):
        self.group("multi_rate", [self.patient])
        self.live.place_job(URGENT)

    def come(self):
        """Job b comes."""
        self.b = GroupSide(self.live, "b")
        assert self.live.held["a"].units == ()

    def states(self):
        return [self.state(engine) for engine in self.short]

    async def paused(self, during=None):
        """A round of a that is never told to have a tail."""
        return await self.round(permits=self.a, during=during, at_finished=None)


both = pytest.mark.parametrize("bounded", [False, True])


@both
@staged(Urgent)
async def test_a_paused_round_leaves_its_engines_and_goes_on_with_its_tokens(stage, bounded):
    one, other = stage.short

    async def during(task):
        await asyncio.sleep(0.1)
        stage.come()
        assert not stage.b.granted()
        await until(stage.b.granted)
        assert not any(stage.actor(engine).running for engine in stage.short), "nothing of a decodes"
        assert stage.states() == ["asleep", "asleep"]
        stood = len(stage.log)
        await asyncio.sleep(30)  # longer than a round may be silent
        assert len(stage.log) == stood and not task.done(), "nothing of a is done in its pause"
        stage.b.end()

    result = await stage.paused(during)
    check(result)
    assert stage.given == [[one.name, other.name]] and stage.words() == ["cleared"]
    moved = [sample for sample in result.samples.values() if sample.moves]
    again = [name for engine in stage.short for name in stage.submitted(engine) if name.endswith(".1")]
    assert len(moved) == len(again) == 4, "each goes on once, and none is drawn anew"
    (told,) = stage.run.told("units")
    assert [names for _, names in told["changes"]] == [[], [one.name, other.name]]
    assert 30 <= told["paused_s"] < 30.1 and told["moved"] == 4
    assert max(sample.finished_s for sample in moved) == result.rollout_s < 0.6
    assert stage.live.held["a"].ran_s(stage.live.now_s()) < 1.0


@staged(Urgent)
async def test_a_round_that_is_paused_again_and_again_loses_no_sample(stage):
    async def during(task):
        for number in range(3):
            await until(lambda: any(stage.actor(engine).running for engine in stage.short))
            if number:
                stage.b.end()  # its training; it wants the unit again
            else:
                stage.come()
            await until(stage.b.granted)
            stage.b.end()

    check(await stage.paused(during))
    (told,) = stage.run.told("units")
    assert [bool(names) for _, names in told["changes"]] == [False, True] * 3 and len(stage.given) == 3


@staged(Urgent)
async def test_a_round_that_is_paused_while_its_engines_come_back_goes_on(stage):
    async def during(task):
        await until(lambda: stage.submitted(stage.short[0]))
        stage.come()
        await until(stage.b.granted)
        gate = stage.actor(stage.short[0]).gate = asyncio.Event()
        stage.b.end()
        await until(lambda: stage.given)
        stage.b.end()  # its training
        assert stage.live.held["a"].units == ()
        await asyncio.sleep(1)
        assert not stage.b.granted(), "weights are on their way to what b is to have"
        gate.set()
        await until(stage.b.granted)
        assert stage.states() == ["asleep", "asleep"] and not task.done()
        stage.b.end()

    check(await stage.paused(during))
    assert len(stage.given) == 2 and stage.words() == ["cleared", "cleared"]


@staged(Urgent)
async def test_a_round_whose_last_rewards_come_in_its_pause_ends_there(stage):
    stage.rewards.held = True

    async def during(task):
        await until(lambda: len(stage.rewards.pending) == SAMPLES)
        stage.come()
        await until(stage.b.granted)
        stage.rewards.give()
        await asyncio.wait_for(asyncio.shield(task), 5)
        stage.a.end()
        assert stage.a.granted() and stage.live.held["a"].phase == "train", "it trains while b decodes"

    check(await stage.paused(during))


@both
@staged(Urgent)
async def test_an_engine_that_dies_as_its_round_is_paused_costs_no_sample(stage, bounded):
    async def during(task):
        await until(lambda: stage.submitted(stage.short[0]))
        stage.come()
        await until(lambda: any(entry[1] == "release" for entry in stage.log))
        stage.short[0].fail("the test ends it")
        await until(stage.b.granted)
        assert not task.done()
        if bounded:  # else a replacement waits for nobody
            assert "awake" not in stage.states()
        stage.b.end()

    check(await stage.paused(during))


@staged(Urgent)
async def test_a_round_that_is_left_in_its_pause_leaves_nothing(stage):
    async def during(task):
        await until(lambda: stage.submitted(stage.short[0]))
        stage.come()
        await until(stage.b.granted)
        await left(task)
        raise RunFailed("left")

    with pytest.raises(RunFailed, match="left"):
        await stage.paused(during)
    assert stage.b.granted() and stage.states() == ["asleep", "asleep"]


@staged(Urgent)
async def test_a_rollout_that_is_paused_before_its_round_says_it_is_clear(stage):
    stage.come()
    assert not stage.b.granted()
    waiting = asyncio.create_task(stage.units(stage.a, None))
    await until(stage.b.granted)
    assert not waiting.done()
    stage.b.end()
    units = await asyncio.wait_for(waiting, 60)
    assert units.here == stage.short
    stage.a.end()
    with pytest.raises(RunFailed, match="has ended the phase of this rollout"):
        stage.a.turn -= 1
        await stage.units(stage.a, None)


class WithTail(Urgent):
    patient = replace(PATIENT, keep=1)


@staged(WithTail)
async def test_a_tail_that_a_pause_met_is_said_again_afterwards(stage):
    said, heard = [], stage.a.tail

    async def tail():
        said.append(stage.live.now_s())
        if len(said) == 1:
            stage.come()
        await heard()

    async def during(task):
        await until(lambda: said and stage.b.granted())
        assert "tail" not in stage.words(), "who is paused has no tail"
        stage.b.end()

    stage.a.tail = tail
    check(await stage.round(permits=stage.a, during=during))
    assert len(said) == 2 and stage.words() == ["cleared", "tail"]


def test_a_groups_tail_is_reached_at_the_workloads_share():
    """However small the share: a round's own hand-over has a least share of a hundredth, a workload has none."""
    where = EngineUnits({"a": frozenset({0}), "b": frozenset({1})}, keep=1, at_finished=0.001)
    decision = HandOver(where.tail_of([SimpleNamespace(name="a"), SimpleNamespace(name="b")]), 4000, 2)
    assert (decision.stay, decision.milestone) == (1, 4)
