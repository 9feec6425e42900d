"""The driver's part of weights in pieces is real; trainer, engines and what they hold are fakes."""

import asyncio
from types import SimpleNamespace

import pytest

from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.executor.weight_sync import ByBroadcast
from rlplan.executor.weights.bucket_plan import TensorSource, whole_box
from rlplan.executor.weights.transfer import Answer, Holdings, Sent, WayClosed

SHAPE = (4, 8)
NAMES = ("a", "b", "c")
SOURCES = tuple(TensorSource(name, SHAPE, name, whole_box(SHAPE)) for name in NAMES)
SUMS = {"w": "1"}
BYTES = 3 * 4 * 32


class Party:
    """Answers calls; `says` has what else a call does: an answer, or an error to raise. `calls` has what was asked."""

    def __init__(self, name, log, **says):
        self.name, self.lives, self.says, self.log = name, 1, says, log

    async def call(self, what, *arguments, otherwise=None):
        self.log.append((self.name, what, *arguments))
        answer = self.says.get(what, otherwise)
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        for _ in range(5 if what in ("send", "load_bucket") else 1):
            await asyncio.sleep(0)
        self.log.append((self.name, f"{what} done", *arguments))
        return answer

    def asked(self, what):
        return [arguments for name, method, *arguments in self.log if (name, method) == (self.name, what)]


