"""A run whose steps are not finite: a real trainer and a real run in one process; the engines' part is made up, so that
their log-probabilities can be."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file

from rlplan.executor.loop import step
from rlplan.executor.records.checkpoints import checkpoints
from rlplan.executor.rollout.round_samples import RolloutResult, RolloutSample
from rlplan.executor.run import TrainingRun
from rlplan.executor.supervision import Supervisor
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.step_checks import LOGPROB_LIMITS, MAX_SKIPPED_IN_A_ROW
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.executor.weights.checksum import tensor_checksum
from rlplan.executor.weights.sync import WeightSync
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.sections.planned_job import PlannedJob
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads
from rlplan.rounds.machines.events import Finished, Issue, Scored
from rlplan.traces.report_state import incidents
from rlplan.traces.run_log import read_run

from .trainer.test_trainer_rank import VOCABULARY, write_model

PROMPTS = [f"q{number}" for number in range(30)]
JOB = """\
rlplan_job: 1
name: toy
model: {path: model, dtype: float32}
data: {path: data.jsonl}
reward: {kind: math, workers: 1, deadline_s: 5.0}
rollout: {prompts_per_step: 2, samples_per_prompt: 3, max_prompt_tokens: 8, max_response_tokens: 16}
algorithm: {name: grpo, learning_rate: 0.001}
search: {tp: [1], micro_batch_tokens: [64]}
"""
PLAN = {
    "name": "toy", "bias": {"mode": "sync", "budget": 0.0}, "why": {}, "sync": {"checksum_every": 1},
    "issue": {"prompts_per_step": 2, "samples_per_prompt": 3}, "reward": {"workers": 1, "deadline_s": 5.0},
    "loss": {"samples": 6.0, "tokens": 36},
    "rounds": {
        "short": {
            "issue": {"prompts": 2, "samples": 3}, "cutoff_tokens": None,
            "rollout": {"pool": "main", "engines": 1, "tp": 1, "max_num_seqs": 8},
            "train": {"dp": 1, "micro_batch_tokens": 64},
        },
        "long": None,
    },
}  # fmt: skip


class InThisProcess:
    """A `TrainerGroup` of one rank without Ray."""

    def __init__(self, model: str) -> None:
        job = loads(JOB, Job)
        divisors, limits = Divisors(6.0, 36.0, 16), LOGPROB_LIMITS["float32"]
        self.trainer = Trainer(
            TrainerConfig(model, job.algorithm, UpdateSettings(64), 3, 1.0, divisors, logprob_limits=limits)
        )
        self.parameters = self.trainer.parameters()

    async def start(self) -> None: ...

    async def step(self, groups: Any, update: UpdateSettings, *, streamed: bool) -> dict[str, float]:
        return self.trainer.step(groups, update, streamed)

    async def export(self, path: Path, version: str, checksums: bool) -> dict[str, str]:
        return self.trainer.export_weights(path, version, checksums)

    async def stage(self) -> int:
        try:
            return self.trainer.stage()
        except RuntimeError as error:  # as TrainerGroup tells it
            raise RunFailed(str(error)) from error

    async def write(self, folder: Path) -> None:
        await asyncio.to_thread(self.trainer.write_staged, folder)

    async def load(self, folder: Path) -> None:
        self.trainer.load(folder)

    async def close(self) -> None: ...

    async def lost(self) -> None:
        await asyncio.Event().wait()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten().clone() for p in self.trainer._model.parameters()])


class MadeUpRounds:
    """Rounds of six tokens a sample with the trainer's own log-probabilities, as `change` turns them by step."""

    def __init__(self, group: InThisProcess) -> None:
        self._group = group
        self.number = 0
        self.change: Callable[[int, list[float]], list[float]] = lambda step, logprobs: logprobs

    async def run(self, round_: Any, layout: Any, version: str, *_: Any) -> RolloutResult:
        self.number += 1
        samples = {}
        for action in round_.start():
            assert isinstance(action, Issue)
            key, dice = action.key, torch.Generator().manual_seed(1000 * self.number + 10 * action.key.draw)
            prompt = [1 + int(action.prompt[1:]) % 40, 2]
            tokens = [(t + key.sample) % VOCABULARY for t in torch.randint(VOCABULARY, (6,), generator=dice).tolist()]
            with torch.no_grad():
                row = packed_row([(prompt, tokens)], torch.device("cpu"))
                trainer = self._group.trainer
                logprobs = packed_logprobs(trainer._model, trainer._gradients._head, row).logprobs.tolist()
            samples[key] = RolloutSample(
                key, action.prompt, 0.0, prompt_tokens=tuple(prompt), tokens=tokens,
                logprobs=self.change(self.number, logprobs),
                version_start=version, version_end=version, finished_s=0.1, reward=float(key.sample == 0),
            )  # fmt: skip
            round_.handle(Finished(key, 6, truncated=False))
            round_.handle(Scored(key, float(key.sample == 0)))
        return RolloutResult(0.1, 0.0, samples, [])


