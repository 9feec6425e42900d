"""Options of a solve beside its documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..plans.facts.model_shape import ModelShape
from ..plans.schema.base import Mode
from .choose.candidate_search import PASSES, Pass
from .choose.plan_limits import Objective
from .highs import MAX_NODES


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
    pool: str | None = None
    for_any: bool = False
    model: ModelShape | None = None
    passes: Sequence[Pass] = PASSES


DEFAULTS = SolveOptions()
