"""The cost of a cycle of short and long rounds: the closed form that columns are compared by.

With u short and v long rounds per trained sample: the prompts that short rounds defer are those that long rounds take,
D u = G v, and all of them together train one sample, n T u + n T' v = 1. Seconds per sample are then t u + t' v, and
the bias, the share of slow steps and the phases are the same weighted sums. No transient is in it: the queue neither
grows nor shrinks. Each kind of round has its own engines and its own update layout; a long round pays for the change
from and back to the short rounds' ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...plans.schema.levers import EngineLayout
from ..costs.job_pools import NodesTaken
from .candidates.round_kinds import DeferralRule, LongKey, ShortKey
from .plan_limits import Limits

# One-sided 95 %: what a biased mode must prove beyond the noise of its own simulation.
CONFIDENCE_Z = 1.645


# An SLO at p95 lets this share of the steps be slower.
SLOW_SHARE = 0.05


Key = TypeVar("Key", bound=ShortKey | LongKey, covariant=True)


@dataclass(frozen=True)
class Column(Generic[Key]):
    """A kind of round as numbers, means over its simulated rounds.

    Attributes:
        name: stable, sorts as the keys do.
        step_s: seconds of a step, by update choice, in the order of the space's `train`.
        groups: groups trained by a round.
        moved: prompts that a short round defers, or that a long round takes from the queue.
        excess_tokens: trained minus unconditioned length, summed over a round's samples; 0 by construction in modes
            that are unbiased.
        excess_error: standard error of that.
        step_error: standard error of the mean step's seconds; decides what is worth more rounds, and never the plan.
        slow: share of steps beyond the SLO, by update choice.
        rounds: how many were simulated.
    """

    name: str
    key: Key
    step_s: tuple[float, ...]
    groups: float
    moved: float
    excess_tokens: float
    excess_error: float
    slow: tuple[float, ...]
    rounds: int
    step_error: float = 0.0

    @property
    def deferral(self) -> DeferralRule:
        """The rule by which its short rounds defer prompts."""
        return self.key.deferral

    @property
    def layout(self) -> EngineLayout:
        """Its engines."""
        return self.key.layout

    @property
    def reward(self) -> int:
        """The number of its choice of reward workers and deadlines."""
        return self.key.reward


def length_ratio(excess_tokens: float, mean_tokens: float) -> float:
    """Trained over unconditioned mean length. However few rounds it is from: a response has at least one token."""
    return max(1.0 / mean_tokens, 1.0 + excess_tokens / mean_tokens)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One choice: a short column, the long column for what it defers (None if it defers none), and how each trains.

    `switch_s` are the seconds that one long round costs for changing engines and shards, there and back.
    """

    short: Column[ShortKey]
    long: Column[LongKey] | None
    train: int
    long_train: int
    switch_s: float = 0.0

    @property
    def name(self) -> str:
        """Stable; sorts as its parts do. Ties are broken by it."""
        long = self.long.name if self.long else "-"
        return f"{self.short.name}|{long}|{self.train:04d}|{self.long_train:04d}"

    @property
    def trains(self) -> bool:
        """Whether its rounds trained any group; a cycle that trained none has no rates and no cost."""
        return self.short.groups > 0 or (self.long is not None and self.short.moved * self.long.groups > 0)

    def rates(self, group_size: int) -> tuple[float, float]:
        """(short rounds, long rounds) per trained sample."""
        if self.long is None:
            return 1.0 / (group_size * self.short.groups), 0.0
        ratio = self.short.moved / self.long.moved
        u = 1.0 / (group_size * (self.short.groups + ratio * self.long.groups))
        return u, u * ratio

    def weigh(self, group_size: int, short: float, long: float) -> float:
        """Weighted sum of a short and a long quantity, per trained sample."""
        u, v = self.rates(group_size)
        return u * short + v * long

    def long_share(self) -> float:
        """Share of the steps that are long rounds."""
        u, v = self.rates(1)
        return v / (u + v)

    def slow_share(self) -> float:
        """Share of the steps that are slower than the SLO."""
        share = self.long_share()
        long = share * self.long.slow[self.long_train] if self.long else 0.0
        return (1.0 - share) * self.short.slow[self.train] + long

    def step_s(self) -> float:
        """Seconds of the mean step."""
        share = self.long_share()
        long = share * (self.long.step_s[self.long_train] + self.switch_s) if self.long else 0.0
        return (1.0 - share) * self.short.step_s[self.train] + long

    def seconds_per_sample(self, group_size: int) -> float:
        """Seconds of the whole pool per trained sample."""
        long = self.long.step_s[self.long_train] + self.switch_s if self.long else 0.0
        return self.weigh(group_size, self.short.step_s[self.train], long)

    def taken(self, limits: Limits) -> NodesTaken:
        """Nodes that the plan takes of each pool: the most that engines, trainers or host memory need."""
        layouts = [self.short.layout, *(self.long.key.layouts if self.long else ())]
        trains = [self.train, *([self.long_train] if self.long else [])]
        return limits.taken(layouts, trains)

    def nodes(self, limits: Limits) -> int:
        """Nodes that the plan takes, of all pools."""
        return self.taken(limits).total

    def usd_per_sample(self, limits: Limits) -> float:
        """USD per trained sample, for the nodes that the plan takes."""
        return self.seconds_per_sample(limits.group_size) * limits.usd_per_s(self.taken(limits))

    def cost(self, limits: Limits) -> float:
        """The minimised cost per trained sample: seconds or USD."""
        if limits.objective == "usd":
            return self.usd_per_sample(limits)
        return self.seconds_per_sample(limits.group_size)

    def cost_error(self, limits: Limits) -> float:
        """Standard error of `cost`."""
        u, v = self.rates(limits.group_size)
        seconds = math.hypot(u * self.short.step_error, v * self.long.step_error if self.long else 0.0)
        return seconds * limits.usd_per_s(self.taken(limits)) if limits.objective == "usd" else seconds

    def length_ratio(self, limits: Limits) -> float:
        """Trained over unconditioned mean length."""
        excess = self.weigh(limits.group_size, self.short.excess_tokens, self.long.excess_tokens if self.long else 0.0)
        return length_ratio(excess, limits.mean_tokens)

    def violations(self, limits: Limits) -> list[str]:
        """The limits that the cycle breaks: "bias", "slo", "within", "memory", "sharding", "cores"."""
        broken = []
        short, long = self.short, self.long
        if math.isfinite(limits.bias_budget):
            room = limits.bias_budget * limits.mean_tokens + 1e-9
            for sign in (1.0, -1.0):
                worst = self.weigh(
                    limits.group_size,
                    sign * short.excess_tokens + CONFIDENCE_Z * short.excess_error,
                    sign * long.excess_tokens + CONFIDENCE_Z * long.excess_error if long else 0.0,
                )
                if worst > room:
                    broken.append("bias")
                    break
        if limits.slo and self.slow_share() > SLOW_SHARE + 1e-9:
            broken.append("slo")
        if limits.within_s is not None and self.step_s() > limits.within_s * (1 + 1e-9):
            broken.append("within")
        layouts = {short.layout, *(long.key.layouts if long else ())}
        trains = {self.train, self.long_train} if long else {self.train}
        if not limits.holds(layouts, trains):
            broken.append("memory")
        if limits.one_sharding and len({limits.sharding_of(train) for train in trains}) > 1:
            broken.append("sharding")
        if limits.lacks_cores(short.layout, short.reward):
            broken.append("cores")
        return broken


