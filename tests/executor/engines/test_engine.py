"""Pure parts of the engine: its heartbeat, and by which weights a sample was decoded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.messages import EngineConfig
from rlplan.executor.engines.vllm_options import versions_of


def test_an_engine_that_decodes_is_heard_of_and_one_that_does_not_is_not():
    async def body():
        engine = RolloutEngine(EngineConfig("e", "model", "float32", 1, 64, 4, "cpu", 10**6))

        async def decoding():
            await asyncio.sleep(0.02)
            engine._decoding.grew = True

        task = asyncio.create_task(decoding())
        first = await engine.poll(0.1)
        await task
        return first, await engine.poll(0.02)

    heard, silent = asyncio.run(body())
    assert [event.name for event in heard] == ["alive"] and silent == []


def test_vllms_word_for_the_weights_of_a_sample_counts_and_the_engines_own_where_vllm_gives_none():
    spans = [SimpleNamespace(version="run:4", start=0, end=7), SimpleNamespace(version="run:5", start=7, end=9)]
    assert versions_of(SimpleNamespace(weight_versions=spans), "run:4", "run:4") == ("run:4", "run:5")
    assert versions_of(SimpleNamespace(weight_versions=None), "run:4", "run:4") == ("run:4", "run:4")
    assert versions_of(SimpleNamespace(), "run:4", "") == ("run:4", "")
