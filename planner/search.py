"""From all candidates to the few that are worth many rounds: successive halving on common random numbers.

A first pass simulates a few rounds of every column; each later pass simulates more rounds of those columns that are
part of a cycle close to the best one. The margin of a pass is a stated allowance for the noise of the pass before it,
so "optimal" means: proven among the columns that survive, the others having lost by more than the margin.

Modes that are biased by construction and that no budget lets in are simulated in the first pass only: their figures
serve the `why`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .candidates import Law, LongKey, Mode, ShortKey, Space, defers
from .columns import (
    LongColumn,
    Setting,
    ShortColumn,
    expected_deferrals,
    long_draws,
    mean,
    standard_error,
)
from .cycle import Column, Cycle, Limits, all_cycles

Progress = Callable[[str, float], None]
"""Told what is done (text) and how far the whole solve is, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Rounds of a short and of a long column, and how far from the best a cycle may be to get this pass."""

    short_rounds: int
    long_rounds: int
    margin: float


PASSES = (Pass(6, 3, math.inf), Pass(24, 12, 0.10), Pass(64, 24, 0.04), Pass(160, 64, 0.012))
"""All columns of a pass have the same rounds on the same luck, so the last one's can be compared and predicted from."""

UNBIASED = ("sync", "exact")
"""Modes whose trained lengths are unconditioned by construction (design.md, Bias)."""


