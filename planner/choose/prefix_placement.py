"""Whether a prompt's samples are kept on engines that hold it, by layout (rounds/balancing/placement.py has the rule).

Kept together, samples save the prefill of their prompt's whole blocks, and the memory of these; but the samples of a
hard prompt are long together, and an engine that holds many of them ends late. Which weighs more hangs on the lengths
of prompts and answers, on how alike a prompt's answers are, and on how tight memory is, so plain synchronous rounds are
simulated both ways (large ones by their cells, cells.py), on draws that no candidate is compared on. Unless keeping
together is clearly faster, samples are spread, the simpler way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...plans.schema.levers import EngineLayout, RoundPrefix
from ...rounds.balancing.placement import shared_tokens
from ...rounds.round_spec import RoundKind
from ..costs.decode_costs import DecodeCost
from ..costs.reward_costs import RewardCost
from ..lengths.draws import Draws
from ..simulate.columns.cells import on_engines, sized_cell
from ..simulate.columns.column_setting import CELL_PROMPTS
from ..simulate.one_round import simulate_one_round
from ..simulate.round_arrays import RoundDraws
from .candidates.candidate_space import Space

# Samples by which an engine may be ahead for the sake of a prompt of mean length; the last is a whole group.
LEADS = (1, 2, 4)

# At least so many rounds, and so many samples, are simulated each way.
ROUNDS, SAMPLES = 8, 8192

# Keeping together must save this share of a rollout, and twice the standard error of what it saves.
LEAST_SAVED = 0.005

# A stream of draws that no column uses.
_STREAM = 1 << 20


@dataclass(frozen=True, slots=True)
class PrefixPlacement:
    """The placement of a layout's samples, and the share of a plain rollout that it saves against spreading."""

    sharing: RoundPrefix
    saved: float


def place(space: Space, draws: Draws, prompts: int, samples: int, cap_tokens: int) -> Space:
    """`space` with the placement that is best in plain rounds of `prompts` x `samples`, layout by layout."""
    placements: dict[EngineLayout, PrefixPlacement] = {}
    drawn: dict[int, list[RoundDraws]] = {}
    for layout, cost in space.decode.items():
        cell = sized_cell(layout.engines, prompts, samples, CELL_PROMPTS)
        if cell.trained not in drawn:
            rounds = max(cell.simulated(ROUNDS), SAMPLES // (cell.trained * samples))
            drawn[cell.trained] = _rounds_draws(draws, rounds, cell.trained, samples)
        round_kind = RoundKind("short", cell.trained, cell.trained, samples, samples, cap_tokens)
        best = _best(on_engines(cost, cell.engines), round_kind, drawn[cell.trained])
        if best is not None:
            placements[layout] = best
    return replace(
        space,
        decode={
            k: replace(cost, sharing=placements[k].sharing) if k in placements else cost
            for k, cost in space.decode.items()
        },
        drafted={
            (k, n): replace(cost, sharing=placements[k].sharing) if k in placements else cost
            for (k, n), cost in space.drafted.items()
        },
        kept_together={layout: placement.saved for layout, placement in placements.items()},
    )


def _rounds_draws(draws: Draws, rounds: int, prompts: int, samples: int) -> list[RoundDraws]:
    """The draws of `rounds` rounds."""
    numbers = np.arange(rounds * prompts)
    tokens = draws.prompt_tokens_of(numbers)
    lengths = draws.firsts(numbers, _STREAM)[:, 0, :samples]
    return [
        RoundDraws(
            lengths[first : first + prompts],
            tokens[first : first + prompts],
            draws.model.cap_tokens,
            draws.model.mean_tokens,
        )
        for first in range(0, len(numbers), prompts)
    ]


def _best(cost: DecodeCost, round_kind: RoundKind, rounds_draws: Sequence[RoundDraws]) -> PrefixPlacement | None:
    """None: spread."""
    shared = float(
        np.mean(
            [
                shared_tokens(int(t), cost.block_tokens)
                for round_draws in rounds_draws
                for t in round_draws.prompt_tokens
            ]
        )
    )
    if shared == 0 or cost.key.engines == 1 or round_kind.samples == 1:
        return None
    spread = _rollouts_s(cost, round_kind, rounds_draws)
    best: PrefixPlacement | None = None
    for lead in sorted({*(lead for lead in LEADS if lead < round_kind.samples), round_kind.samples}):
        sharing = RoundPrefix(block_tokens=cost.block_tokens, tokens_per_sample=max(1, math.floor(shared / lead)))
        saved = spread - _rollouts_s(replace(cost, sharing=sharing), round_kind, rounds_draws)
        error = float(saved.std(ddof=1)) / math.sqrt(len(saved))
        share = float(saved.mean() / spread.mean())
        if saved.mean() > 2 * error and share > (LEAST_SAVED if best is None else best.saved + LEAST_SAVED):
            best = PrefixPlacement(sharing, share)
    return best


def _rollouts_s(cost: DecodeCost, round_kind: RoundKind, rounds_draws: Sequence[RoundDraws]) -> NDArray[np.float64]:
    """Seconds to the last token of each round."""
    # Rewards cost nothing, so that only decoding is compared.
    reward = RewardCost(1, 0.0, 0.0)
    return np.array(
        [
            simulate_one_round(round_kind, round_draws, cost, reward, cost.max_sequences).times.decode_end_s
            for round_draws in rounds_draws
        ]
    )
