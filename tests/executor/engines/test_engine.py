"""Pure parts of the engine: its heartbeat."""

from __future__ import annotations

import asyncio

from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.messages import EngineConfig


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
    assert [event.name for event in heard] == ["alive"] and silent == []
