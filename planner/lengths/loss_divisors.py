"""The divisors of the loss for all steps of a plan: the samples and tokens that a synchronous step is expected to have.

A loss that divides by its own step's counts weighs a token of a long round by T_short / T_long of one of a short round,
since tail batching trains short and long answers in different steps: lengths are then unbiased and gradients are not.
Divided by constants, the sum of a cycle's gradients is that of synchronous steps. Which constants is a matter of scale
alone; those of a synchronous step keep the learning rate what it is there.

The optimizer sees a step's gradient, whose norm differs between kinds of round: it is the sum over the step's tokens of
weight w times advantage times score (the gradient of the token's log-probability). Given the tokens before it a token's
score has mean 0, so scores are uncorrelated and E|g|^2 is the sum of w^2 up to a constant: with equal weights the norm
grows as the square root of the tokens, with means over responses of T tokens as that of the sum of 1 / T. What the
tokens have in common would grow linearly, and is little of a step's gradient: of 31 groups of 4 by the example's policy
it was 6 % of |g|^2 in a step of 16 short groups, and below what could be told in one of long groups. If it were all, a
long round's norm would be planned too small by its square root; the metric `grad_scale` of a step shows what clipping
did.

The length model draws a prompt's length and reward apart, so with dynamic sampling a prompt counts by the probability
that a group of it has rewards that differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...plans.schema.job import Job
from ...plans.schema.planned_job import KindNorms, LossPlan
from ...plans.yaml.errors import Infeasible
from .length_model import LengthModel


def expected_loss(model: LengthModel, job: Job) -> LossPlan:
    """Samples and response tokens expected in the loss of a synchronous step.

    Raises Infeasible if `mask_truncated` leaves none, since every length reaches the cap.
    """
    size, masked = job.rollout.samples_per_step, job.algorithm.mask_truncated
    counted = model.tables < model.cap_tokens if masked else np.ones_like(model.tables, dtype=bool)
    if not counted.any():
        raise Infeasible(
            f"every response of the length trace reaches the cap of {model.cap_tokens} tokens, and "
            "algorithm.mask_truncated leaves such samples out of the loss: nothing would be trained; raise "
            "rollout.max_response_tokens, or turn mask_truncated off"
        )
    picks = model.tables.shape[1]
    shares = counted.sum(axis=1) / picks
    tokens = np.where(counted, model.tables, 0).sum(axis=1) / picks
    weights = _weights(model, job)
    whole = float(weights.sum())
    # Where all samples count, the share is 1 and not to rounding.
    share = float((weights * shares).sum()) / whole if masked else 1.0
    mean_tokens = float((weights * tokens).sum()) / whole
    return LossPlan(samples=size * share, tokens=max(1, round(size * mean_tokens)))


def kind_norms(model: LengthModel, job: Job, cutoff_tokens: int | None, long_share: float | None) -> KindNorms | None:
    """Gradient norms of short and long rounds over that of a synchronous step, as the module's docstring derives them.

    `cutoff_tokens`: of mode exact; `long_share`: of mode predict, in which the prompts with the longest responses have
    rounds of their own. None without both, and where one of the kinds has nothing in the loss.
    """
    tables, picks, size = model.tables, model.tables.shape[1], job.rollout.samples_per_prompt
    # Per sample, the sum of its tokens' squared weights, up to what is the same for all samples.
    squares = 1.0 / tables if job.algorithm.loss_aggregation == "seq-mean-token-mean" else tables.astype(float)
    if job.algorithm.mask_truncated:
        squares = np.where(tables < model.cap_tokens, squares, 0.0)
    weights, means = _weights(model, job), squares.mean(axis=1)
    if cutoff_tokens is not None:
        within = tables <= cutoff_tokens
        counts = within.sum(axis=1)
        short = (counts / picks) ** size
        short_means = np.where(within, squares, 0.0).sum(axis=1) / np.maximum(counts, 1)
    elif long_share:
        expected = tables.mean(axis=1)
        short, short_means = (expected <= np.quantile(expected, 1.0 - long_share)).astype(float), means
    else:
        return None
    whole, shorter = float(weights.sum()), float((weights * short).sum())
    total, of_short = float((weights * means).sum()), float((weights * short * short_means).sum())
    if min(shorter, whole - shorter, of_short, total - of_short) <= 1e-9 * whole:
        return None
    each = total / whole
    return KindNorms(
        short=(of_short / shorter / each) ** 0.5, long=((total - of_short) / (whole - shorter) / each) ** 0.5
    )


def cut_share(model: LengthModel, job: Job) -> float:
    """Share of the samples of a synchronous step that reach the job's cap, in the loss or not."""
    return float(np.average((model.tables >= model.cap_tokens).mean(axis=1), weights=_weights(model, job)))


def _weights(model: LengthModel, job: Job) -> NDArray[np.float64]:
    """How often a prompt's groups are trained, by prompt."""
    if not job.algorithm.dynamic_sampling:
        return np.ones(len(model.tables))
    return model.mixed_groups(job.rollout.samples_per_prompt)
