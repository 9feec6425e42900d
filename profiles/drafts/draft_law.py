"""What speculative decoding gives and takes: tokens by place of a draft, and seconds beyond those of its tokens.

A sample's draft has a token at place i (from 1) in a share d_i of its steps, and this is accepted in a share a_i of
them; drafts are as long as they promise (rounds/drafts/draft_account.py), so d_i falls with i even below the limit.
With at most g tokens a draft, a step verifies 1 + sum of d_i and gives 1 + sum of a_i tokens for each sample, i up to g
(RhymeRL, arXiv 2508.18588, with one chance for all places: `geometric`).

Large batches draft less: a token must promise more where a step is bound by arithmetic. So both sums have a factor by
batch. What a step takes beyond one that decodes as many tokens is a line in its samples: proposing, and sampling from
drafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """What drafts give and take.

    Attributes:
        drafted, accepted: mean tokens of a sample and step at each place of a draft, from the first.
        by_batch: (samples, factor on both), ascending; linear between them, constant beyond; empty: 1.
        step_s, step_s_per_sequence: seconds of a step beyond one that decodes as many tokens.
    """

    drafted: tuple[float, ...]
    accepted: tuple[float, ...]
    by_batch: tuple[tuple[int, float], ...] = ()
    step_s: float = 0.0
    step_s_per_sequence: float = 0.0

    def __post_init__(self) -> None:
        if not self.drafted or len(self.drafted) != len(self.accepted):
            raise ValueError("a law of drafts has a share drafted and a share accepted for each place, and a place")
        if any(not 0 <= a <= d <= 1 for d, a in zip(self.drafted, self.accepted, strict=True)):
            raise ValueError("at each place of a draft 0 <= accepted <= drafted <= 1")
        if self.step_s < 0 or self.step_s_per_sequence < 0:
            raise ValueError("a step with drafts takes no negative seconds more")

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest draft that it tells of."""
        return len(self.drafted)

    def factor(self, sequences: int) -> float:
        """Factor on tokens drafted and accepted in a batch of so many samples."""
        if not self.by_batch:
            return 1.0
        return float(np.interp(sequences, [n for n, _ in self.by_batch], [f for _, f in self.by_batch]))

    def verified(self, tokens: int, sequences: int) -> float:
        """Mean tokens of a sample that a step verifies, drafts having at most `tokens`."""
        factor = self.factor(sequences)
        return 1.0 + math.fsum(min(1.0, factor * each) for each in self.drafted[:tokens])

    def emitted(self, tokens: int, sequences: int) -> float:
        """Mean tokens of a sample that a step gives, likewise."""
        factor = self.factor(sequences)
        pairs = zip(self.drafted[:tokens], self.accepted[:tokens], strict=True)
        return 1.0 + math.fsum(min(1.0, factor * drafted, factor * accepted) for drafted, accepted in pairs)

    def extra_s(self, sequences: int) -> float:
        """Seconds of a step beyond one that decodes as many tokens."""
        return self.step_s + self.step_s_per_sequence * sequences


def geometric(tokens: int, acceptance: float) -> DraftLaw:
    """Each of `tokens` tokens is always drafted, and accepted with one chance if those before it were: the tokens that
    a step gives are (1 - a^(g+1)) / (1 - a). Raises ValueError for a chance that is not within [0, 1)."""
    if tokens < 1 or not 0 <= acceptance < 1:
        raise ValueError("drafts have at least 1 token and an acceptance within [0, 1)")
    return DraftLaw((1.0,) * tokens, tuple(acceptance**place for place in range(1, tokens + 1)))
