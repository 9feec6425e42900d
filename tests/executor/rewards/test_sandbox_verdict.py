"""Who decides whether a response is right: the tests' process. Every case is a real sandbox."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from rlplan.executor.rewards.functions import RowError, ScorerConfig
from rlplan.executor.rewards.kinds.code_reward import sandbox_of
from rlplan.executor.rewards.sandbox.isolation import TOLD
from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox
from rlplan.executor.rewards.worker import RewardWorker

RIGHT, WRONG, TESTS = "def f(x): return x * x", "def f(x): return -1", "assert f(3) == 9"

TWO_FACED = """
import gc
class Number(float): pass
n = 0
def view(value):
    global n
    n += 1
    return 1e300 if n % 2 else -1e300
for each in gc.get_objects():
    if type(each).__name__ == 'Link':
        each.operations['view'] = each.operations['float'] = view
"""
FORGERIES = {
    "an object that equals everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return hash(9)\n"
        "def f(x): return Any()", TESTS),
    "one in a set": (
        "class Any:\n    def __eq__(self, other): return True\n    def __hash__(self): return hash(9)\n"
        "def f(x): return Any()", "assert f(3) in {9}"),
    "one that is less than everything": (
        "class Any:\n    def __lt__(self, other): return True\ndef f(x): return Any()", "assert f(3) < 10"),
    "one whose differences are 0": (
        "class Any:\n    def __sub__(self, other): return 0.0\ndef f(x): return Any()", "assert abs(f(3) - 9) < 1e-6"),
    "one whose differences are such objects": (
        "class Any:\n    def __sub__(self, other): return self\n    def __abs__(self): return 0.0\n"
        "def f(x): return Any()", "assert abs(f(3) - 9) < 1e-6"),
    "one that is no object of the response's": ("import unittest.mock\ndef f(x): return unittest.mock.ANY", TESTS),
    "built-in functions that say yes": (
        "import builtins\nall = builtins.all = lambda x: True\nabs = builtins.abs = lambda x: 0\ndef f(x): return 1",
        "assert all(f(x) == 9 for x in [1, 2])\nassert abs(f(1) - 9) < 1e-9"),
    "a map that ends early": (
        "def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 9, [1, 2]))"),
    "the end of the process": ("import os\nos._exit(0)", TESTS),
    "the end of the process while it is asked": ("import os\ndef f(x): os._exit(0)", TESTS),
    "what the test knows, by its function": (
        "def f(g): return g.__globals__['expected']", "expected = 9\nassert f(lambda: 1) == expected"),
    "what the test knows, by its generator": (
        "def f(g): return g.gi_frame.f_globals['expected']", "expected = 9\nassert f(i for i in [1]) == expected"),
    "the test's text in memory": (
        "import gc\ndef f(x):\n    for each in gc.get_objects():\n        if isinstance(each, (dict, list, tuple)):\n"
        "            for one in (each.values() if isinstance(each, dict) else each):\n"
        "                if isinstance(one, str) and ''.join(['SEC', 'RET']) in one: return 9\n    return -1",
        "assert f(3) == 9  # SECRET" + "!" * 20),
    "the tester's memory": (
        "import os\ndef f(x):\n    with open(f'/proc/{os.getppid()}/mem', 'rb') as memory: return 9", TESTS),
    "answers that nobody asked for": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, (b'%c' % 13 + bytes(7) + b'[\"got\",9,[]]') * 50)\n"
        "    except OSError: pass\n" + WRONG, TESTS),
    "a connection that says what it likes": (
        "import gc\nfor each in gc.get_objects():\n    if type(each).__name__ == 'References':\n"
        "        type(each).write = lambda self, value: ['standard', 'unittest.mock', 'ANY']\n"
        "def f(x): return object()", TESTS),
    "built-in functions that are exported": (
        "__all__ = ['f', 'all', 'abs', 'sorted']\ndef f(x): return -1\ndef all(g): return True\n"
        "def abs(x): return 0\ndef sorted(x, **k): return 0",
        "from solution import *\ndef test_f():\n    assert all(f(i) == i * i for i in range(5))\n"
        "    assert abs(f(2) - 4) < 1e-6"),
    "a function that the test imported, exported": (
        "__all__ = ['f', 'isclose']\ndef isclose(*a): return True\ndef f(x): return -1",
        "from math import isclose\nfrom solution import *\nassert isclose(f(3), 9)"),
    "a module that the test imported, exported": (
        "__all__ = ['f', 'unittest']\nclass unittest:\n    class TestCase: pass\n" + WRONG,
        "import unittest\nfrom solution import *\nclass T(unittest.TestCase):\n"
        "    def test_f(self): self.assertEqual(f(3), 9)"),
    "a module of the library that the test did not import": (
        "class unittest:\n    class TestCase: pass\n" + WRONG,
        "class T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(3), 9)"),
    "an object that is large first and small then": (
        TWO_FACED + "def f(x): return Number()", "r = f(3)\nassert r > 8.9 and r < 9.1"),
    "one that is converted twice": (
        TWO_FACED + "def f(x): return Number()", "r = f(3)\nassert 8.9 < float(r)\nassert float(r) < 9.1"),
    "an object whose items are": (
        "class Any:\n    n = 0\n    def __getitem__(self, i):\n        Any.n += 1\n"
        "        return 1e300 if Any.n % 2 else -1e300\ndef f(x): return Any()",
        "r = f(3)\nassert r[0] > 8.9 and r[0] < 9.1"),
    "a number of the module that is": (
        "import gc\nn = 0\ndef get(name):\n    global n\n    n += 1\n"
        "    return 'found', 1e300 if n % 2 else -1e300\n"
        "for each in gc.get_objects():\n    if type(each).__name__ == 'Link': each.operations['get'] = get\n",
        "def test_f():\n    assert best > 8.9\n    assert best < 9.1"),
}  # fmt: skip
NEAR = """
class Near:
    value = 0
    def __sub__(self, other): return Near()
    __rsub__ = __add__ = __sub__
    def __truediv__(self, other): return One()
    def __format__(self, how): return '0.000000'
    def __str__(self): return '0'
    def __iter__(self): return iter((0, 0, 0))
    def __getitem__(self, i): return 0.0
    def __hash__(self): return 0
    def __call__(self): return 1e-9
    def __copy__(self): return Zero()
    def norm(self): return Zero()
