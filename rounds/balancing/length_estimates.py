"""How long the samples of a round are expected to be, by their prompt's history and by the samples of the round.

Invariants:
- of a sample that has not ended, estimates use only the tokens that it is known to have;
- the median of a prompt never falls in a round: if a sample ends with more tokens, or is known to have more, it rises
  to these, for all samples of the prompt that still run or wait;
- a prompt without history has no estimate until the length of a sample of it is known: its first sample is a probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PAST = 0.25
"""A sample that is longer than expected is expected to grow by this share of its tokens: lengths have heavy tails, so
the longer a sample is, the more tokens remain."""

SPREAD = 0.6
"""Least standard deviation of the log lengths of a prompt's samples, which is also taken if none was recorded; traces
have 0.3 to 1."""


class Expected(NamedTuple):
    """Expected tokens of a sample: mean and median."""

    mean: float
    median: float

    def within(self, limit: float) -> Expected:
        """The same for samples that are cut at `limit` tokens."""
        return Expected(max(1.0, min(self.mean, limit)), max(1.0, min(self.median, limit)))


class Recorded(NamedTuple):
    """What is known before a round: expected tokens of samples by prompt, and the standard deviation of the log lengths
    of one prompt's samples."""

    expected: Mapping[str, Expected]
    spread: float = SPREAD


NOTHING = Recorded({})


class LengthEstimates:
    """The estimates of one round; `expected` lacks prompts that were never recorded."""

    def __init__(self, expected: Mapping[str, Expected]) -> None:
        self._expected = expected
        self._seen: dict[str, int] = {}  # the most tokens that a sample of the prompt is known to have
        self._ended = 0
        self._ended_tokens = 0

    def knows(self, prompt: str) -> bool:
        """Whether the prompt has an estimate."""
        return prompt in self._expected or prompt in self._seen

    def of(self, prompt: str, limit: int) -> Expected:
        """The expected length of a sample of the prompt, at most its limit; the limit if nothing is known."""
        seen = float(self._seen.get(prompt, 0))
        if prompt in self._expected:
            mean, median = self._expected[prompt]
            return Expected(max(mean, seen), max(median, seen)).within(limit)
        return Expected(seen or limit, seen or limit).within(limit)

    def room(self, prompt: str, limit: int) -> float:
        """Tokens of a sample for which memory is reserved: the prompt's mean; if it is unknown, the mean of the samples
        that ended in the round, or 0 before any has."""
        if self.knows(prompt):
            return self.of(prompt, limit).mean
        return min(float(limit), self._ended_tokens / self._ended) if self._ended else 0.0

    def left(self, prompt: str, limit: int, tokens: int) -> Expected:
        """The remaining tokens of a sample that has `tokens`; if its prompt is unknown, as many as it has."""
        most = float(limit - tokens)
        if not self.knows(prompt):
            return Expected(float(tokens), float(tokens)).within(most)
        mean, median = self.of(prompt, limit)
        if mean - tokens < 1.0:
            return Expected(PAST * tokens, PAST * tokens).within(most)
        return Expected(mean - tokens, max(median - tokens, PAST * tokens)).within(most)

    def ended(self, prompt: str, tokens: int) -> bool:
        """A sample ended with so many tokens; whether the prompt's estimate has changed."""
        self._ended += 1
        self._ended_tokens += tokens
        return self.seen(prompt, tokens)

    def seen(self, prompt: str, tokens: int) -> bool:
        """A sample is known to have so many tokens; whether the prompt's estimate has changed."""
        median = self._expected[prompt].median if prompt in self._expected else 0.0
        if tokens <= max(median, self._seen.get(prompt, 0)):
            return False
        self._seen[prompt] = tokens
        return True
