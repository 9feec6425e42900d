"""Sums over the tokens of a step, kept on the device so that no micro-batch waits for a number."""

from __future__ import annotations

import torch
import torch.distributed as dist

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
        # sum of ratios in loss, tokens in loss above the cap
        self._sums = torch.zeros(9, dtype=torch.float64, device=device)
        self._max = torch.zeros((), dtype=torch.float64, device=device)
        self._edges = _EDGES.to(device)
        self._counts = torch.zeros(len(_EDGES) + 1, dtype=torch.int64, device=device)
        self._bound, self._cap = bound, cap

    def add_loss(self, loss: torch.Tensor, clipped: torch.Tensor) -> None:
        """Add a micro-batch that has a gradient."""
        self._sums[:2] += torch.stack([loss.detach().double(), clipped.double()])

    def add_tokens(self, in_loss: torch.Tensor, log_ratios: torch.Tensor, entropies: torch.Tensor) -> None:
        """Add the N tokens of any micro-batch: whether each is in the loss, its log-probability by the trainer less
        that by the engine, and its entropy; shapes [N]."""
        differences = log_ratios.abs()
        ratios = torch.where(in_loss, log_ratios.exp(), torch.zeros_like(log_ratios))
        sums = (
            in_loss.sum(), differences.sum(), entropies.sum(), torch.ones_like(differences).sum(),
            (differences > self._bound).sum(), ratios.sum(), (ratios > self._cap).sum(),
        )  # fmt: skip
        self._sums[2:] += torch.stack([total.double() for total in sums])
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
        loss, clipped, in_loss, difference, entropy, tokens, beyond, ratios, above = self._sums.tolist()
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
