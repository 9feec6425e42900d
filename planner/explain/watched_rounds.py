"""Watched rounds of one kind: how many sequences run, how many KV tokens they hold, how late scoring is.

The compiled simulator gives only a round's times, so the first rounds of a chosen column are simulated once more, on
the same draws, by the state machines themselves, and watched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev

from ...rounds.machines.events import SampleKey
from ...rounds.round_shape import shape, tail_begins_s
from ..choose.candidates.round_kinds import LongKey, ShortKey
from ..simulate.columns.cells import scaled, similar_cell
from ..simulate.columns.round_log import mean
from ..simulate.columns.whole_columns import Setting, ShortColumn, long_rounds
from ..simulate.reference_round import Observe

FEWEST, MOST, SAMPLES = 8, 48, 10_000
"""As many rounds are watched as issue SAMPLES samples, within these bounds: a watched round takes some forty times as
long as a compiled one, a second for so many samples, and few rounds of few samples are noise."""

FEWEST_LARGE = 2
"""FEWEST where rounds are simulated by cells, which have samples enough."""


@dataclass(frozen=True, slots=True)
class WatchedRounds:
    """Means over watched rounds of one kind.

    Attributes:
        running: as in plans/schema/predicted.py.
        tail: the tail's share of the rollout's seconds.
        reward_slack: scoring's slack (`reward_slack_s`) as a share of the seconds from the rollout's begin to the last
            score.
        kv_tokens: the most KV tokens that any engine holds in as many rounds as were simulated (`largest_of`).
        preemptions: in a round.
        decode_steps: of the engine that makes the most, and, where the tail has engines of its own, of that of these.
        steps_of: shares of these decode steps, by their sequences.
        read_kv_tokens: that the decode steps of all engines read.
    """

    running: tuple[float, ...]
    tail: float
    reward_slack: float
    kv_tokens: int
    preemptions: float
    decode_steps: float
    steps_of: Mapping[int, float]
    read_kv_tokens: float


class RoundWatch:
    """Observes one round of `simulate_round`: running sequences, KV tokens, times of the last token and of scores."""

    def __init__(self) -> None:
        self._engines: list[tuple[float, int, int]] = []
        self._finished: dict[SampleKey, float] = {}
        self._scored: dict[SampleKey, float] = {}
        self._last_cutoff_s = 0.0
        self.kv_tokens = 0
        self.preemptions = 0
        self._worked: list[tuple[int, int]] = []
        self._stepped: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def observe(self, t_s: float, event: str, a: int, b: int, c: int) -> None:
        """Take one event of the simulator (reference_round.Observe)."""
        if event == "engine":
            self._engines.append((t_s, a, b))
        elif event == "finished":
            self._finished[SampleKey(a, b)] = t_s
        elif event == "scored":
            self._scored[SampleKey(a, b)] = t_s
        elif event == "cutoff":
            self._last_cutoff_s = max(self._last_cutoff_s, t_s)
        elif event == "held":
            self.preemptions += b
            self.kv_tokens = max(self.kv_tokens, c)
        elif event == "worked":
            self._worked.append((b, c))
        elif event == "stepped":
            self._stepped[a][b] += c

    def decode_steps(self, first: int) -> int:
        """The most decode steps of any of the `first` engines, and of any of those of a tail, one after the other."""
        steps = [each for each, _ in self._worked]
        return max(steps[:first], default=0) + max(steps[first:], default=0)

    def steps_of(self, first: int) -> Counter[int]:
        """Of the same engines, their decode steps by sequences, in millionths."""
        before = [steps for engine, steps in self._stepped.items() if engine < first]
        after = [steps for engine, steps in self._stepped.items() if engine >= first]
        none = Counter[int]()
        return max(before, key=Counter.total, default=none) + max(after, key=Counter.total, default=none)

    @property
    def read_kv_tokens(self) -> int:
        """KV tokens that the decode steps of all engines read."""
        return sum(read for _, read in self._worked)

    def levels(self) -> list[tuple[float, int]]:
        """Running sequences of all engines together, as round_shape.Levels."""
        running: dict[int, int] = {}
        levels = []
        for t_s, engine, count in sorted(self._engines, key=lambda event: event[0]):
            running[engine] = count
            levels.append((t_s, sum(running.values())))
        return levels

    def reward_slack_s(self, end_s: float) -> float:
        """Seconds between the last score that the round's end at `end_s` did not wait for and that end.

        The end waits for the last decoded token and for the last score. If each other score took longer by more than
        this, the round would wait for scoring.
        """
        last = max([*self._finished.values(), self._last_cutoff_s], default=0.0)
        other_scores_s = [t for key, t in self._scored.items() if self._finished[key] < last and t < end_s]
        return end_s - max(other_scores_s, default=0.0)


def largest_of(values: Sequence[float], rounds: int) -> float:
    """The expected largest of `rounds` values of a normal distribution, of which `values` were seen (Blom 1958), and no
    less than the largest of these. The most that an engine holds in a round is a sum over many samples."""
    if len(values) < 2 or rounds <= len(values):
        return max(values)
    place = NormalDist().inv_cdf((rounds - 0.375) / (rounds + 0.25))
    return max(*values, fmean(values) + place * stdev(values))


def enough_rounds(setting: Setting, key: ShortKey | LongKey) -> int:
    """How many rounds of a kind to watch."""
    fewest = FEWEST if setting.target <= setting.simulated_target else FEWEST_LARGE
    setting, key = _whole_or_cell(setting, key)
    return min(MOST, max(fewest, SAMPLES // _issued(setting, key)))


def watch_rounds(
    setting: Setting, key: ShortKey | LongKey, pool: Sequence[str], rounds: int, simulated: int = 0
) -> WatchedRounds:
    """Means over the first `rounds` rounds of a column; `simulated`: the rounds that `kv_tokens` are of (0: no more);
    `pool`: the deferred prompts of a long one (Search.pool).

    A large round is watched by one cell of it (cells.py), since the means are shares, and what one engine holds.
    A round that drew prompts in place of those that dynamic sampling filtered has no scoring slack: scores decide what
    is filtered, and the prompts drawn in its place wait for them.
    """
    whole_engines = key.layout.engines
    setting, key = _whole_or_cell(setting, key)
    watches: list[RoundWatch] = []

    def new_watch() -> Observe:
        watches.append(RoundWatch())
        return watches[-1].observe

    watched = replace(setting, watch=new_watch)
    column = ShortColumn(watched, key) if isinstance(key, ShortKey) else long_rounds(watched, key)
    kept: list[RoundWatch] = []
    for count in range(1, rounds + 1):
        if isinstance(column, ShortColumn):
            column.extend(count)
        else:
            column.extend(count, pool)
        kept.append(watches[-1])  # the last watch, since a round that ran out of rows was started again
    log = column.log
    ends = [rollout + reward for rollout, reward in zip(log.rollout_s, log.reward_s, strict=True)]
    refilled = [_refilled(setting, key, issued) for issued in log.issued]
    slack = [0.0 if more else w.reward_slack_s(end) for w, end, more in zip(kept, ends, refilled, strict=True)]
    levels = [watch.levels() for watch in kept]
    shapes = [shape(level, end) for level, end in zip(levels, log.rollout_s, strict=True)]
    tails = [end - tail_begins_s(level, end) for level, end in zip(levels, log.rollout_s, strict=True)]
    stepped = sum((watch.steps_of(key.layout.engines) for watch in kept), Counter[int]())
    return WatchedRounds(
        running=tuple(mean(values) for values in zip(*shapes, strict=True)),
        tail=sum(tails) / sum(log.rollout_s),
        reward_slack=sum(slack) / sum(ends),
        kv_tokens=min(
            round(largest_of([w.kv_tokens for w in kept], simulated * whole_engines // key.layout.engines)),
            setting.cost_of(key).kv_capacity_tokens,
        ),
        preemptions=mean([float(watch.preemptions) for watch in kept]),
        decode_steps=mean([float(watch.decode_steps(key.layout.engines)) for watch in kept]),
        steps_of={sequences: steps / stepped.total() for sequences, steps in stepped.items()},
        read_kv_tokens=mean([float(w.read_kv_tokens) for w in kept]) * whole_engines / key.layout.engines,
    )


def _whole_or_cell(setting: Setting, key: ShortKey | LongKey) -> tuple[Setting, ShortKey | LongKey]:
    """(setting, key) of the rounds to watch: whole rounds, or cells of large ones."""
    cell = similar_cell(setting, key)
    return (setting, key) if cell.whole else scaled(setting, key, cell)


def _issued(setting: Setting, key: ShortKey | LongKey) -> int:
    """Samples that a round issues at first."""
    if isinstance(key, ShortKey):
        return key.prompts * key.samples
    draws = setting.queue_of(key).most_draws if key.queue else setting.target * key.copies
    return draws * setting.group_size


def _refilled(setting: Setting, key: ShortKey | LongKey, issued: int) -> bool:
    """Whether a round that issued so many samples drew some of them in place of filtered ones; long rounds never do."""
    return isinstance(key, ShortKey) and setting.dynamic_sampling and issued > _issued(setting, key)
