import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.trainer.advantages import ADVANTAGES, STD_EPSILON, group_advantages

REWARDS = st.lists(st.floats(-100, 100), min_size=2, max_size=17)
NAMES = sorted(ADVANTAGES)


@pytest.mark.parametrize("name", NAMES)
@given(rewards=REWARDS)
def test_advantages_of_a_group_sum_to_zero(name: str, rewards: list[float]) -> None:
    advantages = group_advantages(name, rewards)
    assert math.isclose(math.fsum(advantages), 0.0, abs_tol=1e-9 * (1 + max(map(abs, advantages))) * len(rewards))


@pytest.mark.parametrize("name", NAMES)
@given(reward=st.floats(-1e6, 1e6), n=st.integers(2, 33))
def test_a_group_without_variance_has_advantages_of_exactly_zero(name: str, reward: float, n: int) -> None:
    assert group_advantages(name, [reward] * n) == [0.0] * n


@pytest.mark.parametrize("name", NAMES)
@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=9))
def test_a_better_reward_never_has_a_lower_advantage(name: str, rewards: list[float]) -> None:
    advantages = group_advantages(name, rewards)
    for r, a in zip(rewards, advantages, strict=True):
        for other_r, other_a in zip(rewards, advantages, strict=True):
            assert (r > other_r) <= (a > other_a)


def test_a_group_of_two_works_for_every_algorithm() -> None:
    std = math.sqrt(0.5)  # of 1 and 0 with n - 1
    assert group_advantages("grpo", [1.0, 0.0]) == pytest.approx(
        [0.5 / (std + STD_EPSILON), -0.5 / (std + STD_EPSILON)]
    )
    assert group_advantages("dr_grpo", [1.0, 0.0]) == [0.5, -0.5]
    assert group_advantages("rloo", [1.0, 0.0]) == [1.0, -1.0]


def test_rloo_subtracts_the_mean_of_the_other_samples() -> None:
    assert group_advantages("rloo", [3.0, 1.0, 0.0, 2.0]) == pytest.approx([2.0, -2 / 3, -2.0, 2 / 3])


def test_an_unknown_algorithm_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="gae"):
        group_advantages("gae", [0.0, 1.0])


def test_a_reward_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(AssertionError, match="finite"):
        group_advantages("grpo", [0.0, math.nan])
