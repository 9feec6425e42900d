"""The chain of turns that sets a settled group's pace: each begins where the one before it ends.

A turn begins when its own job's last phase ends, or when another job frees a unit that it needs; going back from one
to its cause leads, in a settled group, round a cycle. To make the group faster, something in it must become shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

from .reference import Span

_SAME_S = 1e-6


def critical_cycle(spans: Sequence[Span]) -> list[Span]:
    """The turns of the cycle in order of time, from the most recent of `spans`; empty where a turn began without a
    cause (its policy let it wait for a time and not for a turn)."""
    if not spans:
        return []
    chain = [max(spans, key=lambda span: (span.end_s, span.job))]
    seen = {(chain[0].job, chain[0].phase): 0}
    while True:
        cause = _cause(chain[-1], spans)
        if cause is None:
            return []
        key = (cause.job, cause.phase)
        if key in seen:
            return chain[seen[key] :][::-1]
        seen[key] = len(chain)
        chain.append(cause)


def _cause(span: Span, spans: Sequence[Span]) -> Span | None:
    """What ended when the span began; of several, the job's own phase."""
    ended = [
        other
        for other in spans
        if abs(other.end_s - span.start_s) < _SAME_S * max(1.0, span.start_s)
        and other is not span
        and (other.job == span.job or set(other.units) & set(span.units))
    ]
    return max(ended, key=lambda other: (other.job == span.job, other.job), default=None)
