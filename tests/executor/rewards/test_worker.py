"""What a response can make a `math` or `function` reward do, in real processes with their limits."""

import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlplan.executor.rewards import scoring_child, worker
from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.sandbox.visible_files import REFER_SINCE, landlock_version, own_processes_only
from rlplan.executor.rewards.worker import RewardWorker

HERE = Path(__file__).parent
MEMORY_BYTES = 64 << 20
LATE = ("policy_timeout", "infra_failed")
"""How a call that computed up to its deadline ends; the second where a busy machine kept it waiting."""


@pytest.fixture(scope="module")
def made():
    """Makes processes with a function, each once."""
    known = {}

    def process_of(function, folder=HERE):
        if function not in known:
            known[function] = RewardWorker(ScorerConfig("function", function, 5.0, str(folder), MEMORY_BYTES))
        return known[function]

    yield process_of
    for process in known.values():
        process.kill()


@pytest.fixture
def process(made, monkeypatch):
    monkeypatch.setattr(worker, "GRACE_S", 0.3)
    return made("reward_fakes:misbehave")


def score(process, *responses, deadline_s=5.0, answer=None):
    return process.score([("", response, answer, deadline_s) for response in responses], budget_s=60.0)


def test_rows_of_a_batch_are_scored_in_one_process_in_order(process):
    assert process.ready()[:2] == (None, None)
    results = score(process, "a", "b", "c")
    assert [scored.outcome for scored in results] == ["ok"] * 3
    assert {scored.reward for scored in results} == {float(process.pid)}
    assert not results[-1].renew
    assert len(process.score([("", "a", None, 5.0)] * 3, budget_s=0.0)) == 1, "none begins after the budget"
    # Another session has another share of the CPUs where the kernel shares by session.
    assert (os.getsid(process.pid), os.getpgid(process.pid)) == (os.getsid(0), process.pid)


def test_a_response_that_takes_memory_without_end_fails_and_says_so(process):
    fine, scored = score(process, "a", "allocate", "never reached")
    assert fine.outcome == "ok"
    assert (scored.outcome, scored.reward, scored.renew) == ("policy_memory", 0.0, True)
    assert scored.detail.startswith("MemoryError") and "reward_fakes.py" in scored.detail
    assert scored.detail.endswith("it may take 67108864 bytes (reward.memory_bytes)")


def test_a_process_that_keeps_what_it_was_given_is_replaced(process):
    before = score(process, "a")[0].reward
    (kept,) = score(process, "keep")
    assert (kept.outcome, kept.reward, kept.renew) == ("ok", before, True)
    assert score(process, "a")[0].reward not in (before, 0.0)
    assert score(process, "allocate and swallow")[0].renew


@pytest.mark.parametrize("response", ["loop in C", "blocked signal"])
def test_a_hang_that_no_alarm_interrupts_ends_at_its_deadline(process, response):
    (scored,) = score(process, response, deadline_s=0.2)
    assert (scored.outcome in LATE, scored.reward, scored.renew) == (True, 0.0, True)
    assert scored.seconds >= 0.2
    assert "no end either: killed" in scored.detail or "not let run" in scored.detail


@pytest.mark.parametrize(("response", "says"), [("dump", "killed by SIGABRT"), ("close", "closed the pipe")])
def test_a_death_names_its_response_and_the_next_batch_a_new_process(process, response, says):
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
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < until, "what the response started is still there"
        time.sleep(0.02)


def test_a_process_that_was_stopped_from_outside_is_not_its_responses_fault(process):
    score(process, "a")
    threading.Timer(0.1, os.kill, (process.pid, signal.SIGSTOP)).start()
    (scored,) = score(process, "loop in C", deadline_s=0.4)
    assert (scored.outcome, scored.renew) == ("infra_failed", True)
    assert "stopped by a signal" in scored.detail


def test_a_process_that_was_not_let_run_is_not_at_fault(process, monkeypatch):
    monkeypatch.setattr(RewardWorker, "_usage", lambda self: ("R", 0.0))  # ready to run, and used no CPU
    (scored,) = score(process, "loop in C", deadline_s=0.2)
    assert (scored.outcome, scored.renew) == ("infra_failed", True)
    assert "was not let run" in scored.detail


