"""RollPacker's rounds with its quotas: each task fills its own share of the batch (arXiv 2509.21009, `bs_d`).

A task's prompts race among themselves only, so the task with the longest answers sets the time, and no task is trained
less than its share. One `RaceRound` per task, all on the same engines, is such a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.lengths.table_lengths import copula_tokens
from rlplan.planner.simulate.reference_round import RoundLengths, simulate_round
from rlplan.planner.simulate.round_arrays import RoundTimes
from rlplan.rounds.machines.events import Abort, Action, Event, Issue, SampleKey, Score
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.machines.race import RaceRound

from .case import Case
from .published_figures import Figures
from .solve_inputs import PROMPT_TOKENS


class QuotaRound:
    """One race per task, side by side, with the interface of a `Round`; draws are numbered over all races."""

    def __init__(self, races: list[RaceRound], draws: int) -> None:
        self._races, self._draws = races, draws  # each race has as many draws, and no refills

    @property
    def done(self) -> bool:
        """Every task has its share."""
        return all(race.done for race in self._races)

    def start(self) -> list[Action]:
        """Issue all tasks' draws."""
        return [self._outer(task, a) for task, race in enumerate(self._races) for a in race.start()]

    def handle(self, event: Event) -> list[Action]:
        """Pass an event to the race of its task; the actions that result."""
        task, draw = divmod(event.key.draw, self._draws)
        inner = type(event)(SampleKey(draw, event.key.sample), *_rest(event))
        return [self._outer(task, action) for action in self._races[task].handle(inner)]

    def _outer(self, task: int, action: Action) -> Action:
        key = SampleKey(task * self._draws + action.key.draw, action.key.sample)
        if isinstance(action, Issue):
            return Issue(key, action.prompt, action.max_tokens, action.cutoff_tokens)
        return Abort(key) if isinstance(action, Abort) else Score(key)


def _rest(event: Event) -> list[object]:
    return [getattr(event, name) for name in event.__dataclass_fields__ if name != "key"]


@dataclass(frozen=True)
class Operated:
    """RollPacker's operating point: mean rollout seconds by kind of round, preemptions a round, bias, reward waits."""

    short_s: float
    long_s: float
    preemptions: float
    length_ratio: float


class OperatingPoint:
    """Simulates short and long rounds at the published over-issue, on any engines, with the same random draws."""

    def __init__(self, case: Case, figures: Figures, rho: float, rounds: int = 40, seed: int = 0) -> None:
        self._case, self._rounds = case, rounds
        tasks = figures.tasks()
        self._target = case.prompts_per_step // len(tasks)
        self._issued = int(self._target * case.prompts_factor)
        self._width = round(case.samples_per_prompt * case.samples_factor)
        self._drawn = [
            np.ceil(
                np.minimum(
                    copula_tokens(figures.cdf(task), rho, rounds * self._issued, 2 * self._width, seed + 50 + number),
                    case.cap_tokens,
                )
            )
            .astype(np.int64)
            .reshape(rounds, self._issued, 2 * self._width)
            for number, task in enumerate(tasks)
        ]

    def operate(self, cost: DecodeCost) -> Operated:
        """Run short rounds, then long rounds of what they deferred."""
        case, n = self._case, self._case.samples_per_prompt
        seconds, preempted, trained, unconditioned = [], [], 0, 0.0
        queue: list[NDArray[np.int64]] = []
        for number in range(self._rounds):
            lengths = np.concatenate([drawn[number] for drawn in self._drawn])
            races = [
                RaceRound([str(p) for p in range(self._issued)], self._target, n, self._width, case.cap_tokens)
                for _ in self._drawn
            ]
            times = self._run(QuotaRound(races, self._issued), lengths[:, : self._width], cost)
            seconds.append(times.end_s)
            preempted.append(times.preemptions)
            unconditioned += n * float(lengths.mean(axis=1).sum())
            for task, race in enumerate(races):
                outcome = race.outcome()
                trained += sum(sum(group.tokens) for group in outcome.trained)
                # A deferred prompt is drawn afresh: the second half of its row.
                queue += [lengths[task * self._issued + int(p), self._width :] for p in outcome.prompts[Fate.DEFERRED]]
        long_s = []
        batch = self._target * len(self._drawn)
        for start in range(0, len(queue) - batch + 1, batch):
            rows = np.stack(queue[start : start + batch])[:, :n]
            machine = RaceRound([str(p) for p in range(batch)], batch, n, n, case.cap_tokens, kind="long")
            long_s.append(self._run(machine, rows, cost).end_s)
        trained += int(sum(row[:n].sum() for row in queue))
        return Operated(
            short_s=float(np.mean(seconds)),
            long_s=float(np.mean(long_s)),
            preemptions=float(np.mean(preempted)),
            length_ratio=trained / unconditioned,
        )

    @property
    def long_share(self) -> float:
        """Share of the steps that are long rounds."""
        deferred = self._issued - self._target
        return deferred / (deferred + self._target)

    def _run(self, machine: QuotaRound | RaceRound, lengths: NDArray[np.int64], cost: DecodeCost) -> RoundTimes:
        issued = RoundLengths(
            natural=lambda key, prompt: int(lengths[key.draw, key.sample]),
            prompt_tokens=lambda prompt: PROMPT_TOKENS,
            reward=lambda key, prompt: 0.0,
            cap_tokens=self._case.cap_tokens,
            expected_tokens=float(lengths.mean()),
        )
        return simulate_round(machine, issued, cost, RewardCost(1, 0.0, 0.0), cost.max_sequences)  # type: ignore[arg-type]