class One(Near):
    def __str__(self): return '1.00'
class Zero(float): pass
class Empty:
    def __sub__(self, other): return self
    def __iter__(self): return iter(())
    def __str__(self): return ''
def f(x): return Near()
def g(x): return Empty()
"""
SHOWN = (
    "f'{f(3) - 9:.6f}' == '0.000000'", "str(f(3) - 9) == '0'", "str(9 - f(3)) == '0'", "str(f(3) + -9) == '0'",
    "tuple(f(3) - (1, 2, 3)) == (0, 0, 0)", "(f(3) - 9).value == 0", "(f(3) - 9)[0] < 1e-6", "(f(3) - 9)() < 1e-6",
    "hash(f(3) - 9) == 0", "copy.copy(f(3) - 9) < 1e-6", "(f(3) - 9).norm() < 0.5", "abs(f(3) - 9) < 1e-6",
    "str(f(3) / 9) == '1.00'", "str((f(3) - 9) - f(0)) == '0'", "list(g(3) - {1}) == []", "str(g(3) - 'abc') == ''",
    "all(abs(x) < 1e-6 for x in g(3) - (1, 2, 3))",
)  # fmt: skip
LACKS = [
    pytest.param((), id="nothing"),
    pytest.param(tuple(TOLD), id="everything"),
    pytest.param(("user",), id="user", marks=pytest.mark.search),
    pytest.param(("landlock", "calls"), id="Landlock and seccomp", marks=pytest.mark.search),
]


@pytest.fixture(scope="module", params=LACKS)
def host(request):
    """A sandbox on a host that lacks something."""
    with closing(WarmSandbox(without=frozenset(request.param))) as sandbox:
        yield sandbox


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_verdict_is_forged_whatever_the_host_lacks(host, forgery):
    assert not host.run(*FORGERIES[forgery], 20.0).passed
    assert host.run(RIGHT, TESTS, 20.0).passed


def test_an_object_that_was_shown_the_right_value_cannot_claim_it(host):
    for check in SHOWN:
        result = host.run(NEAR, f"import copy\nassert {check}", 20.0)
        assert (result.passed, "is not believed" in result.detail) == (False, True), (check, result.detail)


RATIONAL = """
from math import gcd
def r(o): return o if isinstance(o, R) else R(o)
class R:
    def __init__(self, n, d=1): self.n, self.d = n // gcd(n, d), d // gcd(n, d)
    def __add__(self, o): return R(self.n * r(o).d + r(o).n * self.d, self.d * r(o).d)
    __radd__ = __add__
    def __neg__(self): return R(-self.n, self.d)
    def __sub__(self, o): return self + -o
    def __rsub__(self, o): return -self + o
    def __mul__(self, o): return R(self.n * r(o).n, self.d * r(o).d)
    def __truediv__(self, o): return R(self.n * r(o).d, self.d * r(o).n)
    def __eq__(self, o): return isinstance(o, R) and (self.n, self.d) == (o.n, o.d)
    def __hash__(self): return hash((self.n, self.d))
    def __str__(self): return f'{self.n}/{self.d}'
    def __iter__(self): return iter((self.n, self.d))
    def __float__(self): return self.n / self.d
