"""Trainer ranks that train while they write a checkpoint; real ranks, real runs, no engines.

The ranks wait for a file before they write, so that a test can do something meanwhile.
"""

import asyncio
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlplan.executor.loop import checkpoint_if_due, step
from rlplan.executor.processes.supervision import Patience, Supervisor
from rlplan.executor.records.checkpoints import checkpoints
from rlplan.executor.rollout.round_samples import RolloutResult, RolloutSample
from rlplan.executor.run import TrainingRun
from rlplan.executor.trainer import saved_state
from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.executor.trainer.trainer_group import TrainerGroup
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.plans.schema.planned_job import LossPlan, PlannedJob
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads
from rlplan.rounds.machines.events import Finished, Issue, Scored

from ..test_skipped_steps import JOB, PLAN, PROMPTS, MadeUpEngine, weights_by_file

pytestmark = pytest.mark.engine


def held(trainer: Trainer, gate: Path) -> None:
    """Let a rank wait for the file `gate` before it writes; runs in the rank."""
    save_state = saved_state.save_state

    def wait_and_save(*arguments):
        while not gate.exists():
            time.sleep(0.01)
        save_state(*arguments)

    saved_state.save_state = wait_and_save


async def start_held(group: TrainerGroup, gate: Path) -> None:
    await group.start()
    gate.touch()
    await asyncio.gather(*(rank.__ray_call__.remote(held, gate) for rank in group._ranks))


def config(model, ranks):
    from rlplan.executor.configuration import trainer_config

    layout = UpdateLayout(dp=ranks, micro_batch_tokens=64)
    found = trainer_config(loads(JOB, Job), str(model), layout, "cpu", LossPlan(samples=6.0, tokens=36))
    return replace(found, logprob_limits=None)  # the log-probs of these tests are made up


def some_groups(seed):
    dice = torch.Generator().manual_seed(seed)
    tokens = torch.randint(60, (2, 3, 6), generator=dice).tolist()
    return [
        [TrainSample(f"p{i}", s, [3, 4], tokens[i][s], [-4.0] * 6, float(s), False) for s in range(3)] for i in range(2)
    ]


def difference(first: Path, second: Path) -> float:
    one, two = load_file(first), load_file(second)
    assert one.keys() == two.keys()
    return max((one[name] - two[name]).abs().max().item() for name in one)


@pytest.mark.timeout(300)
def test_ranks_train_while_they_write_what_others_go_on_from(tiny_model, loop, ray, tmp_path):
    gate = tmp_path / "gate"

    async def write():
        group = TrainerGroup("writing", config(tiny_model, 2), Supervisor(Patience()))
        try:
            await start_held(group, gate)
            await group.step(some_groups(1))
            await group.export(tmp_path / "of-1")
            gate.unlink()
            share = await group.stage()
            writing = asyncio.create_task(group.write(tmp_path / "checkpoint"))
            await group.step(some_groups(2))
            await group.export(tmp_path / "of-2")
            with pytest.raises(RunFailed, match="still being written"):
                await group.stage()
            assert not writing.done() and not (tmp_path / "checkpoint").exists()
            gate.touch()
            await writing
            return share, group.parameters
        finally:
            await group.close()

    share, parameters = loop.run_until_complete(write())
    assert 0.9 * 12 * parameters / 2 < share < 1.1 * 12 * parameters / 2 + 10_000, "each rank stages its half"
    assert difference(tmp_path / "of-1", tmp_path / "of-2") > 1e-4

    async def go_on():
        group = TrainerGroup("reading", config(tiny_model, 2), Supervisor(Patience()))
        try:
            await group.start()
            await group.load(tmp_path / "checkpoint")
            await group.export(tmp_path / "two-of-1")
            await group.step(some_groups(2))
            await group.export(tmp_path / "two-of-2")
        finally:
            await group.close()

    loop.run_until_complete(go_on())
    one = Trainer(config(tiny_model, 1))
    one.load(tmp_path / "checkpoint")
    one.export_weights(tmp_path / "one-of-1")
    one.step(some_groups(2))
    one.export_weights(tmp_path / "one-of-2")
    assert difference(tmp_path / "two-of-1", tmp_path / "of-1") == difference(tmp_path / "one-of-1", tmp_path / "of-1")
    assert difference(tmp_path / "one-of-1", tmp_path / "of-1") == 0.0
    # The moments too are those of step 1, else the next step would be another.
    assert difference(tmp_path / "two-of-2", tmp_path / "of-2") < 1e-6
    assert difference(tmp_path / "one-of-2", tmp_path / "of-2") < 1e-5


class EvenRounds:
    """Rounds whose samples have six tokens; the first sample of each group is right."""

    async def run(self, round_: Any, layout: Any, version: str, *_: Any) -> RolloutResult:
        samples = {}
        for action in round_.start():
            assert isinstance(action, Issue)
            key = action.key
            samples[key] = RolloutSample(
                action.prompt, key.sample, (3, 4), [5 + key.sample] * 6, [-4.0] * 6, float(key.sample == 0),
                draw=key.draw, version_start=version, version_end=version, finished_s=0.1,
            )  # fmt: skip
            round_.handle(Finished(key, 6, truncated=False))
            round_.handle(Scored(key, float(key.sample == 0)))
        return RolloutResult(0.1, 0.0, samples, [])


def limited(pid: int, most: int) -> None:
    """Let no file of a process grow beyond `most` bytes: to it, the disk is full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


@pytest.mark.timeout(300)
def test_a_run_outlives_a_full_disk_and_a_death_in_writing(tiny_model, loop, ray, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "run"
    out.mkdir()
    group = TrainerGroup("toy", config(tiny_model, 2), Supervisor(Patience()))
    parts: Any = {"fleet": MadeUpEngine(), "runner": EvenRounds(), "trainer": group}
    planned = PlannedJob.model_validate(PLAN)
    run = TrainingRun("toy", planned, loads(JOB, Job), out, **parts, prompt_ids=list(PROMPTS))
    weights_by_file(run)

    def there() -> list[str]:
        return sorted(path.name for path in (out / "checkpoints").iterdir())

    async def body():
        try:
            await start_held(group, gate)
            await run.start(False)
            assert await step(run) is not None
            # The disk is full while the checkpoint of step 1 is written.
            gate.unlink()
            await run.begin_checkpoint()
            pids = await group.pids()
            for pid in pids:
                limited(pid, 1024)
            gate.touch()
            await run.checkpoints.written()
            for pid in pids:
                limited(pid, resource.RLIM_INFINITY)
            assert "step 1 could not be written" in (run.checkpoint_fault or "") and there() == ["step-000000"]
            assert await step(run) is not None and group.supervisor.failures(group.name) == 0
            await checkpoint_if_due(run, 1000)
            await run.checkpoints.written()
            assert run.checkpoint_fault is None and there() == ["step-000000", "step-000002"]
            # A rank is killed while that of step 3 is written.
            assert await step(run) is not None
            gate.unlink()
            await run.begin_checkpoint()
            os.kill((await group.pids())[1], signal.SIGKILL)
            assert await step(run) is None and run.step_number == 2, "back at the last checkpoint that is whole"
            assert there() == ["step-000000", "step-000002"]
            gate.touch()
            for _ in range(2):
                assert await step(run) is not None
            await run.checkpoint()
            return [path.name for path in checkpoints(out)]
        finally:
            await run.close()

    assert loop.run_until_complete(body()) == ["step-000002", "step-000004"]
    assert run.trainer_restarts == 1
