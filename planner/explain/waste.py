"""The waste of a plan: what it decodes and does not train, the price of its speed that its seconds do not show."""

from __future__ import annotations

from collections.abc import Sequence

from ..choose.candidates.round_kinds import ShortKey
from ..choose.candidates.short_rounds import over_issue
from ..simulate.columns.round_log import mean
from .scheduled_rounds import ScheduledRounds


def wasted_shares(rounds: Sequence[ScheduledRounds], group_size: int) -> tuple[float, float | None]:
    """(samples issued for each trained one, share of the decoded tokens whose samples are not trained), both over all
    simulated steps: redraws count as issued, and aborted samples as decoded up to their abort.

    The share is None where some rounds were composed without it (race_cells.py).
    """
    issued = sum(p.share * mean(p.log.issued) for p in rounds)
    trained = sum(p.share * mean(p.log.groups) * group_size for p in rounds)
    decoded = sum(p.share * mean(p.log.decoded) for p in rounds)
    kept = sum(p.share * mean(p.log.kept) for p in rounds)
    counted = all(mean(p.log.decoded) > 0 for p in rounds)
    return issued / trained, 1.0 - kept / decoded if counted else None


def waste_text(rounds: Sequence[ScheduledRounds], target: int, group_size: int) -> str | None:
    """The plan's `why.waste`, where rounds train `target` prompts; None if all decoded tokens are trained."""
    issued, wasted = wasted_shares(rounds, group_size)
    text = f"over a cycle {issued:.2f} samples are issued for each trained one, redraws included"
    short = [p.key for p in rounds if isinstance(p.key, ShortKey)]
    if short:
        begun = over_issue(short[0].prompts, short[0].samples, target, group_size)
        text += f" ({begun:.2f} at a short round's start, limited by search.max_over_issue)"
    if wasted is None:
        return text if issued >= 1.0005 else None
    if wasted < 0.0005:
        return None
    return f"{text}; {wasted:.1%} of the decoded tokens are not trained"