def test_a_process_that_dies_between_two_batches_is_nobodys_fault(process):
    first = score(process, "a")[0].reward
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    (scored,) = score(process, "a")
    assert (scored.outcome, scored.reward) == ("ok", float(process.pid)) != ("ok", first)


def test_a_process_that_takes_no_request_is_the_machines_fault(process, monkeypatch):
    score(process, "a")
    monkeypatch.setattr(worker, "SEND_S", 0.05)
    os.kill(process.pid, signal.SIGSTOP)
    (scored,) = score(process, "x" * (1 << 20))  # more than a pipe holds
    assert (scored.outcome, scored.renew) == ("infra_failed", True)
    assert scored.detail == "the process that scores took no request: killed by SIGKILL"
    monkeypatch.setattr(worker.sys, "executable", "/bin/false")
    (scored,) = score(process, "a")
    assert (scored.outcome, scored.renew) == ("infra_failed", True)
    assert scored.detail == "the process that scores did not start: exit code 1"


@pytest.mark.timeout(120)
def test_garbage_in_place_of_the_first_answer_ends_a_start(made, tmp_path):
    (tmp_path / "reward_of_garbage.py").write_text(
        "import reward_fakes\nreward_fakes.write_to_answers(b'\\xff' * 64)\n\ndef score(*row): return 1.0\n"
    )
    (tmp_path / "reward_fakes.py").write_text((HERE / "reward_fakes.py").read_text())
    facts = made("reward_of_garbage:score", tmp_path).ready()
    assert facts.problem is None and "did not start" in facts.failure


@pytest.mark.parametrize("copy", ["exit", "raise", "return"])
def test_a_function_that_forks_never_moves_a_reward_to_another_sample(made, copy):
    process = made("reward_fakes:fork_on_demand")
    for batch in (1.0, 2.0, 3.0):
        wanted = [batch + 0.1, batch + 0.2, batch + 0.3]
        for waits in ("", " wait"):
            rows = [("", f"fork {copy}{waits}" if reward < 2.15 else "plain", reward, 5.0) for reward in wanted]
            scored = process.score(rows, budget_s=60.0)
            assert [(one.outcome, one.reward) for one in scored] == [("ok", reward) for reward in wanted]


def test_a_module_that_forks_in_its_import_is_served_once(made, tmp_path):
    (tmp_path / "reward_that_forks.py").write_text(
        "import os\nos.fork()\n\ndef score(prompt, response, answer): return answer\n"
    )
    process = made("reward_that_forks:score", tmp_path)
    assert [one.reward for one in process.score([("", "", 1.5, 5.0), ("", "", 2.5, 5.0)], 60.0)] == [1.5, 2.5]


@pytest.mark.parametrize(
    "answer",
    ['["ok", 9.0, 0.0, ""]', '[{batch}, 0, "ok", 9.0, 0.0, ""]', '[{next}, 1, "ok", 9.0, 0.0, ""]', '{{"worn": false}}',
     '{{"batch": {next}, "worn": false}}', "no json"],
)  # fmt: skip
def test_an_answer_of_another_row_is_a_crash_and_no_reward(made, answer):
    process = made("reward_fakes:answer_unasked")
    assert score(process, "fine")[0].outcome == "ok"
    said = answer.format(batch=process._batch, next=process._batch + 1).encode()
    (scored,) = score(process, "now", "never reached", answer=said)
    assert (scored.outcome, scored.reward, scored.renew) == ("policy_crash", 0.0, True)
    assert "answered in place of the process" in scored.detail
    (fine,) = score(process, "fine")
    assert (fine.outcome, fine.reward) == ("ok", float(process.pid))


def test_an_answer_between_two_batches_is_refused_and_costs_nobody_a_reward(made):
    process = made("reward_fakes:answer_unasked")
    said = f'[{process._batch + 2}, 0, "ok", 9.0, 0.0, ""]'.encode()
    (before,) = score(process, "later", answer=said)
    assert select.select([process._answers], [], [], 30.0)[0], "the answer that nobody asked for never came"
    first, second = score(process, "fine", "fine")
    assert (first.outcome, first.reward, second.reward) == ("ok", float(process.pid), float(process.pid))
    assert first.reward != before.reward


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed")
def test_math_on_a_tower_of_powers_is_worth_nothing():
    process = RewardWorker(ScorerConfig("math", None, 5.0, None, 512 << 20))
    tower, right = "so it is $9^{9^{9^{9}}}$", "so it is \\boxed{3}"
    try:
        first, *rest = process.score([("", tower, "3", 0.5), ("", right, "3", 30.0)], budget_s=60.0)
        rest = rest or process.score([("", right, "3", 30.0)], budget_s=60.0)
        assert (first.reward, [(scored.outcome, scored.reward) for scored in rest]) == (0.0, [("ok", 1.0)])
    finally:
        process.kill()


