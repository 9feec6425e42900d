"""Groups of trainer ranks that lose one; real ranks, no engines."""

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest

from rlplan.executor.processes.supervision import Patience, Supervisor
from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.executor.trainer.trainer_group import TrainerDied, TrainerGroup
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.plans.schema.planned_job import LossPlan
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
def test_ranks_that_lose_one_go_on_from_their_checkpoint_as_before(tiny_model, loop, ray, tmp_path):
    four = replace(config(tiny_model, dp=2, tp=2), logprob_limits=None)  # the log-probs of this test are made up
    group = TrainerGroup("four", four, Supervisor(Patience(stall_s=6.0)))

    async def weights():
        return await group.export(tmp_path / "weights")

    async def die_in_step(number):
        """Send a signal to the last rank in the middle of a long step; returns (error, seconds until it was known)."""
        step = asyncio.create_task(group.step(groups(400)))
        await asyncio.sleep(0.5)
        assert not step.done(), "the step is too short for this test"
        os.kill((await group.pids())[-1], number)
        began = time.monotonic()
        with pytest.raises(TrainerDied) as death:
            await step
        return death.value, time.monotonic() - began

    async def body():
        try:
            await group.start()
            with pytest.raises(RunFailed, match="four failed in step: AssertionError") as fault:
                await group.step([])
            assert not isinstance(fault.value, TrainerDied), "what all ranks refuse is a fault of the run"
            await group.step(groups(3))
            assert await group.stage() > 0
            await group.write(tmp_path / "of-1")
            assert await group.damage(tmp_path / "of-1") is None
            start = await weights()
            assert (await group.step(groups(5)))["samples"] == 10
            wanted = await weights()
            killed, killed_s = await die_in_step(signal.SIGKILL)
            with pytest.raises(TrainerDied):  # at once, and by the same name
                await weights()
            await group.restart(killed.reason)
            await group.load(tmp_path / "of-1")
            assert await weights() == start, "the checksums of the checkpoint's weights"
            await group.step(groups(5))
            assert await weights() == wanted != start, (
                "the moments too are the checkpoint's, else the step would differ"
            )
            return killed, killed_s, *(await die_in_step(signal.SIGSTOP))
        finally:
            await group.close()

    killed, killed_s, stopped, stopped_s = loop.run_until_complete(body())
    assert killed.process == stopped.process == "trainer four"
    assert "no sign of life of rank 3 of 4" in stopped.reason
    assert killed_s < stopped_s, "a death is told at once, silence after its time"
