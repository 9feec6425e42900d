"""What rounds of one kind look like from within: how many sequences run, what memory they take, how late scoring is.

The compiled twin gives a round's times alone, so the first rounds of a chosen column are simulated once more, on the
same luck, by the machines themselves, and watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...rounds.machines.events import SampleKey
from ...rounds.round_shape import shape, tail_begins_s
from ..choose.candidates import LongKey, ShortKey
from ..simulate.columns.cells import scaled, similar_cell
from ..simulate.columns.round_log import mean
from ..simulate.columns.whole_columns import LongColumn, Setting, ShortColumn
from ..simulate.reference_round import Observe

FEWEST, MOST, SAMPLES = 8, 48, 10_000
"""Of a kind as many rounds are watched as issue SAMPLES, within these bounds: a watched round takes some forty times as
long as one that is only counted, a second for so many samples, and few rounds of few samples are noise."""

FEWEST_LARGE = 2
"""Where rounds are simulated by cells, which have samples enough."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Means over watched rounds of one kind.

    Attributes:
        running: as in plans/schema/predicted.py.
        tail: the tail's share of the rollout's seconds.
        reward_slack: scoring's slack (`reward_slack_s`) as a share of the seconds from the rollout's begin to the last
            score.
        kv_tokens: the most KV tokens that any engine held in any of the rounds.
        preemptions: in a round.
    """

    running: tuple[float, ...]
    tail: float
    reward_slack: float
    kv_tokens: int
    preemptions: float


class RoundWatch:
    """Collects what `simulate_round` tells of one round."""

    def __init__(self) -> None:
        self._engines: list[tuple[float, int, int]] = []
        self._finished: dict[SampleKey, float] = {}
        self._scored: dict[SampleKey, float] = {}
        self._last_cutoff_s = 0.0
        self.kv_tokens = 0
        self.preemptions = 0

    def observe(self, t_s: float, what: str, a: int, b: int, c: int) -> None:
        """A simulator.Observe."""
        if what == "engine":
            self._engines.append((t_s, a, b))
        elif what == "finished":
            self._finished[SampleKey(a, b)] = t_s
        elif what == "scored":
            self._scored[SampleKey(a, b)] = t_s
        elif what == "cutoff":
            self._last_cutoff_s = max(self._last_cutoff_s, t_s)
        elif what == "held":
            self.preemptions += b
            self.kv_tokens = max(self.kv_tokens, c)

    def levels(self) -> list[tuple[float, int]]:
        """Sequences that run on all engines together, as round_shape.Levels."""
        running: dict[int, int] = {}
        found = []
        for t_s, engine, count in sorted(self._engines, key=lambda event: event[0]):
            running[engine] = count
            found.append((t_s, sum(running.values())))
        return found

    def reward_slack_s(self, end_s: float) -> float:
        """Seconds between the last score that the round's end at `end_s` did not wait for and that end.

        The end waits for what was decoded last, and for whoever was scored last. With more time than this for each of
        its other scores, scoring would be what the round waits for.
        """
        last = max([*self._finished.values(), self._last_cutoff_s], default=0.0)
        others = [t for key, t in self._scored.items() if self._finished[key] < last and t < end_s]
        return end_s - max(others, default=0.0)


def enough_rounds(setting: Setting, key: ShortKey | LongKey) -> int:
    """How many rounds of a kind to watch."""
    fewest = FEWEST if setting.target <= setting.simulated_target else FEWEST_LARGE
    setting, key = _seen(setting, key)
    return min(MOST, max(fewest, SAMPLES // _issued(setting, key)))


def picture(setting: Setting, key: ShortKey | LongKey, pool: Sequence[str], rounds: int) -> Picture:
    """Watch the first `rounds` rounds of a column; `pool`: the deferred prompts of a long one (Search.pool).

    Of large rounds a cell each (cells.py), since all that is told are shares, and what one engine holds.
    Scoring has no slack in a round under dynamic sampling that drew anew: what is filtered is known by its scores, and
    what is drawn in its place waits for them.
    """
    setting, key = _seen(setting, key)
    seen: list[RoundWatch] = []

    def watch() -> Observe:
        seen.append(RoundWatch())
        return seen[-1].observe

    watched = replace(setting, watch=watch)
    column = ShortColumn(watched, key) if isinstance(key, ShortKey) else LongColumn(watched, key)
    kept: list[RoundWatch] = []
    for count in range(1, rounds + 1):
        if isinstance(column, ShortColumn):
            column.extend(count)
        else:
            column.extend(count, pool)
        kept.append(seen[-1])  # the last one, since a round that ran out of rows was begun anew
    log = column.log
    ends = [rollout + reward for rollout, reward in zip(log.rollout_s, log.reward_s, strict=True)]
    refilled = [_refilled(setting, key, issued) for issued in log.issued]
    slack = [0.0 if more else one.reward_slack_s(end) for one, end, more in zip(kept, ends, refilled, strict=True)]
    levels = [one.levels() for one in kept]
    shapes = [shape(level, end) for level, end in zip(levels, log.rollout_s, strict=True)]
    tails = [end - tail_begins_s(level, end) for level, end in zip(levels, log.rollout_s, strict=True)]
    return Picture(
        running=tuple(mean(values) for values in zip(*shapes, strict=True)),
        tail=sum(tails) / sum(log.rollout_s),
        reward_slack=sum(slack) / sum(ends),
        kv_tokens=max(one.kv_tokens for one in kept),
        preemptions=mean([float(one.preemptions) for one in kept]),
    )


def _seen(setting: Setting, key: ShortKey | LongKey) -> tuple[Setting, ShortKey | LongKey]:
    """What is watched of a kind: whole rounds or cells."""
    cell = similar_cell(setting, key)
    return (setting, key) if cell.whole else scaled(setting, key, cell)


def _issued(setting: Setting, key: ShortKey | LongKey) -> int:
    """Samples that a round issues at first."""
    if isinstance(key, ShortKey):
        return key.prompts * key.samples
    return setting.target * setting.group_size * key.copies


def _refilled(setting: Setting, key: ShortKey | LongKey, issued: int) -> bool:
    """Whether a round that issued so many samples drew some of them in place of filtered ones; long rounds never do."""
    return isinstance(key, ShortKey) and setting.dynamic_sampling and issued > _issued(setting, key)
