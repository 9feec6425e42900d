"""Adaptive deadlines in the executor: workers and sandboxes keep them, the run learns them and saves them."""

import asyncio
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.worker import RewardWorker
from rlplan.rounds.machines.events import Finished, Score, Scored
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.timeouts import PoolTimeouts, RewardExecution, TimeoutSpec

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


def test_a_worker_interrupts_each_sample_at_its_own_deadline():
    worker = RewardWorker(ScorerConfig("function", "reward_fakes:sleep_on_demand", 30.0, str(HERE)))
    first, second = worker.score([("", "sleep", None, 0.2), ("", "fine", None, 0.2)], budget_s=60.0)
    assert (first.outcome, first.reward, first.detail) == ("policy_timeout", 0.0, "no reward within 0.2 s")
    assert (second.outcome, second.reward) == ("ok", 1.0)
    assert len(worker.score([("", "fine", None, 1.0)] * 2, budget_s=0.0)) == 1, "none begins after the budget"


def test_a_sandbox_keeps_each_samples_own_deadline():
    worker, slow = RewardWorker(ScorerConfig("code", None, 20.0)), "```python\nimport time\ntime.sleep(0.4)\nx = 3\n```"
    rows = [("", slow, "assert x == 3", deadline_s) for deadline_s in (20.0, 0.1)]
    patient, hasty = worker.score(rows, budget_s=60.0)
    assert (patient.outcome, patient.reward) == ("ok", 1.0)
    assert (hasty.outcome, hasty.detail) == ("policy_timeout", "still running after its 0.1 s")
    assert len(worker.score(rows, budget_s=0.0)) == 1
    assert worker.ready().alarm_s == 32.0, "a sandbox needs time around the deadline, to start and to clean up"


@needs_executor
def test_a_hang_costs_a_solved_prompt_its_earned_deadline_only():
    """Two rounds; in both, sample 1 hangs. Prompt `a` was answered right in the first."""
    from rlplan.executor.rollout.reward_sum import PartScore
    from rlplan.executor.rollout.round_samples import RolloutSample, reward_executions

    timeouts = PoolTimeouts({"code": TimeoutSpec(max_s=3.0, min_s=0.5, anchor_factor=1.0)})
    took = []
    for _ in range(2):
        round_ = RaceRound(["a", "b"], 2, 2, 2, 48)
        samples = {}
        actions = round_.start()
        for key in [action.key for action in actions]:
            prompt, hangs = round_.draws[key.draw].prompt, key.sample == 1
            sample = samples[key] = RolloutSample(key, prompt, 0.0)
            assert round_.handle(Finished(key, 9, truncated=False)) == [Score(key)]
            deadline_s = timeouts.deadlines_s(prompt)["code"]
            right = prompt == "a" and not hangs
            sample.reward_s = deadline_s if hangs else 0.1
            outcome = "policy_timeout" if hangs else "ok" if right else "policy_error"
            # A penalty that takes more than the tests give does not make a right answer wrong.
            sample.reward_parts = {
                "code": PartScore(float(right), sample.reward_s, outcome), "length": PartScore(-2.0, 0.0, "ok")
            }  # fmt: skip
            round_.handle(Scored(key, float(right)))
        assert round_.done
        took.append({s.prompt: s.reward_s for s in samples.values() if s.key.sample == 1})
        timeouts.end_round(reward_executions(round_, samples))
    assert [(e.prompt, e.correct, e.timed_out) for e in reward_executions(round_, samples)["code"]] == [
        ("a", True, False), ("a", False, True), ("b", False, False), ("b", False, True),
    ]  # fmt: skip
    assert timeouts.deadlines_s("a")["code"] == 0.5 < 3.0 == timeouts.deadlines_s("b")["code"]
    assert took == [{"a": 3.0, "b": 3.0}, {"a": 0.5, "b": 3.0}]
    assert (timeouts.counts.timeouts, timeouts.counts.cut, timeouts.counts.correct) == (4, 1, 2)


@needs_executor
def test_a_checkpoint_holds_the_deadlines(tmp_path):
    from rlplan.executor.processes.supervision import Supervisor
    from rlplan.executor.run import TrainingRun
    from rlplan.plans.schema.job import Job
    from rlplan.plans.schema.planned_job import PlannedJob
    from rlplan.plans.yaml.yaml_io import loads

    from ..run_stage import PLAN, NumberTrainer

    reward = {"workers": 1, "deadline_s": 5.0, "adaptive_timeout": {"min_s": 0.5, "anchor_factor": 1.5}}
    planned, job = PlannedJob.model_validate(PLAN | {"reward": reward}), loads(JOB, Job)

    def new_run():
        fleet, prompts = SimpleNamespace(supervisor=Supervisor()), ["a", "b", "c", "d"]
        run = TrainingRun(
            "toy", planned, job, tmp_path, fleet=fleet, runner=None, trainer=NumberTrainer(), prompt_ids=prompts
        )
        run._recorder = SimpleNamespace(event=lambda *_, **__: None, trace_bytes=lambda: 0)
        return run

    run = new_run()
    ((name, _),) = run.timeouts.pools.items()
    run.timeouts.end_round({name: [RewardExecution("a", 1.0, correct=True, timed_out=False)]})
    asyncio.run(run.checkpoint())
    resumed = new_run()
    asyncio.run(resumed._load())
    assert resumed.timeouts.state() == run.timeouts.state()
    assert [resumed.timeouts.deadlines_s(p)[name] for p in "ab"] == [1.5, 5.0]
