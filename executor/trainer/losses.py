"""The clipped policy-gradient loss, how token losses become one number, and a step's totals over its tokens.

A token's loss is PPO's: `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` with `r = exp(logp - engine_logp)`.
Training is strictly on-policy with one update per round, so the behaviour policy is the engine that sampled, its
log-probabilities are the old ones, and r is 1 up to numerical differences between engine and trainer. The objective is
kept in this form because its gradient, `-r A dlogp`, is then the policy gradient corrected for those differences, and
because a clip that acts at all is a symptom worth a metric.

With importance sampling (off by default) the two things that r does are taken apart, as in its papers: the old
log-probabilities are the trainer's own before the update, so the ratio is 1 and no clip acts, and the difference
between engine and trainer becomes a constant weight `exp(trainer_logp - engine_logp)`, truncated at a cap. The gradient
is `-min(r, cap) A dlogp`: where the clip drops a token that drifted one way and leaves one that drifted the other way
unbounded, the cap bounds both alike and drops none.

Two algorithms change the ratio. GSPO (arXiv 2507.18071) takes that of the whole response, the geometric mean of its
tokens' ratios: each token has its value, and the gradient of its own log-probability, which over a response of equal
weights and one advantage sum up to the gradient of the response's loss. CISPO (arXiv 2506.13585) makes the clipped
ratio a constant weight, `-clip(r) A logp`, so that a token whose ratio is clipped still has a gradient. Dual clip
(arXiv 1912.09729) bounds the loss of a token of negative advantage by `-c A`, whatever its ratio. An entropy bonus
subtracts `entropy_bonus * H` from a token's loss, and a KL to a reference adds `coefficient * kl`; no importance weight
acts on either.

Every token carries a weight that already holds the division, and the loss of a step is the plain sum of
`weight * token loss`. What is divided by are constants (`Divisors`), never counts of a micro-batch or a rank. So
gradients may simply be summed; neither the micro-batch split nor the number of ranks changes them; and a token weighs
the same in a short, a long and a partial round, whose gradients sum up to those of synchronous steps. What clipping and
the second moment make of a step's gradient is made alike by the norms that the plan states for each kind of round. In
mode sync alone a loss may divide by what the step itself has: its summed gradients are, once
(`train_samples.step_factor`).

Totals are kept on the device, so that no micro-batch waits for a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from .trainer_config import TrainerConfig

MOST_LOG_RATIO = 20.0
"""Bound of the logarithm of a ratio, as in verl: exp(20) is 5e8, and what is beyond would not be finite for long."""


class ClippedLoss(NamedTuple):
    """Loss of some tokens.

    Attributes:
        loss: scalar, differentiable; the weighted sum of token losses.
        clipped: how many tokens of weight above 0 have a clipped ratio, hence no gradient (of CISPO a bounded one);
            integer scalar.
    """

    loss: torch.Tensor
    clipped: torch.Tensor


def clipped_loss(
    log_ratios: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClippedLoss:
    """PPO's clipped objective over N response tokens (see the module's docstring). All tensors have shape [N]."""
    ratio = torch.exp(log_ratios.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO))
    free = -ratio * advantages
    bounded = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    losses, clipped = torch.maximum(free, bounded), bounded > free
    if dual_clip is not None:
        most = torch.where(advantages < 0, -dual_clip * advantages, torch.inf)
        losses, clipped = torch.minimum(losses, most), clipped | (losses > most)
    return ClippedLoss((losses * weights).sum(), (clipped & (weights > 0)).sum())


def cispo_loss(
    logprobs: torch.Tensor,
    log_ratios: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> ClippedLoss:
    """CISPO's objective over N response tokens (see the module's docstring). All tensors have shape [N]."""
    ratio = torch.exp(log_ratios.detach().clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO))
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    clipped = ((bounded != ratio) & (weights > 0)).sum()
    return ClippedLoss((-bounded * advantages * logprobs * weights).sum(), clipped)


def importance_weights(ratio: torch.Tensor, cap: float, beyond: str) -> torch.Tensor:
    """Importance weight of N tokens; shapes [N], without gradient.

    `ratio`: exp(log-probability by the trainer - by the engine). Above `cap` a weight is the cap (`beyond` truncate:
    truncated importance sampling, TIS) or 0 (mask: such a token is left out). Raises ValueError for another `beyond`.
    """
    if beyond not in ("truncate", "mask"):
        raise ValueError(f"unknown importance_sampling.beyond {beyond!r}; known are truncate, mask")
    ratio = ratio.detach()
    if beyond == "truncate":
        return ratio.clamp(max=cap)
    return torch.where(ratio > cap, torch.zeros_like(ratio), ratio)


def kl_estimates(log_ratios: torch.Tensor, estimator: str) -> torch.Tensor:
    """Estimates of the KL divergence of the policy from a reference at N tokens that the policy sampled; shapes [N].

    `log_ratios`: log-probability by the policy - by the reference, bounded as verl does it. k1 and k3 are without bias,
    k3 is never negative and varies less, k2 has the gradient that an unbiased estimate of the KL's would have, in
    expectation (J. Schulman, "Approximating KL Divergence", 2020; verl's kl_penalty). Raises ValueError for another
    `estimator`.
    """
    d = log_ratios.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    if estimator != "k3":
        raise ValueError(f"unknown kl.estimator {estimator!r}; known are k1, k2, k3")
    return torch.expm1(-d) + d


ResponseMeans = Callable[[torch.Tensor], torch.Tensor]
"""Of values of the tokens that a rank holds, shape [N]: for each token the mean over all tokens of its response
(collective over the ranks that share them)."""


class Objective:
    """The algorithm's formulas for one trainer; it holds no state."""

    def __init__(self, config: TrainerConfig) -> None:
        self._algorithm = config.algorithm
        self._correction = config.algorithm.correction(config.dtype, config.device)

    @property
    def importance_cap(self) -> float:
        """Importance weight above which a token is truncated or masked; infinite without importance sampling."""
        return math.inf if self._correction is None else self._correction.cap

    def loss(
        self,
        logprobs: torch.Tensor,
        entropies: torch.Tensor,
        engine: torch.Tensor,
        advantages: torch.Tensor,
        weights: torch.Tensor,
        response_means: ResponseMeans,
        kl: torch.Tensor | None = None,
    ) -> ClippedLoss:
        """Loss of N tokens, all of shape [N]; `engine`: log-probabilities as they were sampled; `kl`: estimates of the
        KL to the reference, where the loss has it."""
        algorithm, old, corrected = self._algorithm, engine, weights
        if self._correction is not None:
            old = logprobs.detach()
            ratio = torch.exp(old - engine)
            corrected = weights * importance_weights(ratio, self._correction.cap, self._correction.beyond)
        log_ratios, bounds = logprobs - old, (algorithm.clip_low, algorithm.clip_high)
        if algorithm.name == "gspo":
            own = log_ratios.detach()
            log_ratios = log_ratios - own + response_means(own)
        if algorithm.name == "cispo":
            result = cispo_loss(logprobs, log_ratios, advantages, corrected, *bounds)
        else:
            result = clipped_loss(log_ratios, advantages, corrected, *bounds, algorithm.dual_clip)
        if algorithm.entropy_bonus:
            result = result._replace(loss=result.loss - algorithm.entropy_bonus * (entropies * weights).sum())
        if kl is not None and algorithm.kl is not None:
            result = result._replace(loss=result.loss + algorithm.kl.coefficient * (kl * weights).sum())
        return result

    def named(self, totals: dict[str, float]) -> dict[str, float]:
        """The metrics of a step's totals; those of importance weights only with importance sampling, those of a KL only
        with one."""
        if not self._algorithm.learns_kl:
            del totals["kl_loss"]
        if self._algorithm.kl is None:
            del totals["kl_reference"]
        mean, share = totals.pop("importance_ratio_mean"), totals.pop("importance_beyond_share")
        if self._correction is None:
            return totals
        done = "masked" if self._correction.beyond == "mask" else "truncated"
        return totals | {"importance_ratio_mean": mean, f"importance_{done}_share": share}


QUANTILE = 0.99

# Differences of log-probs are counted in bins, 32 a decade, so that a quantile over all tokens of all ranks is one sum
# of counts, and 7 % too high at most.
_EDGES = torch.logspace(-8, 3, 11 * 32 + 1, dtype=torch.float64)


class StepTotals:
    """Totals of one rank; `metrics` adds those of the others.

    Args:
        device: where the sums are.
        bound: difference of log-probs, in nats, beyond which tokens are counted.
        cap: importance weight above which tokens are counted.
    """

    def __init__(self, device: torch.device, bound: float, cap: float) -> None:
        # loss, clipped, tokens in loss, sum of differences, sum of entropies, response tokens, tokens beyond the bound,
        # sum of ratios in loss, tokens in loss above the cap, sum of KL to the reference, the same by weight
        self._sums = torch.zeros(11, dtype=torch.float64, device=device)
        self._max = torch.zeros((), dtype=torch.float64, device=device)
        self._edges = _EDGES.to(device)
        self._counts = torch.zeros(len(_EDGES) + 1, dtype=torch.int64, device=device)
        self._bound, self._cap = bound, cap

    def add_loss(self, loss: torch.Tensor, clipped: torch.Tensor) -> None:
        """Add a micro-batch that has a gradient."""
        self._sums[:2] += torch.stack([loss.detach().double(), clipped.double()])

    def add_kl(self, kl: torch.Tensor, weights: torch.Tensor) -> None:
        """Add estimates of the KL to the reference at the N tokens of any micro-batch, and their weights in the loss;
        shapes [N]."""
        self._sums[9:] += torch.stack([kl.detach().double().sum(), (kl.detach().double() * weights).sum()])

    def add_tokens(self, in_loss: torch.Tensor, log_ratios: torch.Tensor, entropies: torch.Tensor) -> None:
        """Add the N tokens of any micro-batch: whether each is in the loss, its log-probability by the trainer less
        that by the engine, and its entropy; shapes [N]."""
        differences = log_ratios.abs()
        ratios = torch.where(in_loss, log_ratios.exp(), torch.zeros_like(log_ratios))
        sums = (
            in_loss.sum(), differences.sum(), entropies.sum(), torch.ones_like(differences).sum(),
            (differences > self._bound).sum(), ratios.sum(), (ratios > self._cap).sum(),
        )  # fmt: skip
        self._sums[2:9] += torch.stack([total.double() for total in sums])
        if len(differences):
            self._max = torch.maximum(self._max, differences.max().double())
            self._counts += torch.bincount(
                torch.bucketize(differences.double(), self._edges), minlength=len(self._counts)
            )

    def metrics(self, group: dist.ProcessGroup | None) -> dict[str, float]:
        """Totals over the ranks of `group`, which together hold each token once, as metrics; equal on all ranks
        (collective). None: this rank holds all tokens."""
        if group is not None:
            dist.all_reduce(self._sums, group=group)
            dist.all_reduce(self._max, op=dist.ReduceOp.MAX, group=group)
            dist.all_reduce(self._counts, group=group)
        loss, clipped, in_loss, difference, entropy, tokens, beyond, ratios, above, kl, kl_loss = self._sums.tolist()
        return {
            "loss": loss,
            "ratio_clipped_share": clipped / max(in_loss, 1.0),
            "logprob_max_abs_diff": self._max.item(),
            "logprob_mean_abs_diff": difference / max(tokens, 1.0),
            "logprob_p99_abs_diff": min(self._quantile(), self._max.item()),
            "logprob_beyond_share": beyond / max(tokens, 1.0),
            "importance_ratio_mean": ratios / max(in_loss, 1.0),
            "importance_beyond_share": above / max(in_loss, 1.0),
            "entropy": entropy / max(tokens, 1.0),
            "response_tokens": tokens,
            "kl_reference": kl / max(tokens, 1.0),
            "kl_loss": kl_loss,
        }

    def _quantile(self) -> float:
        """The difference that a share QUANTILE of the tokens do not exceed, rounded up to the edge of its bin.

        Between two neighbours in rank it is the lower one, so that the largest of a few tokens does not decide alone.
        """
        total = int(self._counts.sum())
        if total == 0:
            return 0.0
        rank = int(QUANTILE * (total - 1))
        place = int((self._counts.cumsum(0) <= rank).sum())
        return float(_EDGES[place]) if place < len(_EDGES) else float("inf")
