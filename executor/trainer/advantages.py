"""Group-relative advantages: how much better a response was than the other responses to its prompt; and how much each
of its tokens weighs in the loss.

All advantages are zero for a group whose rewards are all equal, exactly and not to rounding: such a group says nothing
about which response to prefer. All sum to zero within a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .trainer_config import Divisors

STD_EPSILON = 1e-4  # added to the standard deviation, as TRL does: near-equal rewards must not become huge advantages


def grpo(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-4) with the sample standard deviation (n - 1), as in TRL and verl. arXiv 2402.03300."""
    centred = dr_grpo(rewards)
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
    return [c / (std + STD_EPSILON) for c in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """r - mean: no division by the spread, which favours prompts that are too easy or too hard. arXiv 2503.20783."""
    mean = math.fsum(rewards) / len(rewards)
    return [r - mean for r in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """r - mean of the other rewards (leave one out), an unbiased baseline. arXiv 2402.14740."""
    total, others = math.fsum(rewards), len(rewards) - 1
    return [r - (total - r) / others for r in rewards]


ADVANTAGES: dict[str, Callable[[Sequence[float]], list[float]]] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def group_advantages(algorithm: str, rewards: Sequence[float]) -> list[float]:
    """Advantages of one complete group, in the order of `rewards` (at least two, finite).

    Truncated samples belong to the group and count in its statistics, whether or not they are in the loss.
    Raises ValueError for an unknown algorithm.
    """
    if algorithm not in ADVANTAGES:
        raise ValueError(f"unknown algorithm {algorithm!r}; known are {', '.join(ADVANTAGES)}")
    assert len(rewards) >= 2, "a group of one has nothing to compare with"
    assert all(math.isfinite(r) for r in rewards), f"rewards must be finite: {rewards}"
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)  # the formulas would leave rounding errors, which grpo scales up
    return ADVANTAGES[algorithm](rewards)


AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_weights(aggregation: str, lengths: Sequence[int], in_loss: Sequence[bool], divisors: Divisors) -> list[float]:
    """Weight of each token of each response of a step.

    With N samples in the loss of a synchronous step and their T tokens, as the plan states them (`divisors`):
    `token-mean` (DAPO): 1/T, long responses count more; `seq-mean-token-mean` (GRPO): 1/(N * own length);
    `seq-mean-token-sum-norm` (Dr. GRPO): 1/(N * max_response_tokens).
    So a response's weights depend on that response alone. Those that are not in the loss (`mask_truncated`), and empty
    ones, have weight 0. Raises ValueError for an unknown aggregation, or a divisor that is not positive.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown loss_aggregation {aggregation!r}; known are {', '.join(AGGREGATIONS)}")
    if not all(divisor > 0 for divisor in divisors):
        raise ValueError(f"the loss cannot be divided by {divisors}")
    counted = [length if included else 0 for length, included in zip(lengths, in_loss, strict=True)]
    if aggregation == "token-mean":
        return [1.0 / divisors.tokens if length else 0.0 for length in counted]
    if aggregation == "seq-mean-token-mean":
        return [1.0 / (divisors.samples * length) if length else 0.0 for length in counted]
    return [1.0 / (divisors.samples * divisors.max_response_tokens) if length else 0.0 for length in counted]
