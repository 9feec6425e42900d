"""What a row's tests take and what is told of them; each form, right and wrong, is in tests/verdicts/code.jsonl."""

from contextlib import closing

import pytest

from rlplan.executor.rewards.functions import RowError, ScorerConfig
from rlplan.executor.rewards.kinds.code_reward import CodeReward
from rlplan.executor.rewards.sandbox.isolation import TOLD
from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox
from rlplan.executor.rewards.worker import RewardWorker
from rlplan.plans.answers.code_tests import code_tests

PACKAGES = ("numpy", "pytest")
RIGHT, WRONG = "def add(a, b): return a + b", "def add(a, b): return 0"
CHECK = "def check(candidate): assert candidate(1, 2) == 3"
CALLS = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, [7]]}


def fenced(source):
    return f"```python\n{source}\n```\n"


def judged(source, answer, deadline_s=20.0, **options):
    return CodeReward(deadline_s, packages=PACKAGES, **options).judge("", fenced(source), answer)


def test_a_verdict_says_how_many_tests_ran_and_what_failed():
    assert dict(judged(RIGHT, ["assert add(1, 2) == 3", "assert add(0, 1) == 1"]).steps)["tests run"] == "2 of 2 passed"
    assert "returned 0, not 3" in judged(WRONG, CALLS).why
    assert "is no data" in judged("def add(a, b): return object()", CALLS).why
    two = {"inputs": ["3", "4"], "outputs": ["6", "8"]}
    assert "case 2 of 2, input '4'" in judged("print(6)", two).why


def test_a_case_has_the_time_and_memory_that_its_row_states():
    answer = {"inputs": ["1", "2"], "outputs": ["1", "2"], "time_limit": 0.4, "memory_limit": "64 MB"}
    assert judged("x = bytearray(20 << 20)\nprint(input())", answer).why == ""
    late = judged("import time\nprint(input(), flush=True)\ntime.sleep(9)", answer)
    assert (late.reward, late.timed_out, "took more than its 0.4 s" in late.why) == (0.0, True, True)
    assert "MemoryError" in judged("x = bytearray(200 << 20)\nprint(input())", answer).why


def test_a_partial_reward_is_the_share_of_what_passes():
    answer = {"inputs": ["1", "2", "3", "4"], "outputs": ["1", "2", "3", "4"]}
    crash = "x = int(input())\nif x == 2: 1 / 0\nprint(x)"
    assert (judged(crash, answer).reward, judged(crash, answer, partial=True).reward) == (0.0, 0.75)
    tests = "assert f(1) == 1\nassert f(2) == 2\ndef test_a(): assert f(3) == 3\ndef test_b(): assert f(4) == 4"
    assert judged("def f(x): return x if x in (1, 3) else 1 / 0", tests, partial=True).reward == 0.5
    late = judged("x = int(input())\nwhile x == 3: pass\nprint(x)", answer, 1.0, partial=True)
    assert (late.reward, late.timed_out) == (0.5, True)
    swallowed = "try:\n    assert f(1) == 1\nexcept Exception: pass\nassert f(0) == 0"
    assert judged("def f(x): return 0", swallowed, partial=True).reward == 0.0


@pytest.mark.parametrize("lacks", [(), tuple(TOLD)])
def test_cases_run_apart_whatever_the_host_lacks(lacks):
    tests = code_tests({"inputs": ["1", "2"], "outputs": ["1", "2"]})
    leaves = "import os\nx = input()\nif x == '1' and os.fork() == 0:\n    while True: os.write(1, b'2')\nprint(x)"
    with closing(WarmSandbox(without=frozenset(lacks))) as sandbox:
        assert sandbox.run("print(input())", tests, 20.0).passed
        assert not sandbox.run("print(1)", tests, 20.0).passed
        sandbox.run(leaves, tests, 5.0)
        assert sandbox.run("print(input())", tests, 20.0).passed
        assert sandbox.run(RIGHT, code_tests(CALLS), 20.0).passed


def test_a_fault_of_the_row_is_never_the_responses():
    for answer, why in (
        ("assert add(1, 2) == 3\ndef (", "no Python"),
        ("import torch\nassert add(1, 2) == 3", "packages: [numpy, pytest, torch]"),
        ("from math import no_such\nassert add(1, 2) == 3", "cannot import name 'no_such'"),
        ("import math\nx = math.no_such\nassert add(1, 2) == 3", "no attribute 'no_such' (line 2 of the tests)"),
        (CHECK, "entry_point"),
    ):
        with pytest.raises(RowError) as told:
            judged(WRONG, answer)
        assert why in str(told.value)
    assert "ImportError" in judged("def add(a, b): raise ImportError('x')", "assert add(1, 2) == 3").why


def test_a_package_that_is_not_installed_stops_the_start():
    facts = RewardWorker(ScorerConfig("code", None, 5.0, packages=("no-such-package",))).ready()
    assert facts.problem == (
        "reward.packages: no-such-package is not installed here; run: pip install no-such-package, or remove it"
    )
    with pytest.raises(RowError, match=r"packages: \[numpy\]"):
        CodeReward(5.0).judge("", fenced(RIGHT), "import numpy\nassert add(1, 2) == 3")
