"""What a plan rests on that nobody measured on its job, and how far that may put its seconds off.

Two things may be assumed: response lengths (`TableTrace`, drawn from a table) and reward seconds (`RewardTable`). Each
states how far another job of its kind may be off: one standard deviation of a few parameters, which are independent.
The chosen schedule is simulated again with each parameter one deviation down and one up, all else equal: decisions,
costs, and the names of the luck. With costs c- and c+ of a parameter,

    error = sqrt(sum over parameters of (ln(c+ / c-) / 2)^2)

is the relative standard deviation of the cost, to first order. Where one side gives the schedule nothing to train (all
its groups beyond the cutoff), the distance of the other side to the plan's own lengths counts in its place.

The plain synchronous schedule is simulated beside it, so that the reader learns what of the speed-up would be left. Few
rounds tell how much longer both take, and not how the two compare: how far a parameter moves the speed-up is taken from
them, and is told from the plan's own speed-up on.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

from ...plans.schema.job import Job
from ...profiles.profile_schema import Reward
from ...profiles.reward_tables import RewardTable
from ..choose.candidate_search import Search
from ..choose.cycle_cost import Cycle
from ..costs.phase_costs import RewardCost, reward_cost
from ..lengths.draws import Draws
from ..lengths.length_model import fit_lengths
from ..lengths.table_lengths import TableTrace
from .length_error import FEWEST, MOST, SAMPLES, can_train

UNSEEN = 1e-3
"""A smaller relative deviation of the seconds is not worth words."""

_LOT = 6_000_011  # added to the seed: luck that neither the choice nor the prediction has seen


class Outcome(NamedTuple):
    """One simulation of the chosen schedule: its cost per trained sample, and the plain schedule's over it."""

    cost: float
    speedup: float


class Effect(NamedTuple):
    """A parameter one deviation down and up; None: the schedule has nothing to train then."""

    down: Outcome | None
    up: Outcome | None

    def log_deviation(self, own: Outcome) -> float:
        """Standard deviation of the logarithm of the cost."""
        if self.down is not None and self.up is not None:
            return abs(math.log(self.up.cost / self.down.cost)) / 2
        one = self.down or self.up
        return 0.0 if one is None else abs(math.log(one.cost / own.cost))


@dataclass(frozen=True)
class AssumedEffects:
    """By parameter, what its error does to the plan; empty where nothing is assumed.

    Attributes:
        own: the plan as it is, on the same few rounds.
        speedup: the plan's own over plain rounds, as predicted.
        lengths, rewards: by parameter of the table of lengths, of the table of reward seconds.
    """

    own: Outcome | None = None
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
        return 0.0 if self.own is None else math.hypot(*(e.log_deviation(self.own) for e in effects.values()))

    def words(self, name: str, down: str, up: str) -> str:
        """What one parameter does to seconds and speed-up, in words; `down`, `up`: what its two ends are."""
        effect = (self.lengths | self.rewards).get(name)
        if effect is None or self.own is None:
            return ""
        if effect.log_deviation(self.own) < UNSEEN:
            return f"{down} or {up}, the seconds are the same"
        return "; ".join(f"{end}: {self._said(outcome)}" for end, outcome in ((down, effect.down), (up, effect.up)))

    def _said(self, outcome: Outcome | None) -> str:
        if outcome is None or self.own is None:
            return "no group ends within the cutoff"
        speedup = self.speedup * outcome.speedup / self.own.speedup
        return f"{outcome.cost / self.own.cost:.2f}x the seconds, {speedup:.2f}x plain rounds"


def assumed_effects(
    search: Search,
    cycle: Cycle,
    baseline: Cycle,
    job: Job,
    trace: object,
    rewards: RewardTable | None,
    seed: int,
    speedup: float,
) -> AssumedEffects:
    """Simulate the chosen and the plain schedule with what is assumed one deviation off.

    Args:
        trace: the length trace; assumed if it is a `TableTrace`.
        rewards: the table of the reward seconds; None: they are the profile's own.
        speedup: the plan's over plain rounds, as predicted.
    """
    table = trace if isinstance(trace, TableTrace) else None
    if table is None and rewards is None:
        return AssumedEffects()
    samples = search.setting.target * search.setting.group_size
    rounds = min(MOST, max(FEWEST, SAMPLES // samples))
    width, cap = search.setting.draws.width, job.rollout.max_response_tokens

    def again(other: TableTrace | None = None, law: Reward | None = None) -> Outcome | None:
        model = search.setting.draws.model if other is None else fit_lengths(other, cap, seed)
        if not can_train(search.setting, cycle, model):
            return None
        cost = None if law is None else reward_cost(law, job.reward.workers, job.reward.timeout_numbers())
        return _simulate(search, cycle, baseline, Draws(model, seed + _LOT, width), rounds, cost)

    lengths: dict[str, Effect] = {}
    if table is not None:
        for name, (down, up) in table.variations().items():
            lengths[name] = Effect(again(table.varied(down)), again(table.varied(up)))
    of_rewards: dict[str, Effect] = {}
    if rewards is not None:
        slower, hanging = math.exp(rewards.error.scale), math.exp(rewards.error.hanging)
        laws = {"seconds": [rewards.reward(1, scale=factor) for factor in (1 / slower, slower)]}
        if hanging > 1:
            laws["hanging"] = [rewards.reward(1, hanging=factor) for factor in (1 / hanging, hanging)]
        of_rewards = {name: Effect(*(again(law=law) for law in ends)) for name, ends in laws.items()}
    return AssumedEffects(again(), speedup, lengths, of_rewards)


def _simulate(
    search: Search, cycle: Cycle, baseline: Cycle, draws: Draws, rounds: int, reward: RewardCost | None
) -> Outcome | None:
    """Both schedules on other luck, lengths or rewards; None if the chosen one trains nothing."""
    other = search.anew([cycle, baseline], draws, reward)
    found, plain = other.simulate(cycle, rounds, rounds), other.simulate(baseline, rounds, rounds)
    if not found.trains or not plain.trains:
        return None
    cost = found.cost(other.limits)
    return Outcome(cost, plain.cost(other.limits) / cost)
