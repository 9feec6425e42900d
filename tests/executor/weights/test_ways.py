"""Which way weights go, what is tried next, and what joins late; the ways are fakes, the choice is real."""

import asyncio
from pathlib import Path

import pytest

from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.processes.supervision import Supervisor
from rlplan.executor.weight_sync import ByFile, WeightSync
from rlplan.executor.weights.transfer import Sent, WayClosed
from rlplan.plans.yaml.errors import RunFailed


class Engine:
    """Loads what it is given, or raises `fault`."""

    def __init__(self, name, fault=None, alive=True):
        self.name, self.fault, self.alive = name, fault, alive
        self.loads = []

    async def load(self, path, version, checksums):
        self.loads.append((path, version, checksums))
        if self.fault is not None:
            raise self.fault
        return {"w": self.name}


class Parts:
    """A fleet whose engines are all up, and a trainer that lives."""

    supervisor = Supervisor()
    lives = 1

    def __init__(self):
        self.exports = []

    async def some_ready(self, engines):
        return engines

    async def lost(self):
        await asyncio.Event().wait()

    async def export(self, path, version, checksums):
        self.exports.append((version, checksums))
        path.write_text("12345")
        return {"w": "a"} if checksums else {}


class FakeWay:
    """Delivers to the engines of each of `outcomes` in turn, or raises it; the last one is for all that follow."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.calls = 0
        self.late = []

    async def send(self, engines, version, checked, *, from_host=False):
        self.calls += 1
        self.late += [from_host] * (self.way == "broadcast")
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        expected = {"w": "1"} if checked else {}
        return Sent(self.way, 100, expected, {name: {"w": sums} for name, sums in outcome.items()})


TO_A = {"a": "1"}


def made(broadcast, file):
    parts = Parts()
    sync = WeightSync(parts, parts, Path("weights"))
    sync._broadcast, sync._file = broadcast, file
    broadcast.way, file.way = "broadcast", "file"
    return sync


def reports(sync, count=1, checked=True, **more):
    engines = [Engine("a", alive=not more), Engine("b", alive=False)]

    async def body():
        return [await sync.sync(engines, f"v{number}", checked, **more) for number in range(count)]

    return asyncio.run(body())


@pytest.mark.parametrize("way", ["broadcast", "file"])
@pytest.mark.parametrize(("checked", "mismatches"), [(True, 1), (False, 0)])
def test_engines_with_other_bytes_are_counted_whatever_the_way(way, checked, mismatches):
    ways = {"broadcast": FakeWay(WayClosed("no pieces")), "file": FakeWay({})}
    ways[way] = FakeWay({"a": "1", "b": "2"})
    (report,) = reports(made(ways["broadcast"], ways["file"]), checked=checked)
    assert (report.way, report.engines, report.mismatches, report.nbytes) == (way, 2, mismatches, 100)


def test_what_cannot_be_broadcast_goes_by_file_until_the_next_sync():
    broadcast = FakeWay(WayClosed("the network was down"), TO_A)
    found = reports(made(broadcast, FakeWay(TO_A)), 2)
    assert [(report.way, report.reason) for report in found] == [("file", "the network was down"), ("broadcast", None)]


def test_a_sync_goes_on_while_every_engine_dies_on_the_way():
    (report,) = reports(made(FakeWay({}, {}, {"b": "1"}), FakeWay({})))
    assert (report.way, report.engines, report.mismatches) == ("broadcast", 1, 0)


def test_room_is_made_for_an_engine_where_none_is_up():
    asked = []

    async def none_left():
        asked.append("room")

    reports(made(FakeWay({}, TO_A), FakeWay({})), none_left=none_left)
    assert asked == ["room", "room"]


@pytest.mark.parametrize("closed", [False, True], ids=["broadcast", "file"])
def test_late_engines_get_the_weights_until_the_trainer_may_change_them(closed):
    all_of_them = {"a": "1", "b": "1", "c": "1"}
    broadcast, file = FakeWay(WayClosed("no route") if closed else all_of_them), FakeWay(all_of_them)
    sync, engines = made(broadcast, file), [Engine("b"), Engine("c")]
    reports(sync)
    asyncio.run(sync.join(engines[0], "v0"))
    asyncio.run(sync.join_all(engines, "v0"))
    assert broadcast.late == [False, True, True] and file.calls == (3 if closed else 0)
    sync.retire()
    for join in (sync.join(engines[0], "v0"), sync.join_all(engines, "v0")):
        with pytest.raises(ActorFailed, match="the round of v0 was over"):
            asyncio.run(join)
    assert broadcast.calls == 3


def test_a_late_engine_that_no_way_serves_has_failed():
    sync = made(FakeWay(TO_A, WayClosed("no route")), FakeWay(WayClosed("no disk")))
    reports(sync)
    with pytest.raises(ActorFailed, match="no disk"):
        asyncio.run(sync.join(Engine("b"), "v0"))


def test_a_late_engine_that_dies_on_the_way_has_failed():
    sync = made(FakeWay(TO_A), FakeWay(TO_A))
    reports(sync)
    with pytest.raises(ActorFailed, match="it died as it received weights"):
        asyncio.run(sync.join_all([Engine("a"), Engine("b")], "v0"))


# -- the way by a file -------------------------------------------------------------------------------------------------


def by_file(tmp_path, may_send=True):
    parts = Parts()
    return parts, ByFile(parts, tmp_path / "weights", lambda: may_send)


def test_all_engines_load_the_file_and_dead_ones_are_left_out(tmp_path):
    (parts, way), path = by_file(tmp_path), str(tmp_path / "weights")
    engines = [Engine("a"), Engine("b", ActorFailed("b", "gone")), Engine("c")]
    sent = asyncio.run(way.send(engines, "v1", True))
    assert sent == Sent("file", 5, {"w": "a"}, {"a": {"w": "a"}, "c": {"w": "c"}})
    assert parts.exports == [("v1", True)] and engines[1].loads == [(path, "v1", True)]
    late = Engine("d")
    for version, checked in (("v1", False), ("v1", True), ("v2", False)):
        asyncio.run(way.send([late], version, checked))
    assert parts.exports[1:] == [("v1", True), ("v2", False)], "the file held v1"
    parts.lives += 1
    asyncio.run(way.send([late], "v2", False))
    assert len(parts.exports) == 4, "a trainer that was started again may train otherwise"
    assert late.loads[:3] == [(path, "v1", False), (path, "v1", True), (path, "v2", False)]


def test_an_engine_that_was_sent_another_version_ends_the_run(tmp_path):
    engines = [Engine("a", RunFailed("holds weights 'v0', not 'v1'"))]
    with pytest.raises(RunFailed, match="holds weights 'v0'"):
        asyncio.run(by_file(tmp_path)[1].send(engines, "v1", False))


def test_no_file_is_written_under_a_version_that_the_trainer_left(tmp_path):
    parts, way = by_file(tmp_path, may_send=False)
    engines = [Engine("a")]
    with pytest.raises(WayClosed, match="goes on to the next weights"):
        asyncio.run(way.send(engines, "v0", False))
    assert parts.exports == [] and engines[0].loads == []
