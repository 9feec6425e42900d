"""Engines that die, hang and come back, as fleet and rounds see it; the engines are fakes, all else is real."""

from __future__ import annotations

import asyncio
import time

import pytest

pytest.importorskip("ray")

from rlplan.executor.engines.engine_handle import EngineEvents
from rlplan.executor.engines.messages import Request
from rlplan.executor.rewards.pool import RewardResult
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_runner import RoundRunner
from rlplan.executor.supervision import Patience
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.machines.race import RaceRound

from .engine_fakes import FakeFleet

PROMPTS = {f"p{i}": PromptText(f"p{i}", "text", (3, 4), None) for i in range(6)}


class Rewards:
    def score(self, key, prompt, response, answer, deadline_s=None):
        future = asyncio.get_running_loop().create_future()
        future.set_result(RewardResult(1.0, 0.0, "ok", "", 1, "w"))
        return future

    def cancel(self, key):
        return False


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"0")
    return str(path)


def by_path(path):
    """Gives an engine that comes back in a round the weights at `path`."""
    return lambda engine, version: engine.load(path, version, False)


def run_round(fakes, weights, engines, during=None, *, machine=None, version="v1", load=True):
    """A race round over `engines` engines; `during` goes on beside it."""
    machine = machine or RaceRound(list(PROMPTS), 6, 2, 2, max_tokens=8)

    async def body():
        layout = EngineLayout(1, engines)
        up = await fakes.fleet.some_ready(fakes.fleet.engines(layout))
        if load:
            for engine in up:
                await engine.load(weights, version, False)
        runner = RoundRunner(fakes.fleet, Rewards(), PROMPTS, str, temperature=1.0)
        task = asyncio.create_task(runner.run(machine, layout, version, by_path(weights), version))
        if during is not None:
            await during()
        return await asyncio.wait_for(task, 20)

    return body()


async def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def test_the_death_of_an_idle_engines_core_is_noticed_and_the_engine_replaced_before_anybody_needs_it(weights):
    async def body():
        fakes = FakeFleet(1)
        await fakes.fleet.start()
        fakes.actors[0].core_dead = True
        await until(lambda: len(fakes.actors) == 2 and fakes.fleet.all_engines()[0].alive)
        (death,) = fakes.fleet.take_missed()
        assert "core process died" in death.reason and fakes.ended[0] is fakes.actors[0]
        await run_round(fakes, weights, 1)
        await fakes.fleet.close()

    asyncio.run(body())


def test_a_core_that_dies_under_a_weight_load_costs_the_engine_and_not_the_run(weights):
    async def body():
        fakes = FakeFleet(1)
        await fakes.fleet.start()
        (engine,) = fakes.fleet.all_engines()
        fakes.actors[0].core_dead = True
        with pytest.raises(RunFailed, match="core process died"):
            await engine.load(weights, "v1", False)
        await fakes.fleet.some_ready([engine])
        await engine.load(weights, "v1", False)
        assert engine.version == "v1" and len(fakes.actors) == 2
        await fakes.fleet.close()

    asyncio.run(body())


@pytest.mark.parametrize("first", [True, False])
def test_an_engine_that_dies_while_it_starts_is_started_again(weights, first):
    async def body():
        fakes = FakeFleet(1)
        dying = {1} if first else {2, 3}

        def prepare(actor):
            actor.dies_in_start = len(fakes.actors) in dying

        fakes.prepare = prepare
        await fakes.fleet.start()
        if not first:
            fakes.actors[0].core_dead = True
            await until(lambda: len(fakes.actors) == 4)
        await fakes.fleet.some_ready(fakes.fleet.all_engines())
        assert len(fakes.actors) == (2 if first else 4)
        await run_round(fakes, weights, 1)
        await fakes.fleet.close()

    asyncio.run(body())


def test_one_engine_that_hangs_is_named_and_replaced_while_the_others_talk(weights):
    async def body():
        # Samples of 2 s: the healthy engine decodes all along, and its pulses do not speak for the other.
        fakes = FakeFleet(2, decode_s=2.0)
        await fakes.fleet.start()
        hung = fakes.actors[0]
        began = time.monotonic()

        async def during():
            await asyncio.sleep(0.1)
            hung.hangs.clear()
            await until(lambda: hung in fakes.ended)
            assert time.monotonic() - began < 1.9, "before the other engine said anything but pulses"

        result = await run_round(fakes, weights, 2, during)
        assert [r.split(" for")[0] for r in result.restarts] == ["engine-0: no sign of life"]
        assert "6 samples lost" in result.restarts[0] and fakes.actors[1] not in fakes.ended
        await fakes.fleet.close()

    asyncio.run(body())


def test_an_engine_that_lives_and_does_not_decode_is_replaced_while_the_others_decode(weights, monkeypatch):
    monkeypatch.setattr("rlplan.executor.engines.engine_process.PROGRESS_S", 0.6)

    async def body():
        fakes = FakeFleet(2)
        await fakes.fleet.start()
        fakes.actors[0].decode_s = 60.0

        async def talk():
            # The other engine has something to say all the time.
            for _ in range(200):
                fakes.fleet.hear(EngineEvents(fakes.fleet.all_engines()[1], []))
                await asyncio.sleep(0.02)

        talking = asyncio.create_task(talk())
        result = await run_round(fakes, weights, 2)
        talking.cancel()
        assert [r.split(" for")[0] for r in result.restarts] == ["engine-0: decoded nothing"]
        await fakes.fleet.close()

    asyncio.run(body())


