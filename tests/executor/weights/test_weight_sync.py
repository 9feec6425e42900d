"""Weights from real trainer ranks to real vLLM engines, by broadcast: the same as by file, whoever dies on the way."""

import asyncio
import os
import signal
import time

import psutil
import pytest

from rlplan.executor.engines.engine_handle import EngineBack, EngineDied, EngineHandle
from rlplan.executor.processes.supervision import Patience, Supervisor
from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.executor.trainer.trainer_group import TrainerDied, TrainerGroup
from rlplan.executor.weight_sync import ByBroadcast, ByFile, WeightSync
from rlplan.executor.weights.transfer import WayClosed
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.plans.schema.planned_job import LossPlan
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads

from ..conftest import make_tiny_model
from ..rewards.test_reward_timeouts import JOB

pytestmark = [pytest.mark.engine, pytest.mark.timeout(500)]

STALL_S = 20.0
BUCKET_BYTES = 20_000  # several buckets of the tiny model


@pytest.fixture(scope="module")
def trainer(loop, tmp_path_factory, ray):
    """FSDP 2 x TP 2 of other weights than the engines have."""
    from rlplan.executor.configuration import trainer_config

    model = make_tiny_model(tmp_path_factory.mktemp("trained") / "model", seed=5)
    layout = UpdateLayout(micro_batch_tokens=128, dp=2, tp=2)
    config = trainer_config(loads(JOB, Job), str(model), layout, "cpu", LossPlan(samples=8.0, tokens=80))
    group = TrainerGroup("sync", config, Supervisor(Patience(stall_s=STALL_S)))
    loop.run_until_complete(group.start())
    yield group
    loop.run_until_complete(group.close())


@pytest.fixture
def engines(fleet):
    """Two engines of TP 1 and one of TP 2."""
    return fleet.all_engines()


async def digests(engines):
    return [await engine.live_checksum() for engine in engines]


def test_weights_in_pieces_are_those_by_file_bit_for_bit(trainer, engines, loop, tmp_path):
    async def body():
        by_file = await ByFile(trainer, tmp_path / "w").send(engines, "by file", True)
        wanted = await digests(engines)
        old = [e.load(str(make_tiny_model(tmp_path / "old") / "model.safetensors"), "old", False) for e in engines]
        await asyncio.gather(*old)
        before = await digests(engines)
        way = ByBroadcast(trainer, STALL_S, bucket_bytes=BUCKET_BYTES)
        for number in range(3):  # more than there are slots
            sent = await way.send(engines, f"in pieces {number}", True)
        got = await digests(engines)
        return by_file, sent, before, wanted, got, [engine.version for engine in engines]

    by_file, sent, before, wanted, got, versions = loop.run_until_complete(body())
    assert sent.expected == by_file.expected and len(sent.expected) > 10
    assert list(sent.received.values()) == [sent.expected] * 3
    assert got == wanted and all(a != b for a, b in zip(before, wanted, strict=True))
    assert versions == ["in pieces 2"] * 3


class Between:
    """The trainer, of which some calls are told otherwise."""

    def __init__(self, trainer, told):
        self._trainer, self._told = trainer, told

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    async def each(self, method, deadline_s, what, *arguments):
        if what in self._told:
            arguments = (self._told[what](*arguments),)
        return await self._trainer.each(method, deadline_s, what, *arguments)


@pytest.mark.parametrize("slots", ["ipc", "nccl"])
def test_weights_through_other_slots_are_the_same(trainer, engines, loop, tmp_path, monkeypatch, slots):
    """The control flow of slots on GPUs, with gloo and host memory in their place."""
    to = engines

    async def body():
        by_file = await ByFile(trainer, tmp_path / "w").send(to, "by file", True)
        wanted = await digests(to)
        path = str(make_tiny_model(tmp_path / "old") / "model.safetensors")
        await asyncio.gather(*(engine.load(path, "old", False) for engine in to))
        before = await digests(to)
        way = ByBroadcast(trainer, STALL_S, bucket_bytes=BUCKET_BYTES)
        for number in range(3):
            sent = await way.send(to, f"on devices {number}", True)
        return by_file, sent, before, wanted, await digests(to)

    monkeypatch.setattr(ByBroadcast, "_choice", lambda *_: (slots, None))
    for engine in to:
        monkeypatch.setattr(engine, "_facts", engine.facts._replace(devices=("",)))
    by_file, sent, before, wanted, got = loop.run_until_complete(body())
    assert (sent.slots, list(sent.received.values())) == (slots, [by_file.expected] * len(to))
    assert got == wanted and all(a != b for a, b in zip(before, wanted, strict=True))


