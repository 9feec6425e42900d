"""A plan's alternatives: speed against bias, and the next best value of each decision with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...plans.phrases.numbers import digits, ratio
from .bars import table

if TYPE_CHECKING:
    from ...plans.schema.plan import Plan
    from ...plans.schema.predicted import FrontPoint

_FRONT_ROWS, _WHY_ROWS, _OTHER_ROWS = 6, 6, 4

# Reasons that the screen shows elsewhere.
_SHOWN_ELSEWHERE = (
    "rounds", "step", "colocation", "model", "rounds.short.rollout.kv_tokens", "rounds.long.rollout.kv_tokens"
)  # fmt: skip

RE_SOLVED = "re-solved"
"""Marks an alternative whose cost is that of the best plan with it, in which other decisions may differ, too."""


def front_table(plan: Plan) -> Table:
    """The front of speed against bias, at most _FRONT_ROWS points."""
    p = plan.predicted
    shown = _thinned(p.front)
    left_out = f" of {len(p.front)}" if len(shown) < len(p.front) else ""
    drawn = table(f"<front, {len(shown)}{left_out}", "speed-up", "length", "USD/1000")
    for point in shown:
        mark, rough = ("*" if point.chosen else " "), ("~" if point.rough else "")
        drawn.add_row(
            f"{mark} {point.mode}",
            f"{rough}{p.baseline.seconds_per_sample / point.seconds_per_sample:.2f}",
            ratio(point.length_ratio),
            digits(point.usd_per_1k_samples, 4),
            style="bold" if point.chosen else "",
        )
    return drawn


def _thinned(front: Sequence[FrontPoint]) -> list[FrontPoint]:
    """At most _FRONT_ROWS points, evenly spaced, with the first, the last and the chosen one."""
    if len(front) <= _FRONT_ROWS:
        return list(front)
    last = len(front) - 1
    kept = {round(k * last / (_FRONT_ROWS - 1)) for k in range(_FRONT_ROWS)}
    chosen = {index for index, point in enumerate(front) if point.chosen}
    if chosen - kept:
        kept.remove(min(kept - {0, last}, key=lambda index: abs(index - min(chosen))))
    return [front[index] for index in sorted(kept | chosen)]


def why_table(plan: Plan, wide: bool) -> list[RenderableType]:
    """The next best values of decisions by cost, then the other reasons in lines."""
    from ...plans.phrases.sentences import one_line
    from ...plans.phrases.why_line import TIE_PERCENT, parse

    why = {key: one_line(text) for key, text in plan.job.why.items()}
    lines = {key: parse(text) for key, text in why.items()}
    # An alternative that is faster is tied with the plan: `why.ties` names it.
    costly = [(key, line) for key, line in lines.items() if line is not None and (line.percent or -1.0) > 0]
    ties = [_short(key) for key, line in lines.items() if line is not None and line.percent is None]
    drawn = table("<why", "<next best", "costs", *(["<mostly"] if wide else []))
    ranked = sorted(costly, key=lambda item: -(item[1].percent or 0.0))
    for _, line in ranked[:_WHY_ROWS]:
        cost = f"{'~' * line.rough}{line.percent:+.1f}%" + (" USD" if line.unit == "cost" else "")
        if not wide and line.where.startswith("takes"):
            cost += f", {line.where}"
        rest = f" ({RE_SOLVED})" if line.rest == "chosen anew" else ""  # else nothing but this decision differs
        drawn.add_row(line.chosen, line.next_best + rest, cost, *([line.where] if wide else []))
    others = [(key, text) for key, text in why.items() if lines[key] is None and key not in _SHOWN_ELSEWHERE]
    refused = [text for key, text in others if key.startswith("refused.")]
    rows: list[RenderableType] = [drawn] if costly else [Text("why", style="bold")]
    less = [f"{_short(key)} {line.percent:+.1f}%" for key, line in ranked[_WHY_ROWS:]]
    as_good = f"as good within {TIE_PERCENT:g}%: another choice of {', '.join(ties)}" if ties else ""
    if less or ties:
        rows.append(Text("; ".join([*([f"less: {', '.join(less)}"] if less else []), as_good]).strip("; ")))
    reasons = [f"{_short(key)}: {text}" for key, text in others if not key.startswith("refused.")]
    rows += [Text(text, style="dim") for text in reasons[:_OTHER_ROWS]]
    if len(reasons) > _OTHER_ROWS:
        rows.append(Text(f"and {len(reasons) - _OTHER_ROWS} more (--json)"))
    if refused:
        more = f"; {len(refused) - 1} more (--json)" if len(refused) > 1 else ""
        rows.append(Text(f"not possible: {refused[0]}{more}"))
    return rows


def _short(key: str) -> str:
    """A decision's key without the prefix `rounds.`."""
    return key.removeprefix("rounds.")
