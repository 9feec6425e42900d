"""Simulated columns: what a kind of short round, or of long round, costs and moves, over many rounds of it.

A short column runs a real Schedule on fresh prompts; prompts that it defers are taken out (as a long round would) and
collected. A long column runs a real Schedule whose queue holds a batch of such prompts. Rounds of one column are thus
independent given their prompts, and a cycle's cost is a weighted mean of the two (program.py).

Bias is measured as *excess*: the trained length of a prompt minus the length of its first draw, uncut, by the same
luck. Over a cycle the first draws are unconditioned, so the mean excess is the bias, and most of the noise of heavy
tails and of unlike prompts cancels; what never is raced or deferred has excess 0. A deferred prompt's excess is split:
the draw that deferred it minus its first draw is the short round's, the trained draw minus the deferring one the long
round's (there the deferring draw is the first, which loses nothing: any draw that defers is a deferring draw).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..rounds.outcome import Fate, Outcome
from ..rounds.round import Round
from ..rounds.schedule import RoundSpec, Schedule
from .candidates import Law, LongKey, ShortKey, defers
from .costs import DecodeCost, LayoutKey, RewardCost, TrainCost
from .draws import Draws, RoundLuck, prompt_name
from .simulator import RoundTimes, simulate_round

# Prompts of one schedule. It bounds the cost of the schedule's own checks, which grow with its prompts.
_FEED = 768


@dataclass(frozen=True)
class Setting:
    """What all columns of a solve share: the step's size, costs, luck."""

    target: int
    group_size: int
    cap_tokens: int
    dynamic_sampling: bool
    decode: dict[LayoutKey, DecodeCost]
    reward: RewardCost
    draws: Draws


@dataclass
class RoundLog:
    """Simulated rounds of one column, one entry a round. Times in seconds, overhead of the layout included."""

    sync_s: float
    rollout_s: list[float] = field(default_factory=list)
    reward_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    deferred: list[int] = field(default_factory=list)
    excess: list[int] = field(default_factory=list)
    leak: list[int] = field(default_factory=list)  # the part of the excess that is of exhausted prompts (rounds/exact)
    issued: list[int] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)
    preemptions: int = 0

    def __len__(self) -> int:
        return len(self.rollout_s)

    def step_s(self, train: TrainCost) -> list[float]:
        """Seconds of each round's whole step."""
        return [
            rollout + reward + self.sync_s + train.update_s(tokens, squares)
            for rollout, reward, tokens, squares in zip(
                self.rollout_s, self.reward_s, self.tokens, self.squares, strict=True
            )
        ]

    def train_s(self, train: TrainCost) -> float:
        """Mean seconds of the update."""
        return mean([train.update_s(t, q) for t, q in zip(self.tokens, self.squares, strict=True)])

    def phases_s(self, train: TrainCost, rounds: int) -> dict[str, float]:
        """Mean seconds of each phase over the first `rounds` rounds."""
        updates = [train.update_s(t, q) for t, q in zip(self.tokens[:rounds], self.squares[:rounds], strict=True)]
        return {
            "rollout": mean(self.rollout_s[:rounds]),
            "reward": mean(self.reward_s[:rounds]),
            "train": mean(updates),
            "sync": self.sync_s,
        }


def mean(values: Sequence[float]) -> float:
    """Mean of at least one value."""
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))


def _spec(setting: Setting, law: Law, prompts: int, samples: int, copies: int) -> RoundSpec:
    return RoundSpec(
        mode=law.mode,
        prompts_per_step=setting.target,
        samples_per_prompt=setting.group_size,
        max_tokens=setting.cap_tokens,
        short_prompts=prompts,
        short_samples=samples,
        cutoff_tokens=law.cutoff or None,
        copies=copies,
        dynamic_sampling=setting.dynamic_sampling,
    )


class ShortColumn:
    """A kind of short round, simulated further on demand; the same rounds come first however often it is extended."""

    def __init__(self, setting: Setting, key: ShortKey) -> None:
        self.key = key
        self._setting = setting
        self._cost = setting.decode[key.layout]
        self.log = RoundLog(sync_s=self._cost.sync_s)
        self.deferred_prompts: list[str] = []
        self._luck = RoundLuck(setting.draws, setting.dynamic_sampling)
        self._schedule: Schedule | None = None
        self._feeds = 0

    def extend(self, rounds: int) -> None:
        """Simulate until `rounds` rounds are in the log."""
        while len(self.log) < rounds:
            self._one()

    def _one(self) -> None:
        setting, key = self._setting, self.key
        if self._schedule is None or len(self._schedule.state()["fresh"]) < 3 * key.prompts:
            feed = max(_FEED, 6 * key.prompts)
            names = [prompt_name(self._feeds * feed + i, 0) for i in range(feed)]
            spec = _spec(setting, key.law, key.prompts, key.samples, 1)
            self._schedule = Schedule(spec, names, seed=self._feeds)
            self._feeds += 1
        machine = self._schedule.begin()
        self._luck.begin()
        times = simulate_round(machine, self._luck.lengths(), self._cost, setting.reward, self._cost.max_sequences)
        outcome = self._schedule.end(machine)
        self._take_out_deferred()
        _record(self.log, setting, self._cost, times, outcome, self._put_off(machine))
        self.deferred_prompts.extend(outcome.prompts[Fate.DEFERRED])

    def _put_off(self, machine: Round) -> int:
        """Tokens by which the draws that deferred their prompts exceed those prompts' first draws.

        They differ where a first draw did not count and was returned.
        """
        size = self._setting.group_size
        return sum(
            sum(self._luck.drawn(draw.number)[:size]) - self._setting.draws.first(draw.prompt, size)
            for draw in machine.draws
            if draw.fate is Fate.DEFERRED
        )

    def _take_out_deferred(self) -> None:
        assert self._schedule is not None
        state = self._schedule.state()
        if state["deferred"]:
            state["settled"] = sorted([*state["settled"], *(p for p, _ in state["deferred"])])
            state["deferred"] = []
            self._schedule.restore(state)


