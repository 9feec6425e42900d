"""Figure 11: seconds of a rollout, averaged over a cycle, by over-issue of prompts (f_p) and of samples (f_n).

The published statistic is the worst case: the script that drew the figure takes the longest short round and the longest
long round of a setting. With (P0, 1.25) a cycle has five iterations, so the worst of
`ITERATIONS` = 5 short rounds is expected here, over many simulated rounds.

Two of the seven published points calibrate two unknowns: (1, 1.5) tells the dependence within a prompt (rho), because
no other point moves as much with it: groups all of long samples hold such rounds up; (1.25, 1.25), where rounds are
shortest, tells the seconds that a round takes besides decoding. The seconds of the plain round set the speed of
decoding. All seven are then compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.lengths.table_lengths import copula_tokens
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.rounds.round_spec import RoundKind

ITERATIONS = 5
RHO_POINT, OVERHEAD_POINT, PLAIN = (1.0, 1.5), (1.25, 1.25), (1.0, 1.0)

# Simulated short rounds of a setting: 64 times the worst of five, whose mean is then within 2 % of the truth.
_ROUNDS = 320
_PROMPT_TOKENS = 256
# The published seconds are of the rollout alone, so rewards take no time.
_NO_REWARD = RewardCost(workers=1, per_sample_s=0.0, delay_s=0.0)

Factors = tuple[float, float]


@dataclass(frozen=True)
class Calibrated:
    """Calibrated values: dependence (rho), seconds of a round besides decoding, factor on the engines' seconds."""

    rho: float
    overhead_s: float
    factor: float


class Sweep:
    """Simulates settings of one job on one set of engines.

    Without rewards all times are proportional to the engines' seconds, and what a round takes besides is added to them;
    so a setting is simulated once, at speed 1 and overhead 0, and both unknowns are found in closed form.

    Args:
        cdfs: of each task the (tokens, share within them) of its lengths; tasks have equal shares of the prompts.
        cost: engines as a profile has them.
    """

    def __init__(
        self,
        cdfs: Sequence[list[tuple[float, float]]],
        cost: DecodeCost,
        prompts: int,
        samples: int,
        cap_tokens: int,
        seed: int = 0,
    ) -> None:
        self._cdfs, self._cost, self._prompts, self._samples, self._cap = cdfs, cost, prompts, samples, cap_tokens
        self._seed = seed
        self._drawn: tuple[float, NDArray[np.int32]] | None = None
        self._decode_s: dict[tuple[Factors, float], list[float]] = {}

    def _lengths(self, rho: float) -> NDArray[np.int32]:
        """Lengths (rounds, prompts, samples), for over-issue up to 1.5; the random numbers do not depend on rho."""
        if self._drawn is None or self._drawn[0] != rho:
            tasks = len(self._cdfs)
            each = math.ceil(1.5 * self._prompts / tasks)
            width = math.ceil(1.5 * self._samples)
            drawn = np.empty((_ROUNDS, each, tasks, width), dtype=np.int32)
            for task, cdf in enumerate(self._cdfs):
                tokens = copula_tokens(cdf, rho, _ROUNDS * each, width, self._seed + task)
                drawn[:, :, task] = np.ceil(np.minimum(tokens, self._cap)).reshape(_ROUNDS, each, width)
            self._drawn = rho, drawn.reshape(_ROUNDS, each * tasks, width)
        return self._drawn[1]

    def decode_s(self, factors: Factors, rho: float) -> list[float]:
        """Seconds of short rounds with this over-issue, at speed 1 and without overhead."""
        if (factors, rho) not in self._decode_s:
            issued, width = round(self._prompts * factors[0]), round(self._samples * factors[1])
            round_kind = RoundKind("short", issued, self._prompts, self._samples, width, self._cap)
            prompt_tokens = np.full(issued, _PROMPT_TOKENS, dtype=np.int32)
            seconds = []
            for drawn in self._lengths(rho):
                lengths = np.ascontiguousarray(drawn[:issued, :width])
                round_draws = RoundDraws(lengths, prompt_tokens, self._cap, float(lengths.mean()))
                simulated = simulate_one_round(
                    round_kind, round_draws, self._cost, _NO_REWARD, self._cost.max_sequences
                )
                seconds.append(simulated.times.end_s)
            self._decode_s[factors, rho] = seconds
        return self._decode_s[factors, rho]

    def cycle_s(self, factors: Factors, calibrated: Calibrated) -> float:
        """The published statistic: worst short and worst long round, weighed as they come in a cycle."""
        return calibrated.overhead_s + calibrated.factor * self._cycle(factors, calibrated.rho)

    def _cycle(self, factors: Factors, rho: float) -> float:
        short = worst(self.decode_s(factors, rho))
        if factors[0] <= 1.0:
            return short
        per_long = 1.0 / (factors[0] - 1.0)  # a short round leaves (f_p - 1) P prompts
        return (per_long * short + worst(self.decode_s(PLAIN, rho))) / (per_long + 1.0)

    def calibrate(self, published: dict[Factors, float]) -> Calibrated:
        """Fit rho, the overhead and the speed to `RHO_POINT`, `OVERHEAD_POINT` and the plain round."""
        plain_s = published[PLAIN]

        def calibrated(rho: float) -> Calibrated:
            share = self._cycle(OVERHEAD_POINT, rho) / self._cycle(PLAIN, rho)
            overhead_s = max(0.0, (published[OVERHEAD_POINT] - plain_s * share) / (1.0 - share))
            return Calibrated(rho, overhead_s, (plain_s - overhead_s) / self._cycle(PLAIN, rho))

        rho = _root(lambda r: self.cycle_s(RHO_POINT, calibrated(r)), published[RHO_POINT], 0.0, 0.9, 0.004)
        return calibrated(rho)

    def speed(self, plain_s: float, rho: float, overhead_s: float) -> float:
        """The factor on the engines' seconds with which a plain round takes `plain_s` on average."""
        return (plain_s - overhead_s) / float(np.mean(self.decode_s(PLAIN, rho)))


def _root(rises: Callable[[float], float], wanted: float, low: float, high: float, grain: float) -> float:
    """The argument at which a rising function is `wanted`, by bisection; `low` or `high` if it never is."""
    while high - low > grain:
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < wanted else (low, middle)
    return (low + high) / 2


def worst(seconds: list[float]) -> float:
    """Expected longest of `ITERATIONS` rounds."""
    whole = len(seconds) // ITERATIONS * ITERATIONS
    return float(np.array(seconds[:whole]).reshape(-1, ITERATIONS).max(axis=1).mean())


def rmse(points: Sequence[tuple[float, float, float, float]], plain_s: float) -> float:
    """Root mean square error of (f_p, f_n, published, predicted) points, over the plain round's seconds."""
    return math.sqrt(sum((p - s) ** 2 for _, _, s, p in points) / len(points)) / plain_s
