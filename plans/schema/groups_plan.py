"""The plan of co-execution groups: which jobs share which nodes, what that costs, and why.

A `GroupsPlan` that exists is consistent in itself: every job is in one group, each group is consistent in itself
(planned_group.py), and a move ends where its job is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from .base import GROUP_ID_PATTERN, Count, Name, NonNegative, Positive, Strict, cross_error, is_empty, is_none
from .sections.origin import InputFile, Sha256, Volatile
from .sections.planned_group import Index, PlannedGroup
from .workload import GroupRules

GroupId = Annotated[str, StringConstraints(pattern=GROUP_ID_PATTERN)]
"""`g` and a number. A group keeps its id while it has jobs; the number says nothing else."""


class MeasuredPhases(Strict):
    """Seconds of a job's phases on its reference, from its turns in a running group."""

    rollout_s: Positive
    """Mean seconds of a rollout."""

    train_s: Positive
    """Mean seconds of a training."""

    iterations: Count
    """Iterations that they are means of."""


class GroupsInputs(Strict):
    """The files that the plan was solved from; when one changes, the plan is stale."""

    workload: InputFile
    """workload.yaml."""

    cluster: InputFile
    """cluster.yaml."""

    sources: dict[Name, InputFile]
    """By job, the plan or run that the seconds of its phases were read from; jobs with figures of their own have no
    entry."""

    previous: InputFile | None
    """The running plan that moves begin from; null for none."""

    measured: Annotated[dict[Name, MeasuredPhases], Field(default_factory=dict, exclude_if=is_empty)]
    """By job, seconds that were measured in running groups and stand in for those of the workload."""


SolverStatus = Literal["optimal", "gap", "limit", "placed"]


class GroupsSolver(Strict):
    """How the plan was found; the objective that was minimised is `rules.objective`."""

    name: Annotated[str, Field(min_length=1)]
    """Solver and version."""

    status: SolverStatus
    """`optimal`: proven; `gap`: proven to `gap`; `limit`: the work that may be spent ran out; `placed`: new jobs were
    placed beside running ones that stay, and nothing was proven."""

    bound_usd_per_hour: NonNegative | None
    """Lower bound of the price of any choice of groups; null: none was looked for."""

    bound_usd_per_unit: NonNegative | None
    """Lower bound of USD per unit of training of any choice of groups in `universe`; null: not the objective, or none
    was looked for."""

    gap: Annotated[float, Field(ge=0, le=1)] | None
    """(reached - bound) / reached, of the objective; null without a bound."""

    universe: str
    """The set of groups that `gap` refers to."""

    columns: Index
    """Groups that keep every bound, from which the choice was made."""

    simulated: Index
    """Groups that were simulated."""

    fluid_usd_per_hour: NonNegative | None
    """USD per hour that every schedule costs at least: nodes always busy, jobs as slow as allowed; null: unknown."""


class Move(Strict):
    """A running job that changes nodes."""

    job: Name
    """The job."""

    from_group: GroupId
    """Group of the job in the previous plan."""

    to_group: GroupId
    """Group of the job in this plan; the same if the job changes nodes inside it."""

    price_usd: NonNegative
    """USD that the move costs once: `price_s` at the price of the nodes that the job would have on its own."""

    price_s: NonNegative
    """Seconds of the job's outage: its cold start. It stops at the end of an iteration, so that no work is lost."""

    together: Count
    """Moves with the same number pay together, or are needed together."""

    saves_usd_per_hour: float
    """USD per hour that the moves of this number save on all nodes."""

    needed: bool
    """Whether a running group would break its bounds, or the cluster have too few nodes, without these moves."""


class DeclinedMoves(Strict):
    """Moves that would lead to the cheapest groups and are not made."""

    jobs: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)]
    """The jobs that would move."""

    saves_usd_per_hour: NonNegative
    """USD per hour that the moves would save on all nodes."""

    price_usd: NonNegative
    """USD that the moves would cost once."""

    hours: NonNegative
    """Hours until the plan is solved again, in which moves must pay."""

    reason: Literal["price", "bounds"]
    """`price`: their savings in `hours` are below 1.25 times their price; `bounds`: a job is too little ahead of its
    bound to stop for it, or a new group would break a bound when a member leaves."""


class CostFigures(Strict):
    """Costs of a placement."""

    usd_per_hour: NonNegative
    """Price of its nodes."""

    usd_per_unit: NonNegative
    """USD per unit of training; a unit is the training that one USD buys if each job has its own nodes."""

    slo_attained: Annotated[float, Field(ge=0, le=1)]
    """Share of the jobs whose bound holds."""

    fits: bool
    """Whether the cluster has the nodes for it; if not, it is only a comparison."""


class GroupsPredicted(Strict):
    """Costs of the plan and of two other placements."""

    plan: CostFigures
    """Costs of this plan."""

    solo_d: CostFigures
    """Costs with every job on nodes of its own."""

    algorithm_1: CostFigures
    """Costs by RollMux's Algorithm 1, jobs by name, under the same rules; it knows no limit of nodes."""


class GroupsPlan(Strict):
    """The document groups.yaml."""

    rlplan_groups: Literal[1]
    """Version of the format."""

    inputs: GroupsInputs
    """The files that the plan was solved from."""

    solver: GroupsSolver
    """How the plan was found."""

    decisions_sha256: Sha256
    """Digest of the decisions as they were solved. Once somebody edits a decision, the digest no longer fits, and the
    predictions are of other decisions."""

    rules: GroupRules
    """The rules of every group."""

    groups: Annotated[dict[GroupId, PlannedGroup], Field(min_length=1)]
    """The groups."""

    moves: Annotated[tuple[Move, ...], Field(strict=False)]
    """Running jobs that change nodes, in the order in which they should; empty without a previous plan."""

    declined: DeclinedMoves | None
    """Moves that are not made, with their savings and costs; null: there are none, or there is no previous plan."""

    predicted: GroupsPredicted
    """Costs of the plan."""

    predicted_sha256: Annotated[Sha256 | None, Field(exclude_if=is_none)] = None
    """Digest of `predicted` and of the jobs' slowdowns as they were solved, so that an edited figure is found. Null: an
    older plan that has none; solve it again."""

    volatile: Volatile
    """Facts about the solve itself."""

    @model_validator(mode="after")
    def _every_job_is_in_one_group(self) -> GroupsPlan:
        seen: dict[str, str] = {}
        for key, group in self.groups.items():
            for name in group.jobs:
                if name in seen:
                    message = f"'{name}' is also in group '{seen[name]}'"
                    raise cross_error(message, f"groups.{key}.jobs.{name}", "job-in-two-groups")
                seen[name] = key
        for index, move in enumerate(self.moves):
            if seen.get(move.job) != move.to_group:
                raise cross_error(
                    f"'{move.job}' is not in group '{move.to_group}'; a move ends where the job is",
                    f"moves.{index}.to_group",
                    "unknown-member",
                )
        return self


def load_groups_plan(path: str | Path) -> GroupsPlan:
    """Read a plan of groups. Raises InputError."""
    from ..yaml.yaml_io import load

    return load(path, GroupsPlan)


MARK = re.compile(r"""^(["']?)(rlplan\w*)\1[ \t]*:""", re.MULTILINE)


def document_kind(path: str | Path) -> str | None:
    """Return the mark of the document at `path` (`rlplan_job`, `rlplan_workload`, …), None without one. The document
    need not be valid. Raises InputError when the file cannot be read."""
    from ..yaml.yaml_io import read_text

    mark = MARK.search(read_text(path))
    return mark[2] if mark else None
