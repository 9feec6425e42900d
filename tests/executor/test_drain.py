"""Nodes that are to be taken away: what is done between two steps, and in which order; all around is fake."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from rlplan.executor.drain import Drain


class Stage:
    """Node 0 has an engine, node 1 an engine and the trainer of run a; `log` has what was done."""

    def __init__(self, draining: dict[int, float | None], room: bool, fault: str | None = None) -> None:
        self.draining, self.room, self.fault = draining, room, fault
        self.log: list[str] = []
        self.notes: list[str] = []

    # -- seats ---------------------------------------------------------------------------------------------------------

    def newly_draining(self) -> dict[int, float | None]:
        new, self.draining = self.draining, {}
        return new

    def address(self, number: int) -> str:
        return f"10.0.0.{number}"

    def trains_on(self, plan: str, number: int) -> bool:
        return plan == "a" and number == 1

    def seated_on(self, engine: str, number: int) -> bool:
        return engine == f"engine-{number}"

    def leave(self, number: int) -> bool:
        if self.room:
            self.log.append(f"leave {number}")
        return self.room

    # -- engines and runs ----------------------------------------------------------------------------------------------

    def all_engines(self) -> list[Any]:
        def engine(number: int) -> Any:
            return SimpleNamespace(name=f"engine-{number}", fail=lambda why: self.log.append(f"end engine-{number}"))

        return [engine(0), engine(1)]

    def run(self, name: str) -> Any:
        async def checkpoint() -> None:
            self.log.append(f"checkpoint {name}")

        async def recover(death: Exception) -> None:
            self.log.append(f"recover {name}")

        def event(event: str, **fields: Any) -> None:
            self.log.append(f"{event} {fields['node']} in {name}")

        trainer = SimpleNamespace(name=f"trainer {name}")
        return SimpleNamespace(
            name=name, step_number=4, checkpoint_fault=self.fault, trainer=trainer, checkpoint=checkpoint,
            recover=recover, event=event,
        )  # fmt: skip

    def between_steps(self, times: int = 1) -> list[str]:
        seats: Any = self
        drain = Drain(seats, seats, [self.run("a"), self.run("b")])

        async def body() -> None:
            for _ in range(times):
                await drain.between_steps(self.notes.append)

        asyncio.run(body())
        return self.log


def test_a_trainers_node_is_left_after_a_checkpoint_of_its_run_alone() -> None:
    stage = Stage({1: 90.0}, room=True)
    assert stage.between_steps(times=2) == [
        "node_draining 1 in a", "node_draining 1 in b", "checkpoint a", "leave 1", "end engine-1", "recover a",
    ]  # fmt: skip
    assert stage.notes == ["node 10.0.0.1 is to be taken away in 90 s"]


def test_a_node_of_engines_alone_is_left_without_a_checkpoint() -> None:
    stage = Stage({0: None}, room=True)
    assert stage.between_steps()[2:] == ["leave 0", "end engine-0"]
    assert stage.notes == ["node 10.0.0.0 is to be taken away"]


def test_without_room_elsewhere_only_the_checkpoint_is_written() -> None:
    stage = Stage({1: 30.0}, room=False)
    assert stage.between_steps()[2:] == ["checkpoint a"]
    assert stage.notes[1].startswith("no other node has room for what runs on node 10.0.0.1")


def test_a_node_whose_checkpoint_could_not_be_written_is_used_until_it_is_gone() -> None:
    stage = Stage({1: 90.0}, room=True, fault="the disk is full")
    assert stage.between_steps()[2:] == ["checkpoint a"]
    assert stage.notes[1].endswith("no checkpoint could be written: the disk is full")
