"""What a response can make a `math` or `function` reward do, in real processes with their limits."""

import importlib.util
import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from rlplan.executor.rewards import scoring
from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.scoring_process import GRACE_S, ScoringProcess

HERE = Path(__file__).parent
MEMORY_BYTES = 64 << 20


@pytest.fixture(scope="module")
def process():
    process = ScoringProcess(ScorerConfig("function", "reward_fakes:misbehave", 5.0, str(HERE), MEMORY_BYTES))
    assert process.start() == (None, None)
    yield process
    process.kill()


def score(process, *responses, deadline_s=5.0, answer=None):
    return process.score([("", response, answer, deadline_s) for response in responses], budget_s=60.0)


def test_rows_of_a_batch_are_scored_in_one_process_in_order(process):
    results = score(process, "a", "b", "c")
    assert [scored.outcome for scored in results] == ["ok"] * 3
    assert {scored.reward for scored in results} == {float(process.pid)}
    assert not results[-1].renew


def test_a_response_that_takes_memory_without_end_fails_in_its_own_process_and_says_so(process):
    fine, scored = score(process, "a", "allocate", "never reached")
    assert fine.outcome == "ok"
    assert (scored.outcome, scored.reward, scored.renew) == ("policy_memory", 0.0, True)
    assert scored.detail.startswith("MemoryError") and "reward_fakes.py" in scored.detail
    assert scored.detail.endswith("it may take 67108864 bytes (reward.memory_bytes)")


def test_a_process_that_keeps_what_it_was_given_is_replaced_before_it_fails_another_response(process):
    before = score(process, "a")[0].reward
    (kept,) = score(process, "keep")
    assert (kept.outcome, kept.reward, kept.renew) == ("ok", before, True)
    assert score(process, "a")[0].reward not in (before, 0.0)
    assert score(process, "allocate and swallow")[0].renew


def test_a_loop_that_no_alarm_interrupts_ends_at_its_deadline(process):
    began = time.monotonic()
    (scored,) = score(process, "loop in C", deadline_s=0.3)
    assert (scored.outcome, scored.reward, scored.renew) == ("policy_timeout", 0.0, True)
    assert time.monotonic() - began < 0.3 + GRACE_S + 3.0


@pytest.mark.parametrize(("response", "says"), [("dump", "killed by SIGABRT"), ("close", "closed the pipe")])
def test_a_death_names_its_response_and_the_next_batch_finds_a_new_process(process, response, says):
    fine, scored = score(process, "a", response, "never reached")
    assert fine.outcome == "ok"
    assert (scored.outcome, scored.reward, scored.renew) == ("policy_crash", 0.0, True)
    assert says in scored.detail
    assert score(process, "a")[0].outcome == "ok"


def test_what_a_response_started_is_killed_with_its_process(process, tmp_path):
    (scored,) = score(process, "start", deadline_s=0.3, answer=str(tmp_path))
    assert scored.outcome == "policy_timeout"
    process.kill()
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < until, "what the response started is still there"
        time.sleep(0.02)


def test_the_process_that_scores_has_its_workers_share_of_the_cpus_and_a_group_to_be_killed_by(process):
    score(process, "a")
    assert os.getsid(process.pid) == os.getsid(0), (
        "another session has another share where the kernel shares by session"
    )
    assert os.getpgid(process.pid) == process.pid


def test_a_process_that_was_stopped_from_outside_is_not_its_responses_fault(process):
    score(process, "a")
    threading.Timer(0.2, os.kill, (process.pid, signal.SIGSTOP)).start()
    (scored,) = score(process, "loop in C", deadline_s=0.6)
    assert (scored.outcome, scored.renew) == ("infra_failed", True)
    assert "stopped by a signal" in scored.detail


def test_a_process_that_the_machine_does_not_let_run_is_not_its_responses_fault(process, monkeypatch):
    monkeypatch.setattr(ScoringProcess, "_usage", lambda self: ("R", 0.0))  # ready to run, and used no CPU
    (scored,) = score(process, "loop in C", deadline_s=0.3)
    assert (scored.outcome, scored.renew) == ("infra_failed", True)
    assert "was not let run" in scored.detail


@pytest.mark.parametrize(("waited_s", "outcome"), [(0.19, "infra_failed"), (0.01, "policy_timeout")])
def test_an_alarm_in_a_process_that_waited_for_a_cpu_is_not_its_responses_fault(monkeypatch, waited_s, outcome):
    monkeypatch.setattr(scoring, "_waited_for_cpu_s", iter([5.0, 5.0 + waited_s]).__next__)
    scored = scoring.score_one(lambda prompt, response, answer: time.sleep(60), 0.2, "", "", None)
    assert scored.outcome == outcome


