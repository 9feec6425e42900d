"""Engines that die, hang and come back, as fleet and rounds see it; the engines are fakes, all else is real."""

import asyncio
from collections import Counter

import pytest

from rlplan.executor.engines import engine_handle
from rlplan.executor.engines.engine_handle import CLOSE_S, EngineBack, EngineDied
from rlplan.executor.engines.messages import Request
from rlplan.executor.placement.actor_placer import ActorPlacement
from rlplan.executor.processes.faults import SAME_DEATHS, ActorFailed, MemoryRanOut
from rlplan.executor.processes.supervision import LOOK_S, Patience
from rlplan.executor.rollout.live_round import LOSSES
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_runner import LEAVE_S, RoundRunner
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.machines.round import MAX_FAILURES_PER_PROMPT

from ..virtual_loop import now_s, played
from .engine_fakes import FakeActor, Fakes, Rewards, until

PROMPTS = {f"p{i}": PromptText(f"p{i}", "text", (3, 4), None) for i in range(6)}
FIRST, SECOND = "rollout-tp1-0", "rollout-tp1-1"


def race(kept=6, issued=2):
    return RaceRound(list(PROMPTS), kept, 2, issued, max_tokens=8)


class Scene(Fakes):
    """A fleet of so many engines of TP 1, started, and rounds on all of them."""

    def __init__(self, count, weights, **options):
        super().__init__((1, count), **options)
        self.weights, self.engines = weights, self.fleet.all_engines()

    async def give(self, engine, version):
        await engine.load(self.weights, version, False)

    async def round(self, during=None, machine=None, version="v1"):
        """A race round; `during` goes on beside it."""
        for engine in await self.fleet.some_ready(self.engines):
            await self.give(engine, version)
        runner = RoundRunner(self.fleet, Rewards(), PROMPTS, str, temperature=1.0)
        layout = EngineLayout(1, len(self.engines))
        task = asyncio.create_task(runner.run(machine or race(), layout, version, self.give, version))
        if during is not None:
            await during()
        return await asyncio.wait_for(task, 3600)


@pytest.fixture
def play(tmp_path):
    """Have `body(scene)` take place in virtual time on so many engines."""
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(100))

    def play(body, count=1, prepare=lambda actor: None, **options):
        async def scene():
            fakes = Scene(count, str(weights), **options)
            fakes.prepare = prepare
            await fakes.fleet.start()
            try:
                await body(fakes)
            finally:
                await fakes.fleet.close()

        played(asyncio.wait_for(scene(), 10**6))

    return play


def test_an_idle_engine_whose_core_dies_is_replaced_before_anybody_needs_it(play):
    async def body(fakes):
        (engine,) = fakes.engines
        assert engine.lives == 1 and engine.facts.kv_capacity_tokens == 10_000
        fakes.actors[0].die()
        await until(lambda: len(fakes.actors) == 2 and engine.alive)
        (death,) = fakes.fleet.take_missed()
        assert "core process died" in death.reason and fakes.ended[0] is fakes.actors[0] and engine.lives == 2
        assert fakes.fleet.take_missed() == []
        await fakes.round()

    play(body)


def test_the_log_says_what_seeds_cost_where_vllm_draws_by_them(play, caplog):
    async def body(fakes):
        assert [record.getMessage() for record in caplog.records] == [
            f"{FIRST}: no sampler; so vLLM draws sample by sample, which takes a GPU longer"
        ]

    play(body, prepare=lambda actor: setattr(actor, "slow_seeds", "no sampler"))


def test_a_core_that_dies_under_a_weight_load_costs_the_engine_alone(play):
    async def body(fakes):
        (engine,) = fakes.engines
        fakes.actors[0].core_dead = True
        with pytest.raises(RunFailed, match="core process died"):
            await fakes.give(engine, "v1")
        await fakes.fleet.some_ready([engine])
        await fakes.give(engine, "v1")
        assert engine.version == "v1" and len(fakes.actors) == 2

    play(body)


FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("why", "end"),
    [
        ("CUDA error: uncorrectable ECC error encountered", None),
        (FULL, MemoryRanOut),
        ("Exception: size mismatch for layers.0", RunFailed),
    ],
)
def test_weights_refused_twice_end_the_run_but_by_the_device(play, why, end):
    async def body(fakes):
        (engine,) = fakes.engines
        for version in ("v1", "v2", "v2"):
            fakes.actors[-1].refuses = why
            with pytest.raises(RunFailed, match=f"could not receive weights: {why[:9]}"):
                await fakes.give(engine, version)
            if version == "v1" or len(fakes.actors) == 2 or end is None:
                await fakes.fleet.some_ready([engine])
        if end is None:
            await fakes.give(engine, "v2")
            assert len(fakes.actors) == 4 and engine.version == "v2"
        else:
            with pytest.raises(end, match=f"{why[:9]}.*for the second time with the weights v2"):
                await fakes.fleet.some_ready([engine])

    play(body)


def test_an_engine_that_dies_of_its_samples_is_given_up(play):
    async def body(fakes):
        (engine,) = fakes.engines
        for lives in range(1, SAME_DEATHS + 1):
            await fakes.give(engine, "v1")
            engine.fail("CUDA error: device-side assert triggered")
            if lives < SAME_DEATHS:
                await fakes.fleet.some_ready([engine])
        assert engine.given_up and not engine.ends_run and len(fakes.actors) == SAME_DEATHS
        with pytest.raises(RunFailed, match=f"for the {SAME_DEATHS}th time with the weights v1"):
            await fakes.fleet.some_ready([engine])

    play(body)


def test_an_engine_without_memory_twice_ends_its_round(play):
    async def body(fakes):
        async def during():
            for lives in (1, 2):
                await until(lambda: len(fakes.actors) == lives and fakes.actors[-1].running)  # noqa: B023
                fakes.engines[0].fail(FULL)

        with pytest.raises(MemoryRanOut, match=f"{FIRST}: {FULL}, for the second time with the weights v1"):
            await fakes.round(during)

    play(body)


@pytest.mark.parametrize("dying", [{1}, {2, 3}])
def test_an_engine_that_dies_while_it_starts_is_started_again(play, dying):
    async def body(fakes):
        if 1 not in dying:
            fakes.actors[0].die()
            await until(lambda: len(fakes.actors) == 4)
        await fakes.fleet.some_ready(fakes.engines)
        assert len(fakes.actors) == max(dying) + 1
        await fakes.round()

    numbers = iter(range(1, 9))
    play(body, prepare=lambda actor: setattr(actor, "dies_in_start", next(numbers) in dying))


@pytest.mark.parametrize("fault", ["no sign of life", "decoded nothing"])
def test_an_engine_that_hangs_or_does_not_decode_is_replaced(play, fault):
    """The other engine decodes all along, and what it says does not speak for this one."""

    async def body(fakes):
        first, second = fakes.actors
        second.token_s = 70.0
        first.token_s = 1e6
        began = now_s()

        async def during():
            await until(lambda: first.running)
            if fault == "no sign of life":
                first.answers.clear()
            await until(lambda: first in fakes.ended)
            waited = 5.0 if fault == "no sign of life" else engine_handle.PROGRESS_S
            assert waited <= now_s() - began <= waited + 2 * LOOK_S + 1

        fakes.prepare = lambda actor: setattr(actor, "token_s", 0.01)
        result = await fakes.round(during)
        (restart,) = result.restarts
        assert restart.startswith(f"{FIRST}: {fault} for {5 if fault == 'no sign of life' else 120} s")
        assert "6 samples lost" in restart and second not in fakes.ended

    play(body, 2, patience=Patience(stall_s=5.0))


def test_an_abort_never_overtakes_its_submit_and_nothing_outlives_a_round(play):
    async def body(fakes):
        actor, (engine,) = fakes.actors[0], fakes.engines
        await fakes.give(engine, "v1")
        actor.submit_s = 0.1  # slower than an abort
        requests = [Request(f"r{i}", (3,), 8) for i in range(3)]
        submitted = asyncio.create_task(engine.submit(requests, "v1"))
        await asyncio.gather(submitted, asyncio.create_task(engine.abort(["r1"])))
        done = [("submit", "r0"), ("submit", "r1"), ("submit", "r2"), ("abort", "r1")]
        assert fakes.log[2:] == [(FIRST, *each) for each in done]
        assert sorted(actor.running) == ["r0", "r2"]
        # A race that keeps 2 of 6 prompts aborts the others while their submits may still be on the way.
        await engine.abort(["r0", "r2"])
        await fakes.round(machine=race(1, 3))
        assert not actor.running

    play(body)


