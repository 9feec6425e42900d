import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.trainer.samples import ADVANTAGES, STD_EPSILON, group_advantages


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=17) | st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2))
def test_advantages_sum_to_zero_and_order_as_rewards_do(name, rewards):
    advantages = group_advantages(name, rewards)
    assert math.isclose(math.fsum(advantages), 0.0, abs_tol=1e-9 * (1 + max(map(abs, advantages))) * len(rewards))
    ordered = sorted(zip(rewards, advantages, strict=True))
    for (reward, advantage), (better, higher) in itertools.pairwise(ordered):
        assert higher > advantage if better > reward + 1e-6 else higher >= advantage - 1e-9


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_group_without_variance_has_advantages_of_exactly_zero(name):
    for reward in (0.1, 1 / 3, -1e6):
        for samples in range(2, 12):
            assert group_advantages(name, [reward] * samples) == [0.0] * samples


STD = math.sqrt(0.5)  # of 1 and 0 with n - 1


@pytest.mark.parametrize(
    ("name", "rewards", "advantages"),
    [
        ("grpo", [1.0, 0.0], [0.5 / (STD + STD_EPSILON), -0.5 / (STD + STD_EPSILON)]),
        ("dr_grpo", [1.0, 0.0], [0.5, -0.5]),
        ("rloo", [1.0, 0.0], [1.0, -1.0]),
        ("rloo", [3.0, 1.0, 0.0, 2.0], [2.0, -2 / 3, -2.0, 2 / 3]),
    ],
)
def test_each_algorithm_has_the_advantages_of_its_formula(name, rewards, advantages):
    assert group_advantages(name, rewards) == pytest.approx(advantages)


def test_what_has_no_advantages_is_refused():
    with pytest.raises(ValueError, match="gae"):
        group_advantages("gae", [0.0, 1.0])
    with pytest.raises(AssertionError, match="finite"):
        group_advantages("grpo", [0.0, math.nan])
    with pytest.raises(AssertionError, match="group of one"):
        group_advantages("grpo", [1.0])
