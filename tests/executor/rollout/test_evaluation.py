"""Evaluations between steps: when they happen, what they tell, and that they change nothing that is trained."""

import asyncio
import itertools
import math

import pytest

from rlplan.executor.loop import checkpoint_if_due, evaluate_last, step
from rlplan.executor.records.checkpoints import best_checkpoint
from rlplan.executor.rollout.evaluation import Evaluator, chance_of_pass, mean_and_error
from rlplan.plans.schema.job import EvaluateSpec
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.traces.report_state import evaluation_text, evaluations
from rlplan.traces.trace import read_trace

from ..run_stage import JOB, Job, NumberRounds, NumberTrainer, TrainerDied, names, new_run
from ..virtual_loop import played

HELD_OUT = ["h0", "h1", "h2"]


def test_pass_at_k_is_the_chance_over_all_choices_of_k_responses():
    for samples, passed in itertools.product((1, 2, 5), range(6)):
        if passed > samples:
            continue
        outcomes = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            choices = list(itertools.combinations(outcomes, k))
            assert chance_of_pass(samples, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_the_error_is_that_of_a_mean_over_prompts():
    assert mean_and_error([0.0, 1.0, 1.0, 0.0]) == (0.5, pytest.approx(math.sqrt(1 / 3) / 2))
    assert mean_and_error([0.25]) == (0.25, None)
    assert math.isnan(mean_and_error([])[0])


def evaluator(rounds=None, **spec):
    spec = EvaluateSpec(data="held_out.jsonl", samples_per_prompt=2, **{"every_steps": 2, **spec})
    return Evaluator(spec, HELD_OUT, rounds or NumberRounds(), 16, None)


def trained_in(folder, steps, **parts):
    """(trainer, events of the trace) of a run of so many steps, evaluated at its end where it has an evaluator."""

    async def whole():
        trainer = NumberTrainer()
        run = new_run(folder, trainer, **parts)
        await run.start(resume=False)
        for _ in range(steps):
            await step(run)
        await evaluate_last(run)
        await run.close()
        return trainer

    trainer = played(asyncio.wait_for(whole(), 10**6))
    return trainer, list(read_trace(folder / "trace.jsonl"))


@pytest.mark.parametrize(
    ("spec", "steps", "evaluated"),
    [({}, 4, [0, 2, 4]), ({}, 3, [0, 2, 3]), ({"at_start": False}, 3, [2, 3]), ({"every_steps": 9}, 2, [0, 2])],
)
def test_weights_are_evaluated_when_they_are_due_and_at_the_end(tmp_path, spec, steps, evaluated):
    _, events = trained_in(tmp_path, steps, evaluator=evaluator(**spec))
    told = evaluations(events)
    assert [each["step"] for each in told] == evaluated
    first = told[0]
    assert (first["prompts"], first["samples"], first["failed"], first["mean_tokens"]) == (3, 2, 0, 3.0)
    assert first["reward"] == (0.5, 0.0) and first["pass_at"] == {1: (0.5, 0.0), 2: (1.0, 0.0)}
    assert "reward 0.500 ± 0.000, pass@1 0.500 ± 0.000, pass@2 1.000" in evaluation_text(first)


def test_an_evaluation_changes_nothing_that_is_trained(tmp_path):
    plain, plain_events = trained_in(tmp_path / "plain", 3)
    evaluated, events = trained_in(tmp_path / "evaluated", 3, evaluator=evaluator(every_steps=1))
    assert plain.trained == evaluated.trained and plain.weights == evaluated.weights
    for key in ("total_s", "rollout_s", "sync_s", "other_s"):
        seconds = [[e[key] for e in of if e["event"] == "step"] for of in (plain_events, events)]
        assert seconds[0] == pytest.approx(seconds[1], abs=1e-6)


def test_a_trainer_that_dies_in_an_evaluation_takes_the_run_back(tmp_path):
    class DiesOnce(NumberRounds):
        deaths = 1

        async def run(self, *arguments):
            if self.deaths:
                self.deaths -= 1
                raise TrainerDied("trainer toy", "it was killed")
            return await super().run(*arguments)

    trainer, events = trained_in(tmp_path, 3, evaluator=evaluator(DiesOnce(), every_steps=1))
    assert trainer.restarts == 1
    assert [each["step"] for each in evaluations(events)] == [0, 1, 2]


def test_the_checkpoint_of_the_best_evaluation_is_kept(tmp_path):
    class Rewarded(NumberRounds):
        """Rounds whose rewards are best after two updates."""

        async def run(self, machine, layout, version, *rest):
            result = await super().run(machine, layout, version, *rest)
            best = 1.0 if version.endswith(":2") else 0.0
            for draw in machine.draws:
                draw.rewards = dict.fromkeys(draw.rewards, best)
            return result

    async def whole():
        run = new_run(tmp_path, NumberTrainer(), evaluator=evaluator(Rewarded(), every_steps=1))
        await run.start(resume=False)
        for _ in range(6):
            await step(run)
            await checkpoint_if_due(run, 1)
        await evaluate_last(run)
        await run.checkpoint()
        await run.close()

    played(asyncio.wait_for(whole(), 10**6))
    assert names(tmp_path) == ["step-000002", "step-000005", "step-000006"]
    assert best_checkpoint(tmp_path) == (tmp_path / "checkpoints" / "step-000002", 1.0)


def test_the_section_is_checked_and_absent_from_documents_without_it():
    assert "evaluate" not in dump(loads(JOB, Job))
    section = JOB + "evaluate: {data: held_out.jsonl, every_steps: 5, temperature: 0, samples_per_prompt: 4}\n"
    with pytest.raises(InputError, match="at temperature 0 all responses to a prompt are the same"):
        loads(section, Job)
    job = loads(section.replace("samples_per_prompt: 4", "samples_per_prompt: 1"), Job)
    assert (job.evaluate.at_start, job.evaluate.passes_at) == (True, 1.0)
