"""A run whose steps are not finite, or not of its engines' model: it skips, goes on, or ends with sound checkpoints."""

import asyncio
import itertools
import math

import pytest
import torch

from rlplan.executor.loop import step
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.step_checks import LOGPROB_LIMITS, MAX_SKIPPED_IN_A_ROW
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads
from rlplan.traces.report_state import incidents
from rlplan.traces.run_log import read_run

from . import run_stage
from .run_stage import JOB as JOB
from .run_stage import PLAN as PLAN
from .run_stage import PROMPTS as PROMPTS
from .run_stage import MadeUpEngine as MadeUpEngine
from .run_stage import NumberRounds, NumberTrainer, in_a_run, names, new_run
from .run_stage import weights_by_file as weights_by_file
from .trainer.test_trainer_rank import VOCABULARY, write_model


class InThisProcess(NumberTrainer):
    """A real trainer of one rank, without Ray."""

    def __init__(self, model):
        super().__init__()
        divisors, limits = Divisors(6.0, 36.0, 16), LOGPROB_LIMITS["float32"]
        algorithm = loads(JOB, Job).algorithm
        self.trainer = Trainer(
            TrainerConfig(model, algorithm, UpdateSettings(64), 3, 1.0, divisors, logprob_limits=limits)
        )
        self.trained_parameters = self.trainer.trained_parameters()

    async def step(self, groups, update, *, streamed, begins):
        begins()
        return self.trainer.step(groups, update, streamed)

    async def export(self, path, version, checksums):
        return self.trainer.export_weights(path, version, checksums)

    async def stage(self):
        try:
            return self.trainer.stage()
        except RuntimeError as error:  # as TrainerGroup tells it
            raise RunFailed(str(error)) from error

    async def write(self, folder):
        await asyncio.to_thread(self.trainer.write_staged, folder)

    def parameters_now(self):
        return torch.cat([p.detach().flatten().clone() for p in self.trainer._model.parameters()])


class OwnLogprobs(NumberRounds):
    """Rounds with the trainer's own log-probabilities, as `change` turns them by step."""

    round_s = 0.0

    def __init__(self, group, change=lambda step, logprobs: logprobs):
        super().__init__()
        self._trainer, self.change = group.trainer, change

    async def run(self, machine, layout, version, *arguments):
        result = await super().run(machine, layout, version, *arguments)
        number = int(version.split(":")[1]) + 1
        for sample in result.samples.values():
            dice = torch.Generator().manual_seed(1000 * number + 10 * sample.key.draw + sample.key.sample)
            sample.response_tokens = torch.randint(VOCABULARY, (6,), generator=dice).numpy()
            with torch.no_grad():
                row = packed_row([(sample.prompt_tokens, sample.response_tokens)], torch.device("cpu"))
                logprobs = packed_logprobs(self._trainer._model, self._trainer._gradients._head, row).logprobs.tolist()
            sample.logprobs = self.change(number, logprobs)
        return result


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def test_a_step_that_is_not_finite_is_skipped_and_settled(model, tmp_path):
    group = InThisProcess(model)
    rounds = OwnLogprobs(group, lambda number, logprobs: [math.nan] * 6 if number in (2, 3) else logprobs)
    weights, records = [], []

    async def whole():
        run = new_run(tmp_path, group, rounds)
        await run.start(False)
        weights.append(group.parameters_now())
        for _ in range(5):
            records.append(await step(run))
            weights.append(group.parameters_now())
        await run.close()

    asyncio.run(whole())
    assert [not torch.equal(a, b) for a, b in itertools.pairwise(weights)] == [True, False, False, True, True]
    assert [record.metrics["skipped"] for record in records] == [0, 1, 1, 0, 0]
    log = read_run(tmp_path / "trace.jsonl")
    skipped = [event for event in log.events if event["event"] == "skipped"]
    assert [(event["step"], event["groups"]) for event in skipped] == [(2, 2), (3, 2)]
    assert all("nan" in event["reason"] for event in skipped)
    assert [row["step"] for row in incidents(log.events, log.steps) if row["kind"] == "skipped"] == [2, 3]
    # Settled: none of the ten prompts of five steps came twice.
    assert len({row.prompt for rows in log.samples.values() for row in rows}) == 10


