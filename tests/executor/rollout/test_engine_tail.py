"""A round whose tail other engines decode: its samples move, tokens kept; the engines are fakes, all else is real."""

import asyncio

import pytest

from rlplan.executor.engines.engine_handle import EngineBack
from rlplan.executor.rollout import round_runner
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.levers import RoundTail
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.device_ledger import KV_CACHE, engine_holder

from ..engines.engine_fakes import until
from ..stage import staged
from .round_stage import LONGEST, RoundStage, check, left, race

SPEC = RoundTail(engines=1, tp=2, at_finished=0.25)
both = pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])


@both
@staged(RoundStage)
async def test_samples_move_to_the_tails_engine_with_their_tokens(stage, bounded):
    (tail,) = stage.long
    check(await stage.round(spec=SPEC))
    moved = stage.submitted(tail)
    ran = [(0, 1), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert sorted(moved) == [f"v/{draw}.{sample}.1" for draw, sample in ran], "the second attempt of each that ran"
    began = stage.log.index((tail.name, "wake weights"))
    slept = [stage.log.index((engine.name, "sleep"), 6) for engine in stage.short]
    loaded, woke = stage.log.index((tail.name, "load", "v")), stage.log.index((tail.name, "wake kv_cache"))
    assert max(slept) < began < loaded < woke < stage.log.index((tail.name, "submit", moved[0]))
    assert [fields["turn"] for fields in stage.run.told("turn")][-3:] == [
        "engine_sleeps", "engine_wakes_weights", "engine_wakes_kv",
    ]  # fmt: skip
    (told,) = stage.run.told("tail")
    assert (told["step"], told["engines"], told["tp"], told["moved"]) == (1, 1, 2, 6)
    assert (told["at_s"], told["seconds"]) == (0.04, 0.03), "after two of eight samples; three turns of 10 ms"
    # The update, and a second round on the first layout again.
    await stage.turns.to_training(stage.run)
    check(await stage.round("w", spec=SPEC), "w")
    assert len(stage.run.told("tail")) == 2 and len(stage.given) == 2


@pytest.mark.parametrize("why", ["its cache is too small", "the devices have no room for it", "it is away"])
@staged(RoundStage, start=False)
async def test_a_tail_without_room_or_engine_keeps_the_round_where_it_is(stage, why):
    if "cache" in why:
        stage.prepare = lambda actor: setattr(actor, "capacity", 5)
    await stage.turns.start()
    (tail,) = stage.long
    if "devices" in why:
        large = engine_holder(tail.name, {"engine_weights": 20.0, KV_CACHE: 75.0})
        stage.turns.ledger.holders[tail.name] = large

    async def during(task):
        if "away" in why:
            tail.fail("the test ends it")  # beside the engines of the round is no room for its start

    check(await stage.round(spec=RoundTail(engines=1, tp=2, at_finished=0.25, growth_tokens=LONGEST), during=during))
    assert not stage.given and not stage.submitted(tail) and tail.alive == ("away" not in why)
    (told,) = stage.run.told("tail")
    assert (told["at_s"], told["seconds"], told["moved"]) == (None, None, 0)
    if "away" in why:
        await stage.turns.to_training(stage.run)
        check(await stage.round("w", spec=SPEC), "w")
        assert stage.submitted(tail), "it is there in the next long round"


@staged(RoundStage)
async def test_an_error_of_asking_what_engines_hold_ends_the_round(stage):
    async def no_answer(request_ids=()):
        raise ValueError("held_tokens has no answer")

    for engine in stage.short:
        engine.held_tokens = no_answer
    with pytest.raises(RunFailed, match="held_tokens has no answer"):
        await stage.round(spec=SPEC)


@both
@pytest.mark.parametrize("when", ["weights", "loads", "kv_cache", "decodes"])
@staged(RoundStage)
async def test_a_tails_engine_that_dies_is_replaced_and_no_sample_lost(stage, bounded, when):
    (tail,) = stage.long
    first = stage.actor(tail)

    async def during(task):
        if when in ("weights", "kv_cache"):
            first.fails_at = f"wake {when}"
        elif when == "loads":
            first.gate = asyncio.Event()
            await until(lambda: stage.given)
            first.core_dead = True
            first.gate.set()
        else:
            await until(lambda: stage.submitted(tail))
            first.die()

    check(await stage.round(spec=SPEC, during=during))
    assert [actor.name for actor in stage.actors].count(tail.name) == 2
    assert any(not name.endswith(".0") for name in stage.submitted(tail))
    (told,) = stage.run.told("tail")
    assert told["at_s"] is not None and told["seconds"] is not None


@both
@staged(RoundStage)
async def test_a_rounds_engine_that_dies_as_it_releases_costs_no_sample(stage, bounded):
    async def during(task):
        await until(lambda: any(entry[1] == "release" for entry in stage.log))
        stage.short[0].fail("the test ends it")

    check(await stage.round(spec=SPEC, during=during))
    assert stage.given == [[stage.long[0].name]]


@both
@staged(RoundStage)
async def test_a_round_that_is_done_in_mid_change_ends_with_its_step(stage, bounded):
    (tail,) = stage.long
    gate = stage.actor(tail).gate = asyncio.Event()
    stage.rewards.held = True

    async def during(task):
        await until(lambda: stage.given)
        stage.rewards.held = False
        stage.rewards.give()
        await asyncio.sleep(1)
        assert not task.done(), "the weights that are on their way are waited for"
        gate.set()

    # A group of one sample is trained, and what decodes or waits of the others is of no use then.
    machine = race(1, 1, 2)
    result = await stage.round(machine=machine, spec=RoundTail(engines=1, tp=2, at_finished=0.125), during=during)
    assert len(machine.outcome().trained) == 1
    waited = [sample for sample in result.samples.values() if sample.aborted and sample.tokens]
    assert waited and not stage.submitted(tail)
    assert (tail.name, "wake kv_cache") not in stage.log
    (told,) = stage.run.told("tail")
    assert told["at_s"] is not None and told["seconds"] is None and told["moved"] == 0
    await stage.turns.to_training(stage.run)
    check(await stage.round("w", spec=SPEC), "w")


@staged(RoundStage)
async def test_a_tails_engine_that_cannot_be_replaced_ends_the_round(stage):
    (tail,) = stage.long

    async def during(task):
        await until(lambda: stage.submitted(tail))
        stage.prepare = lambda actor: setattr(actor, "dies_in_start", True)
        stage.actor(tail).die()

    with pytest.raises(RunFailed, match="did not start"):
        await stage.round(spec=SPEC, during=during)


@both
@pytest.mark.parametrize("hangs", [False, True])
@staged(RoundStage)
async def test_a_round_that_is_left_in_mid_change_leaves_nothing_that_moves(stage, monkeypatch, bounded, hangs):
    """The load has begun and is carried out, and no further step is taken; one that hangs is waited for by the next
    turn."""

    (tail,) = stage.long
    gate = stage.actor(tail).gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def during(task):
        await until(lambda: stage.given)
        began = loop.time()
        if not hangs:
            loop.call_later(0.5, gate.set)
        await left(task)
        assert loop.time() - began == pytest.approx(round_runner.LEAVE_S if hangs else 0.5)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await stage.round(spec=SPEC, during=during)
    assert (tail.name, "wake kv_cache") not in stage.log
    gate.set()
    await stage.turns.to_training(stage.run)
    before = len(stage.log)
    await asyncio.sleep(60)
    assert len(stage.log) == before, "nobody moves any more"
    check(await stage.round("w", spec=SPEC), "w")


@both
@staged(RoundStage)
async def test_a_trainer_that_dies_as_the_tail_loads_costs_no_engine(stage, bounded):
    (tail,) = stage.long
    lives, give_all = tail.lives, stage.give_all

    async def dies(engines, version):
        stage.given.append([])
        raise TrainerDied("trainer a", "it is gone")

    async def during(task):
        await until(lambda: stage.given)
        await asyncio.sleep(1)
        task.cancel()  # as the run does, which goes back to its checkpoint

    stage.give_all = dies
    with pytest.raises(asyncio.CancelledError):
        await stage.round(spec=SPEC, during=during)
    assert tail.alive and tail.lives == lives
    await stage.turns.to_training(stage.run)
    stage.give_all = give_all
    result = await stage.round("w", spec=SPEC)
    check(result, "w")
    assert any(sample.moves for sample in result.samples.values()), "the next round has its tail"


@staged(RoundStage)
async def test_a_round_is_left_even_if_a_message_comes_with_the_cancellation(stage):
    async def during(task):
        await until(lambda: stage.submitted(stage.short[0]))
        stage.fleet.hear(EngineBack(stage.short[0]))
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()

    with pytest.raises(asyncio.CancelledError):
        await stage.round(spec=SPEC, during=during)
