"""What is left of a session that could not be opened: the driver's part is real, trainer and engines are fakes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from rlplan.executor.weights.by_broadcast import TRIES, ByBroadcast
from rlplan.executor.weights.ways import WayClosed


class Engine:
    def __init__(self, node: str, memory: str) -> None:
        self.name, self.alive, self.lives = node, True, 1
        self.facts = SimpleNamespace(devices=(), node=node)
        self.config = SimpleNamespace(tp=1)
        self.memory = memory
        self.made: list[str] = []
        self.left: list[str] = []

    async def make_node_memory(self, name: str, bucket_bytes: int, ranks: int) -> str:
        if self.memory.startswith("/"):
            self.made.append(name)
        return self.memory

    async def leave_transfer(self, name: str) -> None:
        self.left.append(name)


class Planned(ByBroadcast):
    async def _planned(self) -> Any:
        return SimpleNamespace(nbytes=100, largest=10), [SimpleNamespace(device="g0")]


def test_memory_of_one_node_is_given_back_if_that_of_another_cannot_be_made() -> None:
    one, two = Engine("one", "/dev/shm/made"), Engine("two", "no space left on /dev/shm")

    async def send() -> None:
        trainer: Any = SimpleNamespace(name="trainer", lives=1)
        engines: Any = [one, two]
        way = Planned(trainer, 1.0, slots="host")
        with pytest.raises(WayClosed, match="no space left"):
            await way.send(engines, "v", False)
        await way.close()

    asyncio.run(send())
    assert len(set(one.made)) == TRIES and one.left == one.made
