"""A length trace from what papers publish: a marginal CDF of lengths, and one number for the dependence in a prompt.

The dependence is a one-factor Gaussian copula (calibrated on RollPacker, arXiv 2509.21009): sample j of prompt p
has the score sqrt(rho) z_p + sqrt(1 - rho) e_pj with independent standard normals, and the score's rank is mapped onto
the marginal. z_p stands on a grid of normal quantiles and ranks are taken over the whole trace, so the marginal of the
trace is the published one to a rank, whatever the seed; the seed decides only which prompt has which length.

Between two published points the survival is a power of the length (a line in log-log): tails are given by few points,
and a straight line between 4k and 16k tokens would put three times too many responses in the middle of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Share of the responses, from above, whose excess over their own least length says how the tail goes on.
TAIL_SHARE = 0.1

_LONGEST = 300.0  # log of a length that no cap reaches, and that a float still holds


@dataclass(frozen=True)
class Marginal:
    """A published CDF of lengths under a cap, checked; the tail above its last point goes on as a power law.

    Attributes:
        tokens: increasing lengths, at least 1.
        survival: share of the responses that are longer than each of `tokens`, decreasing, within [0, 1).
        tail_index: exponent of that power law: the share that is longer than x falls as x**-tail_index.
    """

    tokens: NDArray[np.float64]
    survival: NDArray[np.float64]
    tail_index: float

    @staticmethod
    def of(cdf: Sequence[tuple[float, float]]) -> Marginal:
        """From (tokens, share of the responses within them) points. Raises ValueError if these are no CDF."""
        points = [(max(float(t), 1.0), float(share)) for t, share in cdf]
        if len(points) < 2:
            raise ValueError("a CDF needs at least two points")
        if any(not math.isfinite(t) or not 0.0 <= share <= 1.0 for t, share in points):
            raise ValueError("a CDF's shares must be within 0 and 1 (divide per cent by 100), its lengths finite")
        for (before, low), (after, high) in itertools.pairwise(points):
            if after < before or high < low:
                raise ValueError(f"a CDF does not fall: ({after:g}, {high:g}) comes after ({before:g}, {low:g})")
        # Of several shares at one length the highest is the CDF there.
        last = {t: share for t, share in points}
        tokens = np.array(list(last))
        survival = 1.0 - np.array(list(last.values()))
        return Marginal(tokens, survival, _tail_index(tokens, survival))

    def quantiles(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lengths in tokens at `ranks` within (0, 1), above the last point by the tail's power law."""
        least = self.survival[self.survival > 0].min()
        # A share of 0 has no logarithm; half of the least positive one stands for it within the last interval.
        heights = np.log(np.maximum(self.survival, least / 2))
        wanted = np.log1p(-ranks)
        logs = np.interp(-wanted, -heights, np.log(self.tokens))
        end_share, end = float(self.survival[-1]), math.log(self.tokens[-1])
        if end_share > 0:
            beyond = wanted < math.log(end_share)
            logs = np.where(beyond, end + (math.log(end_share) - wanted) / self.tail_index, logs)
        lengths: NDArray[np.float64] = np.exp(np.minimum(logs, _LONGEST))
        return lengths


def _tail_index(tokens: NDArray[np.float64], survival: NDArray[np.float64]) -> float:
    """Hill's estimate with censoring at the last point: uncensored share over the integral of S(x) d log x."""
    if survival[-1] <= 0:
        return math.inf
    tail = (survival <= TAIL_SHARE) & (survival > 0)
    if tail.sum() < 2:
        tail = np.zeros(len(survival), dtype=bool)
        tail[-2:] = True
    logs, shares = np.log(tokens[tail]), survival[tail]
    ended = float(shares[0] - shares[-1])
    excess = float((np.diff(logs) * (shares[1:] + shares[:-1]) / 2).sum())
    return ended / excess if ended > 0 and excess > 0 else 1.0


def copula_tokens(
    cdf: Sequence[tuple[float, float]], rho: float, prompts: int, samples: int, seed: int = 0
) -> NDArray[np.float64]:
    """Uncapped lengths of shape (prompts, samples) with this marginal and dependence; see the module's
    docstring. Raises ValueError for a CDF that is none, rho outside [0, 1], or sizes below 1."""
    if not 0.0 <= rho <= 1.0:
        raise ValueError(f"rho must be within 0 and 1, not {rho}")
    if min(prompts, samples) < 1:
        raise ValueError("prompts and samples must be at least 1")
    marginal = Marginal.of(cdf)
    rng = np.random.default_rng([seed, 31])
    normal = NormalDist()
    factor = np.array([normal.inv_cdf((i + 0.5) / prompts) for i in range(prompts)])
    rng.shuffle(factor)
    scores = math.sqrt(rho) * factor[:, None] + math.sqrt(1.0 - rho) * rng.standard_normal((prompts, samples))
    order = np.argsort(scores, axis=None, kind="stable")
    ranks = np.empty(scores.size)
    ranks[order] = (np.arange(scores.size) + 0.5) / scores.size
    return marginal.quantiles(ranks).reshape(scores.shape)
