"""Draws of a run that is simulated whole, sample by sample: lengths (`RunDraws`) and reward seconds (`Scoring`).

Reward deadlines are learnt round by round, as the executor learns them (rounds/timeouts.py), so the first epoch pays
the longest one for every answer that hangs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate
from ...rounds.machines.round import Round
from ...rounds.timeouts import Execution, Timeouts
from ..costs.reward_costs import RewardCost
from ..lengths.draws import Draws, prompt_parts
from .reference_round import Lengths


class RunDraws:
    """The draws of one whole run, sample by sample: counts how often each prompt was drawn.

    `rewards_matter` only under dynamic sampling; elsewhere all rewards are 0, which no machine looks at.
    """

    def __init__(self, draws: Draws, rewards_matter: bool) -> None:
        self._draws = draws
        self._rewards_matter = rewards_matter
        self._occurrences: dict[str, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._rewards: dict[int, list[float]] = {}
        self._reward_luck: dict[int, list[float]] = {}

    def begin(self) -> None:
        """A new round begins: draw numbers start again."""
        self._rows = {}
        self._rewards = {}
        self._reward_luck = {}

    def natural(self, key: SampleKey, prompt: str) -> int:
        """Length of a sample, which the job's cap may have cut."""
        row = self._rows.get(key.draw)
        if row is None:
            occurrence = self._occurrences.get(prompt, 0)
            self._occurrences[prompt] = occurrence + 1
            number, stream = prompt_parts(prompt)
            row = self._rows[key.draw] = self._draws.row(number, stream, occurrence).tolist()
            if self._rewards_matter:
                drawn = self._draws.rewards(np.array([number]), stream, np.array([occurrence]))
                self._rewards[key.draw] = drawn[0].tolist()
            taken = self._draws.reward_draws(np.array([number]), stream, np.array([occurrence]))
            self._reward_luck[key.draw] = taken[0].tolist()
        return row[key.sample]

    def _reward(self, key: SampleKey, prompt: str) -> float:
        return self._rewards[key.draw][key.sample] if self._rewards_matter else 0.0

    def reward_draws(self, key: SampleKey) -> float:
        """The uniform number in [0, 1) that picks the seconds of an issued sample's reward."""
        return self._reward_luck[key.draw][key.sample]

    def lengths(self) -> Lengths:
        """The run's draws in the form that `simulate_round` takes."""
        return Lengths(
            natural=self.natural,
            prompt_tokens=self._draws.prompt_tokens,
            reward=self._reward,
            cap_tokens=self._draws.model.cap_tokens,
            expected_tokens=self._draws.model.mean_tokens,
        )


class Scoring:
    """Reward seconds of a run's samples, under deadlines that the run learns."""

    def __init__(self, cost: RewardCost, draws: Draws) -> None:
        self.timeouts = Timeouts(cost.timeout)
        self._cost = cost
        self._draws = draws
        self._done: dict[SampleKey, Execution] = {}

    def of_round(self, run_draws: RunDraws) -> Callable[[SampleKey, str, int], float] | None:
        """The `reward_s` of a round's `Lengths`; None where samples of one length take the same seconds."""
        executions = self._cost.executions
        if executions is None:
            return None

        def reward_s(key: SampleKey, prompt: str, tokens: int) -> float:
            prompt_draw = float(self._draws.prompt_draws(np.array([prompt_parts(prompt)[0]]))[0])
            done = executions.execute(
                prompt, prompt_draw, run_draws.reward_draws(key), self.timeouts.deadline_s(prompt)
            )
            self._done[key] = done
            return done.seconds

        return reward_s

    def end_round(self, machine: Round) -> None:
        """Learn deadlines from the trained and filtered groups of a finished round, as the executor does."""
        if self._cost.executions is None:
            return
        self.timeouts.end_round(
            self._done[SampleKey(draw.number, sample)]
            for draw in machine.draws
            if draw.fate in (Fate.TRAINED, Fate.FILTERED)
            for sample in machine.trained_samples(draw)
        )
        self._done = {}
