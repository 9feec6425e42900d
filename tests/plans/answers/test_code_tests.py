"""Which tests a row's answer holds, by its text alone; the usual shapes are lines of tests/verdicts/code.jsonl."""

import json

import pytest

from rlplan.plans.answers import AnswerError
from rlplan.plans.answers.code_tests import answer_of_row, code_tests
from rlplan.plans.answers.packages import modules_of, package_files, unstated
from rlplan.plans.yaml.errors import InputError

CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
STDIN = {"inputs": ["3\n"], "outputs": ["6\n"]}


def cases(answer):
    return [(case.given, case.wanted) for case in code_tests(answer).cases]


@pytest.mark.parametrize(
    ("answer", "form", "needs"),
    [
        ("assert add(1, 2) == 3", "script", {"add"}),
        (["x = 1", "assert add(x, 2) == 3"], "script", {"add"}),
        (json.dumps(["assert add(1, 2) == 3"]), "script", {"add"}),
        ("from solution import Stack as S\nassert S().n == 0", "script", {"Stack"}),
        ("import solution as s\nassert s.add(1, 2) == 3", "script", {"add"}),
        ("from typing import *\ndef test_a(x: List = None): assert f(Counter(), math.pi)", "script", {"f"}),
        ("def test_a():\n    n = 1\n    assert [f(i) for i in range(n)]", "script", {"f"}),
        ("assert sum(1, 2) == 3", "script", {"sum"}),
        ("assert calendar(math.pi) == 3", "script", {"calendar"}),
        ("c = Counter()\nassert c.n == 0", "script", {"Counter"}),
        ({"test": CHECK, "entry_point": "add"}, "check", {"add"}),
        ({"test": CHECK, "entry_point": "Solution().add"}, "check", {"Solution"}),
        (CHECK + "check(add)", "script", {"add"}),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [1]}, "calls", {"f"}),
        (STDIN, "stdin", set()),
    ],
)
def test_the_form_and_the_names_that_the_response_must_define(answer, form, needs):
    found = code_tests(answer)
    assert (found.form, set(found.needs), found.reads_stdin) == (form, needs, form == "stdin")


def test_arguments_and_results_are_read_from_json_or_text():
    named = {"public_test_cases": [{"input": "1\n[2]", "output": "[3]", "testtype": "functional"}]}
    assert cases({**named, "metadata": '{"func_name": "f"}'}) == [([1, [2]], [3])]
    assert cases({"fn_name": "f", "inputs": [[1, 2], {"a": 3}], "outputs": ["x", None]}) == [
        ([1, 2], "x"), ({"a": 3}, None),
    ]  # fmt: skip
    assert cases([{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}]) == [([1], [2])]


