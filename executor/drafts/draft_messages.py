"""What driver and engines tell each other about drafts; vLLM passes it on to its ranks, and back, pickled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
"""Token ids."""
NO_TOKENS: Tokens = np.empty(0, np.int32)

PROMPT, PROMPT_TOKENS, REQUEST = "rlplan_prompt", "rlplan_prompt_tokens", "rlplan_request"
"""Keys of vLLM's extra arguments: the prompt's id, how many tokens it has (a sample that moved to an engine has decoded
the others), and the request's id as the driver knows it."""


class PromptHistory(NamedTuple):
    """Earlier responses to a prompt.

    Attributes:
        prompt: its id.
        responses: int32 each, the oldest first.
        weights: what each counts, above 0.
        ahead: how many of the last of them were decoded for drafts alone.
    """

    prompt: str
    responses: list[Tokens]
    weights: list[float]
    ahead: int = 0


COUNTS = ("verified", "saved_s", "sequence_steps", "drafted_steps", "drafted", "accepted")
"""What is counted of a round, by name in `BatchSteps`."""


@dataclass(slots=True)
class BatchSteps:
    """Steps of an engine with batches of one class.

    The first are as BatchMeans has them (rounds/drafts/draft_account.py). The others are counts of the round, of steps
    times their samples: `sequence_steps` in which samples were drafted for, `drafted_steps` with drafts to verify; and
    tokens `drafted` and `accepted`.
    """

    plain_s: float = 0.0
    drafted_s: float = 0.0
    emitted: float = 0.0
    verified: int = 0
    saved_s: float = 0.0
    sequence_steps: int = 0
    drafted_steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def with_those_of(self, other: BatchSteps) -> BatchSteps:
        """The steps of two engines: a mean is that of the engine whose steps count more in it, where both have one."""
        most, least = (self, other) if self.verified >= other.verified else (other, self)
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        means = {name: getattr(most, name) or getattr(least, name) for name in ("plain_s", "drafted_s", "emitted")}
        return BatchSteps(**means, **counts)


@dataclass(slots=True)
class DraftReport:
    """What drafts gave in a round, of one engine or several.

    Attributes:
        steps, sequence_steps: steps in which samples were drafted for, and their samples in all.
        drafted_at, accepted_at: tokens at each place of a draft, from the first: drafted, accepted.
        by_source: accepted tokens by source (plans/phrases/sentences.py).
        batches: by the largest batch of a class, of powers of two.
        index_bytes: of the texts and their order, at the round's end.
        unfinished: by id of a request that was aborted, the tokens that it had.
    """

    steps: int = 0
    sequence_steps: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    by_source: dict[str, int] = field(default_factory=dict)
    batches: dict[int, BatchSteps] = field(default_factory=dict)
    index_bytes: int = 0
    unfinished: dict[str, Tokens] = field(default_factory=dict)

    def batch(self, running: int) -> BatchSteps:
        """Steps of the class of batches that one of so many samples belongs to."""
        return self.batches.setdefault(2 ** running.bit_length() - 1, BatchSteps())


def summed(reports: Iterable[DraftReport]) -> DraftReport:
    """The report of several engines together."""
    total = DraftReport()
    for report in reports:
        total.steps += report.steps
        total.sequence_steps += report.sequence_steps
        total.drafted_at = _added(total.drafted_at, report.drafted_at)
        total.accepted_at = _added(total.accepted_at, report.accepted_at)
        for source, tokens in report.by_source.items():
            total.by_source[source] = total.by_source.get(source, 0) + tokens
        for size, steps in report.batches.items():
            total.batches[size] = total.batches.get(size, BatchSteps()).with_those_of(steps)
        total.index_bytes += report.index_bytes
        total.unfinished |= report.unfinished
    return total


def _added(one: list[int], other: list[int]) -> list[int]:
    length = max(len(one), len(other))
    padded = [counts + [0] * (length - len(counts)) for counts in (one, other)]
    return [first + second for first, second in zip(*padded, strict=True)]