def make_cycle(
    short: Column[ShortKey], long: Column[LongKey] | None, train: int, long_train: int, limits: Limits
) -> Cycle:
    """A cycle with what changing between its kinds of round costs."""
    if long is None:
        return Cycle(short, None, train, train)
    switch_s = 2 * limits.layout_switch_s * (short.layout != long.layout)
    switch_s += 2 * limits.reshard_s * (limits.sharding_of(train) != limits.sharding_of(long_train))
    return Cycle(short, long, train, long_train, switch_s)


# Schedules of simulated columns: every pair of a short and a long column, with the updates that can be best.


def all_cycles(
    short: Sequence[Column[ShortKey]],
    long: Sequence[Column[LongKey]],
    needs_long: set[DeferralRule],
    limits: Limits,
    every_train: bool = False,
) -> list[Cycle]:
    """Every choice that is a schedule: a column whose rule defers goes with long columns of it that are scored alike,
    others with none.

    Of the pairs of update choices those are taken that can be part of a best cycle (`_train_pairs`), or all of them.
    """
    by_rule = partners_of(long)
    rivals = _rivals(range(len(short[0].step_s)), limits) if short else {}
    columns: list[Column[ShortKey | LongKey]] = [*short, *long]
    best = {c.name: _best_trains(c, limits, rivals) for c in columns}
    cycles = []
    for column in short:
        partners: Sequence[Column[LongKey] | None] = (
            by_rule.get((column.deferral, column.reward), []) if column.deferral in needs_long else [None]
        )
        for partner in partners:
            if every_train:
                choices = range(len(column.step_s))
                pairs = {(m, w) for m in choices for w in (choices if partner else [m])}
            else:
                pairs = _train_pairs(best[column.name], best[partner.name] if partner else None)
            cycles += [make_cycle(column, partner, *pair, limits) for pair in sorted(pairs)]
    return cycles


