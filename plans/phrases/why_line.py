"""The line of a plan's `why` that sets a decision beside its next best: written by the planner, read to be shown.

Invariant: `parse(line.text())` says what `line` says, its percents rounded to a tenth.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TIE_PERCENT = 0.5
"""An alternative that costs less than this share more or less is as good."""


class Alternative(NamedTuple):
    """A decision and what one would do instead.

    Attributes:
        chosen: the decision, in words.
        other: the next best.
        percent: what the next best costs more per sample; None: less than TIE_PERCENT either way.
        about: few rounds of it were simulated.
        unit: `time` or `cost`.
        where: the phase in which most of it is, with its percents, or the nodes that it takes more or fewer; empty for
            a tie.
        rest: whether the other decisions are the plan's own (`kept`), as `simulate --set` leaves them, or what is best
            beside this alternative (`chosen anew`); empty for a tie, and in plans of earlier versions.
    """

    chosen: str
    other: str
    percent: float | None
    about: bool = False
    unit: str = "time"
    where: str = ""
    rest: str = ""

    def text(self) -> str:
        """The line."""
        # What costs less is no second best: it is tied with the plan (`why.ties`), or the plan was edited by hand.
        beside = "alternative" if self.percent is not None and self.percent < 0 else "next best"
        head = f"{self.chosen}; {beside}: {self.other}, "
        if self.percent is None:
            return f"{head}within {TIE_PERCENT:g}% of it"
        rest = f", the rest {self.rest}" if self.rest else ""
        return f"{head}{'about ' * self.about}{self.percent:+.1f}% {self.unit} per sample{rest} ({self.where})"


_LINE = re.compile(
    r"(?P<chosen>.+?); (?:next best|alternative): (?P<other>.+), "
    r"(?:within [\d.]+% of it|(?P<about>about )?(?P<percent>[+-][\d.]+)% (?P<unit>time|cost) per sample"
    r"(?:, the rest (?P<rest>kept|chosen anew))? \((?P<where>[^()]*)\))"
)


def parse(text: str) -> Alternative | None:
    """What a line says; None of one that tells no alternative."""
    found = _LINE.fullmatch(text)
    if found is None:
        return None
    chosen, other = found["chosen"], found["other"]
    if found["percent"] is None:
        return Alternative(chosen, other, None)
    about, percent = found["about"] is not None, float(found["percent"])
    return Alternative(chosen, other, percent, about, found["unit"], found["where"], found["rest"] or "")
