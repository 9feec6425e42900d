"""A long run of a plan in a true world, simulated step by step apart from planner/simulate: the truth of pairs.py.

A `World` knows what a profile and a trace can only estimate: every prompt's law of lengths, and by which factors decode
steps, updates and weight transfers really are off the profile. The round machines and the schedule are those that the
executor runs (rounds/); the engines are the plainest possible: continuous batching in whole decode steps, first come
first served, no preemption, each step's seconds from the sequences and KV tokens that it has.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.round_costs import RoundCosts, round_costs
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.plan import Plan
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.machines.events import Abort, Action, Finished, Issue, ReachedCutoff, SampleKey, Scored
from rlplan.rounds.machines.round import Round
from rlplan.rounds.schedule import Schedule

PROMPT_TOKENS = 128
Draw = Callable[[int, int], NDArray[np.int64]]
"""Tokens of the samples of one draw, from (number of the prompt, number of its draw); uncut."""

BATCHES = 10


@dataclass(frozen=True)
class World:
    """What is true of a job.

    Attributes:
        decode: log factor on a decode step's seconds by log2 of tp and octave of sequences, shape (4, 12).
        update, sync: log factors on an update's seconds, by the ranks of a replica, and on a transfer's.
        draw: the lengths of responses; the same prompt drawn the k-th time has the same in every plan.
    """

    decode: NDArray[np.float64]
    update: dict[int, float]
    sync: float
    draw: Draw
    cap_tokens: int

    def factors(self, tp: int, most: int) -> list[float]:
        """Factors on the seconds of decode steps of 0 to `most` sequences."""
        octaves = np.log2(np.maximum(np.arange(most + 1), 1))
        row = self.decode[int(math.log2(tp))]
        return list(map(float, np.exp(np.interp(octaves, np.arange(len(row)), row))))

    def update_s(self, train: TrainCost, tokens: float, squares: float, samples: int) -> float:
        """Seconds of an update."""
        return math.exp(self.update[train.layout.replica]) * train.update_s(tokens, squares, samples)


class _Engine:
    """One engine; time stands at a step's end."""

    def __init__(self, cost: DecodeCost, factors: list[float], max_num_seqs: int) -> None:
        self.cost, self.factors, self.most = cost, factors, max_num_seqs
        self.now, self.step, self.kv, self.joining_s = 0.0, 0, 0, 0.0
        self.running: dict[SampleKey, int] = {}  # the step at which each was let in
        self.waiting: list[tuple[SampleKey, int, int | None]] = []
        self.events: list[tuple[int, int, SampleKey, bool]] = []
        self.count = 0
        self.cached: set[int] = set()  # draws whose prompt it has prefilled

    def seconds(self, steps: int) -> float:
        """Of so many steps from now on."""
        n = len(self.running)
        kv = steps * self.kv + n * steps * (steps - 1) / 2
        return self.joining_s + self.factors[n] * (steps * self.cost.base_s(n) + self.cost.c * kv)

    def pass_steps(self, steps: int) -> None:
        if steps > 0:
            self.now += self.seconds(steps)
            self.step += steps
            self.kv += steps * len(self.running)
            self.joining_s = 0.0

    def drop_gone(self) -> None:
        """Forget events of samples that were aborted."""
        while self.events and self.events[0][2] not in self.running:
            heapq.heappop(self.events)

    def due(self) -> float:
        """When the next sample ends or reaches its cutoff; infinite if nothing runs."""
        self.drop_gone()
        return self.now + self.seconds(self.events[0][0] - self.step) if self.events else math.inf

    def reach(self, time_s: float) -> None:
        """Pass whole steps until `time_s` is reached, none of which ends a sample."""
        if not self.running:
            self.now = max(self.now, time_s)
            return
        self.drop_gone()
        low, high = 0, self.events[0][0] - self.step
        while low < high:
            middle = (low + high) // 2
            if self.now + self.seconds(middle) < time_s and middle < high:
                low = middle + 1
            else:
                high = middle
        self.pass_steps(low if time_s > self.now else 0)

    def admit(self) -> None:
        while self.waiting and len(self.running) < self.most:
            key, tokens, cutoff = self.waiting.pop(0)
            self.running[key] = self.step
            cached = PROMPT_TOKENS - self.cost.block_tokens if key.draw in self.cached else 0
            self.cached.add(key.draw)
            self.joining_s += self.factors[1] * self.cost.admit_s(PROMPT_TOKENS, cached)
            self.kv += PROMPT_TOKENS
            for at, ends in ((tokens, True), *(((cutoff, False),) if cutoff is not None and cutoff < tokens else ())):
                self.count += 1
                heapq.heappush(self.events, (self.step + at, self.count, key, ends))

    def remove(self, key: SampleKey) -> None:
        if key in self.running:
            self.kv -= PROMPT_TOKENS + self.step - self.running.pop(key)
        else:
            self.waiting = [each for each in self.waiting if each[0] != key]


