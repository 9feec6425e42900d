"""The plan of co-execution groups: which jobs share which nodes, what that costs, and why.

A `GroupsPlan` that exists is consistent in itself: every job is in one group, each group is consistent in itself
(`PlannedGroup`), and a move ends where its job is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from ..phrases.numbers import count
from ..yaml.fault_lines import GROUP_ID_PATTERN
from .base import (
    Count,
    MemoryBytes,
    Name,
    NonNegative,
    Positive,
    Strict,
    cross_error,
    cross_errors,
    is_empty,
    is_none,
)
from .plan import InputFile, Sha256, Volatile
from .planned_job import WhyKey
from .workload import GroupRules

Index = Annotated[int, Field(ge=0, le=10**12)]
Indices = Annotated[tuple[Index, ...], Field(min_length=1, strict=False)]


class PinnedPhase(Strict):
    """Where a phase of a job runs."""

    pool: Name
    """Pool of its nodes."""

    units: Indices
    """Units of the group that it holds, ascending; a group's slots are numbered node by node."""

    way: Index
    """Which of the job's ways it is: 0 the reference, then `ways` in their order."""

    mean_s: Positive
    """Mean seconds of the phase on these units, without other jobs."""

    switch_s: NonNegative
    """Seconds that a turn takes longer if another job had one of its units last: the load of its sleeping state."""

    resume_s: NonNegative | None
    """Seconds lost, beside the switch, when a turn is put aside for a more urgent one; null: it cannot be."""


class PlannedSlowdown(Strict):
    """Seconds of an iteration in the group over those on nodes of the job's own."""

    mean: Positive
    """Mean slowdown in the long run."""

    p50: Positive
    """Median slowdown over stretches of iterations."""

    p95: Positive
    """95th percentile of the slowdown over stretches of iterations."""

    slo: Annotated[float, Field(ge=1)]
    """The bound, as in the workload."""

    keeps: bool
    """Whether the bound, less the margin, holds at the rules' quantile; a job alone on its reference keeps it."""

    alone_s: Positive
    """Mean seconds of an iteration on nodes of the job's own (its reference)."""


class MemberPoint(Strict):
    """The plan that a job runs by, one of several on different numbers of nodes (`source: {job: ...}`)."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Its nodes to decode and to train, and its mode, as in `2+1-exact`; its file is `inputs.sources` of the job."""

    nodes: Annotated[tuple[Count, Count], Field(strict=False)]
    """Nodes to decode and to train."""

    reward_cores: Index
    """Host cores of the nodes to decode that score."""

    step_s: Positive
    """Mean seconds of a step by this plan on nodes of its own."""

    usd_per_hour: NonNegative
    """Price of these nodes."""

    alone: Annotated[str, Field(min_length=1, max_length=100)]
    """Name of the point at which it would run on nodes of its own; its slowdown compares with that."""

    alone_usd_per_hour: NonNegative
    """Price of the nodes of that point."""


class GroupMember(Strict):
    """A job of a group."""

    rollout: PinnedPhase
    """Where the job decodes."""

    train: PinnedPhase
    """Where the job trains."""

    pace_s: Positive
    """Seconds within which an iteration should end on average; the permit rule multi_rate holds the job to it. A little
    less than the bound on slowdown times the seconds on nodes of its own, so that the job ends inside its bound."""

    tail_from: Annotated[float, Field(gt=0, lt=1)] | None
    """Share of a rollout's seconds after which its last responses move together onto `tail_units` of its units; null:
    never."""

    tail_units: Count | None
    """Units on which they continue; null: they do not move."""

    tail_finished: Annotated[float | None, Field(gt=0, lt=1, exclude_if=is_none)] = None
    """Share of a round's samples to be trained after whose end the tail begins; null: the job has none, or an older
    plan."""

    slowdown: PlannedSlowdown
    """Slowdown of the job in the group."""

    point: Annotated[MemberPoint | None, Field(exclude_if=is_none)] = None
    """The plan that it runs by; null: the workload gives the job's phases, and `way` says how each runs."""

    cold_s: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Seconds until the job's first phase begins on nodes that hold nothing of it, while the group's other jobs run:
    what joining the group takes. Null: an older plan."""


class GroupNode(Strict):
    """A node of a group."""

    pool: Name
    """Pool of the node."""

    slots: Annotated[int, Field(ge=1, le=4096)]
    """Equal parts that the node is cut into."""

    resident_bytes: NonNegative
    """Bytes of host memory that the sleeping states of all jobs on the node take."""

    host_memory_bytes: MemoryBytes
    """Bytes of host memory that the node has."""

    busy: Annotated[float, Field(ge=0, le=1)]
    """Share of the timeline in which a phase runs on the node."""


class Span(Strict):
    """A phase that runs."""

    job: Name
    """Name of the job."""

    phase: Literal["rollout", "train"]
    """Which of its phases runs."""

    units: Indices
    """Units that the phase holds; fewer than its own while only a rollout's last responses run."""

    begin_s: NonNegative
    """Seconds from the beginning of the timeline until the phase begins."""

    end_s: NonNegative
    """Seconds from the beginning of the timeline until the phase ends."""


