"""The driver's part of weights in pieces is real, and so is its board; trainer, engines and transfers are fakes."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from rlplan.executor.faults import ActorFailed
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.executor.weights import by_broadcast
from rlplan.executor.weights.by_broadcast import SESSIONS, TRIES, ByBroadcast
from rlplan.executor.weights.transfer.boxes import whole
from rlplan.executor.weights.transfer.bucket_plan import Holdings, whole_source
from rlplan.executor.weights.transfer.engine_transfers import Received
from rlplan.executor.weights.ways import Sent, WayClosed

SHAPE = (4, 8)
HELD = Holdings("n0", "float32", {"w": SHAPE}, {"w": whole(SHAPE)}, (whole_source("w", SHAPE),))
SUMS = {"w": "1"}


@pytest.fixture(autouse=True)
def one_host(monkeypatch):
    monkeypatch.setattr(by_broadcast, "node_address", lambda: "127.0.0.1")
    monkeypatch.setattr(by_broadcast, "LEAVE_S", 0.05)


class Party:
    """Answers calls; `says` has what else a call does: an answer, or an error to raise. `calls` has what was asked."""

    def __init__(self, name, **says):
        self.name, self.lives, self.says = name, 1, says
        self.calls = []

    async def call(self, what, *arguments, otherwise=None):
        self.calls.append((what, *arguments))
        answer = self.says.get(what, otherwise)
        if callable(answer):
            answer = answer()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            raise ActorFailed(self.name, "it was killed")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def asked(self, what):
        return [arguments for name, *arguments in self.calls if name == what]


class Trainer(Party):
    """Two ranks on GPUs g0 and g1."""

    async def each(self, method, deadline_s, what, *arguments):
        assert method == "transfer"
        ranks = [HELD._replace(device=device) for device in self.says.get("devices", ("g0", "g1"))]
        answers = {"holdings": ranks, "checksums": [SUMS, {}]}
        return await self.call(what, *arguments, otherwise=answers.get(what, [None, None]))


class Engine(Party):
    """An engine of one rank on a GPU, or of two on CPUs."""

    def __init__(self, name, device="", node="n0", **says):
        super().__init__(name, **says)
        self.alive = True
        self.facts = SimpleNamespace(devices=(device,) if device else (), node=node)
        self.config = SimpleNamespace(tp=1 if device else 2)

    async def make_node_memory(self, name, bucket_bytes, ranks):
        return await self.call("memory", name, bucket_bytes, ranks, otherwise=f"/{self.name}")

    async def open_transfer(self, session):
        return await self.call("open", session)

    async def receive(self, name, turn, version, checked, deadline_s):
        return await self.call("receive", name, turn, version, checked, otherwise=Received(SUMS if checked else {}))

    async def leave_transfer(self, name):
        await self.call("leave", name)

    def fail(self, why):
        self.calls.append(("fail", why))
        self.alive = False
        self.says["receive"].set()


def on_gpus():
    return [Engine("a", "g0"), Engine("b", "g1")]


def sending(body, trainer=None, **more):
    """Run `body(way)`, and close the way."""
    parts = trainer or Trainer("trainer")

    async def main():
        way = ByBroadcast(parts, 1.0, **more)
        try:
            return await asyncio.wait_for(body(way), 30)
        finally:
            await way.close()

    return asyncio.run(main())


def test_transfers_to_the_same_engines_are_turns_of_one_session():
    trainer, engines = Trainer("trainer"), on_gpus()

    async def body(way):
        return [await way.send(engines, f"v{turn}", checked=turn == 1) for turn in range(2)]

    first, second = sending(body, trainer)
    assert first == Sent(4 * 32, {}, {"a": {}, "b": {}}, "ipc")
    assert second == Sent(4 * 32, SUMS, {"a": SUMS, "b": SUMS}, "ipc")
    ((session,),) = trainer.asked("open")
    assert session.rank_devices == ("g0", "g1") and [node.key for node in session.nodes] == ["g0", "g1"]
    assert [engine.asked("open") for engine in engines] == [[[session]]] * 2
    assert trainer.asked("publish") == [[session.name, 0, "v0"], [session.name, 1, "v1"]]
    assert engines[0].asked("receive") == [[session.name, 0, "v0", False], [session.name, 1, "v1", True]]
    assert len(trainer.asked("holdings")) == len(trainer.asked("checksums")) == 1
    assert trainer.asked("leave") == engines[1].asked("leave") == [[session.name]], "the end of the run"


def test_engines_on_cpus_share_the_memory_of_their_nodes():
    engines = [Engine("a", node="n1"), Engine("b", node="n0"), Engine("c", node="n1")]
    trainer = Trainer("trainer", devices=("", ""))
    sent = sending(lambda way: way.send(engines, "v", False), trainer)
    assert (sent.slots, sent.reason, set(sent.received)) == ("host", None, {"a", "b", "c"})
    ((session,),) = trainer.asked("open")
    assert [tuple(node) for node in session.nodes] == [("n0", "/b", 2), ("n1", "/a", 4)]
    assert engines[0].asked("memory") == [[session.name, 128, 2]] and not engines[2].asked("memory")


def test_memory_of_one_node_is_given_back_if_another_has_none():
    one, two = Engine("one", node="n1"), Engine("two", node="n2", memory="no space left on /dev/shm")
    parts = [one, two]
    with pytest.raises(WayClosed, match="broke off 3 times: no space left") as closed:
        sending(lambda way: way.send(parts, "v", False), slots="host")
    assert not closed.value.lasting
    assert len(one.asked("memory")) == TRIES and one.asked("leave") == [[name] for name, *_ in one.asked("memory")]


def test_an_engine_that_dies_is_left_out_and_the_others_go_on():
    engines, calls = on_gpus(), Counter[str]()

    def dies():
        engines[1].alive = False
        return ActorFailed("b", "its core died")

    def first_time_broken():
        calls["a"] += 1
        return Received({}, "the transfer was ended") if calls["a"] == 1 else Received(SUMS)

    engines[0].says["receive"], engines[1].says["receive"] = first_time_broken, dies
    sent = sending(lambda way: way.send(engines, "v", True))
    assert (sent.slots, sent.reason, sent.received) == ("ipc", None, {"a": SUMS}), "no fault of the slots"


def test_an_engine_that_has_its_weights_keeps_them_when_another_breaks_off():
    engines = on_gpus()
    engines[1].says["receive"] = Received({}, "the model keeps views")
    with pytest.raises(WayClosed, match="broke off 3 times: the model keeps views"):
        sending(lambda way: way.send(engines, "v", False), slots="host")
    assert len(engines[0].asked("receive")) == 1 and len(engines[1].asked("receive")) == 1 + TRIES


def test_an_engine_that_does_not_leave_an_ended_transfer_is_replaced():
    engines, trainer = on_gpus(), Trainer("trainer", publish=["rank 0: out of memory", None])

    async def body(way):
        engines[1].says["receive"] = asyncio.Event()
        return await way.send(engines, "v", False)

    assert set(sending(body, trainer).received) == {"a"}
    assert "did not leave a transfer" in engines[1].asked("fail")[0][0] and not engines[0].asked("fail")


def test_slots_on_gpus_that_break_are_given_up_for_good():
    engines = on_gpus()
    engines[0].says["open"] = lambda: "no CUDA IPC handle" if engines[0].asked("open")[-1][0].slots == "ipc" else None
    trainer = Trainer("trainer")

    async def body(way):
        return [await way.send(engines, version, False) for version in ("v", "w")]

    for sent in sending(body, trainer):
        assert (sent.slots, sent.reason) == ("host", "ipc broke: no CUDA IPC handle")
        assert set(sent.received) == {"a", "b"}
    assert [session.slots for (session,) in trainer.asked("open")] == ["ipc", "host"]


def test_an_engine_that_comes_late_gets_the_weights_through_host_memory():
    late = Engine("a", "g0")
    trainer = Trainer("trainer")

    async def body(way):
        await way.send_again([late], "v")
        return await way.send([late], "v", False)

    assert sending(body, trainer).slots == "ipc"
    assert [session.slots for (session,) in trainer.asked("open")] == ["host", "ipc"]

    def dies():
        late.alive = False
        return ActorFailed("a", "its core died")

    late.says["receive"] = dies
    with pytest.raises(ActorFailed, match="it died as it received weights"):
        sending(lambda way: way.send_again([late], "v"))


def test_sessions_of_other_engines_end_when_there_are_too_many():
    engines = [Engine(f"e{number}", "g0") for number in range(SESSIONS + 1)]

    async def body(way):
        for engine in engines:
            await way.send([engine], "v", False)
        await asyncio.sleep(0.05)
        assert [len(engine.asked("leave")) for engine in engines] == [1] + [0] * SESSIONS
        engines[1].lives += 1
        await way.send([engines[1]], "v", False)
        assert len(engines[1].asked("open")) == 2, "what was agreed with a process that died is void"

    sending(body)


def test_a_trainer_that_was_started_again_is_asked_again_what_it_holds():
    trainer, engines = Trainer("trainer"), on_gpus()

    async def body(way):
        await way.send(engines, "v", False)
        trainer.lives += 1
        await way.send(engines, "v", False)

    sending(body, trainer)
    assert len(trainer.asked("holdings")) == len(trainer.asked("open")) == 2


@pytest.mark.parametrize(
    ("held", "says"),
    [(HELD._replace(obstacle="which is no one block of it"), "no one block"), (HELD._replace(held={}), "do not cover")],
)
def test_a_model_that_cannot_travel_in_pieces_closes_the_way_for_good(held, says):
    with pytest.raises(WayClosed, match=says) as closed:
        sending(lambda way: way.send(on_gpus(), "v", False), Trainer("trainer", holdings=[held, held]))
    assert closed.value.lasting


def test_nothing_is_sent_once_the_trainer_goes_on():
    engines = on_gpus()
    with pytest.raises(WayClosed, match="goes on to the next weights") as closed:
        sending(lambda way: way.send(engines, "v", False), may_send=lambda: False)
    assert not closed.value.lasting and not engines[0].asked("receive")


@pytest.mark.parametrize("call", ["open", "publish"])
def test_the_death_of_the_trainer_is_the_trainers(call):
    engines, trainer = on_gpus(), Trainer("trainer", **{call: TrainerDied("trainer", "rank 1 is gone")})
    with pytest.raises(TrainerDied, match="rank 1 is gone"):
        sending(lambda way: way.send(engines, "v", False), trainer)
    assert len(engines[0].asked("leave")) == 1