class Trainer(Party):
    """Two ranks on GPUs g0 and g1, on node n0; rank 0 makes what others meet in."""

    queue_s = 9.0

    async def each(self, method, deadline_s, what, *arguments):
        assert method == "transfer"
        devices = self.says.get("devices", ("g0", "g1"))
        ranks = [Holdings("n0", device, "float32", SOURCES, BYTES // 8) for device in devices]
        begun = [
            Answer((told.version, {device: f"handle of {device}"} if told.handles else {}))
            for told in arguments if what == "begin" for device in devices
        ]  # fmt: skip
        answers = {"holdings": ranks, "checksums": [SUMS, {}], "begin": begun}
        if what == "meet":
            answers["meet"] = [Answer(f"{arguments[0]} {len(self.asked('meet')) + 1}"), Answer("")]
        return await self.call(what, *arguments, otherwise=answers.get(what, [Answer(), Answer()]))


class Engine(Party):
    """An engine of one rank on a GPU, or of two on CPUs."""

    def __init__(self, name, log, device="", node="n0", **says):
        super().__init__(name, log, **says)
        self.alive = True
        self.facts = SimpleNamespace(devices=(device,) if device else (), node=node)
        self.config = SimpleNamespace(tp=1 if device else 2)

    async def transfer(self, method, arguments, deadline_s):
        assert 1.0 <= deadline_s < 2.0
        return await self.call(method, *arguments, otherwise=Answer(SUMS if method == "finish_weights" else None))

    def dies(self):
        self.alive = False
        self.lives += 1
        return ActorFailed(self.name, "its core died")


def parties(*nodes, devices=("g0", "g1"), **says):
    """A trainer on these devices, and an engine on each, or on CPUs of nodes; and the log of all calls."""
    log = []
    engines = [
        Engine(f"e{i}", log, "" if nodes else d, nodes[i] if nodes else "n0") for i, d in enumerate(nodes or devices)
    ]
    return Trainer("trainer", log, devices=("", "") if nodes else devices, **says), engines, log


def sent_to(trainer, engines, versions=("v",), checked=False, **more):
    """What became of weights of some versions, sent one after the other in buckets of one tensor."""
    way = ByBroadcast(trainer, 1.0, bucket_bytes=128, **more)

    async def main():
        return [await way.send(engines, version, checked) for version in versions]

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_engines_on_gpus_of_the_trainer_open_its_memory():
    trainer, engines, _ = parties()
    first, second = sent_to(trainer, engines, ("v", "w"), True)
    assert first == second == Sent("broadcast", BYTES, SUMS, {"e0": SUMS, "e1": SUMS}, "ipc", None)
    ((told, found), _) = engines[1].asked("begin_weights")
    assert (told.version, told.slots, found) == ("v", "ipc", "v")
    assert told.handles == {"g0": "handle of g0", "g1": "handle of g1"} and told.checked
    assert [begun.handles for (begun,) in trainer.asked("begin")] == [{"g0": "", "g1": ""}] * 2
    assert [source.name for bucket in told.buckets for source in bucket.sources] == list(NAMES)
    assert len(trainer.asked("holdings")) == 1 and len(trainer.asked("end")) == 2, "training needs the room"
    assert engines[0].asked("finish_weights") == [["v"], ["w"]] and not trainer.asked("meet")


def test_a_bucket_is_sent_while_the_one_before_is_loaded():
    trainer, engines, log = parties("n0")
    sent_to(trainer, engines)
    order = [(what, *index) for _, what, *index in log if what.startswith(("send", "load_bucket"))]
    assert order.index(("send", 1)) < order.index(("load_bucket done", 0)) < order.index(("send", 2))
    assert all(order.index(("send done", index)) < order.index(("load_bucket", index)) for index in range(3))
    assert engines[0].asked("load_bucket") == [[0], [1], [2]]


def test_engines_on_gpus_of_their_own_are_a_group_with_rank_0():
    trainer, engines, log = parties(devices=("g2", "g3"))
    trainer.says["devices"] = ("g0", "g1")
    (sent, _) = sent_to(trainer, engines, ("v", "w"))
    assert (sent.slots, set(sent.received)) == ("nccl", {"e0", "e1"})
    (told, _), (again, _) = engines[0].asked("begin_weights")
    assert told.members == ("e0", "e1") and told.meeting == again.meeting == "nccl 1"
    order = [(what, *index) for _, what, *index in log if what.startswith(("send", "load_bucket"))]
    assert all(order.index(("load_bucket", index)) < order.index(("send done", index)) for index in range(3))
    assert len(trainer.asked("meet")) == 1


def test_engines_on_cpus_share_the_memory_of_their_node():
    trainer, engines, _ = parties("n0", "n0")
    sent, again = sent_to(trainer, engines, ("v", "w"))
    assert (sent.slots, sent.reason, set(again.received)) == ("host", None, {"e0", "e1"})
    (told, _), (then, _) = engines[1].asked("begin_weights")
    assert told.meeting == then.meeting == "host 1" and trainer.asked("meet") == [["host", 128]]


def test_engines_on_cpus_of_several_nodes_are_a_group():
    trainer, engines, _ = parties("n0", "n1")
    (sent,) = sent_to(trainer, engines)
    assert (sent.slots, set(sent.received)) == ("nccl", {"e0", "e1"})
    assert engines[1].asked("begin_weights")[0][0].members == ("e0", "e0", "e1", "e1"), "a place for each rank"


def test_nodes_whose_group_breaks_share_no_memory():
    trainer, engines, _ = parties("n0", "n1")
    trainer.says["send"] = [Answer(broken="no gloo"), Answer()]
    with pytest.raises(WayClosed, match="nccl broke: no gloo; nodes share none"):
        sent_to(trainer, engines)


def test_memory_that_the_node_lacks_closes_the_way():
    trainer, engines, _ = parties("n0")
    trainer.says["meet"] = [Answer(broken="no memory on this node"), Answer("")]
    with pytest.raises(WayClosed, match="broke off: no memory on this node"):
        sent_to(trainer, engines)


@pytest.mark.parametrize("what", ["begin_weights", "load_bucket", "finish_weights"])
def test_an_engine_that_dies_is_left_out_and_the_others_go_on(what):
    trainer, engines, _ = parties()
    engines[1].says[what] = engines[1].dies
    (sent,) = sent_to(trainer, engines)
    assert (sent.slots, sent.reason, sent.received) == ("ipc", None, {"e0": SUMS}), "no fault of the slots"
    assert len(engines[0].asked("begin_weights")) == 1, "no transfer is begun again"


def test_an_engine_that_dies_in_a_group_has_the_others_begin_again():
    trainer, engines, _ = parties(devices=("g2", "g3"))
    trainer.says["devices"] = ("g0", "g1")
    engines[1].says["load_bucket"] = engines[1].dies

    def broken_at_first():
        return (
            [Answer(broken="a broadcast took long"), Answer()] if len(trainer.asked("begin")) == 1 else [Answer()] * 2
        )

    trainer.says["send"] = broken_at_first
    (sent,) = sent_to(trainer, engines)
    assert (sent.slots, sent.reason, sent.received) == ("nccl", None, {"e0": SUMS}), "no fault of the slots"
    first, second = (told for told, _ in engines[0].asked("begin_weights"))
    assert first.meeting != second.meeting and second.members == ("e0",)


def test_no_bucket_is_sent_to_nobody():
    trainer, engines, _ = parties("n0")
    engines[0].says["begin_weights"] = engines[0].dies
    (sent,) = sent_to(trainer, engines)
    assert sent.received == {} and len(trainer.asked("send")) == 1


def test_slots_on_gpus_that_break_are_given_up_for_good():
    trainer, engines, _ = parties()
    engines[0].says["begin_weights"] = lambda: Answer(
        broken="no CUDA IPC handle" if engines[0].asked("begin_weights")[-1][0].slots == "ipc" else None
    )
    for sent in sent_to(trainer, engines, ("v", "w")):
        assert (sent.slots, sent.reason) == ("host", "ipc broke: no CUDA IPC handle")
        assert set(sent.received) == {"e0", "e1"}
    assert [told.slots for (told,) in trainer.asked("begin")] == ["ipc", "host", "host"]


def test_an_engine_that_comes_late_gets_the_weights_through_host_memory():
    trainer, (late, _), _ = parties()
    way = ByBroadcast(trainer, 1.0, bucket_bytes=128)
    asyncio.run(way.send([late], "v", False, from_host=True))
    assert [told.slots for (told,) in trainer.asked("begin")] == ["host"]


def test_who_was_started_again_is_asked_again_what_it_has():
    trainer, engines, _ = parties("n0")
    way = ByBroadcast(trainer, 1.0, bucket_bytes=128)

    async def body():
        for party in (None, trainer, engines[0]):
            if party is not None:
                party.lives += 1
            await way.send(engines, "v", False)

    asyncio.run(body())
    assert len(trainer.asked("holdings")) == len(trainer.asked("meet")) == 2


@pytest.mark.parametrize(
    ("held", "says"),
    [({"obstacle": "which is no one block of it"}, "no one block"), ({"elements": 7}, "hold 14 of 96")],
)
def test_a_model_that_cannot_travel_in_pieces_closes_the_way(held, says):
    trainer, engines, _ = parties()
    trainer.says["holdings"] = [Holdings("n0", "g0", "float32", SOURCES, 48)._replace(**held)] * 2
    with pytest.raises(WayClosed, match=says):
        sent_to(trainer, engines)


@pytest.mark.parametrize("asked", [1, 4])
def test_nothing_is_sent_once_the_trainer_goes_on(asked):
    trainer, engines, _ = parties("n0")
    times = iter([True] * (asked - 1) + [False] * 9)
    with pytest.raises(WayClosed, match="goes on to the next weights"):
        sent_to(trainer, engines, may_send=lambda: next(times))
    assert not engines[0].asked("finish_weights")
    assert len(trainer.asked("send")) == max(0, asked - 3)


@pytest.mark.parametrize("call", ["begin", "send"])
def test_the_death_of_the_trainer_is_the_trainers(call):
    trainer, engines, _ = parties("n0")
    trainer.says[call] = trainer.says["end"] = TrainerDied("trainer", "rank 1 is gone")
    with pytest.raises(TrainerDied, match="rank 1 is gone"):
        sent_to(trainer, engines)
    assert not engines[0].asked("finish_weights")