def rollout_s(machine: Round, world: World, costs: RoundCosts, drawn: dict[str, int]) -> float:
    """Seconds of a round until it is decoded; `drawn` counts each prompt's draws over the run."""
    factors = world.factors(costs.decode.key.tp, costs.max_num_seqs)
    engines = [_Engine(costs.decode, factors, costs.max_num_seqs) for _ in range(costs.decode.key.engines)]
    where: dict[SampleKey, int] = {}
    loads = [0] * len(engines)
    rows: dict[int, NDArray[np.int64]] = {}
    tokens: dict[SampleKey, tuple[int, bool]] = {}

    def act(actions: list[Action], now: float) -> None:
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            key = action.key
            if isinstance(action, Issue):
                if key.draw not in rows:
                    times = drawn[action.prompt] = drawn.get(action.prompt, -1) + 1
                    rows[key.draw] = world.draw(int(action.prompt[1:]), times)
                natural = int(rows[key.draw][key.sample])
                limit = min(action.max_tokens, world.cap_tokens)
                tokens[key] = min(natural, limit), natural >= limit
                place = min(range(len(engines)), key=loads.__getitem__)
                where[key] = place
                loads[place] += 1
                engines[place].reach(now)
                engines[place].waiting.append((key, tokens[key][0], action.cutoff_tokens))
                engines[place].admit()
            elif isinstance(action, Abort):
                place = where.pop(key, -1)
                if place >= 0:
                    engines[place].reach(now)
                    engines[place].remove(key)
                    loads[place] -= 1
                    engines[place].admit()
            else:  # scores take no time here
                todo += machine.handle(Scored(key, 0.0))

    now = 0.0
    act(machine.start(), now)
    while not machine.done:
        engine = min(engines, key=_Engine.due)
        engine.pass_steps(engine.events[0][0] - engine.step)
        now = engine.now
        _, _, key, ends = heapq.heappop(engine.events)
        if ends:
            engine.remove(key)
            loads[where.pop(key)] -= 1
            engine.admit()
            act(machine.handle(Finished(key, *tokens[key])), now)
        else:
            act(machine.handle(ReachedCutoff(key)), now)
    return now


def seconds_per_sample(
    plan: Plan, profile: Profile, cluster: Cluster, world: World, rounds: int, seed: int
) -> tuple[float, float]:
    """(seconds per trained sample over a long run of `plan` in `world`, relative standard error).

    Raises AssertionError for levers that are not simulated here.
    """
    planned = plan.job
    spec = planned.round_spec(world.cap_tokens)
    kinds = round_costs(planned, profile, cluster=cluster)
    assert all(kind.change is None and kind.decode.balance is None for kind in kinds), "a lever that is not simulated"
    schedule = Schedule(spec, [f"p{number}" for number in range(3 * rounds * spec.prompts_per_step)], seed)
    drawn: dict[str, int] = {}
    seconds, samples = np.zeros(rounds), np.zeros(rounds)
    layout = None
    for number in range(rounds):
        machine = schedule.begin()
        kind = kinds[machine.kind == "long"]
        took_s = rollout_s(machine, world, kind, drawn)
        outcome = schedule.end(machine)
        trained = np.array([PROMPT_TOKENS + t for group in outcome.trained for t in group.tokens], dtype=float)
        sums = float(trained.sum()), float((trained**2).sum())
        turns_s = kind.decode.turns_beside(kind.train.layout)
        sync_s = turns_s + math.exp(world.sync) * (kind.decode.sync_beside(kind.train.layout) - turns_s)
        seconds[number] = took_s + world.update_s(kind.train, *sums, len(trained)) + sync_s
        samples[number] = len(trained)
        layout = layout or kind.decode.key
        assert kind.decode.key == layout, "a change of engines is not simulated"
    first = rounds // 10  # until the queue of deferred prompts is as full as it is later
    ratio = seconds[first:].sum() / samples[first:].sum()
    batches = [
        s.sum() / n.sum()
        for s, n in zip(*(np.array_split(v[first:], BATCHES) for v in (seconds, samples)), strict=True)
    ]
    return float(ratio), float(np.std(batches, ddof=1) / math.sqrt(BATCHES) / ratio)
