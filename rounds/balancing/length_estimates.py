"""How long the samples of a round are expected to be: by their prompt's history, and by what the round has shown.

Invariants:
- the length of a sample that has not ended is used by no estimate, but for the tokens that it is known to have;
- an estimate of a prompt that has one never falls within a round: where a sample ends beyond it, or is seen beyond it,
  it rises to that, for all samples of the prompt that still run or wait;
- a prompt without history has no estimate until a sample of it has ended or was seen: its first one is its probe.
"""

from __future__ import annotations

from collections.abc import Mapping

PAST = 0.25
"""Of the tokens of a sample that has outgrown its estimate, the share that it is expected to grow by yet: lengths have
heavy tails, so the longer a sample is the more there is to come."""


class LengthEstimates:
    """The estimates of one round. `history`: tokens that a prompt's samples are expected to have, by prompt; prompts
    that were never recorded are not in it."""

    def __init__(self, history: Mapping[str, float]) -> None:
        self._history = history
        self._seen: dict[str, int] = {}  # the most tokens that a sample of the prompt is known to have
        self._ended = 0
        self._ended_tokens = 0

    def knows(self, prompt: str) -> bool:
        """Whether the prompt has an estimate."""
        return prompt in self._history or prompt in self._seen

    def tokens(self, prompt: str, limit: int) -> float:
        """Tokens that a sample of the prompt is expected to have in all, at most its limit, which it is taken to reach
        if nothing is known."""
        if not self.knows(prompt):
            return float(limit)
        return min(float(limit), max(self._history.get(prompt, 1.0), float(self._seen.get(prompt, 1))))

    def room(self, prompt: str, limit: int) -> float:
        """Tokens that memory is kept for: as expected, or, if nothing is known of the prompt, the mean of what ended in
        the round; 0 before anything has."""
        if self.knows(prompt):
            return self.tokens(prompt, limit)
        return min(float(limit), self._ended_tokens / self._ended) if self._ended else 0.0

    def left(self, prompt: str, limit: int, tokens: int) -> float:
        """Tokens that a running sample which has `tokens` has before it. Of one of which nothing is known, as many as
        it has."""
        left = self.tokens(prompt, limit) - tokens if self.knows(prompt) else float(tokens)
        if left < 1.0:
            left = PAST * tokens
        return max(1.0, min(left, limit - tokens))

    def ended(self, prompt: str, tokens: int) -> bool:
        """A sample ended with so many tokens; whether the prompt's estimate has changed."""
        self._ended += 1
        self._ended_tokens += tokens
        return self.seen(prompt, tokens)

    def seen(self, prompt: str, tokens: int) -> bool:
        """A sample is known to have so many tokens; whether the prompt's estimate has changed."""
        known = self.knows(prompt)
        if known and tokens <= max(self._history.get(prompt, 0.0), self._seen.get(prompt, 0)):
            return False
        self._seen[prompt] = tokens
        return True
