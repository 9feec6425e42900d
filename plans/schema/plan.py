"""plan.yaml: the planner writes it, the executor runs it; nothing else passes from planner to executor.

A `Plan` object is consistent in itself: its rounds are those that its bias mode needs. `check.check_plan` checks
whether it fits the cluster, the job and the files that it was solved from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from .base import Strict, cross_error, is_none
from .predicted import Predicted
from .sections.origin import Inputs, Sha256, Solver, Volatile
from .sections.planned_job import PlannedJob


class Plan(Strict):
    """The document plan.yaml."""

    rlplan: Literal[1]
    """Version of the format."""

    inputs: Inputs
    """The files that the plan was solved from."""

    solver: Solver
    """How the plan was found."""

    decisions_sha256: Sha256
    """Digest of the decisions as they were solved. Once somebody edits a decision, the digest no longer fits, and the
    predictions are of other decisions."""

    job: PlannedJob
    """The decisions."""

    predicted: Predicted
    """What the simulator expects of the decisions."""

    predicted_sha256: Annotated[Sha256 | None, Field(exclude_if=is_none)] = None
    """Digest of `predicted` as it was solved, so that an edited figure is found. Null: an older plan that has none;
    solve it again."""

    volatile: Volatile
    """Facts about the solve itself."""

    @model_validator(mode="after")
    def _predictions_cover_the_rounds(self) -> Plan:
        if (self.job.rounds.long is None) != (self.predicted.rounds.long is None):
            raise cross_error(
                "predicted.rounds.long and job.rounds.long must both be null or both be given", "predicted.rounds.long"
            )
        return self

    def __repr__(self) -> str:
        figures = f"{self.predicted.step_s.mean:.4g} s a step, {self.predicted.speedup:.2f}x plain rounds"
        return f"<Plan of {self.job.name}: {self.job.bias.mode}, {figures}>"

    __str__ = __repr__


def load_plan(path: str | Path) -> Plan:
    """Read plan.yaml. Raises InputError. `check_plan` checks its digests and its fit to the cluster."""
    from ..yaml.yaml_io import load

    return load(path, Plan)