def test_another_version_than_was_told_is_refused_and_decodes_nothing(trainer, engines, loop):
    late = Between(trainer, {"begin": lambda told: told._replace(version="run:4")})

    async def body():
        with pytest.raises(RunFailed, match="the trainer holds weights 'run:4', not 'run:5'"):
            await ByBroadcast(late, STALL_S, bucket_bytes=BUCKET_BYTES).send(engines, "run:5", False)
        for engine in engines:
            with pytest.raises(RunFailed, match="asked to decode with 'run:5', holds ''"):
                await engine.submit([], "run:5")
        way = ByBroadcast(trainer, STALL_S, bucket_bytes=BUCKET_BYTES)
        assert len((await way.send(engines, "run:6", True)).received) == 3

    loop.run_until_complete(body())


def ranks_of(engine: EngineHandle) -> list[psutil.Process]:
    """vLLM's core and ranks of an engine."""
    cores = [psutil.Process(pid) for pid in engine.facts.cores]
    return [process for core in cores for process in (core, *core.children(recursive=True))]


def test_engines_that_die_or_hang_in_a_transfer_are_replaced(trainer, engines, fleet, loop, tmp_path):
    hung, whole, killed = engines

    async def body():
        news = []
        fleet.listen(news.append)
        way = WeightSync(trainer, fleet, tmp_path / "w")
        way._broadcast = ByBroadcast(trainer, 10.0, bucket_bytes=BUCKET_BYTES)
        await way.sync(engines, "before", False)
        for victim, sent in ((hung, signal.SIGSTOP), (killed, signal.SIGKILL)):
            for process in ranks_of(victim):
                process.send_signal(sent)
        report = await way.sync(engines, "v", True)
        assert (report.way, report.engines, report.mismatches) == ("broadcast", 1, 0)
        assert whole.version == "v" and not any(isinstance(each, EngineBack) for each in news), "nobody was waited for"
        while sum(isinstance(each, EngineBack) for each in news) < 2:
            await asyncio.sleep(0.1)
        for victim in (hung, killed):
            await way.join(victim, "v")
            assert victim.version == "v"
        last = await way.sync(engines, "after", True)
        assert (last.way, last.engines, last.mismatches) == ("broadcast", 3, 0)
        got = await digests(engines)
        await ByFile(trainer, tmp_path / "w").send(engines, "by file", False)
        assert got == await digests(engines), "what was broken off has left nothing"
        return {each.engine.name for each in news if isinstance(each, EngineDied)}

    died = loop.run_until_complete(asyncio.wait_for(body(), 300))
    assert died == {hung.name, killed.name}


def test_weights_of_a_round_that_is_over_are_sent_to_nobody(trainer, engines, fleet, loop, tmp_path):
    async def body():
        way = WeightSync(trainer, fleet, tmp_path / "w")
        await way.sync(engines[:1], "v1", False)
        way.retire()
        with pytest.raises(RunFailed, match="the round of v1 was over"):
            await way.join(engines[1], "v1")
        closed = ByBroadcast(trainer, STALL_S, lambda: False)
        with pytest.raises(WayClosed):
            await closed.send(engines[:1], "v1", False)

    loop.run_until_complete(body())
    assert engines[1].version != "v1"


def test_a_rank_that_dies_in_a_transfer_costs_no_engine(trainer, engines, loop, tmp_path):
    async def body():
        way = ByBroadcast(trainer, STALL_S, bucket_bytes=BUCKET_BYTES)
        await way.send(engines, "before", False)
        pid = (await trainer.pids())[-1]

        def stop(index):
            if index == 1:  # engines have loaded a bucket
                os.kill(pid, signal.SIGSTOP)
            return index

        way._trainer = Between(trainer, {"send": stop})
        transfer = asyncio.create_task(way.send(engines, "never", False))
        await asyncio.sleep(3.0)
        assert not transfer.done()
        way._trainer = trainer
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(TrainerDied) as death:
            await transfer
        seconds = time.monotonic() - began
        assert [engine.version for engine in engines] == [""] * 3 and all(engine.alive for engine in engines)
        await trainer.restart(death.value.reason)
        sent = await way.send(engines, "after", True)
        assert list(sent.received.values()) == [sent.expected] * 3
        got = await digests(engines)
        await ByFile(trainer, tmp_path / "w").send(engines, "by file", False)
        assert got == await digests(engines)
        return seconds

    assert loop.run_until_complete(asyncio.wait_for(body(), 200)) < 15.0


def test_after_a_step_the_new_weights_travel(trainer, engines, loop, tmp_path):
    groups = [
        [TrainSample(f"p{i}", s, [3, 4], [5] * 20, [-4.0] * 20, float(s), False) for s in range(2)] for i in range(2)
    ]

    async def body():
        way = ByBroadcast(trainer, STALL_S, bucket_bytes=BUCKET_BYTES)
        first = await way.send(engines[:1], "v0", True)
        await trainer.step(groups)
        second = await way.send(engines[:1], "v1", True)
        by_file = await ByFile(trainer, tmp_path / "w").send(engines[:1], "by file", True)
        return first, second, by_file

    first, second, by_file = loop.run_until_complete(body())
    assert second.expected == by_file.expected == second.received[engines[0].name]
    assert first.received[engines[0].name] == first.expected
