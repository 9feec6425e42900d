"""What a response's code can and cannot do; every case is a real sandbox."""

import os
import time
from functools import partial
from pathlib import Path

import pytest

from rlplan.executor.rewards.functions import PolicyError, PolicyTimeout, RowError, ScorerConfig, resolve
from rlplan.executor.rewards.kinds import code_reward
from rlplan.executor.rewards.kinds.code_reward import CodeReward, probe, sandbox_of
from rlplan.executor.rewards.sandbox.isolation import TOLD, unconfined
from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox
from rlplan.plans.yaml.errors import InputError

isolated = pytest.mark.usefixtures("isolation")
protected = pytest.mark.usefixtures("protection")


@pytest.fixture(scope="module")
def notes():
    """What this machine does not permit a sandbox."""
    return " ".join(probe())


@pytest.fixture
def isolation(notes):
    if "not isolated" in notes:
        pytest.skip(f"this machine does not permit it: {notes}")


@pytest.fixture
def protection(notes):
    if "not protected" in notes:
        pytest.skip(f"this machine does not permit it: {notes}")


def fenced(source):
    return f"Let me think.\n```python\n{source}\n```\nDone."


def reward(source, tests="assert add(1, 2) == 3", deadline_s=5.0):
    return CodeReward(deadline_s)("", fenced(source), tests)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def add(a, b):\n    return a - b", "AssertionError"),
        ("def add(a, b:", "SyntaxError"),
        ("pass", "NameError: name 'add' is not defined"),
        ("import os\nos._exit(0)", "ended with code 0 before the tests did"),
        ("import sys\nsys.exit(0)", "SystemExit: 0 before the tests ended"),
        ("import ctypes\nctypes.string_at(0)", "killed by SIGSEGV"),
        ("x = [0] * 10**9", "MemoryError"),
        ("open('big', 'wb').write(b'x' * (17 << 20))", "File too large"),
        ("import subprocess\nsubprocess.Popen(['sleep', '0'], env={}).wait(); 1 / 0", "ZeroDivisionError"),
    ],
)
def test_code_that_fails_in_any_way_is_the_policys_error(source, says):
    with pytest.raises(PolicyError, match=says):
        reward(source)


@pytest.mark.parametrize(
    "source",
    ["while True:\n    pass", "import time\ntime.sleep(60)", "try:\n    while True: pass\nexcept BaseException: pass"],
)
def test_code_that_does_not_end_is_stopped_at_its_deadline(source):
    with pytest.raises(PolicyTimeout, match=r"still running after its 0\.2 s"):
        reward(source, deadline_s=0.2)


def test_a_missing_block_is_the_policys_error_and_missing_tests_the_rows():
    with pytest.raises(PolicyError, match="no block"):
        CodeReward(1.0)("", "no code", "assert f() == 1")
    for answer in (None, "", [], [1], "f() == 1", "assert True"):
        with pytest.raises(RowError, match=r"has no test|check nothing|use nothing"):
            CodeReward(1.0)("", fenced("def f(): return 1"), answer)


def test_the_environment_is_empty_and_the_folder_new_and_writable():
    source = "import os\nassert set(os.environ) <= {'LC_CTYPE'}, os.environ\nassert os.listdir() == []\n"
    source += "open('f', 'w').write('x')\ndef f(): return open('f').read()"
    assert reward(source, "assert f() == open('f').read() == 'x'") == 1.0


@protected
def test_no_file_outside_the_folder_can_be_made_changed_or_removed(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for act in (
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(kept)!r}, 'a')",
        f"import os; os.remove({str(kept)!r})",
    ):
        with pytest.raises(PolicyError, match=r"PermissionError|FileNotFoundError"):
            reward(act)
    assert kept.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [kept]


@isolated
def test_the_network_is_out_of_reach():
    udp = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    with pytest.raises(PolicyError, match="unreachable"):
        reward(udp)


@isolated
@pytest.mark.parametrize("ends", ["time.sleep(60)", "pass"])
def test_no_process_outlives_its_sandbox_even_one_that_left_its_session(ends):
    # A sleeper that nobody else on this machine would start, to be found by its argument.
    seconds = 90000 + os.getpid() % 1000 + (7 if ends == "pass" else 0)
    source = (
        f"import os, time, subprocess\nsubprocess.Popen(['/bin/sleep', '{seconds}.25'], start_new_session=True)\n{ends}"
    )
    result = sandbox_of().run(f"def f(): return 1\n{source}", "assert f() == 1", 20.0 if ends == "pass" else 0.5)
    assert result.timed_out == (ends != "pass"), result.detail
    until = time.monotonic() + 30
    while running(f"{seconds}.25"):
        assert time.monotonic() < until, "the sleeper is still running"
        time.sleep(0.02)


def running(argument):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in path.read_bytes().decode(errors="replace").split("\0"):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return False


@isolated
def test_a_fork_bomb_ends_at_the_deadline():
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    assert sandbox_of().run(bomb, "assert f() == 1", 0.5).timed_out


def test_the_tests_cannot_be_read_from_stdin_and_output_is_no_proof():
    assert reward("import sys\nassert sys.stdin.read() == ''\ndef f(): return 1", "assert f() == 1") == 1.0
    guess = "for fd in range(3, 20):\n    try:\n        os.write(fd, b'0' * 32)\n    except OSError:\n        pass\n"
    with pytest.raises(PolicyError, match="ended with code 0 before the tests did"):
        reward(f"import os\n{guess}os._exit(0)")


def test_a_host_that_cannot_hold_code_runs_none():
    lacks = {"files": "Operation not permitted", "landlock": "Function not implemented", "root": "no namespaces"}
    for part in ("files", "landlock"):
        assert unconfined({name: why for name, why in lacks.items() if name != part}, root=True) is None
    fault = unconfined(lacks, root=True)
    for told in ("(Operation not permitted)", "(Function not implemented)", "what root", "user namespaces",
                 "sandbox: optional"):  # fmt: skip
        assert told in fault
    assert "what this user can" in unconfined(lacks, root=False) and len(fault.splitlines()) == 1
    assert all(unconfined({part: ""}, root=False) is None for part in TOLD)
    assert "no filter of system calls (no seccomp)" in unconfined({"files": "none", "calls": "no seccomp"}, root=False)


def test_a_sandbox_that_holds_nothing_is_refused_before_any_response(monkeypatch):
    lacking = partial(WarmSandbox, without=frozenset({"files", "landlock"}))
    monkeypatch.setattr(code_reward, "WarmSandbox", lacking)
    monkeypatch.setattr(code_reward, "_warm", {})
    with pytest.raises(InputError, match=r"reward\.sandbox: this host can hold no response"):
        resolve(ScorerConfig("code", None, 5.0))
    ready = resolve(ScorerConfig("code", None, 5.0, sandbox="optional"))
    assert any("not protected by Landlock" in note for note in ready.notes)
    for sandbox in code_reward._warm.values():
        sandbox.close()
