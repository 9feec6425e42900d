import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.trainer.losses import clipped_loss, importance_weights
from rlplan.executor.trainer.train_samples import AGGREGATIONS, token_weights
from rlplan.executor.trainer.trainer_config import Divisors

RESPONSES = st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=20)
DIVISORS = Divisors(samples=4.0, tokens=90.0, max_response_tokens=50)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(responses=RESPONSES, others=RESPONSES)
def test_a_response_weighs_the_same_whatever_else_is_in_its_step(aggregation, responses, others):
    alone = token_weights(aggregation, *zip(*responses, strict=True), DIVISORS)
    both = token_weights(aggregation, *zip(*responses, *others, strict=True), DIVISORS)
    assert both[: len(responses)] == alone
    assert [weight > 0 for weight in alone] == [length > 0 and included for length, included in responses]


def test_each_aggregation_weighs_tokens_by_its_formula():
    lengths, in_loss = [10, 30, 7], [True, True, False]
    assert token_weights("token-mean", lengths, in_loss, DIVISORS) == [1 / 90, 1 / 90, 0]
    assert token_weights("seq-mean-token-mean", lengths, in_loss, DIVISORS) == [1 / 40, 1 / 120, 0]
    assert token_weights("seq-mean-token-sum-norm", lengths, in_loss, DIVISORS) == [1 / 200, 1 / 200, 0]


def test_unknown_names_and_divisors_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match="token-sum"):
        token_weights("token-sum", [1], [True], DIVISORS)
    for samples in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="divided"):
            token_weights("token-mean", [1], [True], DIVISORS._replace(samples=samples))
    with pytest.raises(ValueError, match="drop"):
        importance_weights(torch.ones(1), 2.0, "drop")


def test_importance_weights_above_the_cap_are_truncated_or_masked():
    ratio = torch.tensor([0.3, 1.0, 2.0, 2.5, math.inf], requires_grad=True)
    truncated, masked = (importance_weights(ratio, 2.0, beyond) for beyond in ("truncate", "mask"))
    torch.testing.assert_close(truncated, torch.tensor([0.3, 1.0, 2.0, 2.0, 2.0]))
    torch.testing.assert_close(masked, torch.tensor([0.3, 1.0, 2.0, 0.0, 0.0]))
    assert not truncated.requires_grad and not masked.requires_grad


def test_on_policy_the_gradient_is_the_plain_policy_gradient():
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
def test_the_ratio_is_clipped_only_where_that_lowers_the_objective(ratio, advantage, value, clipped):
    old = torch.tensor([-1.5, -1.5])
    logprobs = (old + math.log(ratio)).requires_grad_()
    weights = torch.tensor([1.0, 0.0])  # the second token is not in the loss
    result = clipped_loss(logprobs, old, torch.full((2,), advantage), weights, clip_low=0.2, clip_high=0.3)
    result.loss.backward()
    assert logprobs.grad is not None
    assert result.loss.item() == pytest.approx(value)
    assert int(result.clipped) == clipped == (logprobs.grad[0].item() == 0.0)
