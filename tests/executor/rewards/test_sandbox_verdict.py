"""Who decides whether a response is right: the tests' process. Every case is a real sandbox."""

import os
from pathlib import Path

import pytest

from rlplan.executor.rewards.functions import RowError, ScorerConfig
from rlplan.executor.rewards.kinds.code_reward import run_sandboxed
from rlplan.executor.rewards.sandbox.isolation import TOLD
from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox
from rlplan.executor.rewards.worker import RewardWorker

RIGHT, WRONG, TESTS = "def f(x): return x * x", "def f(x): return -1", "assert f(3) == 9"

STYLES = {
    "a pytest function that imports it": (
        "def f(x): return x * 2",
        "from solution import f\ndef test_f():\n    assert f(2) == 4",
    ),
    "a class": (
        "class S:\n    def two(self, a, t): return [a.index(t), 0]", "s = S()\nassert s.two([1, 2], 2) == [1, 0]",
    ),
    "a list that is sorted in place": (
        "def f(rows):\n    rows.sort()\n    rows[0][0] = 9", "rows = [[3], [1]]\nf(rows)\nassert rows == [[9], [3]]",
    ),
    "a function of the test's": ("def f(g, x): return g(x)", "assert f(lambda x: x + 1, 3) == 4"),
    "a generator": (
        "def f(n):\n    for i in range(n): yield i",
        "assert list(f(4)) == [0, 1, 2, 3] and sum(f(5)) == 10",
    ),
    "an exception of its own": (
        "class Bad(ValueError):\n    def __init__(self, code): super().__init__('bad'); self.code = code\n"
        "def f(x): raise Bad(7)",
        "try:\n    f(1)\n    assert False\nexcept Bad as error:\n    assert str(error) == 'bad' and error.code == 7\n"
        "try:\n    f(1)\nexcept ValueError:\n    pass",
    ),
    "a named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "x, y = f()\nassert f() == (1, 2) == (x, y) and f().x == 1 and isinstance(f(), tuple)",
    ),
    "operators of a class": (
        "from dataclasses import dataclass\n@dataclass\nclass V:\n    x: int\n    y: int\n"
        "    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n"
        "    def __mul__(self, k): return V(self.x * k, self.y * k)",
        "assert V(1, 2) + V(3, 4) == V(4, 6) and (V(1, 2) * 3).x == 3 and repr(V(1, 2)) == 'V(x=1, y=2)'",
    ),
    "a linked list of the response's": (
        "class N:\n    def __init__(self, v, n=None): self.v = v; self.n = n\n"
        "def f(h):\n    p = None\n    while h: h.n, p, h = p, h, h.n\n    return p",
        "r = f(N(1, N(2)))\nassert (r.v, r.n.v, r.n.n) == (2, 1, None)",
    ),
    "a linked list of the test's": (
        "def f(h):\n    p = None\n    while h: h.n, p, h = p, h, h.n\n    return p",
        "class N:\n    def __init__(self, v, n=None): self.v = v; self.n = n\n"
        "r = f(N(1, N(2)))\nassert (r.v, r.n.v, r.n.n) == (2, 1, None)",
    ),
    "what it prints": (
        "def f(): print('hi', 3)",
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f()\n"
        "assert out.getvalue() == 'hi 3\\n'",
    ),
    "what it reads": (
        "def f(): return int(input()) + int(input())",
        "from unittest.mock import patch\nwith patch('builtins.input', side_effect=['1', '2']): assert f() == 3",
    ),
    "a part of it that is replaced": (
        "def part(): return 1\ndef f(): return part()",
        "from unittest.mock import patch\nwith patch('solution.part', return_value=5): assert f() == 5\n"
        "assert f() == 1",
    ),
    "a global that changes": ("n = 0\ndef f():\n    global n\n    n += 1", "f()\nf()\nassert n == 2"),
    "a coroutine": ("async def f(x): return x + 1", "import asyncio\nassert asyncio.run(f(2)) == 3"),
    "a unittest case": (
        "class Stack(list):\n    def top(self): return self[-1]",
        "import unittest\nclass T(unittest.TestCase):\n    def test_top(self):\n        s = Stack()\n"
        "        s.append(3)\n"
        "        self.assertEqual(s, [3])\n        self.assertEqual(s.top(), 3)\n"
        "        self.assertRaises(IndexError, Stack().top)",
    ),
    "an enumeration": (
        "import enum\nclass C(enum.Enum):\n    R = 1\n    G = 2\ndef f(): return C.R",
        "assert f() is C.R and f() != C.G and C.R.value == 1 and [c.name for c in C] == ['R', 'G']",
    ),
    "a name that the response imported": (
        "from collections import Counter\ndef f(s): return Counter(s)",
        "assert f('aa') == Counter(a=2)",
    ),
    "a list that the test reads from an object and changes": (
        "class N:\n    def __init__(self): self.below = []; self.rows = [[0]]\n"
        "    def add(self, x): self.below.append(x)",
        "n = N()\nn.below.append(N())\nn.below[0].below.append(5)\nn.rows[0][0] = 7\nfirst = n.below\nn.add(3)\n"
        "assert len(n.below) == 2 and n.below[0].below == [5] and n.rows == [[7]] and n.below is first",
    ),
    "a decorator": (
        "def f(g):\n    return lambda *a: g(*a) + 1",
        "@f\ndef twice(x): return 2 * x\nassert twice(3) == 7",
    ),
    "a built-in's name that is imported": ("def sum(a): return 99", "from solution import sum\nassert sum([1]) == 99"),
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_tests_reach_a_right_solution_in_each_of_the_usual_styles(style):
    source, tests = STYLES[style]
    result = run_sandboxed(source, tests, 20.0)
    assert result.passed, result.detail


