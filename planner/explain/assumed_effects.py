"""The effects of a plan's assumed lengths and rewards, which were not measured on its job, on the seconds of its steps.

Two things may be assumed: response lengths (`TableTrace`, drawn from a table) and reward seconds (`RewardTable`). Each
table states one standard deviation of a few independent parameters between jobs of its kind. The chosen schedule is
simulated again with each parameter one deviation down and one up; decisions, other costs and seeds stay. With costs c-
and c+ of a parameter,

    error = sqrt(sum over parameters of (ln(c+ / c-) / 2)^2)

is the relative standard deviation of the cost, to first order. Where one side gives the schedule nothing to train (all
groups go beyond the cutoff), the distance of the other side to the plan's own cost counts instead.

The plain synchronous schedule is simulated beside it, to tell the speed-up that would be left. These few rounds tell by
which factor a parameter changes the speed-up, and that factor is applied to the plan's predicted speed-up.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

from ...plans.phrases.numbers import MATTERS, times
from ...plans.schema.job import Job
from ...profiles.length_trace import LengthTrace
from ...profiles.phase_schema import Reward
from ...profiles.reward_tables import RewardTable
from ..choose.candidate_search import Search
from ..choose.cycle_cost import Cycle
from ..choose.holdout_rounds import Holdout
from ..costs.reward_costs import RewardCost
from ..lengths.draws import Draws
from ..lengths.length_model import fit_lengths
from ..lengths.table_lengths import TableTrace
from .length_error import FEWEST, MOST, SAMPLES, can_train

_SEED_OFFSET = 6_000_011  # draws that neither the choice nor the prediction has seen


class AssumedOutcome(NamedTuple):
    """One simulation of the chosen schedule: its cost per trained sample, and the plain schedule's over it."""

    cost: float
    speedup: float


class Effect(NamedTuple):
    """The outcomes with one assumed parameter one deviation down and up; None: the schedule then has nothing to
    train."""

    down: AssumedOutcome | None
    up: AssumedOutcome | None

    def log_change(self, as_planned: AssumedOutcome) -> float:
        """Change of the logarithm of the cost by one deviation up; its size is the logarithm's standard deviation."""
        if self.down is not None and self.up is not None:
            return math.log(self.up.cost / self.down.cost) / 2
        side = self.down or self.up
        change = 0.0 if side is None else math.log(side.cost / as_planned.cost)
        return change if side is self.up else -change


@dataclass(frozen=True)
class AssumedEffects:
    """The effect of each assumed parameter's error on the plan; empty if nothing is assumed.

    Attributes:
        as_planned: the plan as it is, on the same few rounds.
        speedup: the plan's own over plain rounds, as predicted.
        lengths, rewards: by parameter of the table of lengths, of the table of reward seconds.
    """

    as_planned: AssumedOutcome | None = None
    speedup: float = 1.0
    lengths: dict[str, Effect] = dataclasses.field(default_factory=dict)
    rewards: dict[str, Effect] = dataclasses.field(default_factory=dict)

    @property
    def lengths_error(self) -> float:
        """Relative standard deviation of the plan's cost for the lengths that were assumed."""
        return self._error(self.lengths)

    @property
    def rewards_error(self) -> float:
        """Relative standard deviation of the plan's cost for the reward seconds that were assumed."""
        return self._error(self.rewards)

    def _error(self, effects: dict[str, Effect]) -> float:
        return (
            0.0 if self.as_planned is None else math.hypot(*(e.log_change(self.as_planned) for e in effects.values()))
        )

    def parts(self) -> dict[str, float]:
        """By assumed parameter, the change of the logarithm of the cost by one deviation."""
        if self.as_planned is None:
            return {}
        named = [(f"lengths-{name}", effect) for name, effect in self.lengths.items()]
        named += [(f"rewards-{name}", effect) for name, effect in self.rewards.items()]
        return {name: effect.log_change(self.as_planned) for name, effect in named}

    def text(self, name: str, down: str, up: str, clause: str = "{}") -> str:
        """Text on the effect of parameter `name` on seconds and speed-up; `down`, `up`: what it is at its two ends, in
        `clause`."""
        effect = (self.lengths | self.rewards).get(name)
        if effect is None or self.as_planned is None:
            return ""
        if abs(effect.log_change(self.as_planned)) < MATTERS:
            return f"whether {clause.format(f'{down} or {up}')}, the step changes by less than {MATTERS:.0%}"
        return "; ".join(
            f"if {clause.format(end)}: {self._outcome_text(outcome)}"
            for end, outcome in ((down, effect.down), (up, effect.up))
        )

    def _outcome_text(self, outcome: AssumedOutcome | None) -> str:
        if outcome is None or self.as_planned is None:
            return "no group ends within the cutoff"
        speedup = times(self.speedup * outcome.speedup / self.as_planned.speedup)
        changed = f", speed-up {speedup}" if speedup != times(self.speedup) else ""
        return f"step {times(outcome.cost / self.as_planned.cost)}{changed}"


