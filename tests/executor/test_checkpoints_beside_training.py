"""Checkpoints that are written while the run goes on: what they hold, who waits for them, what their faults cost.

A real trainer and a real run in one process; the test decides when the disk takes a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

import torch

from rlplan.executor.loop import checkpoint_if_due, step
from rlplan.executor.records.checkpoints import checkpoints
from rlplan.executor.run import TrainingRun
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.sections.planned_job import PlannedJob
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads
from rlplan.traces.run_log import read_run

from .test_early_end_of_a_recovery import Mortal, Rounds
from .test_skipped_steps import JOB, PLAN, PROMPTS, InThisProcess, MadeUpEngine, weights_by_file
from .trainer.test_trainer_rank import write_model


class SlowDisk(Mortal):
    """A trainer whose writes wait while `gate` is closed, and then end as `fate` says."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.gate, self.writes = asyncio.Event(), 0
        self.gate.set()
        self.fate: Exception | None = None

    async def write(self, folder: Path) -> None:
        self.writes += 1
        await self.gate.wait()
        if self.fate is not None:
            raise self.fate
        await super().write(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def in_a_run(
    model: str, folder: Path, body: Callable[[TrainingRun, SlowDisk], Coroutine[Any, Any, None]]
) -> list[dict[str, Any]]:
    """Take `body` in a run after its first step; returns the events of its trace."""

    async def whole() -> None:
        group = SlowDisk(model)
        parts: Any = {"fleet": MadeUpEngine(), "runner": Rounds(group), "trainer": group}
        planned = PlannedJob.model_validate(PLAN)
        run = TrainingRun("toy", planned, loads(JOB, Job), folder, **parts, prompt_ids=list(PROMPTS))
        weights_by_file(run)
        await run.start(False)
        await step(run)
        await body(run, group)
        await run.close()

    asyncio.run(asyncio.wait_for(whole(), 120))
    return list(read_run(folder / "trace.jsonl").events)


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoints(folder)]


def loaded(model: str, folder: Path, number: int) -> InThisProcess:
    other = InThisProcess(model)
    other.trainer.load(folder / "checkpoints" / f"step-{number:06d}" / "trainer")
    return other