def test_a_process_that_dies_between_two_batches_is_nobodys_fault(process):
    first = score(process, "a")[0].reward
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    (scored,) = score(process, "a")
    assert (scored.outcome, scored.reward) == ("ok", float(process.pid)) != ("ok", first)


@pytest.mark.parametrize("copy", ["exit", "raise", "return"])
@pytest.mark.parametrize("waits", ["", " wait"])
def test_a_function_that_forks_never_moves_a_reward_to_another_sample(copy, waits):
    process = ScoringProcess(ScorerConfig("function", "reward_fakes:fork_on_demand", 5.0, str(HERE), MEMORY_BYTES))
    try:
        for batch in (1.0, 2.0, 3.0):
            wanted = [batch + 0.1, batch + 0.2, batch + 0.3]
            rows = [("", f"fork {copy}{waits}" if reward < 2.15 else "plain", reward, 5.0) for reward in wanted]
            scored = process.score(rows, budget_s=60.0)
            assert [(one.outcome, one.reward) for one in scored] == [("ok", reward) for reward in wanted]
    finally:
        process.kill()


def test_a_module_that_forks_while_it_is_imported_is_served_by_one_process(tmp_path):
    (tmp_path / "reward_that_forks.py").write_text(
        "import os\nos.fork()\n\ndef score(prompt, response, answer): return answer\n"
    )
    process = ScoringProcess(ScorerConfig("function", "reward_that_forks:score", 5.0, str(tmp_path), MEMORY_BYTES))
    try:
        assert [one.reward for one in process.score([("", "", 1.5, 5.0), ("", "", 2.5, 5.0)], 60.0)] == [1.5, 2.5]
    finally:
        process.kill()


@pytest.mark.parametrize(
    "answer",
    [b'["ok", 9.0, 0.0, ""]', b'[1, 0, "ok", 9.0, 0.0, ""]', b'[2, 1, "ok", 9.0, 0.0, ""]', b'{"worn": false}',
     b'{"batch": 2, "worn": false}', b"no json"],
)  # fmt: skip
def test_an_answer_that_is_not_the_next_rows_is_a_crash_of_its_response_and_no_samples_reward(answer):
    process = ScoringProcess(ScorerConfig("function", "reward_fakes:answer_unasked", 5.0, str(HERE), MEMORY_BYTES))
    try:
        assert score(process, "fine")[0].outcome == "ok"
        (scored,) = score(process, "now", "never reached", answer=answer)
        assert (scored.outcome, scored.reward, scored.renew) == ("policy_crash", 0.0, True)
        assert "answered in place of the process" in scored.detail
        (fine,) = score(process, "fine")
        assert (fine.outcome, fine.reward) == ("ok", float(process.pid))
    finally:
        process.kill()


def test_an_answer_between_two_batches_is_refused_and_costs_nobody_a_reward():
    process = ScoringProcess(ScorerConfig("function", "reward_fakes:answer_unasked", 5.0, str(HERE), MEMORY_BYTES))
    try:
        (before,) = score(process, "later", answer=b'[2, 0, "ok", 9.0, 0.0, ""]')
        assert select.select([process._answers], [], [], 30.0)[0], "the answer that nobody asked for never came"
        first, second = score(process, "fine", "fine")
        assert (first.outcome, first.reward, second.reward) == ("ok", float(process.pid), float(process.pid))
        assert first.reward != before.reward
    finally:
        process.kill()


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed")
def test_math_on_a_tower_of_powers_is_worth_0_and_the_machine_keeps_its_memory():
    process = ScoringProcess(ScorerConfig("math", None, 5.0, None, 512 << 20))
    tower, right = "so it is $9^{9^{9^{9}}}$", "so it is \\boxed{3}"
    try:
        first, *rest = process.score([("", tower, "3", 2.0), ("", right, "3", 5.0)], budget_s=60.0)
        assert (first.outcome, first.reward) == ("policy_timeout", 0.0)
        rest = rest or process.score([("", right, "3", 5.0)], budget_s=60.0)
        assert [(scored.outcome, scored.reward) for scored in rest] == [("ok", 1.0)]
        assert process.score([("", right, "", 5.0)], budget_s=60.0)[0].outcome == "infra_failed"
    finally:
        process.kill()


def test_a_pattern_that_backtracks_for_ever_is_interrupted_at_the_deadline():
    process = ScoringProcess(ScorerConfig("format", None, 5.0, memory_bytes=MEMORY_BYTES, pattern="(a+)+b.*"))
    try:
        assert process.start() == (None, None)
        fits, not_all, hung, again = (
            score(process, response, deadline_s=0.5 if len(response) == 60 else 30.0)[0]
            for response in ("aab\nc", "c aab", "a" * 60, "ab")
        )
    finally:
        process.kill()
    assert (fits.reward, not_all.reward, again.reward) == (1.0, 0.0, 1.0)
    assert (hung.outcome, hung.reward) == ("policy_timeout", 0.0)