def test_limits_of_a_case_are_read_in_their_units():
    for time_limit in (2, "2 seconds", "2000 ms", {"seconds": 2, "nanos": 0}):
        assert code_tests({**STDIN, "time_limit": time_limit}).cases[0].time_s == 2.0
    for memory_limit in (256, "256 megabytes", "0.25 GB", "262144 KB"):
        assert code_tests({**STDIN, "memory_limit": memory_limit}).cases[0].memory_bytes == 256 << 20
    assert code_tests({**STDIN, "memory_limit_bytes": 1 << 20}).cases[0].memory_bytes == 1 << 20
    assert code_tests({**STDIN, "memory_limit_bytes": 0, "tolerance": 1e-6}).tolerance == (1e-6, 1e-6)
    assert code_tests({**STDIN, "abs_tol": 0.1}).tolerance == (0.1, 0.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "check nothing"),
        ("# only a comment", "check nothing"),
        ("391", "check nothing"),
        ("import math", "check nothing"),
        ("add(1, 2) == 3", "no assertion in them could fail"),
        ("def test_a(): add(1, 2)", "no assertion in them could fail"),
        ("def verify():\n    assert add(1, 2) == 3", "nothing calls verify"),
        ("assert True", "check nothing"),
        ("assert (add(1, 2) == 3, 'wrong')", "check nothing"),
        ("if False:\n    assert add(1, 2) == 3", "check nothing"),
        ("def add(a, b): return a + b\nassert add(1, 2) == 3", "use nothing of the response"),
        ({"test": "def add(a, b): return 3\nassert add(1, 2) == sub(4, 1)", "entry_point": "add"}, "define add"),
        ("assert add(1, 2) == 3\ndef (", r"no Python \(invalid syntax in line 2\)"),
        ("print 'a'\nassert add(1, 2) == 3", "no Python"),
        ("QUJD" * 50, "packed"),
        (CHECK, r"check\(candidate\), and nothing names the function to check; add the key entry_point"),
        ("class T:\n    def __init__(self, x): pass\n    def test_a(self): assert f(1)", "__init__ wants arguments"),
        ("import unittest\nclass B(A): pass\nassert f(B())", "derive a class"),
        ("import unittest, solution\nclass T(unittest.TestCase):\n    @unittest.skipIf(solution.no, '')\n"
         "    def test_a(self): self.assertTrue(solution.f())", "skipped where the response says so"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, "no inputs and outputs"),
        ({"inputs": ["1"]}, "has inputs and no outputs"),
        ({"inputs": "1", "outputs": ["2"]}, "must be lists"),
        ({"inputs": [[1, 2]], "outputs": [{"a": 1}]}, "add the key fn_name"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "add the key fn_name"),
        ([{"input": "1", "output": "1"}, "assert f(1)"], "write one of the two"),
        ({"entry_point": "f"}, "an object without tests"),
        ({**STDIN, "checker": "print(1)"}, "judged by a program of their own"),
        ({"language": "cpp", "test_cases": [STDIN]}, "only Python"),
        ({"fn_name": "f(1)", "inputs": [[1]], "outputs": [1]}, "write a name"),
        ({**STDIN, "time_limit": "soon"}, "time_limit is \"soon\"; write seconds"),
        ({**STDIN, "tolerance": -1}, "the tolerance is -1"),
        (None, "the answer null has no test in it"),
        ([], r"the answer \[\] has no test in it"),
        (3, "the answer 3 has no test in it"),
    ],
)  # fmt: skip
def test_a_row_without_tests_that_can_be_run_is_refused(answer, why):
    with pytest.raises(AnswerError, match=why):
        code_tests(answer)


def test_further_keys_of_a_row_complete_its_answer():
    assert answer_of_row({"id": 1, "prompt": "x", "answer": "assert f(1)", "source": "y"}) == "assert f(1)"
    found = code_tests(answer_of_row({"answer": CHECK, "entry_point": "add"}))
    assert (found.form, found.entry) == ("check", "add")
    setup = answer_of_row({"answer": "", "test_list": ["assert f(x) == 1"], "test_setup_code": "x = 1"})
    assert code_tests(setup).source == "x = 1\nassert f(x) == 1"
    limited = code_tests(answer_of_row({"answer": json.dumps(STDIN), "time_limit": 2, "memory_limit": 64}))
    assert (limited.cases[0].time_s, limited.cases[0].memory_bytes) == (2.0, 64 << 20)
    calls = answer_of_row({"answer": [{"input": "1", "output": "2", "testtype": "functional"}],
                           "metadata": '{"func_name": "f"}'})  # fmt: skip
    assert (code_tests(calls).form, code_tests(calls).entry) == ("calls", "f")
    solution = {"answer": "    return a + b\n", "test": CHECK, "entry_point": "add"}
    assert code_tests(answer_of_row(solution)).form == "check"
    solution = {"answer": "def f(x):\n    return x", "test_list": ["assert f(1) == 1"]}
    assert code_tests(answer_of_row(solution)).source == "assert f(1) == 1"
    assert answer_of_row({"answer": "assert f(1)", "metadata": {"level": 3}}) == "assert f(1)"


def test_packages_are_named_that_the_tests_import_and_nothing_states():
    tests = code_tests("import numpy as np, sklearn.svm\nfrom yaml import load\nassert f(np.pi)")
    assert tests.packages == {"numpy", "sklearn", "yaml"}
    assert "write packages: [numpy, scikit-learn, pyyaml]" in unstated(tests, ())
    assert "need sklearn, yaml, which" in unstated(tests, ["numpy"])
    optional = "try:\n    import torch\nexcept ImportError:\n    torch = None\nassert f(1)"
    assert code_tests(optional).packages == frozenset()
    assert code_tests("def test_a(tmp_path): assert f(tmp_path)").packages == {"pytest"}
    assert {"pytest", "_pytest", "pluggy"} <= package_files(["pytest"]).keys()
    assert modules_of(("not-installed-here",)) == {"not_installed_here"}
    with pytest.raises(InputError, match="pip install no-such-thing"):
        package_files(["no-such-thing"])