class Search:
    """Holds the simulated columns of a solve.

    Args:
        slo_step_s: bound for 95 % of the steps, or None.
        mode: the forced mode; None if the program is free to choose.
    """

    def __init__(
        self, setting: Setting, space: Space, limits: Limits, slo_step_s: float | None, mode: Mode | None
    ) -> None:
        self.mode = mode
        self.setting = setting
        self.space = space
        self.limits = limits
        self._slo_step_s = slo_step_s
        self.short = {key: ShortColumn(setting, key) for key in space.short}
        self.long = {key: LongColumn(setting, key) for key in space.long}
        self.needs_long: set[Law] = {k.law for k in space.short if defers(k.law, setting.target)}
        self._pools: dict[Law, list[str]] = {}

    # -- simulating ----------------------------------------------------------------------------------------------------

    def run_passes(self, progress: Progress) -> None:
        """Simulate; afterwards the columns near the best have the last pass's rounds."""
        self._drop_hopeless(PASSES[0].short_rounds)
        for number, step in enumerate(PASSES):
            short, long = self._worth(step.margin)
            total = len(short) + len(long)
            work: list[Callable[[], None]] = [partial(self.short[k].extend, step.short_rounds) for k in short]
            work += [partial(self._extend_long, k, step.long_rounds) for k in long]
            for done, simulate in enumerate(work):
                simulate()
                progress(
                    f"pass {number + 1} of {len(PASSES)}: {total} kinds of round", (number + done / total) / len(PASSES)
                )

    def _drop_hopeless(self, rounds: int) -> None:
        """Where no biased mode can be chosen, keep its candidates on the layout that is best for sync only."""
        if self.mode is not None or self.limits.bias_budget > 0:
            return
        for key, column in self.short.items():
            if key.mode == "sync":
                column.extend(rounds)
        best = min(self.cycles(), key=lambda c: (c.seconds_per_sample(self.limits.group_size), c.short.name, c.micro))

        def hopeful(key: ShortKey | LongKey) -> bool:
            return key.law.mode in UNBIASED or key.layout == best.short.layout

        self.short = {k: c for k, c in self.short.items() if hopeful(k)}
        self.long = {k: c for k, c in self.long.items() if hopeful(k)}

    def _worth(self, margin: float) -> tuple[list[ShortKey], list[LongKey]]:
        if math.isinf(margin):
            return list(self.short), list(self.long)
        cycles = self.cycles()
        keep: set[ShortKey | LongKey] = set()
        for group in (cycles, [c for c in cycles if c.short.law.mode == "sync"]):
            keep |= self._near_best(group, margin)
        return [k for k in self.short if k in keep], [k for k in self.long if k in keep]

    def _near_best(self, cycles: list[Cycle], margin: float) -> set[ShortKey | LongKey]:
        size = self.limits.group_size
        # The bar is what certainly keeps the limits. What may keep them once the noise is less is let through to it.
        sure = [c.seconds_per_sample(size) for c in cycles if self._wanted(c) and not c.violations(self.limits)]
        bar = min(sure, default=math.inf) * (1 + margin)
        keep: set[ShortKey | LongKey] = set()
        for cycle in cycles:
            if self._wanted(cycle) and cycle.seconds_per_sample(size) <= bar and self._may_keep_limits(cycle):
                keep.add(cycle.short.key)
                if cycle.long:
                    keep.add(cycle.long.key)
        return keep

    def _wanted(self, cycle: Cycle) -> bool:
        """Whether it may be chosen at all (with no budget only what is unbiased), or may be the baseline."""
        mode = cycle.short.law.mode
        if self.mode is not None:
            return mode in ("sync", self.mode)
        return self.limits.bias_budget > 0 or mode in UNBIASED

    def _may_keep_limits(self, cycle: Cycle) -> bool:
        def favour(column: Column) -> Column:
            return dataclasses.replace(column, excess_error=-column.excess_error)

        lenient = Cycle(favour(cycle.short), favour(cycle.long) if cycle.long else None, cycle.micro)
        return not lenient.violations(dataclasses.replace(self.limits, slo=False))

    def _extend_long(self, key: LongKey, rounds: int) -> None:
        pool = self._pool(key.law, rounds * self.setting.target)
        # Empty if the law's few rounds deferred nobody; such a law has no cycle and falls out.
        if pool:
            self.long[key].extend(rounds, pool)

    def _pool(self, law: Law, wanted: int) -> list[str]:
        """Deferred prompts of a law, oldest first; a pool only ever grows at its end."""
        pool = self._pools.get(law, [])
        if len(pool) < wanted:
            if law.mode == "exact":
                pool = long_draws(self.setting.draws, self.setting.group_size, law.cutoff, wanted)
            else:
                # Layouts hardly move who finishes first; the column with most rounds has most of them.
                columns = [c for k, c in self.short.items() if k.law == law]
                longest = max(columns, key=lambda c: len(c.deferred_prompts))
                pool = list(longest.deferred_prompts)
            self._pools[law] = pool
        return pool

    # -- reading -------------------------------------------------------------------------------------------------------

    def columns(self) -> tuple[list[Column], list[Column]]:
        """(short, long) columns with at least one round, as numbers."""
        short = [self._column(k, c) for k, c in self.short.items() if len(c.log)]
        long = [self._column(k, c) for k, c in self.long.items() if len(c.log)]
        return short, long

    def cycles(self) -> list[Cycle]:
        """Every schedule of the simulated columns."""
        return all_cycles(*self.columns(), len(self.space.train), self.needs_long)

    def _column(self, key: ShortKey | LongKey, column: ShortColumn | LongColumn) -> Column:
        log = column.log
        steps = [log.step_s(train) for train in self.space.train]
        if isinstance(column, ShortColumn):
            moved = expected_deferrals(column, self.setting)
        else:
            moved = float(self.setting.target)
        unbiased = key.law.mode in UNBIASED
        limit = math.inf if self._slo_step_s is None else self._slo_step_s
        return Column(
            name=column_name(key),
            key=key,
            step_s=tuple(mean(s) for s in steps),
            groups=mean(log.groups),
            moved=moved,
            excess_tokens=0.0 if unbiased else mean(log.excess),
            excess_error=0.0 if unbiased else standard_error(log.excess),
            slow=tuple(mean([float(t > limit) for t in s]) for s in steps),
            rounds=len(log),
        )

    def measured_ratio(self, cycle: Cycle) -> tuple[float, float]:
        """(trained over unconditioned mean length, its standard error) as simulated, for unbiased modes too."""
        size, unit = self.limits.group_size, self.limits.mean_tokens
        u, v = cycle.rates(size)
        assert isinstance(cycle.short.key, ShortKey)
        short = self.short[cycle.short.key].log.excess
        long = self.long[cycle.long.key].log.excess if cycle.long and isinstance(cycle.long.key, LongKey) else [0]
        ratio = 1.0 + (u * mean(short) + v * mean(long)) / unit
        return ratio, math.hypot(u * standard_error(short), v * standard_error(long)) / unit


def column_name(key: ShortKey | LongKey) -> str:
    """Stable name that sorts by mode, issue, cutoff, copies, layout."""
    law = key.law
    layout = f"tp{key.layout.tp:03d}x{key.layout.engines:03d}"
    if isinstance(key, ShortKey):
        return f"{key.mode}:p{key.prompts:05d}:n{key.samples:04d}:c{key.cutoff:06d}:{layout}"
    return f"{law.mode}:p{law.prompts:05d}:n{law.samples:04d}:c{law.cutoff:06d}:m{key.copies:02d}:{layout}"
