import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.losses import AGGREGATIONS, clipped_loss, token_weights

RESPONSES = st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=20)


def total(weights: list[float], lengths: list[int]) -> float:
    return math.fsum(weight * length for weight, length in zip(weights, lengths, strict=True))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@given(responses=RESPONSES)
def test_weights_of_a_mean_sum_to_one_over_the_tokens_in_the_loss(
    aggregation: str, responses: list[tuple[int, bool]]
) -> None:
    lengths, in_loss = [r[0] for r in responses], [r[1] for r in responses]
    weights = token_weights(aggregation, lengths, in_loss, 100)
    anything = any(length and included for length, included in responses)
    assert total(weights, lengths) == pytest.approx(1.0 if anything else 0.0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(responses=RESPONSES)
def test_responses_out_of_the_loss_change_nothing(aggregation: str, responses: list[tuple[int, bool]]) -> None:
    lengths, in_loss = [r[0] for r in responses], [r[1] for r in responses]
    weights = token_weights(aggregation, lengths, in_loss, 100)
    kept = [length for length, included in responses if included]
    assert [w for w, included in zip(weights, in_loss, strict=True) if included] == token_weights(
        aggregation, kept, [True] * len(kept), 100
    )
    assert not any(w for w, included in zip(weights, in_loss, strict=True) if not included)


def test_each_aggregation_weighs_tokens_by_its_formula() -> None:
    lengths, in_loss = [10, 30, 7], [True, True, False]
    assert token_weights("token-mean", lengths, in_loss, 50) == [1 / 40, 1 / 40, 0]
    assert token_weights("seq-mean-token-mean", lengths, in_loss, 50) == [1 / 20, 1 / 60, 0]
    assert token_weights("seq-mean-token-sum-norm", lengths, in_loss, 50) == [1 / 100, 1 / 100, 0]


def test_an_unknown_aggregation_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="token-sum"):
        token_weights("token-sum", [1], [True], 1)


def test_on_policy_the_gradient_is_the_plain_policy_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages, weights = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([0.1, 0.2, 0.3])
    result = clipped_loss(logprobs, logprobs.detach().clone(), advantages, weights, 0.2, 0.2)
    result.loss.backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -advantages * weights)
    assert result.clipped == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "clipped"),
    [
        (1.5, 1.0, -1.3, True),  # a good token is already likelier than it may become
        (1.5, -1.0, 1.5, False),  # a bad one that became likelier is pushed back in full
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (1.25, 1.0, -1.25, False),  # beyond 1 + clip_low, within 1 + clip_high
        (0.78, -1.0, 0.8, True),  # within 1 - clip_high, beyond 1 - clip_low
    ],
)
def test_the_ratio_is_clipped_only_where_that_lowers_the_objective(
    ratio: float, advantage: float, value: float, clipped: bool
) -> None:
    old = torch.tensor([-1.5])
    logprobs = (old + math.log(ratio)).requires_grad_()
    result = clipped_loss(logprobs, old, torch.tensor([advantage]), torch.ones(1), clip_low=0.2, clip_high=0.3)
    result.loss.backward()
    assert logprobs.grad is not None
    assert result.loss.item() == pytest.approx(value)
    assert bool(result.clipped) == clipped == (logprobs.grad.item() == 0.0)
