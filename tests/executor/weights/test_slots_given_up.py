"""What becomes of slots on GPUs that break: the driver's choice is real, trainer, engines and transfers are fakes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from rlplan.executor.weights.broadcast_parts import Partly
from rlplan.executor.weights.by_broadcast import ByBroadcast
from rlplan.executor.weights.ways import Sent, WayClosed


class Engine:
    def __init__(self, name: str, device: str) -> None:
        self.name, self.alive, self.lives = name, True, 1
        self.facts = SimpleNamespace(devices=(device,))
        self.config = SimpleNamespace(tp=1)


class Scripted(ByBroadcast):
    """Transfers of which `script` says how they end: slots and engines are given to it."""

    def __init__(self, script: Any, **more: Any) -> None:
        parts: Any = SimpleNamespace(name="trainer", lives=1)
        super().__init__(parts, 1.0, **more)
        self.script = script
        self.tried: list[tuple[str, list[str]]] = []

    async def _planned(self) -> Any:
        return SimpleNamespace(nbytes=100), [SimpleNamespace(device=uuid) for uuid in ("g0", "g1")]

    async def _attempt(self, engines: Any, version: str, checked: bool, slots: Any) -> dict[str, dict[str, str]]:
        self.tried.append((slots, [engine.name for engine in engines]))
        self.script(slots, engines)
        return {engine.name: {} for engine in engines}


def sent(way: Scripted, engines: list[Engine], version: str = "v") -> Sent:
    ready: Any = engines
    return asyncio.run(way.send(ready, version, False))


def test_slots_on_gpus_that_break_though_nobody_died_are_given_up_for_host_memory_for_good() -> None:
    def script(slots: str, engines: list[Engine]) -> None:
        if slots != "host":
            raise Partly({}, "no CUDA IPC handle")

    way, engines = Scripted(script), [Engine("a", "g0"), Engine("b", "g1")]
    first = sent(way, engines)
    assert (first.slots, first.reason, set(first.received)) == ("host", "ipc broke: no CUDA IPC handle", {"a", "b"})
    assert sent(way, engines, "w").slots == "host"
    assert way.tried == [("ipc", ["a", "b"]), ("host", ["a", "b"]), ("host", ["a", "b"])]


def test_the_death_of_an_engine_is_no_fault_of_the_slots() -> None:
    def script(slots: str, engines: list[Engine]) -> None:
        if len(engines) == 2:
            engines[1].alive = False
            raise Partly({}, "b died")

    way = Scripted(script)
    found = sent(way, [Engine("a", "g0"), Engine("b", "g1")])
    assert (found.slots, found.reason, set(found.received)) == ("ipc", None, {"a"})
    assert way.tried == [("ipc", ["a", "b"]), ("ipc", ["a"])]


def test_an_engine_that_comes_while_others_decode_gets_the_weights_through_host_memory() -> None:
    way = Scripted(lambda slots, engines: None)
    late: Any = Engine("a", "g0")
    asyncio.run(way.send_again([late], "v"))
    assert sent(way, [late]).slots == "ipc"
    assert way.tried == [("host", ["a"]), ("ipc", ["a"])]


def test_host_memory_that_breaks_time_after_time_closes_the_way() -> None:
    def script(slots: str, engines: list[Engine]) -> None:
        raise Partly({}, "no network")

    way = Scripted(script, slots="host")
    with pytest.raises(WayClosed, match="broke off 3 times: no network"):
        sent(way, [Engine("a", "g0")])
    assert [slots for slots, _ in way.tried] == ["host"] * 3