def test_an_update_that_leaves_weights_not_finite_ends_the_run(model, tmp_path):
    group = InThisProcess(model)

    async def whole():
        run = new_run(tmp_path, group, OwnLogprobs(group))
        await run.start(False)
        await step(run)
        await run.checkpoint()
        optimizer = group.trainer._optimizer
        optimizer._algorithm = optimizer._algorithm.model_copy(update={"learning_rate": math.inf})
        with pytest.raises(RunFailed, match="left weights that are not finite; the checkpoint of step 1 is kept"):
            await step(run)
        await run.rescue()
        assert "not finite" in run.checkpoint_fault and names(tmp_path) == ["step-000000", "step-000001"]
        await run.close()

    asyncio.run(whole())


def test_too_many_skipped_steps_in_a_row_end_the_run(tmp_path):
    async def skips(run, trainer):
        trainer.metrics.update(loss=math.nan, skipped=1.0)
        for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
            await step(run)
        await run.checkpoint()

    async def resumed(run, trainer):
        trained = trainer.weights
        trainer.metrics.update(loss=math.nan, skipped=1.0)
        with pytest.raises(RunFailed, match=r"3 steps in a row were skipped.*those of step 1"):
            await step(run)
        assert trainer.weights == trained and names(tmp_path) == ["step-000000", "step-000003"]

    in_a_run(tmp_path, skips)
    events = in_a_run(tmp_path, resumed, resume=True, steps=0)
    assert [event["t_s"] for event in events if event["event"] == "resume"] == [28.5], "three steps of 9.5 s before it"
    assert [event["step"] for event in events if event["event"] == "skipped"] == [2, 3, 4]


LIMITS = "logprob_limits: {mean: 0.04, p99: 0.6, action: ACTION}\nsearch:"


@pytest.mark.parametrize("action", ["stop", "warn"])
def test_a_jobs_logprob_limits_stop_or_warn(tmp_path, monkeypatch, action):
    monkeypatch.setattr(run_stage, "JOB", run_stage.JOB.replace("search:", LIMITS.replace("ACTION", action)))

    async def body(run, trainer):
        trainer.metrics.update(logprob_mean_abs_diff=0.035, logprob_p99_abs_diff=0.5)
        assert await step(run) is not None, "beyond the limits of float32, and not of the job"
        trainer.metrics.update(logprob_p99_abs_diff=0.7, skipped=float(action == "stop"))
        if action == "stop":
            with pytest.raises(RunFailed, match=r"step 3: .*0\.7 on 1 % of the tokens \(limit 0\.6\).*logprob_limits"):
                await step(run)
            return
        trained = len(trainer.trained)
        assert await step(run) is not None and await step(run) is not None and len(trainer.trained) == trained + 2
        assert len([note for note in run.checkpoints.notes if "the run goes on" in note]) == 1

    events = in_a_run(tmp_path, body)
    log = read_run(tmp_path / "trace.jsonl")
    told = [event["step"] for event in events if event["event"] == "logprobs"]
    assert told == ([3, 4] if action == "warn" else [])
    assert [row["step"] for row in incidents(log.events, log.steps) if row["kind"] == "log-probs"] == told


def test_an_engine_of_another_model_ends_the_run_before_a_weight_moved(tmp_path):
    async def body(run, trainer):
        trainer.metrics.update(logprob_mean_abs_diff=0.05, skipped=1.0)
        with pytest.raises(RunFailed, match=r"step 2: log-probs.*0\.05 in the mean"):
            await step(run)
        await run.rescue()
        assert run.checkpoint_fault is None and names(tmp_path)[-1] == "step-000001"

    assert "skipped" not in {event["event"] for event in in_a_run(tmp_path, body)}