def test_a_pattern_that_backtracks_for_ever_is_interrupted_at_the_deadline():
    process = RewardWorker(ScorerConfig("format", None, 5.0, memory_bytes=MEMORY_BYTES, pattern="(a+)+b.*"))
    try:
        hung, again = (score(process, each, deadline_s=0.3 if len(each) > 9 else 30.0)[0] for each in ("a" * 60, "ab"))
    finally:
        process.kill()
    assert (hung.outcome in LATE, hung.reward, again.reward) == (True, 0.0, 1.0)


NEEDED = (
    "PATH",
    "HOME",
    "LC_CTYPE",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "OMP_PROC_BIND",
    "CUDA_VISIBLE_DEVICES",
    "TMPDIR",
)
SECRET = (
    "RAY_AUTH_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_CLIENT_SECRET", "WANDB_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "MYPATH", "HTTPS_PROXY",
    "NVIDIA_API_KEY", "PYTHON_GITLAB_TOKEN", "CUDA_REGISTRY_TOKEN",
)  # fmt: skip


def test_a_reward_has_of_the_environment_what_it_needs_and_no_token():
    host = dict.fromkeys((*NEEDED, *SECRET), "x")
    kept = worker.inherited(host)
    assert {name for name in kept if name not in NEEDED} == {
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    }  # fmt: skip
    assert kept.items() >= dict.fromkeys(NEEDED, "x").items()
    assert worker.inherited(host, ("HF_TOKEN", "NOT_SET")).keys() == kept.keys() | {"HF_TOKEN"}


@pytest.mark.parametrize("named", [(), ("RAY_AUTH_TOKEN",)])
def test_a_function_sees_no_token_that_the_job_does_not_name(named):
    """In a process of its own with the token in its environment from the start, as Ray's are, and without privileges:
    root sees all."""
    script = (
        "import sys; from rlplan.executor.rewards.functions import ScorerConfig; "
        "from rlplan.executor.rewards.worker import RewardWorker; "
        f"function, here, named = 'reward_fakes:tell_the_environment', {str(HERE)!r}, {named}; "
        "config = ScorerConfig('function', function, 5.0, here, environment=named); "
        "from rlplan.executor.rewards.sandbox.kernel import drop_capabilities, gain_no_privileges; "
        "gain_no_privileges(); drop_capabilities(); process = RewardWorker(config); "
        "print(process.score([('', 'RAY_AUTH_TOKEN', None, 5.0)], 60.0)[0].detail); process.kill()"
    )
    environment = os.environ | {"RAY_AUTH_TOKEN": "secret", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    own = "'secret'" if named else "None"
    assert f"own {own}, the parent's hidden" in run.stdout


def test_mathematics_looks_into_no_process_that_it_did_not_start(tmp_path):
    """What a response could make the reward do, done where `math` and `format` are scored."""
    if landlock_version() < REFER_SINCE:
        pytest.skip("this kernel's Landlock forbids to move files")
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            before = Path(f"/proc/{os.getppid()}/environ").read_bytes()
            own_processes_only()
            (tmp_path / "folder").mkdir()
            (tmp_path / "file").write_text("x")
            (tmp_path / "file").rename(tmp_path / "folder" / "file")  # files stay as they were
            own = Path("/proc/self/environ").read_bytes()
            try:
                Path(f"/proc/{os.getppid()}/environ").read_bytes()
            except PermissionError:
                os._exit(0 if before and own else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_kernel_that_does_not_keep_processes_apart_is_told(monkeypatch):
    def too_old():
        raise OSError("Landlock is too old")

    monkeypatch.setattr(scoring_child, "own_processes_only", too_old)
    (note,) = scoring_child.see_own_processes_only("math")
    assert note == "reward math: its process could look into others of this user (Landlock is too old)"
    assert scoring_child.see_own_processes_only("code") == ()
