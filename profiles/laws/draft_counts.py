"""What rounds with drafts counted, of a profiling or of a run's trace, and the section of a profile that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..draft_schema import DraftBatch, DraftLaw, DraftRates, ProfiledDrafts

ENOUGH_STEPS = 64
"""Steps times their samples below which nothing is told."""

ENOUGH_OF_BATCH = 256
"""The same for what a batch gives beside others, which is a difference."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Steps of an engine with batches of one class: mean seconds without and with drafts to verify (0: no such step);
    of those that might draft, times their samples: all, and those with some to verify; tokens drafted, accepted."""

    plain_s: float
    drafted_s: float
    sequence_steps: int
    drafted_steps: int
    drafted: int
    accepted: int

    @property
    def more_s(self) -> float:
        """Seconds by which a step that might draft takes longer than one that might not, whether it drafts or not."""
        return self.drafted_steps / self.sequence_steps * (self.drafted_s - self.plain_s)


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """What rounds with drafts gave: steps times their samples, tokens drafted and accepted at each place, and the same
    by the largest batch of a class of powers of two."""

    sequence_steps: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    batches: Mapping[int, BatchCounts]

    @classmethod
    def of(cls, told: Any) -> DraftCounts:
        """Those of a trace's event `drafts`, or of an engine's report, which have them by the same names."""
        names = BatchCounts.__dataclass_fields__
        batches = {size: BatchCounts(*(getattr(one, name) for name in names)) for size, one in told.batches.items()}
        return cls(told.sequence_steps, tuple(told.drafted_at), tuple(told.accepted_at), batches)


def summed(counts: Sequence[DraftCounts]) -> DraftCounts:
    """All of them together; a batch's seconds are means over its samples and steps."""
    places = max((len(each.drafted_at) for each in counts), default=0)

    def at(name: str) -> tuple[int, ...]:
        rows = [getattr(each, name) for each in counts]
        return tuple(sum(row[place] for row in rows if place < len(row)) for place in range(places))

    sizes = sorted({size for each in counts for size in each.batches})
    return DraftCounts(
        sum(each.sequence_steps for each in counts),
        at("drafted_at"),
        at("accepted_at"),
        {size: _one([each.batches[size] for each in counts if size in each.batches]) for size in sizes},
    )


def _one(parts: Sequence[BatchCounts]) -> BatchCounts:
    def mean(values: Sequence[tuple[float, int]]) -> float:
        seen = [(value, max(1, weight)) for value, weight in values if value > 0]
        return math.fsum(v * w for v, w in seen) / sum(w for _, w in seen) if seen else 0.0

    return BatchCounts(
        plain_s=mean([(part.plain_s, part.sequence_steps) for part in parts]),
        drafted_s=mean([(part.drafted_s, part.sequence_steps) for part in parts]),
        sequence_steps=sum(part.sequence_steps for part in parts),
        drafted_steps=sum(part.drafted_steps for part in parts),
        drafted=sum(part.drafted for part in parts),
        accepted=sum(part.accepted for part in parts),
    )


def rates(counts: DraftCounts) -> DraftRates:
    """Tokens drafted and accepted at each place, of a sample and step. `counts` has some steps."""
    steps = counts.sequence_steps
    drafted = tuple(min(1.0, count / steps) for count in counts.drafted_at)
    pairs = zip(counts.accepted_at, drafted, strict=True)
    accepted = tuple(min(limit, count / steps) for count, limit in pairs)
    return DraftRates(drafted=drafted, accepted=accepted, sequence_steps=steps)


def batch_factors(counts: DraftCounts) -> tuple[DraftBatch, ...]:
    """By the middle of each class of batches that has enough steps, what its samples get by drafts over what all
    get."""
    mean = sum(counts.accepted_at) / max(1, counts.sequence_steps)
    if mean <= 0:
        return ()
    return tuple(
        DraftBatch(sequences=middle(size), factor=one.accepted / one.sequence_steps / mean)
        for size, one in sorted(counts.batches.items())
        if one.sequence_steps >= ENOUGH_OF_BATCH
    )


