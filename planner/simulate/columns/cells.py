"""Cells: parts of a large round that stand for all of it.

The engines of a layout are alike, and the balancer gives each the same number of samples. So a round of P prompts on E
engines is, but for what couples its parts, P / p rounds of p prompts on E p / P engines side by side: its *cells*, each
as crowded as the whole round. A large round is simulated by cells, as many as else would be rounds, and composed of
them (composed_columns.py); what simulating costs, in seconds and in memory, then hardly grows with P.

What couples the cells of a round, and how that is kept:
- who is trained: the first P groups to finish (`race`, `defer`), or the first P accepted ones of the row (`exact`), are
  those of all cells together (cell_columns.py);
- reward workers: each cell has its part of them, as fast together as the round's. A few workers with tasks of unlike
  length make samples wait for each other that many workers would not, so cells with such tasks have several workers;
- refills and redraws: a sample goes to the least loaded engine of its cell instead of all. That matters to the order
  in which `race` and `defer` refill under dynamic sampling, which are therefore simulated whole, by fewer rounds.

A cell has enough engines to hold the samples of a prompt apart, as the round has: a hard prompt's are long together.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

from ....plans.schema.levers import EngineLayout, RoundHandOver, RoundTail
from ....rounds.timeouts import TimeoutSpec
from ...choose.candidates.round_kinds import LongKey, ShortKey
from ...costs.decode_costs import ChangeCost, DecodeCost
from ...costs.reward_costs import NO_TIMEOUT, ExecutionTimes, RewardCost
from .column_setting import Setting

LEAST_ENGINES = 8
"""Of a cell, or as many as the samples of a prompt if these are more."""

LEAST_WORKERS = 8
"""Reward workers of a cell where executions take unlike times; 1 where all take the same."""

FEWEST = 2
"""Cells that are simulated at least, so that they show how far they scatter."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: the part of a large round that so many of its engines run.

    Attributes:
        engines, of: engines of the cell, and of the round.
        trained: prompts that a cell trains, about.
        most: prompts of which as many cells are simulated as else would be rounds; of larger cells fewer are.
    """

    engines: int
    of: int
    trained: int
    most: int

    @property
    def whole(self) -> bool:
        """Whether the cell is the whole round."""
        return self.engines == self.of

    @property
    def cells_per_round(self) -> float:
        """Cells of a round; no whole number where the engines do not divide."""
        return self.of / self.engines

    @property
    def count(self) -> int:
        """Cells that a round is composed of."""
        return max(1, round(self.cells_per_round))

    def scale(self, target: int) -> float:
        """Factor from sums over a round's cells, which train a few prompts more or less, to sums of a round that trains
        exactly `target`."""
        return 1.0 if self.whole else target / (self.count * self.trained)

    def prompts(self, prompts: int) -> int:
        """Prompts of the cell, of `prompts` prompts of the round."""
        return max(1, round(prompts * self.engines / self.of))

    def simulated(self, rounds: int) -> int:
        """Cells that are simulated to compose so many rounds."""
        if self.trained <= self.most:
            return rounds
        return max(min(rounds, FEWEST), math.ceil(rounds * self.most / self.trained))


def cell_of(setting: Setting, key: ShortKey | LongKey) -> Cell:
    """The cell that rounds of a kind are simulated by."""
    cell = similar_cell(setting, key)
    if isinstance(key, ShortKey) and setting.dynamic_sampling and key.mode in ("race", "defer"):
        # The refills of such a round depend on which of all its groups have finished.
        return dataclasses.replace(cell, engines=cell.of, trained=setting.target)
    return cell


def similar_cell(setting: Setting, key: ShortKey | LongKey) -> Cell:
    """The cell with the size and engines of a part of such rounds, also where cells cannot stand for whole rounds."""
    least_workers = LEAST_WORKERS if setting.reward_of(key).executions else 1
    samples = key.samples if isinstance(key, ShortKey) else setting.group_size
    most_cells = setting.reward_of(key).workers / least_workers
    return sized_cell(key.layout.engines, setting.target, samples, setting.cell_prompts, most_cells)


def sized_cell(engines: int, target: int, samples: int, cell_prompts: int, most_cells: float = math.inf) -> Cell:
    """The cell of rounds that train `target` prompts of so many samples on so many engines.

    Args:
        cell_prompts: prompts that the cell should train, about; 0: the cell is the whole round.
        most_cells: the round has no more cells.
    """
    most = 2 * cell_prompts
    if not most or target <= most:
        return Cell(engines, engines, target, target)
    cells_of_round = max(1.0, min(target / cell_prompts, most_cells))
    engines_of_cell = max(LEAST_ENGINES, samples, round(engines / cells_of_round))
    cell = Cell(engines if 2 * engines_of_cell > engines else engines_of_cell, engines, 0, most)
    return dataclasses.replace(cell, trained=cell.prompts(target))


@overload
def scaled(setting: Setting, key: ShortKey, cell: Cell) -> tuple[Setting, ShortKey]: ...
@overload
def scaled(setting: Setting, key: LongKey, cell: Cell) -> tuple[Setting, LongKey]: ...
def scaled(setting: Setting, key: ShortKey | LongKey, cell: Cell) -> tuple[Setting, ShortKey] | tuple[Setting, LongKey]:
    """The setting in which a cell is a whole round, and its key there."""
    layout = EngineLayout(key.layout.tp, cell.engines)
    settings = setting.of_cells
    if (key.layout, cell.engines) not in settings:
        settings[key.layout, cell.engines] = dataclasses.replace(
            with_engines(setting, key.layout, cell.engines),
            target=cell.trained,
            prompts=None if setting.prompts is None else cell.prompts(setting.prompts),
            reward=reward_share(setting.reward, cell.cells_per_round),
            other_rewards=tuple(reward_share(other, cell.cells_per_round) for other in setting.other_rewards),
            cell_prompts=0,
            crowding=lambda _, workers: setting.crowding(key.layout, round(workers * cell.cells_per_round)),
            change=partial(_change_in_cell, setting, key.layout, cell),
        )
    cell_setting = settings[key.layout, cell.engines]
    if isinstance(key, ShortKey):
        return cell_setting, key._replace(prompts=max(cell.prompts(key.prompts), cell.trained), layout=layout)
    queue = (cell.prompts(key.queue[0]), *key.queue[1:]) if key.queue else ()
    return cell_setting, key._replace(layout=layout, queue=queue)


def _change_in_cell(
    setting: Setting, layout: EngineLayout, cell: Cell, cost: DecodeCost, spec: RoundHandOver | RoundTail, workers: int
) -> ChangeCost:
    """A change of the engines of a cell, at the costs of that of the whole round on `layout`."""
    tail = isinstance(spec, RoundTail)
    engines = layout.engines * layout.tp // spec.tp if isinstance(spec, RoundTail) else layout.engines // 2
    of_all = spec.model_copy(update={"engines": max(1, engines)})
    whole = setting.change(on_engines(cost, layout.engines), of_all, round(workers * cell.cells_per_round))
    after = on_engines(whole.after, spec.engines if tail else cell.engines)
    return dataclasses.replace(whole, spec=spec, after=after)


def with_engines(setting: Setting, layout: EngineLayout, engines: int, **changes: Any) -> Setting:
    """The setting that has so many of a layout's engines, and no others, with these changes of their costs."""
    return dataclasses.replace(
        setting,
        decode={EngineLayout(layout.tp, engines): on_engines(setting.decode[layout], engines, **changes)},
        drafted={
            (EngineLayout(layout.tp, engines), tokens): on_engines(cost, engines, **changes)
            for (of, tokens), cost in setting.drafted.items()
            if of == layout
        },
    )


