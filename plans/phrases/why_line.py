"""Lines of a plan's `why` that the planner writes and `show` parses: a decision beside the next best one, and what each
lever saves.

Invariants: `parse(line.text())` equals `line`, with its percents rounded to a tenth; `levers_of(levers_text(...))` has
the same levers, with their seconds rounded to three digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def levers_text(saved_s: Mapping[str, float], step_s: float) -> str:
    """Return the line of `why` on what each lever saves of a mean step of `step_s` seconds: by its name the seconds
    that the step takes more without it, all else being kept. They do not add up: levers hide each other's seconds."""
    each = (f"{name} {seconds:+.3g} s ({100 * seconds / step_s:+.1f}%)" for name, seconds in saved_s.items())
    return f"what a step of {step_s:.4g} s takes more without one of them, the rest kept: {', '.join(each)}"


def levers_of(text: str | None) -> dict[str, float]:
    """Return the seconds of `levers_text` by lever, its name with underscores; empty for a plan without the line."""
    found = re.findall(r"([a-z -]+) ([+-][\d.e+-]+) s \(", (text or "").partition(": ")[2])
    return {re.sub("[ -]", "_", name.strip()): float(seconds) for name, seconds in found}