@pytest.mark.parametrize(
    "tests",
    ["def test_f():\n    assert f(3) == 9", "class TestF:\n    def test_f(self): assert f(3) == 9",
     "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(3), 9)"],
)  # fmt: skip
def test_functions_that_pytest_would_collect_are_called(tests):
    assert run_sandboxed(RIGHT, tests, 20.0).passed
    assert not run_sandboxed(WRONG, tests, 20.0).passed


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
    "one in a list": (
        "class Any:\n    def __eq__(self, other): return True\ndef f(x): return [Any()]",
        "assert f(3) == [9]",
    ),
    "one in a set": (
        "class Any:\n    def __eq__(self, other): return True\n    def __hash__(self): return hash(9)\n"
        "def f(x): return Any()",
        "assert f(3) in {9}"),
    "one that is less than everything": (
        "class Any:\n    def __lt__(self, other): return True\ndef f(x): return Any()",
        "assert f(3) < 10",
    ),
    "one whose differences are 0": (
        "class Any:\n    def __sub__(self, other): return 0.0\ndef f(x): return Any()", "assert abs(f(3) - 9) < 1e-6"),
    "one whose differences are such objects": (
        "class Any:\n    def __sub__(self, other): return self\n    def __abs__(self): return 0.0\n"
        "def f(x): return Any()",
        "assert abs(f(3) - 9) < 1e-6"),
    "one that is no object of the response's": ("import unittest.mock\ndef f(x): return unittest.mock.ANY", TESTS),
    "built-in functions that say yes": (
        "import builtins\nall = builtins.all = lambda x: True\nabs = builtins.abs = lambda x: 0\ndef f(x): return 1",
        "assert all(f(x) == 9 for x in [1, 2])\nassert abs(f(1) - 9) < 1e-9"),
    "a map that ends early": (
        "def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 9, [1, 2]))"),
    "the end of the process": ("import os\nos._exit(0)", TESTS),
    "the end of the process while it is asked": ("import os\ndef f(x): os._exit(0)", TESTS),
    "an exit that asks for success": ("import sys\ndef f(x): sys.exit(0)", TESTS),
    "what the test knows, by its name": ("def f(x): return expected", "expected = 9\nassert f(3) == expected"),
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
        "import os\ndef f(x):\n    with open(f'/proc/{os.getppid()}/mem', 'rb') as memory: return 9",
        TESTS,
    ),
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
    "an object whose text is": (
        "class Any:\n    n = 0\n    def __str__(self):\n        Any.n += 1\n        return 'z' if Any.n % 2 else 'a'\n"
        "def f(x): return Any()", "r = f(3)\nassert str(r) > 'b' and str(r) < 'c'"),
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
LACKS = {"nothing": "", "user": "user", "Landlock and seccomp": "landlock,calls", "everything": ",".join(TOLD)}


@pytest.fixture(scope="module", params=LACKS)
def host(request):
    """A sandbox on a host that lacks something."""
    sandbox = WarmSandbox(without=frozenset(filter(None, LACKS[request.param].split(","))))
    sandbox.start()
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_verdict_is_forged_whatever_the_host_lacks(host, forgery):
    source, tests = FORGERIES[forgery]
    assert host.run(RIGHT, TESTS, 20.0).passed
    assert not host.run(source, tests, 20.0).passed
    assert host.run(RIGHT, TESTS, 20.0).passed


def test_an_object_that_was_shown_the_expected_value_does_not_say_that_it_is_right_by_any_operation(host):
    for check in SHOWN:
        result = host.run(NEAR, f"import copy\nassert {check}", 20.0)
        assert (result.passed, "is not believed" in result.detail) == (False, True), (check, result.detail)