def test_a_round_that_is_left_waits_for_no_hung_engine(play):
    async def body(fakes):
        hung, other = fakes.actors

        async def hang():
            await until(lambda: hung.running and other.running)
            hung.answers.clear()

        round_ = asyncio.create_task(fakes.round(hang))
        await until(lambda: not hung.answers.is_set())
        began = now_s()
        round_.cancel()
        await asyncio.wait({round_})
        assert round_.cancelled() and now_s() - began == pytest.approx(LEAVE_S)
        assert not other.running, "an engine that answers decodes nothing of the round any more"
        # What was sent to it is still in its turn: the next round's weights do not overtake it.
        hung.answers.set()
        await fakes.give(fakes.engines[0], "v2")
        assert not hung.running

    play(body, 2, patience=Patience(stall_s=3600.0), prepare=lambda actor: setattr(actor, "token_s", 3600.0))


def test_a_round_does_not_wait_for_a_replacement_while_it_has_others(play):
    async def body(fakes):
        slow = asyncio.Event()
        fakes.prepare = lambda actor: setattr(actor, "answers", slow)

        async def during():
            await asyncio.sleep(0.005)
            fakes.actors[0].die()

        first = await fakes.round(during)
        assert first.restarts and not fakes.engines[0].alive
        second = await fakes.round(version="v2")
        assert {sample.engine for sample in second.samples.values()} == {SECOND}

        async def come_back():
            slow.set()

        fakes.actors[1].token_s = 0.1
        third = await fakes.round(come_back, version="v3")
        await until(lambda: fakes.engines[0].alive)
        assert not third.restarts
        fourth = await fakes.round(version="v4")
        assert {sample.engine for sample in fourth.samples.values()} == {FIRST, SECOND}

    play(body, 2)


def test_a_round_whose_only_engine_is_gone_waits_for_the_next(play):
    async def body(fakes):
        async def during():
            await asyncio.sleep(0.005)
            fakes.actors[0].die()

        machine = race()
        result = await fakes.round(during, machine=machine)
        assert len(machine.outcome().trained) == 6 and len(result.restarts) == 1
        assert fakes.log.count((FIRST, "load", "v1")) == 2, "the replacement got the round's weights"

    play(body)


def test_an_engine_that_cannot_be_replaced_any_more_ends_the_round(play):
    async def body(fakes):
        async def during():
            fakes.actors[0].die()

        with pytest.raises(RunFailed, match=rf"{FIRST} was started again 0 times within an hour.*core process died"):
            await fakes.round(during)
        with pytest.raises(RunFailed, match=FIRST):
            await fakes.fleet.some_ready(fakes.engines)

    play(body, patience=Patience(restarts_per_hour=0))


def test_a_sample_that_vllm_gives_up_is_drawn_again(play):
    class GivesUp(FakeActor):
        """Gives up three tries of prompt 0, and every try of prompt 1."""

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.left = Counter(p0=3, p1=1000)

        def gives_up(self, request):
            self.left[request.prompt_id] -= 1
            return "error" if self.left[request.prompt_id] >= 0 else ""

    async def body(fakes):
        machine = race()
        result = await fakes.round(machine=machine)
        outcome = machine.outcome()
        assert [group.prompt for group in outcome.trained] == ["p0", "p2", "p3", "p4", "p5"]
        assert all(sample.response_tokens.tolist() == [0, 1, 2] for sample in result.samples.values() if sample.reward)
        (failure,) = outcome.failures.items()
        assert failure[0] == "p1" and failure[1].startswith("vLLM ended") and failure[1].endswith("with 'error'")
        # The sample beside the one with which prompt 1 failed was lost in the same moment.
        assert result.lost == {"error": 3 + 2 * LOSSES + MAX_FAILURES_PER_PROMPT + 1 + 1}

    play(body, actor=GivesUp)


