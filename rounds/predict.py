"""Prompts predicted to be long from earlier epochs, which get long rounds (mode `predict`).

Rounds then differ in their prompts and not in how they end: every sample runs to its end, so each group that is
trained is an unconditioned draw, whatever the history says and however wrong it is. A bad history costs time, never
bias.

A prompt is scored by the mean of its log lengths, of which earlier epochs count less and less (the policy drifts),
drawn towards the mean of all by how few samples it rests on. On traces that were tried the mean of logs tells the
longest sample of the next group better than the earlier longest sample does (rank correlation 0.44 against 0.25 over
400 steps of training, 0.91 against 0.89 without training between).

Invariants:
- scores depend on what was recorded and in which order of epochs, never on the order within an epoch;
- of prompts that were never recorded none is expected long;
- `state()` holds all of it, as JSON-ready data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

# What an earlier epoch's samples still count when the next epoch's arrive.
FADE = 0.5

# Samples that the mean of all prompts counts in a prompt's score: the variance within a prompt over that between
# prompts, 3 at a within-prompt correlation of 0.25 (traces lie between 0.2 and 0.9).
PRIOR_SAMPLES = 3.0


class LengthHistory:
    """Lengths of prompts over epochs, in two numbers for each prompt."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # prompt -> (mean of log tokens, samples it counts for)

    def __len__(self) -> int:
        return len(self._known)

    def record(self, prompt: str, tokens: Sequence[int]) -> None:
        """The lengths of a group that ran to its end; nothing if it has no sample. Raises ValueError below 1 token."""
        if any(t < 1 for t in tokens):
            raise ValueError(f"prompt {prompt!r} has a response of no tokens")
        if not tokens:
            return
        mean, weight = self._known.get(prompt, (0.0, 0.0))
        total = FADE * weight + len(tokens)
        # fsum and the sorted order: the same samples in another order are the same history.
        fresh = math.fsum(math.log(t) for t in sorted(tokens))
        self._known[prompt] = ((FADE * weight * mean + fresh) / total, total)

    def expected_long(self, prompts: Iterable[str], share: float, keep: int = 1) -> frozenset[str]:
        """The recorded prompts with the highest scores: a `share` of all `prompts`, at most all but `keep`."""
        all_prompts = list(prompts)
        recorded = [p for p in all_prompts if p in self._known]
        if not recorded:
            return frozenset()
        middle = math.fsum(self._known[p][0] for p in sorted(recorded)) / len(recorded)
        scores = {p: self._score(p, middle) for p in recorded}
        ranked = sorted(recorded, key=lambda p: (-scores[p], p))
        return frozenset(ranked[: max(0, min(round(share * len(all_prompts)), len(all_prompts) - keep))])

    def _score(self, prompt: str, middle: float) -> float:
        mean, weight = self._known[prompt]
        return middle + weight / (weight + PRIOR_SAMPLES) * (mean - middle)

    def state(self) -> dict[str, list[float]]:
        """Everything, as JSON-ready data."""
        return {prompt: [mean, weight] for prompt, (mean, weight) in sorted(self._known.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        self._known = {str(prompt): (float(mean), float(weight)) for prompt, (mean, weight) in state.items()}
