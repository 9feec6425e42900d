"""Pure parts of engine and round runner: heartbeats, and whose luck a redrawn sample has."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("ray")

from rlplan.executor.engine import EngineConfig, RolloutEngine
from rlplan.executor.rollout import RoundRunner, _RoundInProgress
from rlplan.rounds.events import Issue, SampleKey
from rlplan.rounds.race import RaceRound
from rlplan.rounds.seeds import RoundSeeds

SEEDS = RoundSeeds(3, 0, None)


def test_an_engine_that_decodes_is_heard_of_and_one_that_does_not_is_not():
    async def body():
        engine = RolloutEngine(EngineConfig("e", "model", "float32", 1, 64, 4, "cpu", 10**6))

        async def decoding():
            await asyncio.sleep(0.02)
            engine._grew = True

        task = asyncio.create_task(decoding())
        first = await engine.poll(0.1)
        await task
        return first, await engine.poll(0.02)

    heard, silent = asyncio.run(body())
    assert [event.kind for event in heard] == ["alive"] and silent == []


def progress(seeds=SEEDS):
    runner = RoundRunner(None, None, {}, str, temperature=1.0)
    return _RoundInProgress(runner, RaceRound(["p"], 1, 2, 2, 9), [None], "v", "w", "t", seeds)


def issue(draw, sample, prompt="p"):
    return Issue(SampleKey(draw, sample), prompt, 9)


def test_draws_of_a_prompt_have_luck_of_their_own_by_their_order():
    state = progress()
    seeds = [state._seed(issue(draw, sample)) for draw in (0, 4) for sample in (0, 1)]
    assert seeds == [SEEDS.of("p", nth, sample) for nth in (0, 1) for sample in (0, 1)]
    assert state._seed(issue(5, 0, "q")) == SEEDS.of("q", 0, 0)
    assert progress(None)._seed(issue(0, 0)) is None


def lose(state, *keys):
    """What `_lose` notes about samples whose engine died."""
    for draw, sample in keys:
        state._vacant.setdefault("p", []).append(state._luck[SampleKey(draw, sample)])


def test_a_lost_sample_of_a_draw_that_goes_on_is_drawn_with_the_same_luck():
    state = progress()
    first = [state._seed(issue(0, sample)) for sample in (0, 1)]
    lose(state, (0, 1))
    assert state._seed(issue(0, 2)) == first[1]
    assert state._seed(issue(0, 3)) == SEEDS.of("p", 0, 3)
    lose(state, (0, 2))
    assert state._seed(issue(0, 4)) == first[1], "lost again, drawn again"


def test_a_draw_that_replaces_a_void_one_has_its_luck_and_the_next_draw_its_own():
    state = progress()
    first = [state._seed(issue(0, sample)) for sample in (0, 1)]
    second = [state._seed(issue(1, sample)) for sample in (0, 1)]
    lose(state, (0, 0), (0, 1))
    assert [state._seed(issue(2, sample)) for sample in (0, 1)] == first
    assert [state._seed(issue(3, sample)) for sample in (0, 1)] == [SEEDS.of("p", 2, sample) for sample in (0, 1)]
    assert len({*first, *second}) == 4
