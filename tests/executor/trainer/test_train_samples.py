"""Advantages of the samples of a group, and which samples share a micro-batch."""

import itertools
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.trainer.train_samples import ADVANTAGES, STD_EPSILON, group_advantages, pack, pair_share


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


@given(
    lengths=st.lists(st.integers(1, 300), max_size=60),
    budget=st.integers(1, 400),
    replicas=st.integers(1, 5),
    pairs=st.sampled_from([0.0, 0.01]),
)
def test_each_sequence_is_in_one_micro_batch_within_the_budget(lengths, budget, replicas, pairs):
    packed = pack(lengths, budget, replicas, pairs)
    batches = [batch for of_replica in packed for batch in of_replica]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(packed) == replicas and len({len(of_replica) for of_replica in packed}) == 1
    assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= budget for batch in batches)
    if replicas == 1:
        assert all(batches)
        within, over = sum(x for x in lengths if x <= budget), sum(x > budget for x in lengths)
        assert len(batches) - over <= 2 * -(-within // budget)


@pytest.mark.parametrize(
    ("lengths", "budget", "replicas", "pairs", "packed"),
    [
        ([5, 9], 10, 3, 0.0, [[[1]], [[0]], [[]]]),
        ([4, 3, 2, 1], 1, 2, 0.0, [[[0], [3]], [[1], [2]]]),  # dealt back and forth
        ([5, 5], 5, 1, 0.0, [[[0], [1]]]),
        ([5, 5], 10, 1, 0.0, [[[0, 1]]]),
        ([8, 4, 4, 4, 4], 16, 1, 0.0, [[[0, 3], [1, 2, 4]]]),
        ([8, 4, 4, 4, 4], 16, 1, 1.0, [[[1, 2, 3, 4], [0]]]),  # pairs make the long one cost almost as much as four
        ([], 5, 2, 0.0, [[], []]),
    ],
)
def test_micro_batches_are_balanced_by_operations(lengths, budget, replicas, pairs, packed):
    assert pack(lengths, budget, replicas, pairs) == packed


def test_two_replicas_share_a_heavy_tail_evenly():
    lengths = [1100, 700, 400, *[100] * 60]
    first, second = (sum(lengths[i] for batch in rank for i in batch) for rank in pack(lengths, 8192, replicas=2))
    assert abs(first - second) <= 100


def test_the_cost_of_a_pair_of_tokens_follows_from_the_models_shape():
    dense = {"num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
    assert pair_share(SimpleNamespace(**dense)) == 64 / 2 / (32 * 8 * 16 + 3 * 32 * 48)
    grouped = dense | {"num_key_value_heads": 2, "head_dim": 16}
    assert pair_share(SimpleNamespace(**grouped)) == 128 / 2 / (32 * 16 * 12 + 3 * 32 * 48)
    experts = grouped | {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
    assert pair_share(SimpleNamespace(**experts)) == 128 / 2 / (32 * 16 * 12 + 3 * 32 * 40)