@pytest.mark.parametrize("when", ["in the round", "between rounds"])
def test_an_engine_that_is_given_up_ends_no_run_that_has_others(play, when):
    async def body(fakes):
        told = []
        fakes.fleet.spare(told.append)

        async def dies():
            fakes.prepare = lambda actor: setattr(actor, "dies_in_start", True)
            fakes.actors[0].die()
            if when == "between rounds":
                await until(lambda: fakes.engines[0].given_up)

        if when == "between rounds":
            await dies()
        machine = race()
        await fakes.round(dies if when == "in the round" else None, machine=machine)
        await until(lambda: fakes.engines[0].given_up)
        assert len(machine.outcome().trained) == 6
        assert [str(news.error) for news in told] == [f"{FIRST} did not start: its core died while it started"]
        await fakes.round(version="v2")
        assert fakes.fleet.engines(EngineLayout(1, 1)) == [fakes.engines[1]], "another of its size stands in"

        async def the_last_dies():
            fakes.actors[1].die()

        with pytest.raises(RunFailed, match=f"{SECOND} did not start"):
            await fakes.round(the_last_dies, version="v3")
        fakes.prepare = lambda actor: None
        fakes.engines[0].leave_node("its node is excluded")
        assert await fakes.fleet.some_ready(fakes.engines) == [fakes.engines[0]], "on another node it may start"

    play(body, 2)


def test_a_run_begins_without_an_engine_whose_starts_fail():
    async def begun(*bad):
        fakes, told = Scene(2, ""), []
        fakes.prepare = lambda actor: setattr(actor, "dies_in_start", actor.name in bad)
        fakes.fleet.spare(told.append)
        try:
            await fakes.fleet.start()
            return [news.engine.name for news in told], [engine.alive for engine in fakes.engines]
        finally:
            await fakes.fleet.close()

    assert played(begun(FIRST)) == ([FIRST], [False, True])
    with pytest.raises(RunFailed, match="did not start: its core died while it started"):
        played(begun(FIRST, SECOND))


def test_a_run_begins_without_an_engine_that_has_no_node(play):
    class Nodes:
        """A node comes for the first engine when `there` is set."""

        def __init__(self):
            self.there, self.failed = asyncio.Event(), []

        def waits(self, name):
            return name == FIRST and not self.there.is_set()

        async def engine(self, name):
            if name == FIRST:
                await self.there.wait()
            return ActorPlacement("", "127.0.0.1", (), (), 1)

        def engine_failed(self, name, why):
            self.failed.append((name, why))

    async def scene():
        fakes, nodes = Scene(2, ""), Nodes()
        for engine in fakes.engines:
            engine._placer = nodes
        fakes.fleet.spare(lambda news: None)
        await fakes.fleet.start()
        assert [engine.alive for engine in fakes.engines] == [False, True]
        nodes.there.set()
        await until(lambda: fakes.engines[0].alive)
        fakes.actors[0].die()
        await until(lambda: nodes.failed)
        assert len(nodes.failed) == 1 and nodes.failed[0][0] == SECOND, "a death is counted once"
        await fakes.fleet.close()

    played(scene())


@pytest.mark.parametrize("left", [True, False], ids=["its node is excluded", "it hangs"])
def test_a_start_that_is_in_the_way_ends_and_is_placed_anew(left):
    class Nodes:
        node, failed = "bad", ()

        def waits(self, name):
            return False

        async def engine(self, name):
            return ActorPlacement(self.node, self.node, (), (), 1)

        def engine_failed(self, name, why):
            self.failed, self.node = (*self.failed, why), "good"

    async def scene():
        fakes, nodes = Scene(1, ""), Nodes()
        (engine,) = fakes.engines
        engine._placer = nodes
        fakes.prepare = lambda actor: setattr(actor, "stuck_in_start", engine.config.node_id == "bad")
        start = asyncio.create_task(engine.start())
        await asyncio.sleep(2.0)
        if left:
            nodes.node = "good"
            engine.leave_node("its node is excluded")
        began = now_s()
        await start
        assert engine.alive and engine.config.node_id == "good" and len(fakes.actors) == 2
        assert (now_s() - began < 1.0) == left
        assert fakes.ended[0] is fakes.actors[0]
        assert [why.partition(" for ")[0] for why in nodes.failed] == ([] if left else ["its processes did nothing"])
        await fakes.fleet.close()

    played(scene())


