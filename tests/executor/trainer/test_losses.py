import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.trainer.losses import Objective, clipped_loss, importance_weights, kl_estimates
from rlplan.executor.trainer.train_samples import AGGREGATIONS, group_advantages, step_factor, token_weights
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.plans.schema.algorithm import OWN, Algorithm

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
    with pytest.raises(ValueError, match="k4"):
        kl_estimates(torch.zeros(1), "k4")
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
    result = clipped_loss(logprobs - logprobs.detach(), advantages, weights, 0.2, 0.2)
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
    result = clipped_loss(logprobs - old, torch.full((2,), advantage), weights, clip_low=0.2, clip_high=0.3)
    result.loss.backward()
    assert logprobs.grad is not None
    assert result.loss.item() == pytest.approx(value)
    assert int(result.clipped) == clipped == (logprobs.grad[0].item() == 0.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (2.5, -1.0, 2.5, 2.5),
        (3.5, -1.0, 3.0, 0.0),  # beyond the dual clip
        (3.5, 1.0, -1.2, 0.0),
        (0.5, 2.0, -1.0, -1.0),
    ],
)
def test_dual_clip_bounds_the_loss_of_tokens_of_negative_advantage_alone(ratio, advantage, value, slope):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    result = clipped_loss(log_ratio, torch.tensor([advantage]), torch.ones(1), 0.2, 0.2, dual_clip=3.0)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(value) and log_ratio.grad.item() == pytest.approx(slope)
    assert int(result.clipped) == (slope == 0.0)


ALGORITHMS = [{"name": name} for name in OWN] + [{"name": "grpo", "dual_clip": 3.0}]


@pytest.mark.parametrize("settings", ALGORITHMS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_loss_and_gradient_are_finite_at_any_finite_ratio(settings):
    algorithm = Algorithm.model_validate({"learning_rate": 1e-6, "entropy_bonus": 0.0, **settings})
    objective = Objective(TrainerConfig("", algorithm, UpdateSettings(1), 2, 1.0, DIVISORS))
    logprobs = torch.tensor([-1e-3, -80.0, -1e5, -3.0] * 2, requires_grad=True)
    engine = torch.tensor([-1e5, -1e-3, -1.0, -3.0] * 2)
    advantages = torch.tensor([1.0] * 4 + [-1.0] * 4)
    loss, _ = objective.loss(
        logprobs, torch.ones(8), engine, advantages, torch.full((8,), 0.1), lambda means: means.mean().expand(8)
    )
    loss.backward()
    assert loss.isfinite() and logprobs.grad.isfinite().all() and logprobs.grad.any()


def test_what_a_whole_step_divides_by_is_one_factor():
    plain = Algorithm.model_validate({"name": "grpo", "learning_rate": 1e-6})
    batch = plain.model_copy(update={"name": "reinforce_plus_plus_baseline"})
    rewards = [[0.0, 1.0, 1.0], [0.2, 0.5, 0.2], [3.0, 3.0, 3.0]]
    advantages = [a for group in rewards for a in group_advantages("reinforce_plus_plus_baseline", group)]
    squares = sum(a * a for a in advantages)
    assert step_factor(plain, DIVISORS, 9, squares, 45) == 1.0
    factor = step_factor(batch, DIVISORS, 9, squares, 45)
    assert factor == pytest.approx(1 / (statistics.stdev(advantages) + 1e-4))
    own = batch.model_copy(update={"loss_aggregation": "step-token-mean"})
    assert step_factor(own, DIVISORS, 9, squares, 45) == pytest.approx(2 * factor)
    assert math.isfinite(step_factor(own, DIVISORS, 3, 0.0, 0))


def verl_kl_penalty(logprob, ref_logprob, kl_penalty):
    """verl 0.9.1, verl/trainer/ppo/core_algos.py, kl_penalty_forward, without the bound of 10 on k3."""
    if kl_penalty in ("kl", "k1"):
        return logprob - ref_logprob
    if kl_penalty in ("mse", "k2"):
        return 0.5 * (logprob - ref_logprob).square()
    kl = torch.clamp(ref_logprob - logprob, min=-20, max=20)
    return torch.exp(kl) - kl - 1


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates_are_those_of_verl_and_agree_with_the_divergence(estimator):
    generator = torch.Generator().manual_seed(1)
    policy, reference = (torch.randn(7, generator=generator).double().log_softmax(0) for _ in range(2))
    drawn = torch.multinomial(policy.exp(), 40_000, replacement=True, generator=generator)
    found = kl_estimates(policy[drawn] - reference[drawn], estimator)
    torch.testing.assert_close(found, verl_kl_penalty(policy[drawn], reference[drawn], estimator))
    exact = (policy.exp() * (policy - reference)).sum().item()
    off = 0.3 if estimator == "k2" else 0.03  # k2 alone is biased
    assert found.mean().item() == pytest.approx(exact, rel=off)
    if estimator == "k3":
        assert found.min() >= 0.0


def test_k3_in_a_loss_pulls_the_policy_and_k1_does_not():
    reference = torch.tensor([0.5, 0.3, 0.2]).log()
    slopes = {}
    for estimator in ("k1", "k2", "k3"):
        logits = torch.tensor([0.2, 0.5, 0.3]).log().requires_grad_()
        policy = logits.log_softmax(0)
        (policy.detach().exp() * kl_estimates(policy - reference, estimator)).sum().backward()
        slopes[estimator] = logits.grad
    exact = torch.tensor([0.2, 0.5, 0.3]).log().requires_grad_()
    policy = exact.log_softmax(0)
    (policy.exp() * (policy - reference)).sum().backward()
    torch.testing.assert_close(slopes["k2"], exact.grad)
    assert slopes["k1"].abs().max() < 1e-7 and (slopes["k3"] @ exact.grad) > 0
    with pytest.raises(ValueError, match="zero on average"):
        Algorithm.model_validate(
            {"name": "grpo", "learning_rate": 1e-6, "kl": {"coefficient": 0.1, "estimator": "k1", "applied_to": "loss"}}
        )
