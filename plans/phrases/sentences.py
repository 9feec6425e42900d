"""Lists and lines of prose, and what phases and sources of drafted tokens are called in it, the same everywhere.

Keys of documents are not shown to people: the key `sync` of a phase would be taken for mode sync."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .numbers import count, is_finite, ratio, seconds


def one_line(text: str) -> str:
    """Return text without line breaks and without characters that a terminal would take for a command."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, width: int) -> str:
    """Return text on one line, cut to at most `width` characters."""
    text = one_line(text)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def sentence(text: str) -> str:
    """Return text as a sentence: with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def listed(phrases: Iterable[str], word: str = "and") -> str:
    """Return phrases as a list, the word before the last: `a, b and c`."""
    *first, last = list(phrases) or [""]
    return f"{', '.join(first)} {word} {last}" if first else last


PHASE_NAMES = {
    "sync": "weight transfer",
    "rollout": "rollout",
    "reward_exposed": "waiting for rewards",
    "reward": "waiting for rewards",
    "scoring": "scoring",
    "train": "training",
    "switch": "change of engines",
    "other": "other",
    "step": "step",
}
"""Name of each phase, by its key."""


def exposed_text(beside: Mapping[str, Any]) -> str:
    """Return what of scoring and training a run's decoding does not hide (traces/report_rounds.py), and what it would
    be if it hid nothing, where that differs."""
    (waits, alone_waits), (trains, alone_trains) = (
        (seconds(beside[key]["exposed_s"]), seconds(beside[key]["alone_s"])) for key in ("reward", "train")
    )
    text = f"after decoding, a step waits {waits} for rewards and trains for {trains}"
    if (waits, trains) == (alone_waits, alone_trains):
        return text
    return f"{text}; {alone_waits} and {alone_trains} if neither ran beside decoding"


def as_trained_text(detail: Mapping[str, Any]) -> str:
    """Return what a run's length ratio is without the prompts that it owes, which the ratio itself imputes; empty if
    it owes none. `detail`: its part of a report (traces/report.py)."""
    if not detail.get("owed_prompts") or not is_finite(detail.get("length_ratio_as_trained")):
        return ""
    owed = count(detail["owed_prompts"], "deferred prompt")
    return f"; {ratio(detail['length_ratio_as_trained'])} as trained, without {owed} that a long round would train"


DRAFT_SOURCES = {
    "earlier": "earlier rounds",
    "ahead": "decoded ahead",
    "sibling": "samples beside it",
    "own": "its own text",
    "other": "other prompts",
}
"""By a source's name in a trace: responses to the prompt of earlier rounds, those that were decoded for drafts alone,
another sample of the prompt in this round, the sample itself, responses to other prompts."""


def source_text(source: str) -> str:
    """A source as people read it; one of another version as it is."""
    return DRAFT_SOURCES.get(source, source)


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
