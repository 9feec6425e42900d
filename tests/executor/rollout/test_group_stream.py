"""Failures of training beside a rollout."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlplan.executor.rollout.group_stream import GroupStream
from rlplan.executor.trainer.trainer_config import UpdateSettings
from rlplan.plans.yaml.errors import RunFailed


def test_a_failure_is_told_while_the_round_still_decodes_and_raised_at_its_end() -> None:
    async def fails(*args: Any, **options: Any) -> None:
        raise RunFailed("out of memory")

    async def nothing() -> None: ...

    async def run() -> None:
        update = UpdateSettings(64, recompute=False, offload=False)
        stream = GroupStream(cast(Any, SimpleNamespace(name="t", stream=fails)), update, (0,), nothing)
        told: list[BaseException] = []
        stream.failed = told.append
        stream.begin()
        stream.offer(0, [cast(Any, SimpleNamespace(tokens=100))])
        async with asyncio.timeout(5):
            while not told:
                await asyncio.sleep(0.001)
        assert [str(error) for error in told] == ["out of memory"]
        with pytest.raises(RunFailed, match="out of memory"):
            await stream.close()

    asyncio.run(run())
