"""How long the samples of a round are expected to be: by their prompt's history, and by what the round has shown.

Invariants:
- the length of a sample that has not ended is used by no estimate, but for the tokens that it is known to have;
- the median of a prompt never falls within a round: where a sample ends beyond it, or is seen beyond it, it rises to
  that, for all samples of the prompt that still run or wait;
- a prompt without history has no estimate until a sample of it has ended or was seen: its first one is its probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PAST = 0.25
"""Of the tokens of a sample that has outgrown what was expected, the share that it is expected to grow by yet: lengths
have heavy tails, so the longer a sample is the more there is to come."""

SPREAD = 0.6
"""Standard deviation of the log lengths of a prompt's samples that is taken where none was recorded, and at least
elsewhere; traces have 0.3 to 1."""


class Expected(NamedTuple):
    """Tokens: mean and median."""

    mean: float
    median: float

    def within(self, limit: float) -> Expected:
        """Of samples that are cut at `limit` tokens."""
        return Expected(max(1.0, min(self.mean, limit)), max(1.0, min(self.median, limit)))


class Recorded(NamedTuple):
    """What was recorded of prompts before a round: what is expected of their samples, by prompt, and by how much logs
    of the lengths of one prompt's samples spread about it."""

    expected: Mapping[str, Expected]
    spread: float = SPREAD


NOTHING = Recorded({})


class LengthEstimates:
    """The estimates of one round; of prompts that were never recorded `expected` has nothing."""

    def __init__(self, expected: Mapping[str, Expected]) -> None:
        self._expected = expected
        self._seen: dict[str, int] = {}  # the most tokens that a sample of the prompt is known to have
        self._ended = 0
        self._ended_tokens = 0

    def knows(self, prompt: str) -> bool:
        """Whether the prompt has an estimate."""
        return prompt in self._expected or prompt in self._seen

    def of(self, prompt: str, limit: int) -> Expected:
        """What is expected of a sample of the prompt, at most its limit, which it is taken to reach if nothing is
        known."""
        seen = float(self._seen.get(prompt, 0))
        if prompt in self._expected:
            mean, median = self._expected[prompt]
            return Expected(max(mean, seen), max(median, seen)).within(limit)
        return Expected(seen or limit, seen or limit).within(limit)

    def room(self, prompt: str, limit: int) -> float:
        """Tokens of a sample that memory is to be there for: the mean, or, if nothing is known of the prompt, that of
        what has ended in the round; 0 before anything has."""
        if self.knows(prompt):
            return self.of(prompt, limit).mean
        return min(float(limit), self._ended_tokens / self._ended) if self._ended else 0.0

    def left(self, prompt: str, limit: int, tokens: int) -> Expected:
        """What a sample which has `tokens` has before it; of one of which nothing is known, as many as it has."""
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
