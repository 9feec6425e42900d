"""Groups of trainer ranks that lose one; real ranks, no engines."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from rlplan.executor.actors import start_ray
from rlplan.executor.supervision import Patience, Supervisor
from rlplan.executor.trainer.samples import TrainSample
from rlplan.executor.trainer.trainer_group import TrainerDied, TrainerGroup
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.schema.sections.planned_job import LossPlan
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads

from ..rewards.test_reward_timeouts import JOB

pytestmark = pytest.mark.engine


def groups(count):
    return [
        [TrainSample(f"p{i}", s, [3, 4], [5] * 60, [-4.0] * 60, float(s), False) for s in range(2)]
        for i in range(count)
    ]


def config(model, **layout):
    from rlplan.executor.configuration import trainer_config

    train = UpdateLayout(micro_batch_tokens=128, **layout)
    return trainer_config(loads(JOB, Job), str(model), train, "cpu", LossPlan(samples=8.0, tokens=80))


@pytest.mark.timeout(300)
def test_the_death_of_one_rank_of_two_is_a_death_and_no_fault_of_the_run_and_so_is_its_silence(
    tiny_model, loop, tmp_path
):
    start_ray()
    group = TrainerGroup("two", config(tiny_model, dp=2), Supervisor(Patience(stall_s=6.0)))

    async def die_in_step(number):
        """Send a signal to rank 1 in the middle of a long step; returns (error, seconds until it was known)."""
        step = asyncio.create_task(group.step(groups(400)))
        await asyncio.sleep(0.5)
        assert not step.done(), "the step is too short for this test"
        os.kill((await group.pids())[1], number)
        began = time.monotonic()
        with pytest.raises(TrainerDied) as death:
            await step
        return death.value, time.monotonic() - began

    async def body():
        try:
            await group.start()
            assert await group.stage() > 0
            await group.write(tmp_path / "first")
            killed, killed_s = await die_in_step(signal.SIGKILL)
            with pytest.raises(TrainerDied):  # at once, and by the same name
                await group.export(tmp_path / "weights")
            await group.restart(killed.reason)
            await group.load(tmp_path / "first")
            stopped, stopped_s = await die_in_step(signal.SIGSTOP)
            await group.restart(stopped.reason)
            await group.load(tmp_path / "first")
            metrics = await group.step(groups(2))
            with pytest.raises(RunFailed, match="two failed in step: AssertionError") as fault:
                await group.step([])
            return killed, killed_s, stopped, stopped_s, metrics, fault.value
        finally:
            await group.close()

    killed, killed_s, stopped, stopped_s, metrics, fault = loop.run_until_complete(body())
    assert killed.process == stopped.process == "trainer two"
    assert killed_s < 5.0
    assert "no sign of life of rank 1 of 2" in stopped.reason and stopped_s < 20.0
    assert metrics["samples"] == 4
    assert not isinstance(fault, TrainerDied), "what all ranks refuse is a fault of the run"


@pytest.mark.timeout(300)
def test_tensor_ranks_that_lose_one_in_a_step_go_on_from_their_checkpoint_as_if_nothing_had_been(
    tiny_model, loop, tmp_path
):
    start_ray()
    layout = replace(config(tiny_model, dp=2, tp=2), logprob_limits=None)  # the log-probs of this test are made up
    group = TrainerGroup("four", layout, Supervisor(Patience()))

    async def body():
        try:
            await group.start()
            await group.step(groups(3))
            await group.stage()
            await group.write(tmp_path / "of-1")
            start = await group.export(tmp_path / "weights")
            await group.step(groups(5))
            wanted = await group.export(tmp_path / "weights")
            step = asyncio.create_task(group.step(groups(400)))
            await asyncio.sleep(0.5)
            assert not step.done(), "the step is too short for this test"
            os.kill((await group.pids())[-1], signal.SIGKILL)
            with pytest.raises(TrainerDied) as death:
                await step
            await group.restart(death.value.reason)
            await group.load(tmp_path / "of-1")
            loaded = await group.export(tmp_path / "weights")
            await group.step(groups(5))
            return start, loaded, wanted, await group.export(tmp_path / "weights")
        finally:
            await group.close()

    start, loaded, wanted, end = loop.run_until_complete(body())
    assert loaded == start, "the checksums of the checkpoint's weights"
    assert end == wanted != start, "the moments too are those of the checkpoint, else the step would be another"
