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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...plans.schema.levers import EngineLayout
from ...plans.yaml.errors import Infeasible
from ...rounds.round_spec import UNBIASED, Mode
from ..costs.reward_costs import RewardCost
from ..lengths.draws import Draws
from ..simulate.columns.cell_columns import long_column, short_column
from ..simulate.columns.round_log import mean
from ..simulate.columns.step_noise import share_within, step_deviations
from ..simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, expected_deferrals, long_draws
from .candidates.candidate_rounds import cutoffs_between, queue_rule
from .candidates.candidate_space import Space
from .candidates.round_kinds import DeferralRule, LongKey, ShortKey, column_name, defers, is_plain_key
from .candidates.solve_options import Pass
from .cycle_cost import SLOW_SHARE, Column, Cycle, all_cycles, length_ratio, make_cycle
from .plan_limits import Limits

Progress = Callable[[str, float], None]
"""Called with a text on the current work and the share of the whole solve that is done, 0 to 1."""

HOPE = 2.0
"""A layout on which rounds of mode sync cost more than so many times the least USD is not simulated further."""
FASTER = 3.0
"""No unbiased plan is so many times as fast as rounds of mode sync on its own layout; no biased one is twice that."""

FINER = {1: 4, 2: 2}
"""By number of the pass before which cutoffs around the best one are added: into how many parts the tokens between two
cutoffs are divided. The cost is flat around its least: an eighth of the distance of `CUTOFF_LEVELS` loses far less than
1 %."""

ON_REQUEST = ("predict",)
"""Modes that are chosen only when they are forced: `predict` gains from the second epoch on, and a job does not say how
many it will have."""


# -- which candidates are near enough to the best to be worth more rounds ---------------------------------------------

REWARD_MARGIN = 0.1
"""A reward choice that makes the best plain rounds dearer by more than this share of their cost is tried no further."""

WITHIN_MARGIN = 1.05
"""How many times the seconds allowed the mean step of a schedule may take that is simulated further."""

MOST_REWARDS = 4
"""Reward choices that are tried beside the first."""


def keys_near_best(cycles: Sequence[Cycle], limits: Limits, margin: float) -> set[ShortKey | LongKey]:
    """Kinds of round of the schedules that cost at most `margin` (a share) more than the best, a standard error of
    either aside.

    The best cycle that certainly keeps the limits sets the bar. Cycles that may keep them are let through.
    """
    sure = [c for c in cycles if not c.violations(limits)]
    # The SLO is left out, and the mean step of few rounds may be off by much.
    within_s = None if limits.within_s is None else limits.within_s * (1 + margin) * WITHIN_MARGIN
    lenient = dataclasses.replace(limits, slo=False, within_s=within_s)
    maybe = [c for c in cycles if _may_keep(c, lenient)]
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


def first_rewards(
    costs: Mapping[int, float], layouts: Iterable[EngineLayout], limits: Limits
) -> dict[EngineLayout, int]:
    """The reward choice that kinds of round are first simulated with, by layout: of those whose workers have cores
    beside its engines that which costs least by `costs`, as of `rewards_near_best`.

    Kinds of round differ far more in other things than in how fast they are scored, so that few that lose with one
    choice would win with another.
    """
    return {
        layout: min(
            (choice for choice in costs if not limits.lacks_cores(layout, choice)),
            key=lambda choice: (costs[choice], choice),
            default=0,
        )
        for layout in layouts
    }


def rewards_near_best(costs: Mapping[int, float]) -> list[int]:
    """The reward choices that later passes try beside the first, by what the best plain rounds cost with each.

    Of those that are near the best they are spread over all counts of workers; what lies between is tried for the best
    schedule (ties.py).
    """
    best = min(costs, key=lambda choice: (costs[choice], choice))
    near = [c for c in sorted(costs) if c != best and costs[c] <= (1.0 + REWARD_MARGIN) * costs[best]]
    step = max(1.0, len(near) / MOST_REWARDS)
    return [near[int(step * (number + 1)) - 1] for number in range(min(MOST_REWARDS, len(near)))]


def _may_keep(cycle: Cycle, limits: Limits) -> bool:
    """Whether the cycle keeps the limits if the noise of its bias is counted in its favour."""

    def favour(column: Column[Any]) -> Column[Any]:
        return dataclasses.replace(column, excess_error=-column.excess_error) if column.excess_error else column

    short, long = favour(cycle.short), favour(cycle.long) if cycle.long else None
    if short is not cycle.short or long is not cycle.long:
        cycle = dataclasses.replace(cycle, short=short, long=long)
    return not cycle.violations(limits)