class LongColumn:
    """A kind of long round over prompts that its law deferred."""

    def __init__(self, setting: Setting, key: LongKey) -> None:
        self.key = key
        self._setting = setting
        self._cost = setting.decode[key.layout]
        self.log = RoundLog(sync_s=self._cost.sync_s)

    def extend(self, rounds: int, pool: Sequence[str]) -> None:
        """Simulate until `rounds` rounds are in the log; `pool`: deferred prompts, oldest first, at least one.

        When the pool is smaller than what the rounds take, its prompts come again in another stream: the same
        prompts, fresh luck.
        """
        setting, key = self._setting, self.key
        assert pool, "a long round needs deferred prompts"
        while len(self.log) < rounds:
            batch = []
            for place in range(len(self.log) * setting.target, (len(self.log) + 1) * setting.target):
                lap, index = divmod(place, len(pool))
                batch.append(f"{pool[index].split('.')[0]}.{1 + lap}")
            spec = _spec(
                setting,
                key.law,
                max(key.law.prompts, setting.target),
                max(key.law.samples, setting.group_size),
                key.copies,
            )
            schedule = Schedule(spec, batch, seed=0)
            schedule.restore({**schedule.state(), "fresh": [], "deferred": [[p, 0] for p in batch]})
            machine = schedule.begin()
            luck = RoundLuck(setting.draws, setting.dynamic_sampling)
            times = simulate_round(machine, luck.lengths(), self._cost, setting.reward, self._cost.max_sequences)
            _record(self.log, setting, self._cost, times, schedule.end(machine), 0)


def _record(
    log: RoundLog, setting: Setting, cost: DecodeCost, times: RoundTimes, outcome: Outcome, put_off_excess: int
) -> None:
    tokens = squares = 0
    excess, leak = put_off_excess, 0
    for group in outcome.trained:
        prompt_tokens = setting.draws.prompt_tokens(group.prompt)
        for length in group.tokens:
            tokens += prompt_tokens + length
            squares += (prompt_tokens + length) ** 2
        own = sum(group.tokens) - setting.draws.first(group.prompt, setting.group_size)
        excess += own
        leak += own if group.prompt in outcome.exhausted else 0
    log.rollout_s.append(times.decode_end_s)
    log.reward_s.append(times.reward_exposed_s)
    log.tokens.append(tokens)
    log.squares.append(squares)
    log.groups.append(len(outcome.trained))
    log.deferred.append(len(outcome.prompts[Fate.DEFERRED]))
    log.excess.append(excess)
    log.leak.append(leak)
    log.issued.append(outcome.issued_samples)
    log.decoded.append(times.decoded_tokens)
    log.preemptions += times.preemptions


def long_draws(draws: Draws, group_size: int, cutoff: int, count: int) -> list[str]:
    """Prompts that `exact` defers at `cutoff`: the first `count` whose first draw in stream 0 is long.

    A draw counts or not regardless of its own lengths, so the deferred ones are simply the long ones among all, and no
    round need be simulated to find them.
    """
    found: list[str] = []
    cap = draws.model.cap_tokens
    # 64 laps of an epoch bound the search where long draws are too rare to fill a queue; callers repeat prompts then.
    for number in range(64 * max(_FEED, count)):
        longest = max(draws.row(number, 0, 0)[:group_size])
        if longest > cutoff or longest >= cap:
            found.append(prompt_name(number, 0))
            if len(found) == count:
                break
    return found


def expected_deferrals(column: ShortColumn, setting: Setting) -> float:
    """Prompts that a short round defers, on average.

    Without dynamic sampling this needs no simulation. `race` and `defer` put off what they issue beyond P; in `exact`
    the long draws before the P-th short one are negative binomial, with mean P (1 - q) / q for a share q of short
    groups.
    """
    law = column.key.law
    if not defers(law, setting.target):
        return 0.0
    if setting.dynamic_sampling:
        return mean(column.log.deferred)
    if law.mode == "exact":
        short = setting.draws.model.short_groups(law.cutoff, setting.group_size)
        return setting.target * (1.0 - short) / short
    return float(column.key.prompts - setting.target)
