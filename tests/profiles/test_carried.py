"""Factors carried over: within a generation, and to one of which nothing was measured."""

import dataclasses

import numpy as np
import pytest

from rlplan.profiles.imports.served_file import Group
from rlplan.profiles.laws.served_decode import Served
from rlplan.profiles.library.carried import GENERATION, LEAST_ERROR, carried

from .laws.test_served_decode import grid

HOPPER = Group("h100_sxm", "Qwen/Qwen3-32B", "bf16")
OTHER = Group("h200_sxm", "meta-llama/Llama-3.1-70B", "bf16")
BLACKWELL = Group("b200_sxm", "Qwen/Qwen3-32B", "bf16")


def points(group: Group, slower: float = 1.0) -> Served:
    """Twenty-seven points that follow the law, each so many times as slow."""
    found = grid(group)
    return dataclasses.replace(found, seconds=slower * found.seconds)


def test_a_generation_without_measurements_takes_the_others_factors_and_a_larger_error() -> None:
    found = carried({HOPPER: points(HOPPER), OTHER: points(OTHER), BLACKWELL: points(BLACKWELL, 2.0)})
    ampere, hopper = found["Ampere", False], found["Hopper", False]
    assert GENERATION["A100"] == "Ampere" and set(ampere.on) == {"Hopper", "Blackwell"} and ampere.groups == 3
    assert hopper.on == ("Hopper",) and hopper.groups == 2 and hopper.error == LEAST_ERROR
    # Blackwell predicted from Hopper is about half of what it is, Hopper predicted from Blackwell nearly twice.
    assert ampere.error > 0.3 > hopper.error
    assert not np.allclose(ampere.logs, hopper.logs)
    assert not [kind for kind in found if kind[1]], "no model with experts was measured"


def test_one_measured_generation_is_all_that_another_can_take() -> None:
    found = carried({HOPPER: points(HOPPER), OTHER: points(OTHER)})
    assert found["Ampere", False].on == ("Hopper",) == found["Blackwell", False].on
    assert found["Ampere", False].logs == pytest.approx(found["Hopper", False].logs)
    assert found["Ampere", False].error == pytest.approx(2 * LEAST_ERROR)
