"""When what a response printed or returned is what the row wants."""

import pytest

from rlplan.executor.rewards.sandbox.tester import same_result, same_text


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        ("0.3333 x", "0.33334  x", True),
        ("1e3", "1000", True),
        ("-0.0", "0", True),
        ("0.34", "0.33333", False),
        ("0.3333 y", "0.33334 x", False),
        ("1 2", "1", False),
        ("nan", "1", False),
        ("inf", "1e308", False),
        ("1_0", "10", False),
    ],
)
def test_numbers_in_output_are_compared_by_a_tolerance(printed, wanted, same):
    assert same_text(printed, wanted, (1e-4, 1e-4)) is same


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        (3, 3, True),
        (3, 3.0, True),
        ((1, 2), [1, 2], True),
        ([(1, "a")], [[1, "a"]], True),
        ({1: [2]}, {"1": [2]}, True),
        (None, None, True),
        (3, [3], True),
        ([3], [[3]], True),
        ("3", 3, False),
        (3, "3", False),
        ([1, 2], [2, 1], False),
        ({1, 2}, [1, 2], False),
        ([1], [1, 2], False),
        ({}, [], False),
        (0, None, False),
        (0.1 + 0.2, 0.3, False),
        (float("nan"), 1, False),
        (object(), 1, False),
    ],
)
def test_results_are_compared_as_json_has_them(found, wanted, same):
    assert same_result(found, wanted) is same


def test_numbers_in_results_are_compared_by_a_tolerance():
    assert same_result([0.1 + 0.2, (1, "x")], [0.3, [1, "x"]], (1e-9, 0.0))
    assert not same_result([0.31], [0.3], (1e-9, 0.0))
    assert not same_result(["0.3"], [0.3], (1e-9, 0.0))
    assert not same_result(float("nan"), 1, (10.0, 10.0))
    assert same_result(10**400, 10**400, (0.1, 0.1)) and not same_result(10**400, 1, (0.1, 0.1))
