"""The numbers by which samples are balanced by history, and the seconds in which an engine would end its samples.

A decode step takes a constant time, and some for each running sequence and each KV token. Summed over all steps, an
engine ends its samples after

    step_s * steps + step_s_per_sequence * tokens + step_s_per_kv_token * kv_steps

where `tokens` are those that it has yet to decode, and `kv_steps` the KV tokens that these attend to, summed over them.
`steps` is the largest of: the tokens of its longest sample; `tokens` over the sequences that it decodes at a time; and
`kv_steps` over the tokens that its KV cache holds. Slots that are empty at the end of the round are neglected.
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
    """The remaining work of an engine: tokens of its longest sample, tokens of all samples, and the KV tokens to which
    these attend, summed over them."""

    longest: float = 0.0
    tokens: float = 0.0
    kv_steps: float = 0.0


class WorkShare(NamedTuple):
    """What a sample adds to the work of its engine: its remaining tokens (mean and median), and the KV tokens to which
    these attend, summed over them."""

    mean: float
    median: float
    kv_steps: float


def share(held: float, mean: float, median: float) -> WorkShare:
    """The share of a sample that holds `held` tokens, its prompt's included; `mean`, `median`: of those that remain."""
    return WorkShare(mean, median, mean * (held + mean / 2))


class Longest:
    """Estimates the longest of many samples from their medians.

    Of n samples with the same median whose log lengths have standard deviation s, the longest is about exp(s z) times
    the median, z being the expected maximum of n standard normal numbers. The p-norm of the medians with p =
    EXPONENT / s is about as large for n from a dozen to some hundreds; it can be summed sample by sample, and is the
    maximum if s is 0.
    """

    EXPONENT = 1.73
    """log n / z at n = 64 (z = 2.4); 1.6 at 16, and 2.0 at 256."""

    HARD = 20.0
    """Exponent from which the maximum is taken."""

    def __init__(self, spread: float) -> None:
        self._exponent = min(self.EXPONENT / spread, self.HARD) if spread > 0 else self.HARD

    def power(self, median: float) -> float:
        """What a sample adds to the `powers` of `add` and `tokens`."""
        return median if self._exponent >= self.HARD else math.pow(median, self._exponent)

    def add(self, powers: float, power: float) -> float:
        """The powers of samples with one sample more."""
        return max(powers, power) if self._exponent >= self.HARD else powers + power

    def tokens(self, powers: float) -> float:
        """The longest of samples with such powers."""
        return powers if self._exponent >= self.HARD or powers <= 0 else math.pow(powers, 1.0 / self._exponent)


class Load:
    """The samples of an engine, as sums."""

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
        """The remaining work of the engine."""
        return Work(self._longest.tokens(self._powers), self._tokens, self._kv_steps)

    def work_with(self, each: WorkShare) -> Work:
        """The same with one sample more."""
        powers = self._longest.add(self._powers, self._longest.power(each.median))
        return Work(self._longest.tokens(powers), self._tokens + each.mean, self._kv_steps + each.kv_steps)