# -- the search --------------------------------------------------------------------------------------------------------


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
        self._numbers: dict[ShortKey | LongKey, Column[Any]] = {}

    # -- simulating ----------------------------------------------------------------------------------------------------

    def run_passes(self, progress: Progress) -> None:
        """Simulate; afterwards the columns near the best have the last pass's rounds."""
        rewards = self._first_reward(self.passes[0].short_rounds)
        self._drop_hopeless(self.passes[0].short_rounds)
        for number, step in enumerate(self.passes):
            short, long = self._worth(step.margin)
            if number == 1 and rewards:
                self._try_rewards(short, long, rewards)
                short, long = self._worth(step.margin)
            if number in FINER:
                self._refine_cutoffs(short, long, FINER[number])
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

    def _first_reward(self, rounds: int) -> list[int]:
        """Take the reward choice of the best plain rounds for the first pass; returns others to try."""
        if len(self.space.rewards) < 2:
            return []
        for key, column in self.short.items():
            if is_plain_key(key):
                column.extend(rounds)
        plain = [c for c in self.plain_cycles() if c.trains]
        best = min(plain, key=lambda c: (c.cost(self.limits), c.name), default=None)
        if best is None:
            return []
        tried = [best.short.key._replace(reward=choice) for choice in range(len(self.space.rewards))]
        tried = [key for key in tried if not self.limits.lacks_cores(key.layout, key.reward)]
        costs: dict[int, float] = {}
        for key in tried:
            scored = dataclasses.replace(best, short=dataclasses.replace(best.short, key=key))
            costs[key.reward] = self.simulate(scored, rounds, 0).cost(self.limits)
        first = first_rewards(costs, self.space.decode, self.limits)
        self.short, self.long = {key: self.short[key] for key in tried}, {}
        self._add(
            [key._replace(reward=first[key.layout]) for key in self.space.short],
            [key._replace(reward=reward) for key in self.space.long for reward in sorted(set(first.values()))],
        )
        return rewards_near_best(costs)

    def _try_rewards(self, short: list[ShortKey], long: list[LongKey], rewards: Sequence[int]) -> None:
        """Simulate kinds of round with other reward choices, as many rounds as in the first pass."""
        shorts = [key._replace(reward=reward) for key in short for reward in rewards]
        longs = [key._replace(reward=reward) for key in long for reward in rewards]
        self._add(shorts, longs)
        for key in shorts:
            self.short[key].extend(self.passes[0].short_rounds)
        for other in longs:
            self._extend_long(other, self.passes[0].long_rounds)

    def _add(self, short: Sequence[ShortKey], long: Sequence[LongKey]) -> None:
        """Add kinds of round that the search lacks."""
        for key in short:
            if key not in self.short:
                self.short[key] = short_column(self.setting, key)
        for other in long:
            if other not in self.long:
                self.long[other] = long_column(self.setting, other)

    def _refine_cutoffs(self, short: Sequence[ShortKey], long: Sequence[LongKey], parts: int) -> None:
        """Simulate cutoffs between the best one and its neighbours, for what is near the best with any of the three.

        `parts`: into which the tokens between two cutoffs are divided.
        """
        cycles = [c for c in self.cycles() if c.short.deferral.mode == "exact" and self.may_choose("exact")]
        kept = [c for c in cycles if not c.violations(self.limits)] or cycles
        best = min(kept, key=lambda c: (c.cost(self.limits), c.name), default=None)
        if best is None:
            return
        rules = sorted(rule for rule in self.needs_long if rule.mode == "exact")
        place = rules.index(best.short.deferral)
        beside = rules[max(0, place - 1) : place + 2]
        model, size, target = self.setting.draws.model, self.setting.group_size, self.setting.target
        most = max(key.prompts for key in self.short if key.mode == "exact")
        shorts, longs = set(), set()
        for cutoff in cutoffs_between([rule.cutoff_tokens or 0 for rule in beside], parts):
            needed = 1 / model.short_groups(cutoff, size)
            for key in short:
                if key.deferral in beside:
                    issued = key.prompts * model.short_groups(key.cutoff_tokens or 0, size)
                    shorts.add(key._replace(cutoff_tokens=cutoff, prompts=max(target, math.ceil(issued * needed))))
            rule = best.short.deferral._replace(cutoff_tokens=cutoff)
            queue = dataclasses.astuple(queue_rule(model, rule, size, target))
            longs |= {
                key._replace(deferral=rule, queue=queue if key.queue else ()) for key in long if key.deferral in beside
            }
            self.needs_long.add(rule)
        first, new = self.passes[0], sorted(key for key in shorts if key.prompts <= most)
        self._add(new, sorted(longs))
        for key in new:
            self.short[key].extend(first.short_rounds)
        for other in sorted(longs):
            self._extend_long(other, first.long_rounds)

    def _drop_hopeless(self, rounds: int) -> None:
        """Keep biased modes, where none can be chosen, on the layout that is best for sync only; and, minimising USD,
        no layout on which sync costs more than `HOPE` times the least, or takes `FASTER` times the seconds allowed."""
        limits = self.limits
        only_unbiased = self.mode is None and limits.bias_budget == 0
        if not only_unbiased and limits.objective == "seconds":
            return
        for key, column in self.short.items():
            if key.mode == "sync":
                column.extend(rounds)
        cycles = [c for c in self.sync_cycles() if c.trains]
        faster = FASTER if only_unbiased or self.mode in UNBIASED else 2 * FASTER
        near = [c for c in cycles if limits.within_s is None or c.step_s() <= faster * limits.within_s]
        if cycles and not near:
            raise Infeasible(
                f"no plan keeps the {limits.within_s:g} s of the objective usd-within: rounds of mode sync take "
                f"{min(c.step_s() for c in cycles):.3g} s at least, and no plan is {faster:g} times as fast; allow more"
            )
        kept = [c for c in near if "within" not in c.violations(limits)] or near
        best = min(kept, key=lambda c: (c.cost(limits), c.name), default=None)
        if best is None:
            return
        layouts = {c.short.layout for c in near if c.cost(limits) <= HOPE * best.cost(limits)}

        def hopeful(key: ShortKey | LongKey) -> bool:
            if limits.objective == "usd" and key.layout not in layouts:
                return False
            return not only_unbiased or key.deferral.mode in UNBIASED or key.layout == best.short.layout

        self.short = {k: c for k, c in self.short.items() if hopeful(k)}
        self.long = {k: c for k, c in self.long.items() if hopeful(k)}

    def _worth(self, margin: float) -> tuple[list[ShortKey], list[LongKey]]:
        if math.isinf(margin):
            return list(self.short), list(self.long)
        cycles = self.cycles()
        keep = keys_near_best([c for c in cycles if self.may_choose(c.short.deferral.mode)], self.limits, margin)
        # The baseline need not keep the limits of the plan.
        sync = [c for c in cycles if is_plain(c)]
        keep |= keys_near_best(sync, dataclasses.replace(self.limits, slo=False, within_s=None), margin)
        return [k for k in self.short if k in keep], [k for k in self.long if k in keep]

    def may_choose(self, mode: Mode) -> bool:
        """Whether schedules of a mode may be chosen at all: it is the forced one; or none that must be forced, and
        unbiased where there is no budget."""
        if self.mode is not None:
            return mode == self.mode
        return mode not in ON_REQUEST and (self.limits.bias_budget > 0 or mode in UNBIASED)

    @property
    def chooses_plain(self) -> bool:
        """Whether plain synchronous rounds may be chosen: no other mode is forced."""
        return self.mode in (None, "sync")

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

    def anew(self, cycles: Sequence[Cycle], draws: Draws, rewards: Sequence[RewardCost] | None = None) -> Search:
        """A search of only these schedules, on other draws, and with other costs of all reward choices if any are
        given; nothing is simulated yet."""
        short = {c.short.key for c in cycles}
        long = {c.long.key for c in cycles if c.long}
        space = dataclasses.replace(self.space, short=tuple(sorted(short)), long=tuple(sorted(long)))
        setting = dataclasses.replace(self.setting, draws=draws)
        if rewards is not None:
            setting = dataclasses.replace(setting, reward=rewards[0], other_rewards=tuple(rewards[1:]))
        limits = dataclasses.replace(self.limits, mean_tokens=draws.model.mean_tokens)
        return Search(setting, space, limits, self._slo_step_s, self.mode, self.passes)

    def simulate(self, cycle: Cycle, short_rounds: int, long_rounds: int) -> Cycle:
        """The schedule by this search's own rounds, at least so many of either kind; without long rounds if its short
        rounds defer no prompt."""
        short = cycle.short.key
        self._add([short], [])
        self.short[short].extend(short_rounds)
        long = cycle.long.key if cycle.long else None
        if long is not None:
            self._add([], [long])
            self._extend_long(long, long_rounds)
        partner = self._column(long, self.long[long]) if long is not None and len(self.long[long].log) else None
        column = self._column(short, self.short[short])
        return make_cycle(column, partner, cycle.train, cycle.long_train, self.limits)

    # -- reading -------------------------------------------------------------------------------------------------------

    def columns(self) -> tuple[list[Column[ShortKey]], list[Column[LongKey]]]:
        """(short, long) columns with at least one round, as numbers."""
        short = [self._column(k, c) for k, c in self.short.items() if len(c.log)]
        return short, [self._column(k, c) for k, c in self.long.items() if len(c.log)]

    def cycles(self) -> list[Cycle]:
        """Every schedule of the simulated columns that trained at least one group."""
        return [c for c in all_cycles(*self.columns(), self.needs_long, self.limits) if c.trains]

    def sync_cycles(self) -> list[Cycle]:
        """The schedules of mode sync among them."""
        sync = [self._column(k, c) for k, c in self.short.items() if len(c.log) and k.mode == "sync"]
        return all_cycles(sync, [], self.needs_long, self.limits)

    def plain_cycles(self) -> list[Cycle]:
        """The plain synchronous schedules among them."""
        return [c for c in self.sync_cycles() if is_plain(c)]

    def _column(self, key: ShortKey | LongKey, column: ShortColumn | LongColumn) -> Column[Any]:
        log, known = column.log, self._numbers.get(key)
        if known is not None and known.rounds == len(log):
            return known
        steps = [log.step_s(train) for train in self.space.train]
        if isinstance(column, ShortColumn):
            moved = expected_deferrals(column, self.setting)
        else:
            # Of a queue, what a round trains or filters; too few of its draws may be long.
            moved = mean(log.settled) if isinstance(key, LongKey) and key.queue else float(self.setting.target)
        unbiased = key.deferral.mode in UNBIASED
        limit = math.inf if self._slo_step_s is None else self._slo_step_s
        self._numbers[key] = Column(
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
                else 1.0
                - share_within(
                    limit, [(1.0, seconds, step_deviations(log, train, self.setting.noise(key.layout, train)))]
                )
                for seconds, train in zip(steps, self.space.train, strict=True)
            ),
            rounds=len(log),
            step_error=log.step_error(self.space.train[0]),
        )
        return self._numbers[key]

    def phase_seconds(self, cycle: Cycle, short_rounds: int, long_rounds: int) -> dict[str, float]:
        """Seconds per trained sample by phase, on a cycle's first rounds only: what two cycles are compared on if one
        has fewer. Changing engines and shards counts as weight transfer."""
        column = self.short[cycle.short.key].first(short_rounds)
        short = column.phases_s(self.space.train[cycle.train], short_rounds)
        long = dict.fromkeys(short, 0.0)
        if cycle.long:
            log = self.long[cycle.long.key].first(long_rounds)
            long = log.phases_s(self.space.train[cycle.long_train], long_rounds)
            long["sync"] += cycle.switch_s
        return {phase: cycle.weigh(self.limits.group_size, short[phase], long[phase]) for phase in short}

    def on_all_rounds(self, column: Column[Any], other: Column[Any] | None, train: int) -> Column[Any]:
        """A column with the seconds that it would have on as many rounds as `other` of its kind has: times what `other`
        has on all of its rounds over what it has on as many as the column."""
        if other is None or column.rounds >= other.rounds:
            return column
        held = self.short[other.key] if isinstance(other.key, ShortKey) else self.long[other.key]
        few_s = sum(held.first(column.rounds).phases_s(self.space.train[train], column.rounds).values())
        factor = other.step_s[train] / few_s
        return dataclasses.replace(column, step_s=tuple(factor * seconds for seconds in column.step_s))

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


def is_plain(cycle: Cycle) -> bool:
    """Whether the baseline may be this cycle: it is synchronous and uses no lever that a job must ask for."""
    return is_plain_key(cycle.short.key)