"""


def test_a_class_of_numbers_keeps_its_arithmetic_with_data(host):
    for check in (
        "str(R(1, 2) - 1) == '-1/2'", "(R(1, 2) - 1) == R(-1, 2)", "(3 - R(1, 2)).n == 5", "str(R(1, 2) + 1) == '3/2'",
        "tuple(R(1, 2) + 1) == (3, 2)", "(R(1, 2) * 3).d == 2", "str(R(1, 2) * 0) == '0/1'", "str(R(1) - 1) == '0/1'",
        "str(R(1, 2) / 3) == '1/6'", "R(1, 2) - R(1, 2) == R(0)", "str(R(1, 2) - R(1, 2)) == '0/1'",
        "float(R(1, 2)) == 0.5", "(R(2) - 1).d == 1", "len({R(1, 2), R(2, 4)}) == 1",
    ):  # fmt: skip
        result = host.run(RATIONAL, f"assert {check}", 20.0)
        assert result.passed, (check, result.detail)
    for check in ("(R(1) - 1).n == 0", "float(R(1, 2) - 1) == -0.5", "(R(3) / 3).n == 1"):
        assert "is not believed" in host.run(RATIONAL, f"assert {check}", 20.0).detail


def test_a_star_import_gives_what_tests_can_have_of_the_response():
    source = (
        "import threading, math\nfrom math import sqrt\n__version__ = '1'\nlimit = 3\ndef f(x): return int(sqrt(x))"
    )
    tests = "from solution import *\ndef test_f(): assert f(9) == limit and math.pi > 3\n"
    assert sandbox_of().run(source, tests, 20.0).passed
    explicit = "__all__ = ['f', '__version__']\n" + source
    assert sandbox_of().run(explicit, "from solution import *\nassert f(9) == 3", 20.0).passed


def test_a_test_that_swallows_exceptions_does_not_hide_a_lost_response():
    tests = "try:\n    assert f(3) == 3\nexcept BaseException:\n    pass"
    result = sandbox_of().run("import os\ndef f(x): os._exit(3)", tests, 20.0)
    assert (result.passed, result.detail) == (False, "ended with code 3 before the tests did")


@pytest.mark.parametrize("base", ["", "from solution import A\n", "from solution import A as Base\n"])
def test_tests_that_no_other_process_can_run_are_the_rows_fault(base):
    name = "Base" if "Base" in base else "A"
    with pytest.raises(RowError, match="derive a class from one of the response's"):
        sandbox_of().run("class A: pass", f"{base}class B({name}): pass\nassert f(B()) == 1", 20.0)


def test_a_response_cannot_have_a_row_called_untestable():
    tests = "class T(TestCase):\n    def test_f(self): self.assertEqual(f(3), 9)"
    assert sandbox_of().run("from unittest import TestCase\n" + RIGHT, tests, 20.0).passed
    result = sandbox_of().run("class TestCase: pass\n" + WRONG, tests, 20.0)
    assert (result.passed, "derive a class" in result.detail) == (False, True)


def test_what_a_host_lacks_is_told_with_its_reason():
    with closing(WarmSandbox(without=frozenset({"calls", "network"}))) as sandbox:
        sandbox.start()
        assert [note for note in sandbox.notes if "left out" in note] == [
            "sandbox: the network is not isolated (left out)", "sandbox: system calls are not filtered (left out)",
        ]  # fmt: skip
    facts = RewardWorker(ScorerConfig("code", None, 5.0)).ready()
    assert (facts.problem, facts.failure) == (None, None)
    assert all(note.startswith("sandbox: ") for note in facts.notes)


def test_a_killed_starter_costs_no_response_its_reward():
    with closing(WarmSandbox()) as sandbox:
        assert sandbox.run(RIGHT, TESTS, 20.0).passed
        os.kill(sandbox._process.pid, 9)
        sandbox._process.wait()
        assert sandbox.run(RIGHT, TESTS, 20.0).passed


def test_a_sandbox_that_ends_leaves_no_folder_and_no_descriptor(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(Path("/proc/self/fd").iterdir())
    sandbox = WarmSandbox(without=frozenset({"files"}))
    deep = "import os\nfor _ in range(1200):\n    os.mkdir('d'); os.chdir('d')\nos.symlink('/', 'root')\n"
    sandbox.run(deep + RIGHT, TESTS, 20.0)
    sandbox.run(deep + "while True: pass", TESTS, 0.5)
    sandbox.close()
    assert list(tmp_path.iterdir()) == []
    assert sorted(Path("/proc/self/fd").iterdir()) == before
