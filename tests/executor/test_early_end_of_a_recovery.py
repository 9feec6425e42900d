"""A run that ends while its trainer is being taken back to a checkpoint: what its ranks hold then is nobody's state.

A real trainer and a real run in one process; deaths, and what the disk does, the tests decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

import torch

from rlplan.executor.loop import step
from rlplan.executor.records.checkpoints import checkpoints
from rlplan.executor.run import TrainingRun
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.sections.planned_job import PlannedJob
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.plans.yaml.yaml_io import loads

from .test_skipped_steps import JOB, PLAN, PROMPTS, InThisProcess, MadeUpEngine, MadeUpRounds, weights_by_file
from .trainer.test_trainer_rank import write_model


async def _nothing() -> None: ...


class Mortal(InThisProcess):
    """A trainer that dies in a round or in an update, and comes back with the weights of its construction."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._model = model
        self.dead = self.dies_in_update = False
        self.before_load: Callable[[], Awaitable[None]] = _nothing

    async def step(self, groups: Any, budget: int, *, streamed: bool) -> dict[str, float]:
        if self.dies_in_update:
            raise TrainerDied("trainer toy", "it was killed")
        return await super().step(groups, budget, streamed=streamed)

    async def lost(self) -> None:
        if self.dead:
            raise TrainerDied("trainer toy", "it was killed")
        await super().lost()

    async def restart(self, why: str) -> None:
        self.trainer = InThisProcess(self._model).trainer
        self.dead = self.dies_in_update = False

    async def load(self, folder: Path) -> None:
        await self.before_load()
        await super().load(folder)

    def mean_s_between_failures(self) -> float:
        return 3600.0


class Rounds(MadeUpRounds):
    """A round that the trainer's death finds is waited for."""

    async def run(self, *arguments: Any) -> Any:
        if getattr(self._group, "dead", False):
            await asyncio.Event().wait()
        return await super().run(*arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


async def trained(model: str, folder: Path) -> tuple[TrainingRun, Mortal]:
    """A run with checkpoints of steps 0 and 1, after step 2."""
    group = Mortal(model)
    parts: Any = {"fleet": MadeUpEngine(), "runner": Rounds(group), "trainer": group}
    planned = PlannedJob.model_validate(PLAN)
    run = TrainingRun("toy", planned, loads(JOB, Job), folder, **parts, prompt_ids=list(PROMPTS))
    weights_by_file(run)
    await run.start(False)
    await step(run)
    await run.checkpoint()
    await step(run)
    return run, group


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoints(folder)]


@pytest.mark.parametrize("death", ["dead", "dies_in_update"])
def test_a_step_that_is_left_while_its_trainer_is_taken_back_saves_nothing(
    model: str, tmp_path: Path, death: str
) -> None:
    async def body() -> None:
        run, group = await trained(model, tmp_path)
        loading = asyncio.Event()

        async def hang() -> None:
            loading.set()
            await asyncio.Event().wait()

        group.before_load = hang
        setattr(group, death, True)
        taken = asyncio.create_task(step(run))
        await loading.wait()
        assert run.round_can_be_left, "nothing is there that could be lost"
        taken.cancel()
        await asyncio.wait({taken})
        await run.rescue()
        assert names(tmp_path) == ["step-000000", "step-000001"]
        assert "no checkpoint" in (run.checkpoint_fault or "")
        await run.close()

    asyncio.run(body())


def test_a_checkpoint_that_cannot_be_read_ends_the_run_and_what_the_ranks_hold_is_not_saved(
    model: str, tmp_path: Path
) -> None:
    async def body() -> None:
        run, group = await trained(model, tmp_path)

        async def fail() -> None:
            raise RunFailed("trainer toy could not do load: [Errno 5] Input/output error")

        group.before_load, group.dead = fail, True
        with pytest.raises(RunFailed, match="Input/output error"):
            await step(run)
        await run.rescue()
        assert names(tmp_path) == ["step-000000", "step-000001"] and run.checkpoint_fault is not None
        await run.close()

    asyncio.run(body())


def test_where_no_checkpoint_is_sound_a_run_saves_no_weights_of_its_start_as_its_newest(
    model: str, tmp_path: Path
) -> None:
    async def body() -> None:
        run, group = await trained(model, tmp_path)
        for folder in checkpoints(tmp_path):
            (folder / "state.json").write_text("{}")
        group.dead = True
        with pytest.raises(InputError, match="no checkpoint is sound"):
            await step(run)
        await run.rescue()
        assert "step-000002" not in names(tmp_path) and run.checkpoint_fault is not None
        await run.close()

    asyncio.run(body())


def test_a_run_that_ends_early_after_a_recovery_saves_the_step_that_it_is_at(model: str, tmp_path: Path) -> None:
    async def body() -> None:
        run, group = await trained(model, tmp_path)
        group.dead = True
        assert await step(run) is None and run.step_number == 1
        await run.rescue()
        assert run.checkpoint_fault is None and names(tmp_path) == ["step-000000", "step-000001"]
        await step(run)
        weights = group.weights()
        await run.rescue()
        assert run.checkpoint_fault is None and names(tmp_path) == ["step-000001", "step-000002"]
        await group.restart("")
        await group.load(tmp_path / "checkpoints" / "step-000002" / "trainer")
        assert torch.equal(group.weights(), weights)
        await run.close()

    asyncio.run(body())
