"""The numbers by which samples are balanced by history, and the seconds in which an engine would end its samples.

A decode step takes a constant, more by running sequence, and more by KV token. Summed over the steps of all its
samples, an engine ends after

    step_s * steps + step_s_per_sequence * tokens + step_s_per_kv_token * kv_steps

where `tokens` are those that it has yet to decode, and `kv_steps` the KV tokens that these attend to, summed over them.
`steps` are at least those of its longest sample, at least what its sequences at a time make of the tokens, and at least
what its KV cache makes of `kv_steps`. What that leaves out is samples that leave a place empty at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol


class BalanceSpec(Protocol):
    """What a plan says of a round whose samples are balanced by history (`RoundBalance` of plans/schema)."""

    @property
    def kv_capacity_tokens(self) -> int:
        """KV tokens that an engine holds."""

    def end_s(self, work: Work, at_once: int) -> float:
        """Seconds in which an engine that decodes `at_once` samples at a time would end its work."""


class Work(NamedTuple):
    """What an engine has before it: the tokens of its longest sample, of all, and the KV tokens that these attend to,
    summed over them."""

    longest: float = 0.0
    tokens: float = 0.0
    kv_steps: float = 0.0


class WorkShare(NamedTuple):
    """What a sample adds to the work of its engine: the tokens that it has before it (mean and median), and the KV
    tokens that these attend to, summed over them."""

    mean: float
    median: float
    kv_steps: float


def share(held: float, mean: float, median: float) -> WorkShare:
    """The share of a sample that holds so many tokens, its prompt's included, and has so many before it."""
    return WorkShare(mean, median, mean * (held + mean / 2))


class Longest:
    """The longest of many samples, of which only medians are known.

    Of n alike samples whose logs spread by s, the longest is about exp(s z) times as long as the median one, z being
    what the largest of n normal numbers is. So is the norm of the medians whose exponent is EXPONENT / s, for n from a
    dozen to some hundreds; it is the largest itself where nothing spreads, and adds up sample by sample.
    """

    EXPONENT = 1.73
    """log n / z at n = 64 (z = 2.4); 1.6 at 16, and 2.0 at 256."""

    HARD = 20.0
    """Exponents beyond which the largest is taken."""

    def __init__(self, spread: float) -> None:
        self._exponent = min(self.EXPONENT / spread, self.HARD) if spread > 0 else self.HARD

    def power(self, median: float) -> float:
        """What a sample adds to `add`'s and `tokens`'s powers."""
        return median if self._exponent >= self.HARD else math.pow(median, self._exponent)

    def add(self, powers: float, power: float) -> float:
        """The powers of many with one more."""
        return max(powers, power) if self._exponent >= self.HARD else powers + power

    def tokens(self, powers: float) -> float:
        """The longest of samples with such powers."""
        return powers if self._exponent >= self.HARD or powers <= 0 else math.pow(powers, 1.0 / self._exponent)


class Load:
    """The samples of an engine, or of one that might be, as sums."""

    def __init__(self, longest: Longest, shares: Iterable[WorkShare] = ()) -> None:
        self._longest = longest
        self._powers = self._tokens = self._kv_steps = 0.0
        for each in shares:
            self.add(each)

    def add(self, each: WorkShare) -> None:
        """One sample more."""
        self._powers = self._longest.add(self._powers, self._longest.power(each.median))
        self._tokens += each.mean
        self._kv_steps += each.kv_steps

    def work(self) -> Work:
        """What is before the engine."""
        return Work(self._longest.tokens(self._powers), self._tokens, self._kv_steps)

    def work_with(self, each: WorkShare) -> Work:
        """The same with one sample more."""
        powers = self._longest.add(self._powers, self._longest.power(each.median))
        return Work(self._longest.tokens(powers), self._tokens + each.mean, self._kv_steps + each.kv_steps)