def test_a_checkpoint_holds_its_own_step_though_the_next_ones_end_before_it_is_written(
    model: str, tmp_path: Path
) -> None:
    weights = {}

    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        weights[1] = group.weights()
        await run.begin_checkpoint()
        for _ in range(2):
            assert await step(run) is not None
        weights[3] = group.weights()
        assert names(tmp_path) == ["step-000000"] and run.checkpoints.saved_step == 0
        group.gate.set()
        await run.checkpoints.written()
        assert names(tmp_path) == ["step-000000", "step-000001"] and run.checkpoints.saved_step == 1
        # The driver's state is that of step 1 too: a run that is resumed there draws what this one drew.
        drawn = run.schedule.state()
        await run.recover(TrainerDied("trainer toy", "it was killed"))
        assert run.step_number == 1 and torch.equal(group.weights(), weights[1])
        group_rounds: Any = run.runner
        group_rounds.number = 1
        for _ in range(2):
            await step(run)
        assert run.schedule.state() == drawn and torch.equal(group.weights(), weights[3])

    events = in_a_run(model, tmp_path, body)
    assert not torch.equal(weights[1], weights[3])
    assert torch.equal(loaded(model, tmp_path, 1).weights(), weights[1])
    second = [event for event in events if event["event"] == "checkpoint"][1]
    folder = tmp_path / "checkpoints" / "step-000001"
    assert second["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 0.0 < second["stage_s"] < second["write_s"]


def test_a_checkpoint_that_falls_due_while_another_is_written_waits_for_it(model: str, tmp_path: Path) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        await run.begin_checkpoint()
        await step(run)
        second = asyncio.create_task(run.begin_checkpoint())
        await asyncio.sleep(0.2)
        assert not second.done() and group.writes == 2, "the second is not staged over the first"
        group.gate.set()
        await second
        await run.checkpoints.written()
        assert names(tmp_path) == ["step-000001", "step-000002"] and run.checkpoint_fault is None
        assert torch.equal(loaded(model, tmp_path, 2).weights(), group.weights())

    in_a_run(model, tmp_path, body)


@pytest.mark.parametrize("ending", ["checkpoint", "rescue"])
def test_the_end_of_a_run_waits_until_its_last_checkpoint_is_on_the_disk(
    model: str, tmp_path: Path, ending: str
) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        await run.begin_checkpoint()
        end = asyncio.create_task(getattr(run, ending)())
        await asyncio.sleep(0.2)
        assert not end.done()
        group.gate.set()
        await end
        assert names(tmp_path) == ["step-000000", "step-000001"] and group.writes == 2, "it is written once"

    in_a_run(model, tmp_path, body)


def test_a_write_that_fails_is_told_with_its_step_and_tried_again_after_the_next(model: str, tmp_path: Path) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        group.fate = RunFailed("trainer toy could not do write_staged: No space left on device")
        await run.begin_checkpoint()
        assert run.checkpoint_fault is None
        group.gate.set()
        assert await step(run) is not None, "training goes on"
        await run.checkpoints.settle()
        (note,) = run.checkpoints.notes
        assert note.startswith("no checkpoint of step 1: ") and "No space left" in note
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000"]
        group.fate = None
        await checkpoint_if_due(run, 1000)
        await run.checkpoints.written()
        assert names(tmp_path) == ["step-000000", "step-000002"] and run.checkpoint_fault is None

    events = in_a_run(model, tmp_path, body)
    failed = [event for event in events if event["event"] == "checkpoint_failed"]
    assert [event["step"] for event in failed] == [1] and "No space left" in failed[0]["reason"]


def test_a_run_whose_first_checkpoint_cannot_be_written_does_not_begin(model: str, tmp_path: Path) -> None:
    async def whole() -> None:
        group = SlowDisk(model)
        group.fate = OSError(28, "No space left on device")
        parts: Any = {"fleet": MadeUpEngine(), "runner": Rounds(group), "trainer": group}
        planned = PlannedJob.model_validate(PLAN)
        run = TrainingRun("toy", planned, loads(JOB, Job), tmp_path, **parts, prompt_ids=list(PROMPTS))
        weights_by_file(run)
        with contextlib.closing(group.trainer), pytest.raises(RunFailed, match=r"step 0 .*No space left"):
            await run.start(False)

    asyncio.run(whole())
    assert names(tmp_path) == []


def test_a_trainer_that_dies_while_it_writes_goes_back_to_the_checkpoint_before(model: str, tmp_path: Path) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        group.fate = TrainerDied("trainer toy", "it was killed while it wrote")
        await run.begin_checkpoint()
        group.dead = True
        stepping = asyncio.create_task(step(run))
        await asyncio.sleep(0.1)
        group.gate.set()
        assert await stepping is None and run.step_number == 0, "step 1 was on no disk yet"
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000"]
        group.fate = None
        assert await step(run) is not None
        await run.checkpoint()
        assert names(tmp_path) == ["step-000000", "step-000001"] and run.checkpoint_fault is None

    in_a_run(model, tmp_path, body)


def test_a_recovery_loads_the_checkpoint_whose_write_ends_meanwhile(model: str, tmp_path: Path) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        weights = group.weights()
        await run.begin_checkpoint()
        await step(run)
        group.dead = True  # the ranks have written all that they had to; the driver has yet to name the folder
        stepping = asyncio.create_task(step(run))
        await asyncio.sleep(0.1)
        group.gate.set()
        assert await stepping is None and run.step_number == 1
        assert torch.equal(group.weights(), weights)

    in_a_run(model, tmp_path, body)


def test_deaths_bring_no_checkpoint_forward_while_one_is_being_written(model: str, tmp_path: Path) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.mean_s_between_failures = lambda: 0.0  # type: ignore[method-assign]
        assert run.checkpoint_due(1000)
        group.gate.clear()
        await run.begin_checkpoint()
        assert not run.checkpoint_due(1000) and run.checkpoint_due(1), "every step still means every step"
        group.gate.set()
        await run.checkpoints.written()
        assert run.checkpoint_due(1000)

    in_a_run(model, tmp_path, body)


def test_a_run_that_is_closed_while_it_writes_leaves_nothing_that_a_resume_takes_for_a_checkpoint(
    model: str, tmp_path: Path
) -> None:
    async def body(run: TrainingRun, group: SlowDisk) -> None:
        group.gate.clear()
        await run.begin_checkpoint()
        await asyncio.sleep(0.2)
        assert group.writes == 2

    in_a_run(model, tmp_path, body)
    assert names(tmp_path) == ["step-000000"]

    async def resumed() -> None:
        group = SlowDisk(model)
        parts: Any = {"fleet": MadeUpEngine(), "runner": Rounds(group), "trainer": group}
        planned = PlannedJob.model_validate(PLAN)
        run = TrainingRun("toy", planned, loads(JOB, Job), tmp_path, **parts, prompt_ids=list(PROMPTS))
        weights_by_file(run)
        await run.start(True)
        assert run.step_number == 0
        await step(run)
        await run.checkpoint()
        await run.close()

    asyncio.run(resumed())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000", "step-000001"]