class MadeUpEngine:
    """A fleet of one engine, which takes any weights for what they are."""

    draft_tokens = 0

    name, alive = "made-up", True
    supervisor = Supervisor()

    def engines(self, layout: Any) -> list[Any]:
        return [self]

    async def some_ready(self, engines: list[Any]) -> list[Any]:
        return engines

    async def load(self, path: str, version: str, checked: bool) -> dict[str, str]:
        return {name: tensor_checksum(tensor) for name, tensor in load_file(path).items()}

    def take_missed(self) -> list[Any]:
        return []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def weights_by_file(run: TrainingRun) -> TrainingRun:
    """The run, whose weights go by file: its trainer and engines are no processes that could broadcast."""
    run.weights = WeightSync(run.trainer, run.fleet, run.weights_path, "file")
    return run


def start(model: str, folder: Path, resume: bool = False) -> tuple[TrainingRun, InThisProcess, MadeUpRounds]:
    group = InThisProcess(model)
    rounds = MadeUpRounds(group)
    parts: Any = {"fleet": MadeUpEngine(), "runner": rounds, "trainer": group}
    run = TrainingRun(
        "toy", PlannedJob.model_validate(PLAN), loads(JOB, Job), folder, **parts, prompt_ids=list(PROMPTS)
    )
    weights_by_file(run)
    asyncio.run(run.start(resume))
    return run, group, rounds


def test_a_step_that_is_not_finite_is_skipped_told_and_settled_and_the_run_goes_on(model: str, tmp_path: Path) -> None:
    run, group, rounds = start(model, tmp_path)
    rounds.change = lambda number, logprobs: [math.nan] * 6 if number in (2, 3) else logprobs
    weights, records = [group.weights()], []
    for _ in range(5):
        records.append(asyncio.run(step(run)))
        weights.append(group.weights())
    asyncio.run(run.close())
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(weights)]
    assert moved == [True, False, False, True, True]
    assert [record.metrics["skipped"] for record in records if record is not None] == [0, 1, 1, 0, 0]
    log = read_run(tmp_path / "trace.jsonl")
    skipped = [event for event in log.events if event["event"] == "skipped"]
    assert [event["step"] for event in skipped] == [2, 3] and all("nan" in event["reason"] for event in skipped)
    assert [row["step"] for row in incidents(log.events, log.steps) if row["kind"] == "skipped"] == [2, 3]
    # Settled: none of the ten prompts of five steps came twice.
    assert len({row["prompt"] for rows in log.samples.values() for row in rows}) == 10


def test_so_many_skipped_steps_in_a_row_end_the_run_with_finite_weights_also_after_resuming(
    model: str, tmp_path: Path
) -> None:
    run, group, rounds = start(model, tmp_path)
    asyncio.run(step(run))
    trained = group.weights()
    rounds.change = lambda number, logprobs: [math.nan] * 6
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        asyncio.run(step(run))
    asyncio.run(run.checkpoint())
    asyncio.run(run.close())

    resumed, group, rounds = start(model, tmp_path, resume=True)
    rounds.change = lambda number, logprobs: [math.nan] * 6
    with pytest.raises(RunFailed, match=r"3 steps in a row were skipped.*those of step 1"):
        asyncio.run(step(resumed))
    asyncio.run(resumed.close())
    assert torch.equal(group.weights(), trained)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000", "step-000003"]


def test_an_engine_of_another_model_ends_the_run_before_a_weight_has_moved(model: str, tmp_path: Path) -> None:
    run, group, rounds = start(model, tmp_path)
    asyncio.run(step(run))
    trained = group.weights()
    rounds.change = lambda number, logprobs: [x - 0.05 for x in logprobs]
    with pytest.raises(RunFailed, match=r"step 2: log-probs.*0\.05 in the mean"):
        asyncio.run(step(run))
    assert torch.equal(group.weights(), trained)
    asyncio.run(run.rescue())
    assert run.checkpoint_fault is None and checkpoints(tmp_path)[-1].name == "step-000001"
    asyncio.run(run.close())


def test_an_update_that_leaves_weights_that_are_not_finite_ends_the_run_and_no_checkpoint_holds_them(
    model: str, tmp_path: Path
) -> None:
    run, group, _ = start(model, tmp_path)
    asyncio.run(step(run))
    asyncio.run(run.checkpoint())
    optimizer = group.trainer._optimizer
    optimizer._algorithm = optimizer._algorithm.model_copy(update={"learning_rate": math.inf})
    with pytest.raises(RunFailed, match="left weights that are not finite; the checkpoint of step 1 is kept"):
        asyncio.run(step(run))
    asyncio.run(run.rescue())
    assert "not finite" in (run.checkpoint_fault or "")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000", "step-000001"]
    asyncio.run(run.close())
