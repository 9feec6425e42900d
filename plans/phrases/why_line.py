"""The line of a plan's `why` that compares a decision with the next best one: the planner writes it, `show` parses it.

Invariant: `parse(line.text())` equals `line`, with its percents rounded to a tenth.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TIE_PERCENT = 0.5
"""Two decisions are tied if their costs differ by less than this, in percent."""


class Alternative(NamedTuple):
    """A decision and the next best decision in its place.

    Attributes:
        chosen: the decision, in words.
        next_best: the next best decision, in words.
        percent: percent by which the next best costs more per sample; None: less than TIE_PERCENT more or less.
        rough: whether few rounds of the next best were simulated, so that `percent` is only about right.
        unit: `time` or `cost`.
        where: the phase in which most of the difference is, with its percents, or how many nodes more or fewer the
            next best takes; empty for a tie.
        rest: `kept`: the other decisions are the plan's own, as `simulate --set` leaves them; `chosen anew`: they are
            the best beside the next best; empty for a tie, and in plans of earlier versions.
    """

    chosen: str
    next_best: str
    percent: float | None
    rough: bool = False
    unit: str = "time"
    where: str = ""
    rest: str = ""

    def text(self) -> str:
        """Return the line of `why`."""
        # What costs less is no second best: it is tied with the plan (`why.ties`), or the plan was edited by hand.
        beside = "alternative" if self.percent is not None and self.percent < 0 else "next best"
        head = f"{self.chosen}; {beside}: {self.next_best}, "
        if self.percent is None:
            return f"{head}within {TIE_PERCENT:g}% of it"
        rest = f", the rest {self.rest}" if self.rest else ""
        return f"{head}{'about ' * self.rough}{self.percent:+.1f}% {self.unit} per sample{rest} ({self.where})"


_LINE = re.compile(
    r"(?P<chosen>.+?); (?:next best|alternative): (?P<next_best>.+), "
    r"(?:within [\d.]+% of it|(?P<rough>about )?(?P<percent>[+-][\d.]+)% (?P<unit>time|cost) per sample"
    r"(?:, the rest (?P<rest>kept|chosen anew))? \((?P<where>[^()]*)\))"
)


def parse(text: str) -> Alternative | None:
    """Return the alternative that a line of `why` names; None if the line names none."""
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    chosen, next_best = match["chosen"], match["next_best"]
    if match["percent"] is None:
        return Alternative(chosen, next_best, None)
    rough, percent = match["rough"] is not None, float(match["percent"])
    return Alternative(chosen, next_best, percent, rough, match["unit"], match["where"], match["rest"] or "")
