"""Prompts predicted to be long from earlier epochs, which get long rounds (mode `predict`).

Rounds then differ in their prompts and not in how they end: every sample runs to its end, so each group that is
trained is an unconditioned draw, whatever the history says and however wrong it is. A bad history costs time, never
bias.

A prompt is scored by the mean of its log lengths, of which earlier epochs count less and less (the policy drifts),
drawn towards the mean of all by how few samples it rests on. On traces that were tried the mean of logs tells the
longest sample of the next group better than the earlier longest sample does (rank correlation 0.44 against 0.25 over
400 steps of training, 0.91 against 0.89 without training between).

Where rounds are balanced by history (balancing/), the same record tells how long a prompt's samples are expected to be:
mean and median of a log-normal distribution about the score, with the spread that the prompt's samples have had, drawn
towards that of all prompts in the same way.

Invariants:
- scores depend on what was recorded and in which order of epochs, never on the order within an epoch;
- of prompts that were never recorded none is expected long;
- `state()` holds all of it, as JSON-ready data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .balancing.length_estimates import NOTHING, SPREAD, Expected, Recorded
from .machines.outcome import Fate
from .machines.round import Round

# What an earlier epoch's samples still count when the next epoch's arrive.
FADE = 0.5

# Samples that the mean of all prompts counts in a prompt's score: the variance within a prompt over that between
# prompts, 3 at a within-prompt correlation of 0.25 (traces lie between 0.2 and 0.9).
PRIOR_SAMPLES = 3.0


class LengthHistory:
    """Lengths of prompts over epochs, in three numbers for each prompt."""

    def __init__(self) -> None:
        # prompt -> (mean of log tokens, samples that it counts for, sum of squared distances from the mean)
        self._known: dict[str, tuple[float, float, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def record(self, prompt: str, tokens: Sequence[int]) -> None:
        """The lengths of a group that ran to its end; nothing if it has no sample. Raises ValueError below 1 token."""
        if any(t < 1 for t in tokens):
            raise ValueError(f"prompt {prompt!r} has a response of no tokens")
        if not tokens:
            return
        mean, weight, squares = self._known.get(prompt, (0.0, 0.0, 0.0))
        total = FADE * weight + len(tokens)
        # fsum and the sorted order: the same samples in another order are the same history.
        logs = [math.log(t) for t in sorted(tokens)]
        fresh = math.fsum(logs)
        middle = fresh / len(logs)
        apart = FADE * weight * len(logs) / total * (middle - mean) ** 2
        squares = FADE * squares + math.fsum((each - middle) ** 2 for each in logs) + apart
        self._known[prompt] = ((FADE * weight * mean + fresh) / total, total, squares)

    def learn(self, finished: Round) -> None:
        """Record the groups of a round that ran to their end."""
        for draw in finished.draws:
            if draw.fate in (Fate.TRAINED, Fate.FILTERED):
                self.record(draw.prompt, [draw.tokens[s] for s in finished.trained_samples(draw)])

    def expected_long(self, prompts: Iterable[str], share: float, keep: int = 1) -> frozenset[str]:
        """The recorded prompts with the highest scores: a `share` of all `prompts`, at most all but `keep`."""
        all_prompts = list(prompts)
        recorded = [p for p in all_prompts if p in self._known]
        if not recorded:
            return frozenset()
        middle = self._middle(recorded)
        scores = {p: self._score(p, middle) for p in recorded}
        ranked = sorted(recorded, key=lambda p: (-scores[p], p))
        return frozenset(ranked[: max(0, min(round(share * len(all_prompts)), len(all_prompts) - keep))])

    def recorded(self, prompts: Iterable[str]) -> Recorded:
        """What is expected of the next samples of the prompts, those that were recorded."""
        known = sorted({p for p in prompts if p in self._known})
        if not known:
            return NOTHING
        # Of all prompts, so that an estimate does not hang on which others are asked for.
        middle = self._middle(self._known)
        degrees = math.fsum(max(0.0, weight - 1.0) for _, (_, weight, _) in sorted(self._known.items()))
        within = math.fsum(squares for _, (_, _, squares) in sorted(self._known.items())) / max(degrees, 1.0)
        expected: dict[str, Expected] = {}
        for prompt in known:
            _, weight, squares = self._known[prompt]
            variance = (squares + PRIOR_SAMPLES * within) / (weight + PRIOR_SAMPLES)
            # The score itself is off by as much as the mean of so many samples is.
            variance *= 1.0 + 1.0 / (weight + PRIOR_SAMPLES)
            score = self._score(prompt, middle)
            expected[prompt] = Expected(max(1.0, math.exp(score + variance / 2)), max(1.0, math.exp(score)))
        # A few samples of each prompt do not show its outliers, one of which makes an engine the last to end.
        return Recorded(expected, max(SPREAD, math.sqrt(within)))

    def _middle(self, prompts: Iterable[str]) -> float:
        """The mean over prompts of their mean logs."""
        means = [self._known[prompt][0] for prompt in sorted(prompts)]
        return math.fsum(means) / len(means)

    def _score(self, prompt: str, middle: float) -> float:
        mean, weight, _ = self._known[prompt]
        return middle + weight / (weight + PRIOR_SAMPLES) * (mean - middle)

    def state(self) -> dict[str, list[float]]:
        """Everything, as JSON-ready data."""
        return {prompt: list(numbers) for prompt, numbers in sorted(self._known.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`. One of an earlier version has no spread: 0, until the prompt is recorded again."""
        self._known = {}
        for prompt, (mean, weight, *squares) in state.items():
            self._known[str(prompt)] = (float(mean), float(weight), float(squares[0]) if squares else 0.0)
