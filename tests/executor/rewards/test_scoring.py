"""How one call of a reward function can end, and where its function comes from."""

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlplan.executor.rewards import scoring
from rlplan.executor.rewards.charges import tries, verdict
from rlplan.executor.rewards.functions import InfrastructureError, PolicyError, PolicyTimeout, ScorerConfig, resolve
from rlplan.executor.rewards.scoring import ScoringResult, score_one
from rlplan.executor.rewards.worker import RewardWorker
from rlplan.plans.yaml.errors import InputError

HERE = Path(__file__).parent


def fake(name):
    return resolve(ScorerConfig("function", f"reward_fakes:{name}", 0.2, str(HERE))).within(0.2)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module_anywhere:score", "cannot import 'no_such_module_anywhere'"),
        ("reward_fakes:no_such_function", "'no_such_function' does not exist"),
        ("reward_fakes:not_a_function", "'not_a_function' is not callable"),
        ("reward_broken_at_import:score", "ZeroDivisionError"),
        ("reward_fakes", "write it as pkg.mod:name"),
        (":length", "write it as pkg.mod:name"),
        (None, "write it as pkg.mod:name"),
    ],
)
def test_a_function_that_cannot_be_used_is_an_input_error(tmp_path, monkeypatch, path, says):
    monkeypatch.syspath_prepend(HERE)
    (tmp_path / "reward_broken_at_import.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=says):
        resolve(ScorerConfig("function", path, 1.0, str(tmp_path)))


def test_an_unknown_kind_is_an_input_error_that_lists_the_kinds():
    with pytest.raises(InputError, match="use one of function, math, code"):
        resolve(ScorerConfig("vibes", None, 1.0))
    facts = RewardWorker(ScorerConfig("function", "reward_fakes", 1.0, str(HERE))).ready()
    assert "write it as pkg.mod:name" in facts.problem and facts.failure is None


def raises(error):
    def score(prompt, response, answer):
        raise error

    return score


@pytest.mark.parametrize(
    ("function", "response", "outcome", "says"),
    [
        (fake("length"), "four", "ok", ""),
        (fake("fail_on_demand"), "fail", "function_error", "KeyError: 'no such row' (reward_fakes.py:"),
        (fake("fail_on_demand"), "exit", "function_error", "SystemExit: 3"),
        (fake("fail_on_demand"), "nan", "function_error", "no finite number"),
        (raises(PolicyError("its fault")), "", "policy_error", "its fault"),
        (raises(PolicyTimeout("its fault")), "", "policy_timeout", "its fault"),
        (raises(MemoryError("all")), "", "policy_memory", "MemoryError: all (test_scoring.py:"),
        (raises(InfrastructureError("the judge")), "", "infra_failed", "InfrastructureError: the judge"),
    ],
)
def test_the_end_of_a_call_is_told_with_its_place(function, response, outcome, says):
    scored = score_one(function, 5.0, "", response, 1)
    assert (scored.outcome, scored.reward) == (outcome, 5.0 if outcome == "ok" else 0.0)
    assert says in scored.detail and scored.seconds >= 0.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "no alarm is left over"


@pytest.mark.parametrize("function", ["sleep_on_demand", "swallow_the_alarm"])
@pytest.mark.parametrize(("waited_s", "outcome"), [(0.01, "policy_timeout"), (60.0, "infra_failed")])
def test_a_call_past_its_deadline_is_late_unless_it_got_no_cpu(monkeypatch, function, waited_s, outcome):
    monkeypatch.setattr(scoring, "_waited_for_cpu_s", iter([5.0, 5.0 + waited_s]).__next__)
    scored = score_one(fake(function), 0.1, "", "sleep", None)
    assert (scored.outcome, scored.reward) == (outcome, 0.0) and scored.detail.startswith("no reward within 0.1 s")
    assert scored.seconds >= 0.1 and ("waited for a CPU for 60 s" in scored.detail) == (outcome == "infra_failed")


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed")
@pytest.mark.parametrize(
    ("response", "answer", "outcome", "reward"),
    [
        ("so it is \\boxed{\\frac{1}{2}}", "0.5", "ok", 1.0),
        ("the answer is 42.", 42, "ok", 1.0),
        ("the answer is 41.", "42", "ok", 0.0),
        ("$x^2+2x+1$", "(x+1)^2", "ok", 1.0),
        ("no idea", "42", "ok", 0.0),
        ("42", "", "infra_failed", 0.0),
    ],
)
def test_math_compares_values_not_spelling(response, answer, outcome, reward):
    scored = score_one(resolve(ScorerConfig("math", None, 5.0)).within(5.0), 5.0, "", response, answer)
    assert (scored.outcome, scored.reward) == (outcome, reward)


@pytest.mark.parametrize(("response", "reward"), [("aab\nc", 1.0), ("c aab", 0.0), ("aab", 0.0)])
def test_a_format_must_match_the_whole_response(response, reward):
    assert resolve(ScorerConfig("format", None, 5.0, pattern="a+b.+")).within(5.0)("", response, None) == reward


def test_the_worker_imports_no_heavy_package():
    heavy = ("ray", "torch", "vllm", "transformers", "numpy")
    script = f"import sys, rlplan.executor.rewards.worker; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_reward_is_looked_for_beside_the_job_wherever_the_data_lie(tmp_path):
    from rlplan.executor.processes.supervision import Supervisor
    from rlplan.executor.rollout.reward_sum import PoolSize, RewardSum
    from rlplan.plans.schema.job import job_paths, load_job

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.jsonl").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "job.yaml").write_text(
        "rlplan_job: 1\nname: toy\nmodel: {path: model, dtype: float32}\ndata: {path: elsewhere/data.jsonl}\n"
        "reward: {kind: function, function: 'mine:score', workers: 2, deadline_s: 5.0, memory_bytes: 3000000}\n"
        "rollout: {prompts_per_step: 4, samples_per_prompt: 2, max_prompt_tokens: 8, max_response_tokens: 48}\n"
        "algorithm: {name: grpo, learning_rate: 0.001}\nsearch: {tp: [1], micro_batch_tokens: [64]}\n"
    )
    job, supervisor = load_job(tmp_path / "job.yaml"), Supervisor()
    sizes = {"function": PoolSize(3, 2.0)}
    pool = RewardSum.of_job(job, job_paths(job, tmp_path / "job.yaml"), sizes, supervisor).scorer("function")
    assert all(process._supervisor is supervisor for process in pool._workers)
    config = ScorerConfig("function", "mine:score", 2.0, str(tmp_path.resolve()), 3_000_000)
    assert [process._config for process in pool._workers] == [config] * 3


def test_a_failure_counts_after_its_tries_and_with_a_witness():
    assert [tries(outcome, 3) for outcome in ("policy_memory", "policy_crash", "function_error")] == [2, 2, 4]
    charge = ScoringResult("function_error", 0.0, 1.5, "KeyError")
    for outcome in ("ok", "policy_error"):
        assert verdict(charge, ScoringResult(outcome, 1.0, 0.1, "")) is charge
    found = verdict(charge, ScoringResult("policy_timeout", 0.0, 9.0, "late"))
    assert (found.outcome, found.reward, found.seconds) == ("infra_failed", 0.0, 1.5)
    assert found.detail == "KeyError; nor can a sample that was scored before: policy_timeout late"
