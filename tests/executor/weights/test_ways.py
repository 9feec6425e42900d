"""Which way weights go, what is tried next, and what joins late; the ways are fakes, the choice is real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from rlplan.executor.faults import ActorFailed
from rlplan.executor.supervision import Supervisor
from rlplan.executor.weights.by_file import ByFile
from rlplan.executor.weights.sync import SyncReport, WeightSync
from rlplan.executor.weights.ways import Sent, WayClosed


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name


class Parts:
    """A fleet whose engines are all up, and a trainer that lives."""

    supervisor = Supervisor()

    def __init__(self) -> None:
        self.exports: list[str] = []

    async def some_ready(self, engines: list[Engine]) -> list[Engine]:
        return engines

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def export(self, path: Path, version: str, checksums: bool) -> dict[str, str]:
        self.exports.append(version)
        return {}


class FakeWay:
    """Delivers to the engines of each of `outcomes` in turn, or raises it; the last one is for all that follow."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.calls = 0
        self.again: list[str] = []

    async def send(self, engines: list[Engine], version: str, checked: bool) -> Sent:
        self.calls += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return Sent(100, {"w": "1"}, {name: {"w": sums} for name, sums in outcome.items()})

    async def send_again(self, engines: list[Engine], version: str) -> None:
        await self.send(engines, version, False)
        self.again += [engine.name for engine in engines]

    async def close(self) -> None: ...


def made(broadcast: FakeWay, file: FakeWay) -> WeightSync:
    parts: Any = Parts()
    sync = WeightSync(parts, parts, Path("weights"))
    sync._broadcast, sync._file = broadcast, file  # type: ignore[assignment]
    return sync


def reports(sync: WeightSync, count: int) -> list[SyncReport]:
    engines: Any = [Engine("a"), Engine("b")]

    async def body() -> list[SyncReport]:
        return [await sync.sync(engines, f"v{number}", True) for number in range(count)]

    return asyncio.run(body())


def test_engines_that_received_other_bytes_are_counted_whatever_the_way() -> None:
    for way in ("broadcast", "file"):
        ways = {way: FakeWay({"a": "1", "b": "2"})}
        closed = FakeWay(WayClosed("no pieces", lasting=True))
        (report,) = reports(made(ways.get("broadcast", closed), ways.get("file", closed)), 1)
        assert (report.way, report.engines, report.mismatches) == (way, 2, 1)


def test_a_model_that_cannot_be_broadcast_goes_by_file_for_good_and_the_report_says_why() -> None:
    broadcast, file = FakeWay(WayClosed("no block of it", lasting=True)), FakeWay({"a": "1"})
    found = reports(made(broadcast, file), 3)
    assert [(report.way, report.reason) for report in found] == [("file", "no block of it")] * 3
    assert broadcast.calls == 1


def test_a_broadcast_that_broke_off_is_tried_again_at_the_next_sync() -> None:
    broadcast = FakeWay(WayClosed("the network was down", lasting=False), {"a": "1"})
    found = reports(made(broadcast, FakeWay({"a": "1"})), 2)
    assert [(report.way, report.reason) for report in found] == [("file", "the network was down"), ("broadcast", None)]


def test_while_every_engine_dies_on_the_way_the_sync_goes_on() -> None:
    (report,) = reports(made(FakeWay({}, {}, {"b": "1"}), FakeWay({})), 1)
    assert (report.way, report.engines, report.mismatches) == ("broadcast", 1, 0)


def test_an_engine_that_comes_late_gets_the_weights_the_same_way_until_the_trainer_may_change_them() -> None:
    broadcast = FakeWay({"a": "1"})
    sync = made(broadcast, FakeWay({"a": "1"}))
    engine: Any = Engine("b")
    reports(sync, 1)
    asyncio.run(sync.join(engine, "v0"))
    assert broadcast.again == ["b"]
    sync.retire()
    with pytest.raises(ActorFailed, match="the round of v0 was over"):
        asyncio.run(sync.join(engine, "v0"))
    assert broadcast.again == ["b"]


def test_engines_of_a_tail_get_the_weights_together_by_a_file_where_the_broadcast_is_closed() -> None:
    broadcast, file = FakeWay(WayClosed("no route", lasting=False)), FakeWay({"a": "1", "b": "1"})
    sync = made(broadcast, file)
    engines: Any = [Engine("a"), Engine("b")]
    reports(sync, 1)
    asyncio.run(sync.join_all(engines, "v0"))
    assert file.again == ["a", "b"] and broadcast.again == []
    sync.retire()
    with pytest.raises(ActorFailed, match="the round of v0 was over"):
        asyncio.run(sync.join_all(engines, "v0"))


def test_a_file_is_not_written_under_a_version_that_the_trainer_has_left() -> None:
    parts: Any = Parts()
    way = ByFile(parts, Path("weights"), lambda: False)
    engine: Any = Engine("a")
    with pytest.raises(WayClosed, match="goes on to the next weights"):
        asyncio.run(way.send_again([engine], "v0"))
    assert parts.exports == []