def middle(largest: int) -> int:
    """The middle batch of the class of powers of two whose largest has so many samples."""
    return max(1, round(0.75 * largest)) if largest > 1 else 1


def overheads(counts: DraftCounts, law: DraftLaw, base_s: Callable[[float], float]) -> tuple[float, float]:
    """(seconds of a step, and for each of its samples) of steps with drafts beyond ones that decode as many tokens, not
    negative, by least squares over the classes of batches; (0, 0) if none was seen without and with drafts.

    `base_s`: seconds of a step of so many samples without drafts; only its differences count, so that other work on the
    machine, which both kinds of step saw, stays out.
    """
    points: list[tuple[int, float]] = []  # (batch, seconds more)
    for largest, one in sorted(counts.batches.items()):
        if not (one.plain_s > 0 and one.drafted_s > 0 and one.sequence_steps >= ENOUGH_STEPS):
            continue
        batch = middle(largest)
        verified = batch * law.verified(law.most_tokens, batch)
        points.append((batch, one.more_s - (base_s(verified) - base_s(batch))))
    if not points:
        return 0.0, 0.0
    mean_s = math.fsum(extra_s for _, extra_s in points) / len(points)
    slope_s = _slope(points)
    step_s = mean_s - slope_s * sum(batch for batch, _ in points) / len(points)
    if step_s < 0.0:  # all of it by the sample
        squares = sum(batch * batch for batch, _ in points)
        return 0.0, max(0.0, math.fsum(batch * extra_s for batch, extra_s in points) / squares)
    return (step_s, slope_s) if slope_s > 0.0 else (max(0.0, mean_s), 0.0)


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Of a straight line through the points by least squares; 0 of one point, and where it falls."""
    middle = sum(batch for batch, _ in points) / len(points)
    spread = math.fsum((batch - middle) ** 2 for batch, _ in points)
    if spread == 0.0:
        return 0.0
    return max(0.0, math.fsum((batch - middle) * extra_s for batch, extra_s in points) / spread)


def fit_drafts(
    first: DraftCounts, later: DraftCounts | None, base_s: Callable[[float], float], old: ProfiledDrafts | None = None
) -> ProfiledDrafts | None:
    """The section that rounds of the first epoch and of later ones give; None if neither has steps enough.

    An epoch with too few steps keeps what `old` says of it; without that, the first is taken to be as the later ones,
    which flatters it, and of these nothing is said. `base_s`: as of `overheads`.
    """
    enough = {name: counts for name, counts in (("first", first), ("later", later)) if counts and _is_enough(counts)}
    if not enough:
        return old
    told = {name: rates(counts) for name, counts in enough.items()}
    most = max(len(each.drafted) for each in told.values())
    kept = {"first": old.first, "later": old.later} if old is not None else {}
    for name, before in kept.items():
        if name not in told and before is not None and len(before.drafted) == most:
            told[name] = before
    early = told.get("first") or told["later"]
    late = told.get("later")
    if len(early.drafted) != most or (late is not None and len(late.drafted) != most):
        return old  # drafts of two lengths, by two plans: no one section tells of both
    every = summed(list(enough.values()))
    batches = batch_factors(summed([enough.get("later") or enough["first"]]))
    section = ProfiledDrafts(
        first=early, later=late, by_batch=batches, step_s=0.0, step_s_per_sequence=0.0, provenance="measured"
    )
    step_s, per_sequence_s = overheads(every, section.law(), base_s)
    return section.model_copy(update={"step_s": step_s, "step_s_per_sequence": per_sequence_s})


def _is_enough(counts: DraftCounts) -> bool:
    return counts.sequence_steps >= ENOUGH_STEPS and len(counts.drafted_at) > 0