def test_an_abort_never_overtakes_its_submit_and_nothing_decodes_after_a_round(weights):
    async def body():
        fakes = FakeFleet(1)
        await fakes.fleet.start()
        actor, (engine,) = fakes.actors[0], fakes.fleet.all_engines()
        await engine.load(weights, "v1", False)
        actor.submit_s = 0.1  # slower than an abort
        requests = [Request(f"r{i}", (3,), 8) for i in range(3)]
        submitted = asyncio.create_task(engine.submit(requests, "v1"))
        aborted = asyncio.create_task(engine.abort(["r1"]))
        await asyncio.gather(submitted, aborted)
        assert fakes.log[1:] == [
            ("engine-0", "submit", "r0"), ("engine-0", "submit", "r1"), ("engine-0", "submit", "r2"),
            ("engine-0", "abort", "r1"),
        ]  # fmt: skip
        assert sorted(actor.running) == ["r0", "r2"]
        # A race that keeps 2 of 6 prompts aborts the others while their submits may still be on the way.
        await engine.abort(["r0", "r2"])
        await run_round(fakes, weights, 1, machine=RaceRound(list(PROMPTS), 1, 2, 3, max_tokens=8))
        assert not actor.running
        await fakes.fleet.close()

    asyncio.run(body())


def test_a_round_that_is_left_does_not_wait_for_an_engine_that_hangs(weights, monkeypatch):
    monkeypatch.setattr("rlplan.executor.rollout.round_runner.LEAVE_S", 0.1)

    async def body():
        fakes = FakeFleet(2, Patience(stall_s=3600.0), decode_s=3600.0)
        await fakes.fleet.start()
        hung, other = fakes.actors

        async def hang():
            await until(lambda: hung.running and other.running)
            hung.hangs.clear()

        round_ = asyncio.create_task(run_round(fakes, weights, 2, hang))
        await until(lambda: not hung.hangs.is_set())
        round_.cancel()
        done, _ = await asyncio.wait({round_}, timeout=60)
        assert done and round_.cancelled(), "an hour would pass until the engine is given up"
        assert not other.running, "an engine that answers decodes nothing of the round any more"
        # What was sent to it is still in its turn: the next round's weights do not overtake it.
        hung.hangs.set()
        (first, _) = fakes.fleet.all_engines()
        await first.load(weights, "v2", False)
        assert not hung.running
        await fakes.fleet.close()

    asyncio.run(body())


def test_a_round_ends_and_the_next_begins_without_an_engine_that_is_still_being_replaced(weights):
    async def body():
        fakes = FakeFleet(2)
        await fakes.fleet.start()
        slow = asyncio.Event()

        def start_slowly(actor):
            actor.hangs = slow

        fakes.prepare = start_slowly

        async def during():
            await asyncio.sleep(0.005)
            fakes.actors[0].core_dead = True

        first = await run_round(fakes, weights, 2, during)
        assert first.restarts and not fakes.fleet.all_engines()[0].alive
        second = await run_round(fakes, weights, 2, version="v2")
        assert {sample.engine for sample in second.samples.values()} == {"engine-1"}

        async def come_back():
            slow.set()

        fakes.actors[1].decode_s = 0.3
        third = await run_round(fakes, weights, 2, come_back, version="v3")
        await until(lambda: fakes.fleet.all_engines()[0].alive)
        assert not third.restarts
        fourth = await run_round(fakes, weights, 2, version="v4")
        assert {sample.engine for sample in fourth.samples.values()} == {"engine-0", "engine-1"}
        await fakes.fleet.close()

    asyncio.run(body())


def test_a_round_whose_only_engine_is_gone_waits_for_the_replacement_and_loses_nothing(weights):
    async def body():
        fakes = FakeFleet(1)
        await fakes.fleet.start()

        async def during():
            await asyncio.sleep(0.005)
            fakes.actors[0].core_dead = True

        machine = RaceRound(list(PROMPTS), 6, 2, 2, max_tokens=8)
        result = await run_round(fakes, weights, 1, during, machine=machine)
        assert len(machine.outcome().trained) == 6 and len(result.restarts) == 1
        assert ("engine-0", "load", "v1") in fakes.log[1:], "the replacement got the round's weights"
        await fakes.fleet.close()

    asyncio.run(body())


def test_an_engine_that_cannot_be_replaced_any_more_ends_the_round_with_the_reason(weights):
    async def body():
        fakes = FakeFleet(1, Patience(stall_s=0.6, restarts_per_hour=0))
        await fakes.fleet.start()

        async def during():
            fakes.actors[0].core_dead = True

        with pytest.raises(RunFailed, match=r"engine-0 was started again 0 times within an hour.*core process died"):
            await run_round(fakes, weights, 1, during)
        with pytest.raises(RunFailed, match="engine-0"):
            await fakes.fleet.some_ready(fakes.fleet.all_engines())
        await fakes.fleet.close()

    asyncio.run(body())


def test_what_was_sent_to_a_dead_engine_never_reaches_its_successor(weights):
    async def body():
        fakes = FakeFleet(1)
        await fakes.fleet.start()
        (engine,) = fakes.fleet.all_engines()
        await engine.load(weights, "v1", False)
        late = engine.submit([Request("late", (3,), 8)], "v1")
        engine.fail("killed by the test")
        await fakes.fleet.some_ready([engine])
        with pytest.raises(RunFailed, match="killed by the test"):
            await late
        assert ("engine-0", "submit", "late") not in fakes.log
        await fakes.fleet.close()

    asyncio.run(body())