class GroupTimeline(Strict):
    """The steady state of a group: which phases run when, with mean seconds."""

    period_s: Positive
    """Seconds after which the timeline repeats."""

    repeats: bool
    """Whether it repeats exactly; if not, `period_s` is the time after which it comes closest."""

    span_s: Positive
    """Seconds of the timeline that are shown."""

    spans: Annotated[tuple[Span, ...], Field(min_length=1, strict=False)]
    """Phases that run, in the order in which they begin."""


class PlannedGroup(Strict):
    """Jobs on nodes that no other group uses."""

    nodes: Annotated[tuple[GroupNode, ...], Field(min_length=1, strict=False)]
    """The nodes of the group."""

    jobs: Annotated[dict[Name, GroupMember], Field(min_length=1)]
    """The jobs of the group by name."""

    usd_per_hour: NonNegative
    """Price of the group's nodes."""

    timeline: GroupTimeline
    """The expected timeline."""

    why: dict[WhyKey, str]
    """What binds the group, the next best choice, and why this permit rule was taken."""

    @model_validator(mode="after")
    def _tails_move_onto_some_of_the_units(self) -> PlannedGroup:
        for name, member in self.jobs.items():
            where = f"jobs.{name}.tail_units"
            if (member.tail_from is None) != (member.tail_units is None):
                raise cross_error("write both tail_from and tail_units, or null for both", where)
            if member.tail_units is not None and member.tail_units >= len(member.rollout.units):
                raise cross_error(
                    f"a rollout of {count(len(member.rollout.units), 'unit')} frees none of them then", where
                )
        return self

    @model_validator(mode="after")
    def _members_hold_units_of_their_pools(self) -> PlannedGroup:
        pool_of = [node.pool for node in self.nodes for _ in range(node.slots)]
        faults: list[tuple[str, str, str]] = []
        for name, member in self.jobs.items():
            for phase, pinned in (("rollout", member.rollout), ("train", member.train)):
                wrong = [unit for unit in pinned.units if unit >= len(pool_of) or pool_of[unit] != pinned.pool]
                if wrong:
                    right = ", ".join(str(unit) for unit, pool in enumerate(pool_of) if pool == pinned.pool)
                    message = (
                        f"unit {wrong[0]} is not in pool '{pinned.pool}'; this group's units of it: {right}"
                        if right
                        else f"this group has no units of pool '{pinned.pool}'; correct pool"
                    )
                    faults.append((message, f"jobs.{name}.{phase}.units", "units-of-wrong-pool"))
        for index, node in enumerate(self.nodes):
            if node.resident_bytes > node.host_memory_bytes:
                message = (
                    f"{node.resident_bytes:.6g} bytes of state do not fit into the node's {node.host_memory_bytes}"
                )
                faults.append((message, f"nodes.{index}.resident_bytes", "residency"))
        for index, span in enumerate(self.timeline.spans):
            if span.job not in self.jobs:
                message = f"no job of the group is called '{span.job}'"
                faults.append((message, f"timeline.spans.{index}.job", "unknown-member"))
        if faults:
            raise cross_errors("PlannedGroup", faults)
        return self

    def node_of_unit(self, unit: int) -> int:
        """Return the index of the node that a unit belongs to."""
        return [index for index, node in enumerate(self.nodes) for _ in range(node.slots)][unit]


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

    @property
    def members(self) -> list[tuple[str, str, GroupMember]]:
        """(group's id, name, entry) of every job."""
        return [(key, name, member) for key, group in self.groups.items() for name, member in group.jobs.items()]

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