RATIONAL = """
from math import gcd
class R:
    def __init__(self, n, d=1):
        g = gcd(n, d)
        self.n, self.d = n // g, d // g
    def __add__(self, o):
        o = o if isinstance(o, R) else R(o)
        return R(self.n * o.d + o.n * self.d, self.d * o.d)
    __radd__ = __add__
    def __neg__(self): return R(-self.n, self.d)
    def __sub__(self, o): return self + -o
    def __rsub__(self, o): return -self + o
    def __mul__(self, o):
        o = o if isinstance(o, R) else R(o)
        return R(self.n * o.n, self.d * o.d)
    def __truediv__(self, o):
        o = o if isinstance(o, R) else R(o)
        return R(self.n * o.d, self.d * o.n)
    def __eq__(self, o): return isinstance(o, R) and (self.n, self.d) == (o.n, o.d)
    def __hash__(self): return hash((self.n, self.d))
    def __str__(self): return f'{self.n}/{self.d}'
    def __iter__(self): return iter((self.n, self.d))
    def __float__(self): return self.n / self.d
"""


def test_a_class_of_numbers_keeps_its_arithmetic_with_data_and_loses_only_what_is_right_for_every_answer(host):
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


def test_an_object_that_changes_is_seen_as_it_is_after_each_change():
    source = (
        "class L(list):\n    def twice(self): self.extend(list(self))\n"
        "class C:\n    def __init__(self): self.n = 0; self.rows = L([[1]])\n    def up(self): self.n += 1\n"
        "rows = L([[0]])\n"
    )
    tests = (
        "c = C()\nassert c.n == 0 and c.n == 0\nc.up()\nassert c.n == 1\nc.up()\nassert c.n == 2\n"
        "l = L([1])\nassert l == [1] and len(l) == 1\nl.twice()\nassert l == [1, 1] and len(l) == 2 and l[1] == 1\n"
        "inner = rows[0]\nassert rows == [[0]]\ninner.append(2)\nassert rows == [[0, 2]]\n"
        "assert c.rows == [[1]]\nc.rows[0].append(3)\nassert c.rows == [[1, 3]]\nc.n = 7\nassert c.n == 7\n"
    )
    result = run_sandboxed(source, tests, 20.0)
    assert result.passed, result.detail


def test_a_star_import_gives_what_the_response_has_and_none_of_its_imports_that_tests_cannot_have():
    source = (
        "import threading, math\nfrom math import sqrt\n__version__ = '1'\nlimit = 3\ndef f(x): return int(sqrt(x))"
    )
    tests = "from solution import *\ndef test_f(): assert f(9) == limit and math.pi > 3\n"
    assert run_sandboxed(source, tests, 20.0).passed
    explicit = "__all__ = ['f', '__version__']\n" + source
    assert run_sandboxed(explicit, "from solution import *\nassert f(9) == 3", 20.0).passed


def test_a_test_that_swallows_every_exception_does_not_hide_that_the_response_is_gone():
    tests = "try:\n    f(3)\nexcept BaseException:\n    pass"
    result = run_sandboxed("import os\ndef f(x): os._exit(3)", tests, 20.0)
    assert (result.passed, result.detail) == (False, "ended with code 3 before the tests did")


def test_tests_that_no_other_process_can_run_are_the_rows_fault_and_not_the_responses():
    with pytest.raises(RowError, match="derive a class from one of the response's"):
        run_sandboxed("class A: pass", "class B(A): pass", 20.0)
    with pytest.raises(RowError, match="derive a class from one of the response's"):
        run_sandboxed("class A: pass", "from solution import A as Base\nclass B(Base): pass", 20.0)


def test_a_response_cannot_have_a_row_called_untestable_that_other_responses_pass():
    tests = "class T(TestCase):\n    def test_f(self): self.assertEqual(f(3), 9)"
    assert run_sandboxed("from unittest import TestCase\n" + RIGHT, tests, 20.0).passed
    result = run_sandboxed("class TestCase: pass\n" + WRONG, tests, 20.0)
    assert (result.passed, "derive a class" in result.detail) == (False, True)


def test_what_a_host_lacks_is_told_with_its_reason_and_by_the_worker_that_starts():
    sandbox = WarmSandbox(without=frozenset({"calls", "network"}))
    try:
        sandbox.start()
        assert [note for note in sandbox.notes if "left out" in note] == [
            "sandbox: the network is not isolated (left out)", "sandbox: system calls are not filtered (left out)",
        ]  # fmt: skip
    finally:
        sandbox.close()
    facts = RewardWorker(ScorerConfig("code", None, 5.0)).ready()
    assert (facts.problem, facts.failure) == (None, None)
    assert all(note.startswith("sandbox: ") for note in facts.notes)


def test_a_starter_that_is_killed_is_replaced_and_costs_no_response_its_reward():
    sandbox = WarmSandbox()
    try:
        assert sandbox.run(RIGHT, TESTS, 20.0).passed
        os.kill(sandbox._process.pid, 9)
        sandbox._process.wait()
        assert sandbox.run(RIGHT, TESTS, 20.0).passed
    finally:
        sandbox.close()


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
