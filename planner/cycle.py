"""What a cycle of short and long rounds costs: the closed form that columns are judged by.

With u short and v long rounds per trained sample: the prompts that short rounds defer are those that long rounds take,
D u = G v, and all of them together train one sample, n T u + n T' v = 1. Seconds per sample are then t u + t' v, and
the bias, the share of slow steps and the phases are the same weighted sums. No transient is in it: the queue neither
grows nor shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .candidates import Law, LongKey, ShortKey
from .costs import LayoutKey

# One-sided 95 %: what a biased mode must prove beyond the noise of its own simulation.
CONFIDENCE_Z = 1.645

# An SLO at p95 lets this share of the steps be slower.
SLOW_SHARE = 0.05


@dataclass(frozen=True)
class Column:
    """A kind of round as numbers, means over its simulated rounds.

    Attributes:
        name: stable, sorts as the keys do.
        step_s: seconds of a step, by micro-batch choice, in the order of the space's `train`.
        groups: groups trained by a round.
        moved: prompts that a short round defers, or that a long round takes from the queue.
        excess_tokens: trained minus unconditioned length, summed over a round's samples; 0 by construction in modes
            that are unbiased.
        excess_error: standard error of that.
        step_error: standard error of the mean step's seconds; decides what is worth more rounds, and never the plan.
        slow: share of steps beyond the SLO, by micro-batch choice.
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
    def layout(self) -> LayoutKey:
        """Its engines."""
        return self.key.layout


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan has to keep.

    Attributes:
        group_size: n.
        mean_tokens: unconditioned mean length.
        bias_budget: allowed |1 - length ratio|; infinite if bias does not matter.
        slo: whether `Column.slow` binds.
        host_memory_bytes: of the pool.
        host_bytes: of each layout's engines.
    """

    group_size: int
    mean_tokens: float
    bias_budget: float
    slo: bool
    host_memory_bytes: int
    host_bytes: dict[LayoutKey, int]


@dataclass(frozen=True, slots=True)
class Cycle:
    """One choice: a short column, the long column for what it defers (None if it defers nobody), a micro-batch."""

    short: Column
    long: Column | None
    micro: int

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
        long = share * self.long.slow[self.micro] if self.long else 0.0
        return (1.0 - share) * self.short.slow[self.micro] + long

    def seconds_per_sample(self, group_size: int) -> float:
        """The objective."""
        return self.weigh(group_size, self.short.step_s[self.micro], self.long.step_s[self.micro] if self.long else 0.0)

    def error_s(self, group_size: int) -> float:
        """Standard error of the objective."""
        u, v = self.rates(group_size)
        return math.hypot(u * self.short.step_error, v * self.long.step_error if self.long else 0.0)

    def length_ratio(self, limits: Limits) -> float:
        """Trained over unconditioned mean length."""
        excess = self.weigh(limits.group_size, self.short.excess_tokens, self.long.excess_tokens if self.long else 0.0)
        return 1.0 + excess / limits.mean_tokens

    def violations(self, limits: Limits) -> list[str]:
        """The limits that it breaks: "bias", "slo", "memory"."""
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
        if sum(limits.host_bytes[k] for k in layouts) > limits.host_memory_bytes:
            broken.append("memory")
        return broken


def all_cycles(short: Sequence[Column], long: Sequence[Column], micros: int, needs_long: set[Law]) -> list[Cycle]:
    """Every choice that is a schedule: a column whose law defers goes with long columns of it, others with none."""
    by_law: dict[Law, list[Column]] = {}
    for column in long:
        by_law.setdefault(column.law, []).append(column)
    cycles = []
    for column in short:
        partners: Sequence[Column | None] = by_law.get(column.law, []) if column.law in needs_long else [None]
        cycles += [Cycle(column, partner, micro) for partner in partners for micro in range(micros)]
    return cycles
