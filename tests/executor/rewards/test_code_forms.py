"""Each form of a row's tests, with a right and a wrong response; every case is a real sandbox."""

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
SCRIPTS = {
    "assertions": "assert add(1, 2) == 3\nassert add([1], [2]) == [1, 2]",
    "a list of texts": ["assert add(1, 2) == 3", "assert add(0, 1) == 1"],
    "a candidate": {"test": CHECK, "entry_point": "add"},
    "a candidate that the text names itself": CHECK + "\ncheck(add)",
    "a test that only the main block calls": "def test_a(): assert add(1, 2) == 3\nif __name__ == '__main__': test_a()",
    "assertions of the main block": "def ok(): assert add(1, 2) == 3\nif __name__ == '__main__':\n    ok()",
    "a test in a condition": "if True:\n    def test_a(): assert add(1, 2) == 3",
    "a test with a default": "def test_a(x=3): assert add(1, 2) == x",
    "a class of any name": "class Checks:\n    def test_a(self): assert add(1, 2) == 3",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 3\n"
                "    def test_a(self): self.assertEqual(add(1, 2), self.x)\nif __name__ == '__main__': unittest.main()",
    "a harness of its own": "def run():\n    for a, b, c in [(1, 2, 3)]:\n"
                            "        if add(a, b) != c: raise ValueError(a)\nrun()",
    "an exit code": "import sys\nsys.exit(0 if add(1, 2) == 3 else 1)",
    "an assertion that is swallowed": "try:\n    assert add(1, 2) == 3\nexcept Exception:\n    print('failed')",
    "a test that is swallowed": "def test_a(): assert add(1, 2) == 3\ntry:\n    test_a()\nexcept Exception:\n    pass",
    "what is set up before": "def setup_module(): global X; X = 1\ndef setup_function(f): global Y; Y = 2\n"
        "def test_a(): assert add(X, Y) == 3\nclass C:\n    def setup_method(self): self.x = 3\n"
        "    def test_c(self): assert add(X, 2) == self.x\nimport unittest\ndef setUpModule(): global Z; Z = 3\n"
        "class T(unittest.TestCase):\n    def test_t(self): self.assertEqual(add(1, 2), Z)",
    "a coroutine": "async def test_a(): assert add(1, 2) == 3",
    "a library that is not imported": "assert math.isclose(add(0.1, 0.2), 0.3)\nassert Counter([add(1, 1)]) == {2: 1}",
    "pytest": "import pytest\n@pytest.fixture\ndef pair(): return 1, 2\ndef test_a(pair): assert add(*pair) == 3\n"
              "@pytest.mark.parametrize('a', [1, 2])\ndef test_p(a): assert add(a, 1) == pytest.approx(a + 1)\n"
              "def test_e():\n    with pytest.raises(TypeError): add(1, None)\nclass Checks:\n"
              "    def test_o(self, capsys, tmp_path):\n        print(add(1, 2))\n"
              "        assert capsys.readouterr().out == '3\\n'\nif __name__ == '__main__': pytest.main()",
    "numpy": "import numpy as np\nfrom solution import add\nA = np.arange(4.0).reshape(2, 2)\n"
             "def test_a():\n    np.testing.assert_allclose(add(A, A), 2 * A)\n    assert add(A, A).dtype == A.dtype\n"
             "    assert isinstance(add(A, 1)[0, 1], np.float64) and add(np.int64(1), 2) == 3",
}  # fmt: skip
CALLS = (
    {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, [7]]},
    [{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}],
    [{"type": "function_call", "fn_name": "add", "input": [[1], [2]], "output": [1, 2]}],
    {"fn_name": "add", "inputs": [{"a": 0.1, "b": 0.2}], "outputs": [0.3], "tolerance": 1e-9},
)
DOUBLE, NOT_DOUBLE = "print(2 * int(input()))", "print(5)"
PROGRAMS = {
    "lines of a buffer": "import sys\nfor line in sys.stdin.buffer: sys.stdout.write(f'{2 * int(line)}   \\n\\n')",
    "the file of descriptor 0, in a thread": "import threading\n"
        "threading.Thread(target=lambda: print(2 * int(open(0).read()))).start()",
    "the size of the input": "import io, os\n"
        "print(2 * int(io.BytesIO(os.read(0, os.fstat(0).st_size)).readline()))",
    "a main block that exits": "import sys\nif __name__ == '__main__':\n    print(2 * int(input()))\n    sys.exit(0)",
    "what ends with the program": "import atexit\nx = int(input())\natexit.register(lambda: print(2 * x))",
}  # fmt: skip
ENDS = {
    "exits with another code": "print(2 * int(input()))\nraise SystemExit(3)",
    "raises after it has printed": "print(2 * int(input()), flush=True)\n1 / 0",
    "prints more": "print(2 * int(input()))\nprint(1)",
    "is killed": "import os\nprint(2 * int(input()), flush=True)\nos.kill(os.getpid(), 15)",
}


def fenced(source):
    return f"```python\n{source}\n```\n"


def judged(source, answer, deadline_s=20.0, **options):
    return CodeReward(deadline_s, packages=PACKAGES, **options).judge("", fenced(source), answer)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_right_response_gets_1_and_a_wrong_one_0(name):
    found = judged(RIGHT, SCRIPTS[name])
    assert (found.reward, found.why) == (1.0, "")
    assert dict(found.steps)["tests run"][0] == dict(found.steps)["tests run"][5] != "0"
    wrong = judged(WRONG, SCRIPTS[name])
    assert (wrong.reward, wrong.why != "") == (0.0, True)


def test_calls_are_compared_as_data_and_a_method_is_found():
    method = "class Solution:\n    def add(self, a, b): return a + b"
    for answer in CALLS:
        for right in (RIGHT, method):
            assert judged(right, answer).why == ""
        assert judged(WRONG, answer).reward == 0.0
    assert "returned 0, not 3" in judged(WRONG, CALLS[0]).why
    assert "is no data" in judged("def add(a, b): return object()", CALLS[0]).why


def test_programs_are_given_input_and_their_output_is_compared():
    for answer in ({"inputs": ["3\n", "4"], "outputs": ["6\n", "8"]}, [{"input": "3", "output": "6"}]):
        assert judged(DOUBLE, answer).reward == 1.0
        assert judged(NOT_DOUBLE, answer).reward == 0.0
    for source in PROGRAMS.values():
        assert judged(source, [{"input": "3\n", "output": "6\n"}]).why == ""
    for source in ENDS.values():
        assert judged(source, [{"input": "3\n", "output": "6\n"}]).reward == 0.0
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
        assert sandbox.run(RIGHT, code_tests(CALLS[0]), 20.0).passed


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
        CodeReward(5.0).judge("", fenced(RIGHT), SCRIPTS["numpy"])
