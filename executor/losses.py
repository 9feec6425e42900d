"""The clipped policy-gradient loss, and how token losses become one number.

A token's loss is PPO's: `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` with `r = exp(logp - engine_logp)`.
Training is strictly on-policy with one update per round, so the behaviour policy is the engine that sampled, its
log-probabilities are the old ones, and r is 1 up to numerical differences between engine and trainer. The objective is
kept in this form because its gradient, `-r A dlogp`, is then the policy gradient corrected for those differences, and
because a clip that acts at all is a symptom worth a metric.

Every token carries a weight that already holds the division, and the loss of a step is the plain sum of
`weight * token loss`. Weights use counts over the WHOLE step, over all micro-batches and ranks. So gradients may simply
be summed, and neither the micro-batch split nor the number of ranks changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_weights(
    aggregation: str, lengths: Sequence[int], in_loss: Sequence[bool], max_response_tokens: int
) -> list[float]:
    """Weight of each token of each response of a step.

    With N responses in the loss that have T tokens together:
    `token-mean` (DAPO): 1/T, long responses count more; `seq-mean-token-mean` (GRPO): 1/(N * own length);
    `seq-mean-token-sum-norm` (Dr. GRPO): 1/(N * max_response_tokens), a constant.
    Responses that are not in the loss (`mask_truncated`) have weight 0 and do not count in N and T; nor do empty ones.
    Raises ValueError for an unknown aggregation.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown loss_aggregation {aggregation!r}; known are {', '.join(AGGREGATIONS)}")
    counted = [length if included else 0 for length, included in zip(lengths, in_loss, strict=True)]
    sequences, tokens = sum(length > 0 for length in counted), sum(counted)
    if aggregation == "token-mean":
        return [1.0 / tokens if length else 0.0 for length in counted]
    if aggregation == "seq-mean-token-mean":
        return [1.0 / (sequences * length) if length else 0.0 for length in counted]
    return [1.0 / (sequences * max_response_tokens) if length else 0.0 for length in counted]


class ClippedLoss(NamedTuple):
    """Loss of some tokens.

    Attributes:
        loss: scalar, differentiable; the weighted sum of token losses.
        clipped: how many tokens of weight above 0 have a clipped ratio, hence no gradient; integer scalar.
    """

    loss: torch.Tensor
    clipped: torch.Tensor


def clipped_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> ClippedLoss:
    """PPO's clipped objective over N response tokens (see the module's docstring). All tensors have shape [N]."""
    ratio = torch.exp(logprobs - old_logprobs)
    free = -ratio * advantages
    bounded = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    clipped = ((bounded > free) & (weights > 0)).sum()
    return ClippedLoss((torch.maximum(free, bounded) * weights).sum(), clipped)
