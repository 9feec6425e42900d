"""`race` and `defer` by cells: the first P groups to finish are trained, whichever cells they are in.

Cells run to their ends, and the composed round ends when the P-th of all their groups is ready. Until then nothing of a
cell depends on the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...choose.candidates.round_kinds import ShortKey
from ...lengths.draws import Numbers, prompt_name
from ..round_arrays import RoundDraws, SimulatedRound
from .column_setting import Setting
from .composed_columns import ComposedShort
from .composed_log import ComposedLog, Picks
from .round_log import RoundLog, trained_draws
from .whole_columns import ShortColumn


@dataclass(frozen=True, slots=True, eq=False)
class Finishers:
    """The groups of a cell that ran to its end, by draw: when each was ready, seconds; its tokens; its samples that
    reached the cap; its prompt."""

    ready_s: NDArray[np.float64]
    tokens: NDArray[np.int64]
    squares: NDArray[np.int64]
    excess: NDArray[np.int64]
    cut: NDArray[np.int64]
    numbers: Numbers
    decode_end_s: float


class RaceCells(ShortColumn):
    """Cells of `race` and `defer` in which every group runs until its samples to train are rewarded.

    The log has them as rounds of their own, which stop when as many groups are ready as a cell trains.
    """

    def __init__(self, setting: Setting, key: ShortKey) -> None:
        super().__init__(setting, key)
        self._round_kind = dataclasses.replace(self._round_kind, target=key.prompts)
        self.finishers: list[Finishers] = []

    def _record(
        self, numbers: Numbers, round_draws: RoundDraws, simulated: SimulatedRound, firsts: Numbers, put_off: int
    ) -> None:
        trained = trained_draws(self._round_kind, round_draws, simulated, firsts)
        record = Finishers(
            simulated.ready_s[trained.draws],
            trained.tokens,
            trained.squares,
            trained.excess,
            trained.cut,
            numbers[trained.draws],
            simulated.times.decode_end_s,
        )
        self.finishers.append(record)
        _add_race(self.log, [record], self._setting.target, self.key, 1.0, simulated.times.preemptions)


class ComposedRace(ComposedShort):
    """`race` and `defer`: the first P groups of all cells are trained, the others are put off."""

    _cells: RaceCells

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        return RaceCells(setting, key)

    def _rank(self, groups: int) -> int:
        """How many of `groups` groups are trained."""
        return max(1, min(groups, round(groups * self._setting.target / self.key.prompts)))

    def _compose(self, log: ComposedLog, picks: Picks) -> None:
        preemptions = self._cells.log.preemptions / len(self._cells.log) * self._cell.cells_per_round
        for chosen in picks:
            members = [self._cells.finishers[cell] for cell in chosen]
            trained = self._rank(sum(len(member.ready_s) for member in members))
            scale = self._setting.target / trained
            _add_race(log, members, trained, self.key, scale, preemptions)

    def _put_off(self) -> list[str]:
        every = self._cells.finishers
        ready = np.concatenate([member.ready_s for member in every])
        last_s = _nth(ready, self._rank(len(ready)))
        return [prompt_name(int(n), 0) for member in every for n in member.numbers[member.ready_s > last_s]]


def _nth(values: NDArray[np.float64], nth: int) -> float:
    return float(np.partition(values, nth - 1)[nth - 1])


def _add_race(
    log: RoundLog, cells: Sequence[Finishers], target: int, key: ShortKey, scale: float, preemptions: float
) -> None:
    """Add the round of these cells that trains the first `target` groups to finish."""
    ready = np.concatenate([finishers.ready_s for finishers in cells])
    end_s = _nth(ready, target)
    trained = ready <= end_s

    def total(values: list[NDArray[np.int64]]) -> int:
        return round(scale * float(np.concatenate(values)[trained].sum()))

    # Samples that still decode when the last group is ready are aborted then.
    rollout_s = min(end_s, max(finishers.decode_end_s for finishers in cells))
    log.rollout_s.append(rollout_s)
    log.reward_s.append(end_s - rollout_s)
    log.tokens.append(total([finishers.tokens for finishers in cells]))
    log.squares.append(total([finishers.squares for finishers in cells]))
    log.excess.append(total([finishers.excess for finishers in cells]))
    log.cut.append(total([finishers.cut for finishers in cells]))
    log.groups.append(round(scale * target))
    log.settled.append(round(scale * target))
    log.deferred.append(round(scale * (len(ready) - target)))
    log.leak.append(0)
    log.issued.append(round(scale * len(ready) * key.samples))
    # Where each sample was stopped is known of the cells' own ends only, and with it what was decoded in vain.
    log.decoded.append(0)
    log.kept.append(0)
    log.preemptions += round(preemptions)
