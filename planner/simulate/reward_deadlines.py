"""Seconds of rewards in a run that is simulated whole: its deadlines are learnt round by round, as the executor learns
them (rounds/timeouts.py), so the first epoch pays the longest one for every answer that hangs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate
from ...rounds.machines.round import Round
from ...rounds.timeouts import Execution, Timeouts
from ..costs.reward_costs import RewardCost
from ..lengths.draws import Draws, RoundLuck, prompt_parts


class Scoring:
    """The reward seconds of a run's samples."""

    def __init__(self, cost: RewardCost, draws: Draws) -> None:
        self.timeouts = Timeouts(cost.timeout)
        self._cost = cost
        self._draws = draws
        self._done: dict[SampleKey, Execution] = {}

    def of_round(self, luck: RoundLuck) -> Callable[[SampleKey, str, int], float] | None:
        """What `simulator.Lengths` takes for a round; None where samples of one length take the same."""
        executions = self._cost.executions
        if executions is None:
            return None

        def reward_s(key: SampleKey, prompt: str, tokens: int) -> float:
            own = float(self._draws.prompt_luck(np.array([prompt_parts(prompt)[0]]))[0])
            done = executions.execute(prompt, own, luck.reward_luck(key), self.timeouts.deadline_s(prompt))
            self._done[key] = done
            return done.seconds

        return reward_s

    def end_round(self, machine: Round) -> None:
        """The round is over; its trained and filtered groups are learnt from, as in the executor."""
        if self._cost.executions is None:
            return
        self.timeouts.end_round(
            self._done[SampleKey(draw.number, sample)]
            for draw in machine.draws
            if draw.fate in (Fate.TRAINED, Fate.FILTERED)
            for sample in machine.trained_samples(draw)
        )
        self._done = {}