def on_engines(cost: DecodeCost, engines: int, **changes: Any) -> DecodeCost:
    """Decode costs of a layout with another number of engines."""
    return dataclasses.replace(cost, key=EngineLayout(cost.key.tp, engines), **changes)


def reward_share(reward: RewardCost, cells: float) -> RewardCost:
    """The reward workers of one of `cells` equal cells: whole workers, with a speed that makes up for the rounding.

    `cells` times as many samples a second as the share scores are what the whole scores. A sample that does not wait
    in the queue takes as long as before.
    """
    workers = max(1, round(reward.workers / cells))
    if reward.all_workers:
        reward = dataclasses.replace(reward, all_workers=max(1, round(reward.all_workers / cells)))
    slower = workers * cells / reward.workers
    if slower == 1.0:
        return dataclasses.replace(reward, workers=workers)
    delay_s = max(0.0, reward.delay_s - (slower - 1.0) * reward.per_sample_s)
    executions, timeout = reward.executions, reward.timeout
    if executions is not None:
        executions = ExecutionTimes(
            tuple(slower * seconds for seconds in executions.correct_s),
            tuple(slower * seconds for seconds in executions.wrong_s),
            executions.correct,
            executions.unsolved,
        )
        delay_s = max(0.0, reward.delay_s - (slower - 1.0) * reward.mean_s())
    if timeout != NO_TIMEOUT:
        timeout = TimeoutSpec(
            slower * timeout.max_s, None if timeout.min_s is None else slower * timeout.min_s, timeout.anchor_factor
        )
    return dataclasses.replace(
        reward,
        workers=workers,
        per_sample_s=slower * reward.per_sample_s,
        per_token_s=slower * reward.per_token_s,
        delay_s=delay_s,
        executions=executions,
        timeout=timeout,
    )