def partners_of(long: Sequence[Column[LongKey]]) -> dict[tuple[DeferralRule, int], list[Column[LongKey]]]:
    """Long columns by what a short column must have in common with them: the deferral rule, and the number of its
    reward choice, since both kinds of round have the same workers."""
    partners: dict[tuple[DeferralRule, int], list[Column[LongKey]]] = {}
    for column in long:
        partners.setdefault((column.deferral, column.reward), []).append(column)
    return partners


def train_pairs(short: Column[ShortKey], long: Column[LongKey], limits: Limits) -> set[tuple[int, int]]:
    """Pairs of update choices of a short and a long column that can be part of a best cycle."""
    rivals = _rivals(range(len(short.step_s)), limits)
    return _train_pairs(_best_trains(short, limits, rivals), _best_trains(long, limits, rivals))


def _rivals(choices: Sequence[int], limits: Limits) -> dict[tuple[int, int], list[int]]:
    """Update choices by (nodes at most, sharding).

    Sharding -1 is any: what a cycle takes that changes shards between its kinds of round, where it may.
    """
    levels = sorted({limits.train_nodes_of(m) for m in choices}) if limits.objective == "usd" else [0]
    shardings = set() if limits.one_sharding else {-1}
    if limits.one_sharding or limits.reshard_s > 0:
        shardings |= {limits.sharding_of(m) for m in choices}
    fits = {
        (level, sharding): [
            m
            for m in choices
            if (level == 0 or limits.train_nodes_of(m) <= level) and sharding in (-1, limits.sharding_of(m))
        ]
        for level in levels
        for sharding in shardings
    }
    return {key: choices for key, choices in fits.items() if choices}


def _best_trains(
    column: Column[ShortKey | LongKey], limits: Limits, rivals: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], list[int]]:
    """Of each of `rivals` the fastest update choice, and, under an SLO, the one with the fewest slow steps."""
    fastest: dict[tuple[int, int], list[int]] = {}
    for key, fits in rivals.items():
        fastest[key] = [min(fits, key=lambda m: (column.step_s[m], m))]
        if limits.slo:
            fastest[key].append(min(fits, key=lambda m: (column.slow[m], column.step_s[m], m)))
    return fastest


def _train_pairs(
    short: dict[tuple[int, int], list[int]], long: dict[tuple[int, int], list[int]] | None
) -> set[tuple[int, int]]:
    """Pairs that no other pair beats: costs and slow shares of a cycle are sums over its columns, and what a change of
    shards costs does not depend on which. Exact but for cycles that trade speed of one kind for calm of the other.
    """
    if long is None:
        return {(m, m) for choices in short.values() for m in choices}
    return {(m, w) for key, choices in short.items() if key in long for m in choices for w in long[key]}


def count_cycles(
    short: Sequence[Column[ShortKey]], long: Sequence[Column[LongKey]], needs_long: set[DeferralRule], limits: Limits
) -> int:
    """How many schedules there are, all update choices counted that may go together."""
    partners = Counter((c.deferral, c.reward) for c in long)
    updates = len(short[0].step_s) if short else 0
    pairs = updates**2
    if limits.one_sharding:
        pairs = sum(count**2 for count in Counter(map(limits.sharding_of, range(updates))).values())
    return sum(pairs * partners[c.deferral, c.reward] if c.deferral in needs_long else updates for c in short)