@pytest.mark.parametrize("meanwhile", ["lost", "good"], ids=["its node is lost", "another node is there already"])
def test_an_engine_that_waits_for_room_leaves_its_node_too(meanwhile):
    class Nodes:
        node = "bad"

        def waits(self, name):
            return self.node == "lost"

        def stands(self, name, node_id):
            return self.node == node_id

        async def engine(self, name):
            self.node = "good" if self.waits(name) else self.node
            return ActorPlacement(self.node, self.node, (), (), 1)

    async def scene():
        fakes, nodes = Scene(1, ""), Nodes()
        (engine,) = fakes.engines

        async def room(name):
            await asyncio.sleep(1.0)
            nodes.node = meanwhile if nodes.node == "bad" else nodes.node

        engine._placer, engine.room = nodes, room
        await engine.start()
        assert engine.alive and engine.config.node_id == "good" and len(fakes.actors) == 1
        await fakes.fleet.close()

    played(scene())


def test_what_was_sent_to_a_dead_engine_never_reaches_its_successor(play):
    async def body(fakes):
        (engine,) = fakes.engines
        await fakes.give(engine, "v1")
        late = engine.submit([Request("late", (3,), 8)], "v1")
        engine.fail("killed by the test")
        with pytest.raises(ActorFailed, match="killed by the test"):
            await engine.abort(["late"])
        await fakes.fleet.some_ready([engine])
        with pytest.raises(RunFailed, match="killed by the test"):
            await late
        assert (FIRST, "submit", "late") not in fakes.log and engine.version == ""

    play(body)


def test_a_call_without_an_answer_in_time_costs_the_engine(play):
    """A load may take as long as its bytes, beside the patience; other calls the patience alone."""

    async def body(fakes):
        (engine,) = fakes.engines
        fakes.actors[0].gate = asyncio.Event()
        began = now_s()
        with pytest.raises(ActorFailed, match="no answer to load_weights within 7 s"):
            await fakes.give(engine, "v1")
        assert now_s() - began == pytest.approx(7 + 100 / 20e6)
        await fakes.fleet.some_ready([engine])
        fakes.actors[1].submit_s, began = 100.0, now_s()
        await fakes.give(engine, "v1")
        with pytest.raises(ActorFailed, match="no answer to submit within 7 s"):
            await engine.submit([], "v1")
        assert now_s() - began == pytest.approx(7)

    play(body, patience=Patience(stall_s=7.0))


def test_news_goes_to_the_round_and_only_deaths_are_kept_beside_it(play):
    async def body(fakes):
        (engine,), told = fakes.engines, []
        fakes.fleet.listen(told.append)
        engine.fail("first")
        await engine.repair
        fakes.fleet.listen_no_more()
        engine.fail("second")
        engine.fail("it is gone already")
        await engine.repair
        assert told == [EngineDied(engine, "first"), EngineBack(engine)]
        assert [death.reason for death in fakes.fleet.take_missed()] == ["second"]

    play(body)


def test_an_engine_that_lost_its_seat_tells_its_next_user(play):
    async def body(fakes):
        (engine,) = fakes.engines

        async def none(name):
            raise InputError("no room")

        engine.room = none
        engine.fail("its node is gone")
        await asyncio.gather(engine.repair)
        with pytest.raises(InputError, match="no room"):
            engine.check()

    play(body)


def test_an_engine_that_does_not_stop_in_time_is_killed(play):
    class Deaf(FakeActor):
        async def _close(self):
            await asyncio.Event().wait()

    async def body(fakes):
        began = now_s()
        await fakes.engines[0].close()
        assert now_s() - began == pytest.approx(CLOSE_S) and fakes.ended == fakes.actors
        assert not fakes.engines[0].alive

    play(body, actor=Deaf)
