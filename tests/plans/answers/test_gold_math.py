"""What a row's answer to mathematics is read as, and which rows are refused."""

import subprocess
import sys
from fractions import Fraction

import pytest

from rlplan.plans.answers import AnswerError
from rlplan.plans.answers.gold_math import gold_of, typed, value


@pytest.mark.parametrize(
    ("answer", "number", "unit"),
    [
        (42, Fraction(42), ""),
        ("1e-05", Fraction(1, 10**5), ""),
        ("$1{,}234{,}567$", Fraction(1234567), ""),
        ("-3\\frac{1}{2}", Fraction(-7, 2), ""),
        ("½", Fraction(1, 2), ""),
        ("0.\\dot{3}", Fraction(1, 3), ""),
        ("0.142857142857...", Fraction(1, 7), ""),
        ("15 dollars", Fraction(15), "dollars"),
        ("$15", Fraction(15), "$"),
        ("20 km/h", Fraction(20), "km/h"),
        ("45^\\circ", Fraction(45), "^\\circ"),
        ("15元", Fraction(15), "元"),
        ("6 boxes of 7 are 42.\n#### 42", Fraction(42), ""),
        ("so it is $\\boxed{42}$, as \\boxed{42} shows", Fraction(42), ""),
    ],
)
def test_a_number_is_exact_and_its_unit_named(answer, number, unit):
    gold = gold_of(answer)
    assert gold.kind == "number" and gold.node is not None
    assert (value(gold.node), gold.unit) == (number, unit)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("B", "choice"),
        ("\\text{(B)}", "choice"),
        ("B. Paris", "choice"),
        ("b", "expression"),
        ("stop", "text"),
        (True, "text"),
        ("9:30 a.m.", "text"),
        ("2\\sqrt{3}", "expression"),
        ("5, 3", "list"),
        ("41, 42", "list"),
        ("1, 234", "list"),
        ("\\{3, 5\\}", "set"),
        ("(3, 5)", "tuple"),
        ("[0, 1)", "interval"),
        ("x < 3", "relation"),
        ("1010_2", "based"),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "matrix"),
    ],
)
def test_other_answers_have_a_type(answer, kind):
    assert gold_of(answer).kind == kind


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "null"),
        ("", "blank"),
        (" \n", "blank"),
        (float("nan"), "no number"),
        (float("inf"), "no number"),
        ({"value": 3}, "object"),
        (["3", "5"], "list of 2"),
        ([], "list of 0"),
        ("proof", "missing"),
        ("N/A", "missing"),
        ("3 5", "no number"),
        ("so \\boxed{4", "not closed"),
        ("\\boxed{3} or \\boxed{4}", "differ"),
        ("word " * 30, "no number"),
    ],
)
def test_what_no_rule_reads_is_refused_in_one_line(answer, says):
    with pytest.raises(AnswerError, match=says) as caught:
        gold_of(answer)
    assert "\n" not in str(caught.value) and (";" in str(caught.value))


def test_letters_that_a_response_puts_behind_a_number_may_be_a_unit():
    apart, joined = typed("5m"), typed("5m", attached=True)
    assert apart is not None and joined is not None
    assert (apart.kind, joined.kind, joined.unit) == ("expression", "number", "m")


def test_numbers_choices_and_text_are_read_without_sympy():
    script = (
        "import sys; sys.modules['math_verify'] = sys.modules['sympy'] = sys.modules['mpmath'] = None\n"
        "from rlplan.plans.answers.gold_math import gold_of\n"
        "print([gold_of(each).kind for each in ('42', 'B', 'stop', '\\\\sqrt2', '{1,2}', 'x<3')])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['number', 'choice', 'text', 'expression', 'set', 'relation']"


def test_an_integral_is_unread_where_math_verify_is_missing():
    script = (
        "import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'math_verify' else found(name, *more)\n"
        "from rlplan.plans.answers.gold_math import gold_of; print(gold_of('\\\\int_0^1 x dx').kind)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "unread"
