"""Options of a solve beside its documents: what is forced, what is minimised, how much is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ....plans.facts.model_shape import ModelShape
from ....rounds.round_spec import MODES, Mode

Objective = Literal["seconds", "usd"]
"""The minimised cost, per trained sample."""

MAX_NODES = 200_000
"""Limit of the integer program's branch and bound; programs of a thousand columns need a few hundred at most."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Rounds of a short and of a long column, and how far from the best a cycle may be to get this pass.

    `margin` is relative and comes on top of a standard error of either.
    """

    short_rounds: int
    long_rounds: int
    margin: float


PASSES = (Pass(8, 4, math.inf), Pass(24, 12, 0.05), Pass(64, 32, 0.02), Pass(160, 64, 0.0))
"""All columns of a pass have the same rounds on the same draws, so those of the last can be compared and predicted
from."""


@dataclass(frozen=True)
class SolveOptions:
    """Options of `solve`; the defaults are those of `rlplan solve`.

    Attributes:
        mode: the bias mode to force; None lets the program choose.
        plain: take no lever that the job allows or the profile has measured (drafts, streaming, balance).
        bias_budget: allowed |1 - trained / unconditioned mean length|; None means 0 when the mode is free, and no bound
            when a mode is forced (the plan then carries the bias that is predicted, rounded up to whole percents).
        objective: "seconds" of the whole pool, or "usd" for the nodes that the plan takes of it.
        within_s: most seconds of the mean step, for the objective `usd-within`; None: any.
        seed: of the length model and of all simulated rounds.
        max_nodes: limit of the integer program's branch and bound.
        pool: the engines' pool; None: whichever is best of those that the profile prices.
        prompts: how many the job's data holds; None: as many as any round wants.
        evaluated: how many the file of the job's evaluations holds; None: no evaluation is priced.
        for_any: also consider layouts and levers that `rlplan execute` cannot run (plans/facts/executable.py).
        model: the shape of the job's model (plans/facts/model_shape.py); None: as the table of public models has it.
        passes: how many rounds are simulated of which candidates.
    """

    mode: Mode | None = None
    plain: bool = False
    bias_budget: float | None = None
    objective: Objective = "seconds"
    within_s: float | None = None
    seed: int = 0
    max_nodes: int = MAX_NODES
    prompts: int | None = None
    evaluated: int | None = None
    pool: str | None = None
    for_any: bool = False
    model: ModelShape | None = None
    passes: Sequence[Pass] = PASSES

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes whose rounds are candidates: all, or the forced one and sync."""
        return MODES if self.mode is None else tuple(m for m in MODES if m in ("sync", self.mode))

    @property
    def fewer_nodes(self) -> bool:
        """Whether schedules that leave nodes of the pool unused are candidates."""
        return self.objective == "usd"


DEFAULTS = SolveOptions()