def assumed_effects(
    holdout: Holdout, job: Job, trace: LengthTrace, reward_table: RewardTable | None, seed: int, speedup: float
) -> AssumedEffects:
    """Effects of the assumed lengths and rewards on the plan whose holdout rounds are given.

    Args:
        trace: the length trace; assumed if it is a `TableTrace`.
        reward_table: the table of the reward seconds; None: they are the profile's own.
        speedup: the plan's over plain rounds, as predicted.
    """
    search, cycle, baseline = holdout.search, holdout.cycle, holdout.baseline
    table = trace if isinstance(trace, TableTrace) else None
    if table is None and reward_table is None:
        return AssumedEffects()
    samples = search.setting.target * search.setting.group_size
    rounds = min(MOST, max(FEWEST, SAMPLES // samples))
    width, cap = search.setting.draws.width, job.rollout.max_response_tokens

    def outcome(other_trace: TableTrace | None = None, seconds: Reward | None = None) -> AssumedOutcome | None:
        model = search.setting.draws.model if other_trace is None else fit_lengths(other_trace, cap, seed)
        if not can_train(search.setting, cycle, model):
            return None
        costs = None if seconds is None else [choice.cost(seconds) for choice in search.space.rewards]
        return _simulate(search, cycle, baseline, Draws(model, seed + _SEED_OFFSET, width), rounds, costs)

    lengths: dict[str, Effect] = {}
    if table is not None:
        for name, (down, up) in table.variations().items():
            lengths[name] = Effect(outcome(table.varied(down)), outcome(table.varied(up)))
    of_rewards: dict[str, Effect] = {}
    if reward_table is not None:
        slower, hanging = math.exp(reward_table.error.scale), math.exp(reward_table.error.hanging)
        varied = {"seconds": [reward_table.reward(1, scale=factor) for factor in (1 / slower, slower)]}
        if hanging > 1:
            varied["hanging"] = [reward_table.reward(1, hanging=factor) for factor in (1 / hanging, hanging)]
        of_rewards = {name: Effect(*(outcome(seconds=end) for end in ends)) for name, ends in varied.items()}
    return AssumedEffects(outcome(), speedup, lengths, of_rewards)


def _simulate(
    search: Search, cycle: Cycle, baseline: Cycle, draws: Draws, rounds: int, rewards: list[RewardCost] | None
) -> AssumedOutcome | None:
    """Both schedules on other draws, lengths or rewards; None if the chosen one trains nothing."""
    other_search = search.anew([cycle, baseline], draws, rewards)
    chosen, plain = other_search.simulate(cycle, rounds, rounds), other_search.simulate(baseline, rounds, rounds)
    if not chosen.trains or not plain.trains:
        return None
    cost = chosen.cost(other_search.limits)
    return AssumedOutcome(cost, plain.cost(other_search.limits) / cost)


def assumed_why(effects: AssumedEffects, trace: object, rewards: RewardTable | None) -> dict[str, str]:
    """The plan's `why` on assumed lengths and rewards: whose figures they are, and the speed-up where they are off."""
    why = {}
    if isinstance(trace, TableTrace):
        table = trace.table
        factor = math.exp(table.error.scale)
        source = f"{table.model} on {table.task}" if table.model else table.source
        icc_error = table.error.icc
        if trace.scale is None:
            told = effects.text("scale", f"{1 / factor:.2g}x", f"{factor:.2g}x", "responses are {} as long")
        else:
            told = f"all lengths times {trace.scale:g}, as stated"
        dependence = effects.text(
            "icc",
            f"a prompt's samples are less alike (ICC {icc_error:g} lower)",
            f"they are more alike (ICC {icc_error:g} higher)",
        )
        why["lengths"] = (
            f"assumed, not of this job: table '{table.name}', {source}, cap {table.cap_tokens} tokens, ICC "
            f"{table.icc:g}; {told}; {dependence}"
        )
    if rewards is not None:
        factor = math.exp(rewards.error.scale)
        if rewards.per_sample_s is not None:
            takes = f"{rewards.per_sample_s:g} s a sample"
        else:
            assert rewards.right_s is not None and rewards.wrong_s is not None, "it has one of the two"
            takes = (
                f"a right answer takes {_middle(rewards.right_s):g} s and a wrong one {_middle(rewards.wrong_s):g} s "
                f"in the median, and {rewards.hanging:.0%} of the wrong ones run until the deadline"
            )
        told = effects.text("seconds", f"{1 / factor:.2g}x", f"{factor:.2g}x", "rewards take {} as long")
        why["reward.seconds"] = f"assumed, not of this job: table of kind {rewards.kind}, {takes}; {told}"
    return why


def _middle(values: tuple[float, ...]) -> float:
    return values[len(values) // 2]
