"""Mean rounds of a plan as a Gantt chart of characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ...plans.phrases.numbers import digits, percent, seconds
from .bars import FULL, LIGHT, block

if TYPE_CHECKING:
    from ...plans.facts.round_bars import Bar
    from ...plans.schema.plan import Plan
    from ...plans.schema.predicted import PredictedRound

LEGEND = f"height: share of sequences that run; {FULL} on the critical path, {LIGHT} with time to spare"
_STYLES = {"sync": "blue", "rollout": "cyan", "tail": "yellow", "reward_exposed": "red", "train": "magenta"}
_NAMES = {"sync": "transfer"}
_LABEL, _BESIDE = 10, 9  # characters before and behind a lane


def charts(plan: Plan, width: int) -> list[list[Text]]:
    """A chart of `width` characters for each kind of round; all have the same number of lines."""
    from ...plans.facts.round_bars import round_bars

    rounds = plan.predicted.rounds
    kinds = [("short", rounds.short)] + ([("long", rounds.long)] if rounds.long is not None else [])
    bars = round_bars(plan)
    return [
        _chart("mean round" if len(kinds) == 1 else f"mean {name} round", mean, _of(bars, name), width)
        for name, mean in kinds
    ]


def _of(bars: Sequence[Bar], kind: str) -> list[Bar]:
    return [bar for bar in bars if bar.kind == kind]


def _chart(title: str, mean: PredictedRound, bars: list[Bar], width: int) -> list[Text]:
    from ...plans.facts.round_bars import LANES

    cells = max(10, width - _LABEL - _BESIDE)
    span = max(bar.begin_s + bar.seconds for bar in bars) if bars else 0.0
    tail = (
        f", tail {percent(mean.tail_s / mean.rollout_s.mean)} of rollout" if mean.tail_s and mean.rollout_s.mean else ""
    )
    lines = [Text.assemble((f"{title} {seconds(mean.step_s.mean)}", "bold"), tail)]
    if not span:
        return lines
    for lane in LANES:
        bars_of_lane = [bar for bar in bars if bar.lane == lane]
        line = Text(f"{_NAMES.get(lane, lane):{_LABEL}}")
        line.append_text(_lane(bars_of_lane, mean, span, cells))
        lines.append(line.append(f" {_beside(bars_of_lane, mean)}"))
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    axis = f"{'':{_LABEL}}0{seconds(span):>{cells - 1}}"
    return [*lines, Text(axis, style="dim")]


def _lane(bars: list[Bar], mean: PredictedRound, span: float, cells: int) -> Text:
    drawn = [(" ", "")] * cells
    for bar in bars:
        first = min(cells - 1, int(bar.begin_s / span * cells + 1e-9))
        last = min(cells, max(first + 1, round((bar.begin_s + bar.seconds) / span * cells)))
        for cell in range(first, last):
            drawn[cell] = (_character(bar, mean, (cell + 0.5) / cells * span), _STYLES.get(bar.phase, ""))
    return Text.assemble(*drawn)


def _character(bar: Bar, mean: PredictedRound, at_s: float) -> str:
    if bar.lane != "engines":
        return FULL if bar.critical else LIGHT
    running, whole = mean.running, mean.rollout_s.mean
    place = min(1.0, max(0.0, (at_s - mean.sync_s) / whole)) * (len(running) - 1)
    low = min(int(place), len(running) - 2)
    return block(running[low] + (place - low) * (running[low + 1] - running[low])) if whole else " "


def _beside(bars: list[Bar], mean: PredictedRound) -> str:
    """The seconds of a lane, beside its bar."""
    if not bars:
        return "-"
    lane = bars[0].lane
    if lane == "rewards":
        return f"+{digits(mean.reward_exposed_s.mean)}"
    return digits(sum(bar.seconds for bar in bars))
