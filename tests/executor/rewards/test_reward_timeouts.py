"""Adaptive deadlines in the executor: real workers and sandboxes keep them, the run learns them and saves them."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.worker import RewardWorker
from rlplan.rounds.machines.events import Action, Finished, SampleKey, Score, Scored
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.timeouts import Execution, PoolTimeouts, TimeoutSpec

HERE = Path(__file__).parent
needs_executor = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the executor's extra")

JOB = """\
rlplan_job: 1
name: toy
model: {path: model, dtype: float32}
data: {path: data.jsonl}
reward: {kind: code, workers: 1, deadline_s: 5.0}
rollout: {prompts_per_step: 4, samples_per_prompt: 2, max_prompt_tokens: 8, max_response_tokens: 48}
algorithm: {name: grpo, learning_rate: 0.001}
search: {tp: [1], micro_batch_tokens: [64]}
"""


def block(source: str) -> str:
    return f"```python\n{source}\n```\n"


FAST, HANGS = block("x = 3"), block("while True:\n    pass")
SLOW = block("import time\ntime.sleep(1.0)\nx = 3")
TESTS = "assert x == 3"


def test_a_worker_interrupts_each_sample_at_that_samples_own_deadline() -> None:
    worker = RewardWorker(ScorerConfig("function", "reward_fakes:sleep_on_demand", 30.0, str(HERE)))
    first, second = worker.score([("", "sleep", None, 0.2), ("", "fine", None, 0.2)], budget_s=60.0)
    assert (first.outcome, first.reward, first.detail) == ("policy_timeout", 0.0, "no reward within 0.2 s")
    assert first.seconds < 10
    assert (second.outcome, second.reward) == ("ok", 1.0)


def test_a_sandbox_keeps_each_samples_own_deadline() -> None:
    worker = RewardWorker(ScorerConfig("code", None, 20.0))
    patient, hasty = worker.score([("", SLOW, TESTS, 20.0), ("", SLOW, TESTS, 0.2)], budget_s=60.0)
    assert (patient.outcome, patient.reward) == ("ok", 1.0)
    assert (hasty.outcome, hasty.detail) == ("policy_timeout", "still running after its 0.2 s")
    assert hasty.seconds < patient.seconds


@needs_executor
def test_what_hangs_costs_a_solved_prompt_its_earned_deadline_and_an_unsolved_one_the_longest() -> None:
    """Two rounds over real sandboxes; in both, sample 1 hangs. Prompt `a` was answered right in the first."""
    from rlplan.executor.rollout.reward_sum import PartScore
    from rlplan.executor.rollout.round_samples import RolloutSample, reward_executions

    worker = RewardWorker(ScorerConfig("code", None, 3.0))
    timeouts = PoolTimeouts({"code": TimeoutSpec(max_s=3.0, min_s=0.5, anchor_factor=1.0)})
    responses = {("a", 0): FAST, ("a", 1): HANGS, ("b", 0): block("x = 4"), ("b", 1): HANGS}
    took: list[dict[str, float]] = []
    for _ in range(2):
        round_ = RaceRound(["a", "b"], 2, 2, 2, 48)
        samples: dict[SampleKey, RolloutSample] = {}
        actions: list[Action] = round_.start()
        for key in [action.key for action in actions]:
            prompt = round_.draws[key.draw].prompt
            sample = samples[key] = RolloutSample(key, prompt, 0.0)
            assert round_.handle(Finished(key, 9, truncated=False)) == [Score(key)]
            row = ("", responses[prompt, key.sample], TESTS, timeouts.deadlines_s(prompt)["code"])
            (scored,) = worker.score([row], budget_s=60.0)
            sample.reward, sample.reward_s, sample.reward_outcome = scored.reward, scored.seconds, scored.outcome
            # A penalty that takes more than the tests give does not make a right answer wrong.
            penalty = PartScore(-2.0, 0.0, "ok")
            sample.reward_parts = {
                "code": PartScore(scored.reward, scored.seconds, scored.outcome), "length": penalty
            }  # fmt: skip
            round_.handle(Scored(key, scored.reward))
        assert round_.done
        took.append({s.prompt: s.reward_s for s in samples.values() if s.key.sample == 1})
        timeouts.end_round(reward_executions(round_, samples))
    assert [(e.prompt, e.correct, e.timed_out) for e in reward_executions(round_, samples)["code"]] == [
        ("a", True, False), ("a", False, True), ("b", False, False), ("b", False, True),
    ]  # fmt: skip
    assert 0.5 <= timeouts.deadlines_s("a")["code"] < 3.0 == timeouts.deadlines_s("b")["code"]
    assert took[1]["a"] < 3.0 <= min(took[0]["a"], took[0]["b"], took[1]["b"])
    assert (timeouts.counts.timeouts, timeouts.counts.cut, timeouts.counts.correct) == (4, 1, 2)


class NoTrainer:
    """The trainer's part of a checkpoint: an empty folder."""

    parameters = 0

    async def stage(self) -> int:
        return 0

    async def write(self, folder: Path) -> None:
        folder.mkdir()

    async def load(self, folder: Path) -> None:
        assert folder.is_dir()


class NoRecorder:
    def event(self, *_: Any, **__: Any) -> None: ...

    def trace_bytes(self) -> int:
        return 0


@needs_executor
def test_a_checkpoint_holds_the_deadlines(tmp_path: Path) -> None:
    from rlplan.executor.run import TrainingRun
    from rlplan.executor.supervision import Supervisor
    from rlplan.plans.schema.job import Job
    from rlplan.plans.schema.sections.planned_job import PlannedJob
    from rlplan.plans.yaml.yaml_io import loads

    rollout, train = {"pool": "main", "engines": 1, "tp": 1, "max_num_seqs": 8}, {"dp": 1, "micro_batch_tokens": 64}
    short = {"issue": {"prompts": 4, "samples": 2}, "cutoff_tokens": None, "rollout": rollout, "train": train}
    adaptive = {"min_s": 0.5, "anchor_factor": 1.5}
    planned = PlannedJob.model_validate(
        {
            "name": "toy", "bias": {"mode": "sync", "budget": 0.0}, "why": {}, "sync": {"checksum_every": 1},
            "issue": {"prompts_per_step": 4, "samples_per_prompt": 2}, "rounds": {"short": short, "long": None},
            "reward": {"workers": 1, "deadline_s": 5.0, "adaptive_timeout": adaptive},
            "loss": {"samples": 8.0, "tokens": 80},
        }
    )  # fmt: skip

    def new_run() -> TrainingRun:
        nothing: Any = None
        trainer: Any = NoTrainer()
        fleet: Any = SimpleNamespace(supervisor=Supervisor())
        run = TrainingRun(
            "toy", planned, loads(JOB, Job), tmp_path, fleet=fleet, runner=nothing, trainer=trainer,
            prompt_ids=["a", "b", "c", "d"],
        )  # fmt: skip
        recorder: Any = NoRecorder()
        run._recorder = recorder
        return run

    run = new_run()
    ((name, _),) = run.timeouts.pools.items()
    run.timeouts.end_round({name: [Execution("a", 1.0, correct=True, timed_out=False)]})
    asyncio.run(run.checkpoint())
    resumed = new_run()
    asyncio.run(resumed._load())
    assert resumed.timeouts.state() == run.timeouts.state()
    assert [resumed.timeouts.deadlines_s(p)[name] for p in "ab"] == [1.5, 5.0]
