"""What a cycle of short and long rounds costs: the closed form that columns are judged by.

With u short and v long rounds per trained sample: the prompts that short rounds defer are those that long rounds take,
D u = G v, and all of them together train one sample, n T u + n T' v = 1. Seconds per sample are then t u + t' v, and
the bias, the share of slow steps and the phases are the same weighted sums. No transient is in it: the queue neither
grows nor shrinks. Each kind of round has its own engines and its own update layout; a long round pays for the change
from and back to the short rounds' ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...plans.schema.sections.layouts import EngineLayout
from ..costs.host_memory import Share
from .candidates import Law, LongKey, ShortKey

Objective = Literal["seconds", "usd"]
"""What is minimised, per trained sample."""

# One-sided 95 %: what a biased mode must prove beyond the noise of its own simulation.
CONFIDENCE_Z = 1.645

# An SLO at p95 lets this share of the steps be slower.
SLOW_SHARE = 0.05


@dataclass(frozen=True)
class Column:
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
    key: ShortKey | LongKey
    step_s: tuple[float, ...]
    groups: float
    moved: float
    excess_tokens: float
    excess_error: float
    slow: tuple[float, ...]
    rounds: int
    step_error: float = 0.0

    @property
    def law(self) -> Law:
        """Whom its short rounds defer."""
        return self.key.law

    @property
    def layout(self) -> EngineLayout:
        """Its engines."""
        return self.key.layout


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan has to keep, what changing between kinds of round costs, and what is minimised.

    Attributes:
        group_size: n.
        mean_tokens: unconditioned mean length.
        bias_budget: allowed |1 - length ratio|; infinite if bias does not matter.
        slo: whether `Column.slow` binds.
        host_memory_bytes: of a node.
        host_bytes: of each layout's engines, all together; they are spread evenly over the nodes that a plan takes.
        sharding: for each update choice a number; choices with the same number shard the model alike.
        reshard_s: seconds of changing between two shardings.
        layout_switch_s: seconds of changing between the engines of two layouts.
        objective: "seconds" or "usd", per trained sample.
        nodes: nodes that each layout's engines take.
        train_nodes: nodes that each update choice takes.
        usd_per_node_s: price of a node.
        train_host: host memory of each update choice's trainers; empty: none.
        pool_nodes: the most nodes that a plan can take.
        one_sharding: both kinds of round shard the model alike, since one set of trainers serves both.
    """

    group_size: int
    mean_tokens: float
    bias_budget: float
    slo: bool
    host_memory_bytes: int
    host_bytes: dict[EngineLayout, int]
    sharding: tuple[int, ...] = ()
    reshard_s: float = 0.0
    layout_switch_s: float = 0.0
    objective: Objective = "seconds"
    nodes: dict[EngineLayout, int] = field(default_factory=dict)
    train_nodes: tuple[int, ...] = ()
    usd_per_node_s: float = 0.0
    train_host: tuple[Share, ...] = ()
    pool_nodes: int = 1
    one_sharding: bool = False

    def engines_on_node(self, layout: EngineLayout, nodes: int) -> float:
        """Bytes of host memory that a layout's engines take on the fullest of so many nodes."""
        each = -(-layout.engines // nodes)
        return self.host_bytes[layout] * each / layout.engines

    def trainers_on_node(self, train: int, nodes: int) -> float:
        """The same of an update choice's trainers."""
        return self.train_host[train].on_node(nodes) if self.train_host else 0.0

    def on_node(self, layouts: Iterable[EngineLayout], trains: Iterable[int], nodes: int) -> float:
        """Bytes of host memory on the fullest of so many nodes: engines of all layouts, and the trainers that take
        most, since a model's training state is there once."""
        engines = sum(self.engines_on_node(layout, nodes) for layout in set(layouts))
        return engines + max((self.trainers_on_node(train, nodes) for train in set(trains)), default=0.0)

    def nodes_for(self, layouts: Iterable[EngineLayout], trains: Iterable[int]) -> int:
        """The fewest nodes whose host memory holds these engines and trainers; all of the pool's where none does."""
        layouts, trains = set(layouts), set(trains)
        few, many = 1, self.pool_nodes
        while few < many:  # on more nodes the fullest holds no more
            middle = (few + many) // 2
            if self.on_node(layouts, trains, middle) <= self.host_memory_bytes:
                many = middle
            else:
                few = middle + 1
        return many

    def sharding_of(self, train: int) -> int:
        """How update choice `train` shards the model."""
        return self.sharding[train] if self.sharding else 0

    def nodes_of(self, layout: EngineLayout) -> int:
        """Nodes of a layout's engines."""
        return self.nodes.get(layout, 1)

    def train_nodes_of(self, train: int) -> int:
        """Nodes of an update choice."""
        return self.train_nodes[train] if self.train_nodes else 1


def length_ratio(excess_tokens: float, mean_tokens: float) -> float:
    """Trained over unconditioned mean length. However few rounds it is from: a response has at least one token."""
    return max(1.0 / mean_tokens, 1.0 + excess_tokens / mean_tokens)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One choice: a short column, the long column for what it defers (None if it defers nobody), and how each trains.

    `switch_s` are the seconds that one long round costs for changing engines and shards, there and back.
    """

    short: Column
    long: Column | None
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
        """Whether its rounds trained any group; if not, it has no rates and no cost."""
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

    def seconds_per_sample(self, group_size: int) -> float:
        """Seconds of the whole pool per trained sample."""
        long = self.long.step_s[self.long_train] + self.switch_s if self.long else 0.0
        return self.weigh(group_size, self.short.step_s[self.train], long)

    def nodes(self, limits: Limits) -> int:
        """Nodes that the plan takes: what its hungriest part needs."""
        layouts = [self.short.layout, *([self.long.layout] if self.long else [])]
        trains = [self.train, *([self.long_train] if self.long else [])]
        parts = [*map(limits.nodes_of, layouts), *map(limits.train_nodes_of, trains)]
        return max(*parts, limits.nodes_for(layouts, trains))

    def usd_per_sample(self, limits: Limits) -> float:
        """USD per trained sample, for the nodes that the plan takes."""
        return self.seconds_per_sample(limits.group_size) * self.nodes(limits) * limits.usd_per_node_s

    def cost(self, limits: Limits) -> float:
        """What is minimised."""
        if limits.objective == "usd":
            return self.usd_per_sample(limits)
        return self.seconds_per_sample(limits.group_size)

    def cost_error(self, limits: Limits) -> float:
        """Standard error of `cost`."""
        u, v = self.rates(limits.group_size)
        seconds = math.hypot(u * self.short.step_error, v * self.long.step_error if self.long else 0.0)
        return seconds * self.nodes(limits) * limits.usd_per_node_s if limits.objective == "usd" else seconds

    def length_ratio(self, limits: Limits) -> float:
        """Trained over unconditioned mean length."""
        excess = self.weigh(limits.group_size, self.short.excess_tokens, self.long.excess_tokens if self.long else 0.0)
        return length_ratio(excess, limits.mean_tokens)

    def violations(self, limits: Limits) -> list[str]:
        """The limits that it breaks: "bias", "slo", "memory", "sharding"."""
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
        layouts = {short.layout, long.layout} if long else {short.layout}
        trains = {self.train, self.long_train} if long else {self.train}
        if limits.on_node(layouts, trains, limits.pool_nodes) > limits.host_memory_bytes:
            broken.append("memory")
        if limits.one_sharding and len({limits.sharding_of(train) for train in trains}) > 1:
            broken.append("sharding")
        return broken


def make_cycle(short: Column, long: Column | None, train: int, long_train: int, limits: Limits) -> Cycle:
    """A cycle with what changing between its kinds of round costs."""
    if long is None:
        return Cycle(short, None, train, train)
    switch_s = 2 * limits.layout_switch_s * (short.layout != long.layout)
    switch_s += 2 * limits.reshard_s * (limits.sharding_of(train) != limits.sharding_of(long_train))
    return Cycle(short, long, train, long_train, switch_s)


def all_cycles(
    short: Sequence[Column], long: Sequence[Column], needs_long: set[Law], limits: Limits, every_train: bool = False
) -> list[Cycle]:
    """Every choice that is a schedule: a column whose law defers goes with long columns of it, others with none.

    Of the pairs of update choices those are taken that can be part of a best cycle (`_train_pairs`), or all of them.
    """
    by_law: dict[Law, list[Column]] = {}
    for column in long:
        by_law.setdefault(column.law, []).append(column)
    best = {c.name: _best_trains(c, limits) for c in [*short, *long]}
    cycles = []
    for column in short:
        partners: Sequence[Column | None] = by_law.get(column.law, []) if column.law in needs_long else [None]
        for partner in partners:
            if every_train:
                choices = range(len(column.step_s))
                pairs = {(m, w) for m in choices for w in (choices if partner else [m])}
            else:
                pairs = _train_pairs(best[column.name], best[partner.name] if partner else None)
            cycles += [make_cycle(column, partner, *pair, limits) for pair in sorted(pairs)]
    return cycles


def train_pairs(short: Column, long: Column, limits: Limits) -> set[tuple[int, int]]:
    """Pairs of update choices of a short and a long column that can be part of a best cycle."""
    return _train_pairs(_best_trains(short, limits), _best_trains(long, limits))


def _best_trains(column: Column, limits: Limits) -> dict[tuple[int, int], list[int]]:
    """By (nodes at most, sharding): the fastest update choice, and, under an SLO, the one with the fewest slow steps.

    Sharding -1 is any: what a cycle takes that changes shards between its kinds of round, where it may.
    """
    choices = range(len(column.step_s))
    levels = sorted({limits.train_nodes_of(m) for m in choices}) if limits.objective == "usd" else [0]
    shardings = set() if limits.one_sharding else {-1}
    if limits.one_sharding or limits.reshard_s > 0:
        shardings |= {limits.sharding_of(m) for m in choices}
    found: dict[tuple[int, int], list[int]] = {}
    for level in levels:
        for sharding in shardings:
            fits = [
                m
                for m in choices
                if (level == 0 or limits.train_nodes_of(m) <= level) and sharding in (-1, limits.sharding_of(m))
            ]
            if fits:
                fast = min(fits, key=lambda m: (column.step_s[m], m))
                calm = min(fits, key=lambda m: (column.slow[m], column.step_s[m], m))
                found[level, sharding] = [fast, calm] if limits.slo else [fast]
    return found


def _train_pairs(
    short: dict[tuple[int, int], list[int]], long: dict[tuple[int, int], list[int]] | None
) -> set[tuple[int, int]]:
    """Pairs that no other pair beats: costs and slow shares of a cycle are sums over its columns, and what a change of
    shards costs does not depend on which. Exact but for cycles that trade speed of one kind for calm of the other.
    """
    if long is None:
        return {(m, m) for choices in short.values() for m in choices}
    return {(m, w) for key, choices in short.items() if key in long for m in choices for w in long[key]}


def count_cycles(short: Sequence[Column], long: Sequence[Column], needs_long: set[Law]) -> int:
    """How many schedules there are, all update choices counted."""
    partners = Counter(c.law for c in long)
    return sum(len(c.step_s) ** 2 * partners[c.law] if c.law in needs_long else len(c.step_s) for c in short)
