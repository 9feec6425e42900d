"""Figure 11: seconds of a rollout, averaged over a cycle, by over-issue of prompts (f_p) and of samples (f_n).

The published statistic is the worst case: the script that drew the figure takes the longest short round and the longest
long round of a setting (refs/rollpacker.md 1.3). With (P0, 1.25) a cycle has five iterations, so the worst of
`ITERATIONS` = 5 short rounds is expected here, over many simulated rounds.

Two of the seven published points calibrate two unknowns: (1, 1.25), where groups all of long samples hold the round up,
tells the dependence within a prompt (rho); (1.25, 1.25), where rounds are shortest, tells the seconds that a round takes
besides decoding. The seconds of the plain round set the speed of decoding. All seven are then compared.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.copula_lengths import copula_tokens
from rlplan.planner.costs import DecodeCost, RewardCost
from rlplan.planner.twin import state
from rlplan.planner.twin.play import Luck, TwinRound, play

ITERATIONS = 5
RHO_POINT, OVERHEAD_POINT, PLAIN = (1.0, 1.25), (1.25, 1.25), (1.0, 1.0)

# Simulated short rounds of a setting: 32 times the worst of five, whose mean is then within 2 % of the truth.
_ROUNDS = 160
_PROMPT_TOKENS = 256
# What is published is rollout alone; one reward worker without work to do keeps rewards out of it.
_NO_REWARD = RewardCost(workers=1, per_sample_s=0.0, delay_s=0.0)

Factors = tuple[float, float]


@dataclass(frozen=True)
class Calibrated:
    """What was found: the dependence, seconds of a round besides decoding, and the engines' cost that includes them."""

    rho: float
    overhead_s: float
    factor: float
    cost: DecodeCost


class Sweep:
    """Simulates settings of one job on one set of engines.

    Args:
        cdf: (tokens, share within them) of the lengths.
        cost: engines as a data sheet has them; their speed is a factor that is calibrated.
    """

    def __init__(
        self, cdf: list[tuple[float, float]], cost: DecodeCost, prompts: int, samples: int, cap_tokens: int, seed: int = 0
    ) -> None:
        self._cdf, self._cost, self._prompts, self._samples, self._cap = cdf, cost, prompts, samples, cap_tokens
        self._seed = seed
        self._drawn: dict[float, NDArray[np.int32]] = {}

    def _lengths(self, rho: float) -> NDArray[np.int32]:
        """Lengths of shape (rounds, prompts, samples), wide enough for any over-issue up to 1.5; same luck for all rho."""
        if rho not in self._drawn:
            wide = (_ROUNDS, math.ceil(1.5 * self._prompts), math.ceil(1.5 * self._samples))
            tokens = copula_tokens(self._cdf, rho, wide[0] * wide[1], wide[2], self._seed)
            self._drawn = {rho: np.ceil(np.minimum(tokens, self._cap)).astype(np.int32).reshape(wide)}
        return self._drawn[rho]

    def rollouts_s(self, factors: Factors, rho: float, cost: DecodeCost, rounds: int = _ROUNDS) -> list[float]:
        """Seconds of short rounds with this over-issue."""
        issued, width = round(self._prompts * factors[0]), round(self._samples * factors[1])
        spec = TwinRound(state.RACE, issued, self._prompts, self._samples, width, self._cap, refills=False)
        prompt_tokens = np.full(issued, _PROMPT_TOKENS, dtype=np.int32)
        found = []
        for drawn in self._lengths(rho)[:rounds]:
            lengths = np.ascontiguousarray(drawn[:issued, :width])
            luck = Luck(lengths, prompt_tokens, self._cap, float(lengths.mean()))
            found.append(play(spec, luck, cost, _NO_REWARD, cost.max_sequences).times.end_s)
        return found

    def cycle_s(self, factors: Factors, rho: float, cost: DecodeCost) -> float:
        """The published statistic: worst short and worst long round, weighed as they come in a cycle."""
        short = worst(self.rollouts_s(factors, rho, cost))
        if factors[0] <= 1.0:
            return short
        long = worst(self.rollouts_s(PLAIN, rho, cost))
        per_long = 1.0 / (factors[0] - 1.0)  # a short round leaves (f_p - 1) P prompts
        return (per_long * short + long) / (per_long + 1.0)

    def calibrate(self, published: dict[Factors, float]) -> Calibrated:
        """Fit rho, the overhead and the speed to `RHO_POINT`, `OVERHEAD_POINT` and the plain round."""
        rho, overhead_s = 0.2, 10.0
        factor = 1.0
        for _ in range(4):  # each unknown moves its own point most, so turns converge
            factor = self.speed(published[PLAIN], rho, overhead_s)
            overhead_s = self._root(
                lambda s: self.cycle_s(OVERHEAD_POINT, rho, scaled(self._cost, factor, s)),
                published[OVERHEAD_POINT], 0.0, published[OVERHEAD_POINT], 0.1,
            )  # fmt: skip
            rho = self._root(
                lambda r: self.cycle_s(RHO_POINT, r, scaled(self._cost, factor, overhead_s)),
                published[RHO_POINT], 0.0, 0.9, 0.005,
            )  # fmt: skip
        return Calibrated(rho, overhead_s, factor, scaled(self._cost, factor, overhead_s))

    def speed(self, plain_s: float, rho: float, overhead_s: float, statistic: str = "worst") -> float:
        """Factor on the engines' seconds with which a plain round takes `plain_s`; it takes no more rounds than that."""
        def seconds(factor: float) -> float:
            rounds = self.rollouts_s(PLAIN, rho, scaled(self._cost, factor, overhead_s), 40)
            return worst(rounds) if statistic == "worst" else float(np.mean(rounds))

        return self._root(seconds, plain_s, 0.05, 50.0, 1e-3)

    @staticmethod
    def _root(rises, wanted: float, low: float, high: float, grain: float) -> float:  # type: ignore[no-untyped-def]
        """Where a rising function reaches `wanted`, by bisection; an end if it does not."""
        while high - low > grain:
            middle = (low + high) / 2
            low, high = (middle, high) if rises(middle) < wanted else (low, middle)
        return (low + high) / 2


def scaled(cost: DecodeCost, factor: float, overhead_s: float) -> DecodeCost:
    """Engines that are `factor` times slower, in rounds that take `overhead_s` besides."""
    return dataclasses.replace(cost.scaled(factor), round_s=overhead_s)


def worst(seconds: list[float]) -> float:
    """Expected longest of `ITERATIONS` rounds."""
    whole = len(seconds) // ITERATIONS * ITERATIONS
    return float(np.array(seconds[:whole]).reshape(-1, ITERATIONS).max(axis=1).mean())


def rmse(points: list[tuple[float, float, float, float]], plain_s: float) -> float:
    """Of (f_p, f_n, published, predicted), over the plain round's seconds."""
    return math.sqrt(sum((p - s) ** 2 for _, _, s, p in points) / len(points)) / plain_s
