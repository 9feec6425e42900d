"""From all candidates to the few that are worth many rounds: successive halving on common random numbers.

A first pass simulates a few rounds of every column; each later pass simulates more rounds of those columns that are
part of a cycle close to the best one: within a standard error of either and a margin. So a plan's "optimal" means:
proven among the columns that survive, the others having lost by more than that noise.

Modes that are biased by construction and that no budget lets in are simulated in the first pass only: their figures
serve the `why`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from ...plans.schema.base import Mode
from ..costs.reward_costs import RewardCost
from ..costs.step_noise import share_within, step_deviations
from ..lengths.draws import Draws
from ..simulate.columns.cell_columns import long_column, short_column
from ..simulate.columns.round_log import mean
from ..simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, expected_deferrals, long_draws
from .candidates.candidate_space import Space
from .candidates.round_kinds import DeferralRule, LongKey, ShortKey, column_name, defers, is_plain_key
from .cycle_cost import SLOW_SHARE, Column, Cycle, length_ratio, make_cycle
from .plan_limits import Limits
from .schedules import all_cycles

Progress = Callable[[str, float], None]
"""Called with a text on the current work and the share of the whole solve that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Rounds of a short and of a long column, and how far from the best a cycle may be to get this pass.

    `margin` is relative and comes on top of a standard error of either.
    """

    short_rounds: int
    long_rounds: int
    margin: float


PASSES = (Pass(8, 4, math.inf), Pass(24, 12, 0.05), Pass(64, 32, 0.02), Pass(160, 64, 0.0))
"""All columns of a pass have the same rounds on the same draws, so those of the last can be compared and predicted
from."""


UNBIASED = ("sync", "exact", "predict")
"""Modes whose trained lengths are unconditioned by construction."""


ON_REQUEST = ("predict",)
"""Modes that are chosen only when they are forced: `predict` gains from the second epoch on, and a job does not say how
many it will have."""


class Search:
    """Holds the simulated columns of a solve.

    Args:
        slo_step_s: bound for 95 % of the steps, or None.
        mode: the forced mode; None if the program is free to choose.
        passes: how many rounds are simulated of what; the first takes every column.
    """

    def __init__(
        self,
        setting: Setting,
        space: Space,
        limits: Limits,
        slo_step_s: float | None,
        mode: Mode | None,
        passes: Sequence[Pass],
    ) -> None:
        self.mode = mode
        self.passes = passes
        self.setting = setting
        self.space = space
        self.limits = limits
        self._slo_step_s = slo_step_s
        self.short = {key: short_column(setting, key) for key in space.short}
        self.long = {key: long_column(setting, key) for key in space.long}
        self.needs_long: set[DeferralRule] = {k.deferral for k in space.short if defers(k.deferral, setting.target)}
        self._pools: dict[DeferralRule, list[str]] = {}

    # -- simulating ----------------------------------------------------------------------------------------------------

    def run_passes(self, progress: Progress) -> None:
        """Simulate; afterwards the columns near the best have the last pass's rounds."""
        self._drop_hopeless(self.passes[0].short_rounds)
        for number, step in enumerate(self.passes):
            short, long = self._worth(step.margin)
            total = len(short) + len(long)
            work: list[Callable[[], None]] = [partial(self.short[k].extend, step.short_rounds) for k in short]
            work += [partial(self._extend_long, k, step.long_rounds) for k in long]
            for done, simulate in enumerate(work):
                simulate()
                progress(
                    f"pass {number + 1} of {len(self.passes)}: {total} kinds of round",
                    (number + done / total) / len(self.passes),
                )

    def _drop_hopeless(self, rounds: int) -> None:
        """Where no biased mode can be chosen, keep its candidates on the layout that is best for sync only."""
        if self.mode is not None or self.limits.bias_budget > 0:
            return
        for key, column in self.short.items():
            if key.mode == "sync":
                column.extend(rounds)
        best = min(self.cycles(), key=lambda c: (c.cost(self.limits), c.name), default=None)
        if best is None:
            return

        def hopeful(key: ShortKey | LongKey) -> bool:
            return key.deferral.mode in UNBIASED or key.layout == best.short.layout

        self.short = {k: c for k, c in self.short.items() if hopeful(k)}
        self.long = {k: c for k, c in self.long.items() if hopeful(k)}

    def _worth(self, margin: float) -> tuple[list[ShortKey], list[LongKey]]:
        if math.isinf(margin):
            return list(self.short), list(self.long)
        cycles = self.cycles()
        keep = self._near_best([c for c in cycles if self._eligible(c)], self.limits, margin)
        # The baseline need not keep the limits of the plan.
        sync = [c for c in cycles if is_plain(c)]
        keep |= self._near_best(sync, dataclasses.replace(self.limits, slo=False), margin)
        return [k for k in self.short if k in keep], [k for k in self.long if k in keep]

    def _near_best(self, cycles: list[Cycle], limits: Limits, margin: float) -> set[ShortKey | LongKey]:
        # The best cycle that certainly keeps the limits sets the bar. Cycles that may keep them are let through.
        sure = [c for c in cycles if not c.violations(limits)]
        maybe = [c for c in cycles if _may_keep(c, limits)]
        if not sure and limits.slo:
            # Few rounds tell little about 5 % of the steps: the columns with the fewest slow steps may keep the SLO.
            fewest = min((c.slow_share() for c in maybe), default=0.0)
            maybe = [c for c in maybe if c.slow_share() <= fewest + SLOW_SHARE]
        best = min((c.cost(limits) + c.cost_error(limits) for c in sure or maybe), default=math.inf)
        bar = best * (1 + margin)
        keep: set[ShortKey | LongKey] = set()
        for cycle in maybe:
            if cycle.cost(limits) - cycle.cost_error(limits) <= bar:
                keep.add(cycle.short.key)
                if cycle.long:
                    keep.add(cycle.long.key)
        return keep

    def _eligible(self, cycle: Cycle) -> bool:
        return self.may_choose(cycle.short.deferral.mode)

    def may_choose(self, mode: Mode) -> bool:
        """Whether schedules of a mode may be chosen at all: it is the forced one; or none that must be forced, and
        unbiased where there is no budget."""
        if self.mode is not None:
            return mode == self.mode
        return mode not in ON_REQUEST and (self.limits.bias_budget > 0 or mode in UNBIASED)

    def _extend_long(self, key: LongKey, rounds: int) -> None:
        pool = self.pool(key.deferral, rounds * self.setting.simulated_target)
        # Empty if the rule's few rounds deferred no prompt; such a rule has no cycle.
        if pool:
            self.long[key].extend(rounds, pool)

    def pool(self, rule: DeferralRule, wanted: int) -> list[str]:
        """Deferred prompts of a rule, oldest first; a pool only ever grows at its end."""
        pool = self._pools.get(rule, [])
        if len(pool) < wanted:
            if rule.cutoff_tokens is not None:
                pool = long_draws(self.setting.draws, self.setting.group_size, rule.cutoff_tokens, wanted)
            elif rule.mode == "predict":
                pool = self.setting.earlier.long_prompts(rule.long_share, wanted)
            else:
                # The layout hardly changes which prompts finish first; the column with most rounds has most deferred
                # prompts.
                columns = [c for k, c in self.short.items() if k.deferral == rule]
                longest = max(columns, key=lambda c: len(c.deferred_prompts))
                pool = list(longest.deferred_prompts)
            self._pools[rule] = pool
        return pool

    def anew(self, cycles: Sequence[Cycle], draws: Draws, reward: RewardCost | None = None) -> Search:
        """A search of only these schedules, on other draws, and with other reward costs if any are given; nothing is
        simulated yet."""
        short = {cast(ShortKey, c.short.key) for c in cycles}
        long = {cast(LongKey, c.long.key) for c in cycles if c.long}
        space = dataclasses.replace(self.space, short=tuple(sorted(short)), long=tuple(sorted(long)))
        setting = dataclasses.replace(self.setting, draws=draws, reward=reward or self.setting.reward)
        limits = dataclasses.replace(self.limits, mean_tokens=draws.model.mean_tokens)
        return Search(setting, space, limits, self._slo_step_s, self.mode, self.passes)

    def simulate(self, cycle: Cycle, short_rounds: int, long_rounds: int) -> Cycle:
        """The schedule by this search's own rounds, at least so many of either kind; without long rounds if its short
        rounds defer no prompt."""
        short = cast(ShortKey, cycle.short.key)
        self.short[short].extend(short_rounds)
        long = cast(LongKey, cycle.long.key) if cycle.long else None
        if long is not None:
            self._extend_long(long, long_rounds)
        partner = self._column(long, self.long[long]) if long is not None and len(self.long[long].log) else None
        column = self._column(short, self.short[short])
        return make_cycle(column, partner, cycle.train, cycle.long_train, self.limits)

    # -- reading -------------------------------------------------------------------------------------------------------

    def columns(self) -> tuple[list[Column], list[Column]]:
        """(short, long) columns with at least one round, as numbers."""
        short = [self._column(k, c) for k, c in self.short.items() if len(c.log)]
        long = [self._column(k, c) for k, c in self.long.items() if len(c.log)]
        return short, long

    def cycles(self) -> list[Cycle]:
        """Every schedule of the simulated columns that trained at least one group."""
        return [c for c in all_cycles(*self.columns(), self.needs_long, self.limits) if c.trains]

    def plain_cycles(self) -> list[Cycle]:
        """The plain synchronous schedules among them."""
        plain = [self._column(k, c) for k, c in self.short.items() if len(c.log) and is_plain_key(k)]
        return all_cycles(plain, [], self.needs_long, self.limits)

    def _column(self, key: ShortKey | LongKey, column: ShortColumn | LongColumn) -> Column:
        log = column.log
        steps = [log.step_s(train) for train in self.space.train]
        noise = [self.setting.noise(key.layout, train) for train in self.space.train]
        if isinstance(column, ShortColumn):
            moved = expected_deferrals(column, self.setting)
        else:
            moved = float(self.setting.target)
        unbiased = key.deferral.mode in UNBIASED
        limit = math.inf if self._slo_step_s is None else self._slo_step_s
        return Column(
            name=column_name(key),
            key=key,
            step_s=tuple(mean(s) for s in steps),
            groups=mean(log.groups),
            moved=moved,
            excess_tokens=0.0 if unbiased else mean(log.excess),
            excess_error=0.0 if unbiased else log.excess_error(),
            slow=tuple(
                0.0
                if math.isinf(limit)
                else 1.0 - share_within(limit, [(1.0, seconds, step_deviations(log, train, scatter))])
                for seconds, train, scatter in zip(steps, self.space.train, noise, strict=True)
            ),
            rounds=len(log),
            step_error=log.step_error(self.space.train[0]),
        )

    def phase_seconds(self, cycle: Cycle, short_rounds: int, long_rounds: int) -> dict[str, float]:
        """Seconds per trained sample by phase, on a cycle's first rounds only: what two cycles are compared on if one
        has fewer. Changing engines and shards counts as weight transfer."""
        column = self.short[cast(ShortKey, cycle.short.key)].first(short_rounds)
        short = column.phases_s(self.space.train[cycle.train], short_rounds)
        long = dict.fromkeys(short, 0.0)
        if cycle.long:
            log = self.long[cast(LongKey, cycle.long.key)].first(long_rounds)
            long = log.phases_s(self.space.train[cycle.long_train], long_rounds)
            long["sync"] += cycle.switch_s
        return {phase: cycle.weigh(self.limits.group_size, short[phase], long[phase]) for phase in short}

    def measured_ratio(self, cycle: Cycle) -> tuple[float, float]:
        """(trained over unconditioned mean length, its standard error) as simulated.

        The excess of unbiased modes has the expectation 0 but for exhausted prompts; only these are then looked at.
        """
        size, unit = self.limits.group_size, self.limits.mean_tokens
        u, v = cycle.rates(size)
        assert isinstance(cycle.short.key, ShortKey)
        logs = [self.short[cycle.short.key].log]
        if cycle.long and isinstance(cycle.long.key, LongKey):
            logs.append(self.long[cycle.long.key].log)
        unbiased = cycle.short.deferral.mode in UNBIASED
        short, *rest = [log.leak if unbiased else log.excess for log in logs]
        long = rest[0] if rest else [0]
        ratio = length_ratio(u * mean(short) + v * mean(long), unit)
        short_error, *errors = [log.leak_error() if unbiased else log.excess_error() for log in logs]
        return ratio, math.hypot(u * short_error, v * (errors[0] if errors else 0.0)) / unit


def _may_keep(cycle: Cycle, limits: Limits) -> bool:
    """Whether the cycle keeps the limits if the noise of its bias is counted in its favour, and the SLO left out."""

    def favour(column: Column) -> Column:
        return dataclasses.replace(column, excess_error=-column.excess_error)

    lenient = dataclasses.replace(cycle, short=favour(cycle.short), long=favour(cycle.long) if cycle.long else None)
    return not lenient.violations(dataclasses.replace(limits, slo=False))


def is_plain(cycle: Cycle) -> bool:
    """Whether the baseline may be this cycle: it is synchronous and uses no lever that a job must ask for."""
    return is_plain_key(cycle.short.key)
