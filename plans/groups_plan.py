"""The plan of co-execution groups: which jobs share which nodes, what that costs, and why.

A `GroupsPlan` that exists is consistent in itself: every job is in one group, its phases hold units of nodes of their
pool, no node holds more state than its memory, and a timeline speaks of the group's own jobs only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from .base import Count, MemoryBytes, Name, NonNegative, Positive, Strict, cross_error
from .origin import InputFile, Volatile
from .plan import WhyKey
from .workload import GroupRules

Index = Annotated[int, Field(ge=0)]
Indices = Annotated[tuple[Index, ...], Field(min_length=1, strict=False)]


GroupId = Annotated[str, StringConstraints(pattern=r"^g[0-9]{1,9}$")]
"""`g` and a number. A group keeps its id while it has jobs; the number says nothing else."""


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


SolverStatus = Literal["optimal", "gap", "limit", "placed"]


class GroupsSolver(Strict):
    """How the plan was found. What was minimised is USD per hour."""

    name: Annotated[str, Field(min_length=1)]
    """Solver and version."""

    status: SolverStatus
    """`optimal`: proven; `gap`: proven to `gap`; `limit`: the work that may be spent ran out; `placed`: new jobs were
    placed beside running ones that stay, and nothing was proven."""

    bound_usd_per_hour: NonNegative | None
    """Lower bound of the price of any choice of groups in `universe`; null: none was looked for."""

    gap: Annotated[float, Field(ge=0, le=1)] | None
    """(price - bound) / price; null without a bound."""

    universe: str
    """The groups that the bound is about."""

    columns: Index
    """Groups that keep every bound, from which the choice was made."""

    simulated: Index
    """Groups that were simulated."""

    fluid_usd_per_hour: NonNegative | None
    """What no schedule can undercut: every node always busy, every job as slow as it may be; null: unknown."""


class PinnedPhase(Strict):
    """Where a phase of a job runs."""

    pool: Name
    """Pool of its nodes."""

    units: Indices
    """Units of the group that it holds, ascending; a group's slots are numbered node by node."""

    way: Index
    """Which of the job's ways it is: 0 the reference, then `ways` in their order."""

    mean_s: Positive
    """Mean seconds of the phase on these units, alone."""


class PlannedSlowdown(Strict):
    """Seconds of an iteration in the group over those alone."""

    mean: Positive
    """In the long run."""

    p50: Positive
    """Median over stretches of iterations."""

    p95: Positive
    """95th percentile over stretches of iterations."""

    slo: Annotated[float, Field(ge=1)]
    """The bound, as in the workload."""

    keeps: bool
    """Whether the bound, less the rules' margin, holds at p95; alone on its reference a job always keeps it."""

    alone_s: Positive
    """Mean seconds of an iteration alone, on the reference."""


class GroupMember(Strict):
    """A job of a group."""

    rollout: PinnedPhase
    """Where it decodes."""

    train: PinnedPhase
    """Where it trains."""

    tail_from: Annotated[float, Field(gt=0, lt=1)] | None
    """Share of a rollout's seconds after which its last responses move together onto `rules.tail_keep` of its units;
    null: never."""

    slowdown: PlannedSlowdown
    """What the group does to it."""


class GroupNode(Strict):
    """A node of a group."""

    pool: Name
    """Its pool."""

    slots: Count
    """Equal parts that it is cut into."""

    resident_bytes: NonNegative
    """Host memory that sleeping states of all jobs pinned here take."""

    host_memory_bytes: MemoryBytes
    """Host memory that there is."""

    busy: Annotated[float, Field(ge=0, le=1)]
    """Share of the timeline in which a phase runs on it."""


class Span(Strict):
    """A phase that runs."""

    job: Name
    """The job."""

    phase: Literal["rollout", "train"]
    """The phase."""

    units: Indices
    """Units that it holds; fewer than its own while only a rollout's last responses run."""

    begin_s: NonNegative
    """Seconds from the beginning of the timeline."""

    end_s: NonNegative
    """Likewise."""


class GroupTimeline(Strict):
    """What happens in a group, with mean seconds, when it has settled."""

    period_s: Positive
    """Seconds after which the group stands as it stood before."""

    repeats: bool
    """Whether it does so exactly; else `period_s` is where it comes closest."""

    span_s: Positive
    """Seconds of it that are shown."""

    spans: Annotated[tuple[Span, ...], Field(min_length=1, strict=False)]
    """Phases that run, by begin."""


class PlannedGroup(Strict):
    """Jobs on nodes that no other group uses."""

    nodes: Annotated[tuple[GroupNode, ...], Field(min_length=1, strict=False)]
    """Its nodes."""

    jobs: Annotated[dict[Name, GroupMember], Field(min_length=1)]
    """Its jobs by name."""

    usd_per_hour: NonNegative
    """Price of its nodes."""

    timeline: GroupTimeline
    """What is expected to happen."""

    why: dict[WhyKey, str]
    """What binds, the next best that could be done instead, and why this policy."""

    @model_validator(mode="after")
    def _members_hold_units_of_their_pools(self) -> PlannedGroup:
        pool_of = [node.pool for node in self.nodes for _ in range(node.slots)]
        for name, member in self.jobs.items():
            for phase, pinned in (("rollout", member.rollout), ("train", member.train)):
                wrong = [unit for unit in pinned.units if unit >= len(pool_of) or pool_of[unit] != pinned.pool]
                if wrong:
                    right = ", ".join(str(unit) for unit, pool in enumerate(pool_of) if pool == pinned.pool)
                    raise cross_error(
                        f"unit {wrong[0]} is none of pool '{pinned.pool}' in this group; write of {right or 'no unit'}",
                        f"jobs.{name}.{phase}.units",
                    )
        for index, node in enumerate(self.nodes):
            if node.resident_bytes > node.host_memory_bytes:
                raise cross_error(
                    f"{node.resident_bytes:.0f} bytes of state do not fit into the node's {node.host_memory_bytes}",
                    f"nodes.{index}.resident_bytes",
                )
        for index, span in enumerate(self.timeline.spans):
            if span.job not in self.jobs:
                raise cross_error(f"no job of the group is called '{span.job}'", f"timeline.spans.{index}.job")
        return self

    def node_of_unit(self, unit: int) -> int:
        """Index of the node that a unit lies in."""
        return [index for index, node in enumerate(self.nodes) for _ in range(node.slots)][unit]


class Move(Strict):
    """A running job that goes to other nodes."""

    job: Name
    """The job."""

    from_group: GroupId
    """Its group in the previous plan."""

    to_group: GroupId
    """Its group in this one; the same if it changes nodes inside it."""

    price_usd: NonNegative
    """What it costs once: `price_s` at the price of the nodes that the job would have alone."""

    price_s: NonNegative
    """Seconds of the cold start and of half an iteration, the work that a stop loses on average."""

    together: Count
    """Moves of one number pay together, or are needed together."""

    saves_usd_per_hour: float
    """What all nodes cost less per hour by the moves of this number."""

    needed: bool
    """Whether without them a running group would not keep its bounds, or more nodes be needed than there are."""


class CostFigures(Strict):
    """What a placement costs."""

    usd_per_hour: NonNegative
    """Price of its nodes."""

    usd_per_unit: NonNegative
    """That over training done per hour; a unit is the training that one USD buys if each job has its own nodes."""

    slo_attained: Annotated[float, Field(ge=0, le=1)]
    """Share of the jobs whose bound holds."""


class GroupsPredicted(Strict):
    """What the plan costs, beside what else could be done."""

    plan: CostFigures
    """This plan."""

    solo_d: CostFigures
    """Every job on nodes of its own."""

    algorithm_1: CostFigures | None
    """RollMux's Algorithm 1, jobs by name, under the same rules; null where the cluster's limits stop it."""


class GroupsPlan(Strict):
    """The document."""

    rlplan_groups: Literal[1]
    """Version of the format."""

    inputs: GroupsInputs
    """The files that the plan was solved from."""

    solver: GroupsSolver
    """How the plan was found."""

    rules: GroupRules
    """What every group obeys."""

    groups: Annotated[dict[GroupId, PlannedGroup], Field(min_length=1)]
    """The groups."""

    moves: Annotated[tuple[Move, ...], Field(strict=False)]
    """Running jobs that go elsewhere, in the order in which they should; empty without a previous plan."""

    predicted: GroupsPredicted
    """What the plan costs."""

    volatile: Volatile
    """Facts about the solve itself."""

    @model_validator(mode="after")
    def _every_job_is_in_one_group(self) -> GroupsPlan:
        seen: dict[str, str] = {}
        for key, group in self.groups.items():
            for name in group.jobs:
                if name in seen:
                    raise cross_error(f"'{name}' is also in group '{seen[name]}'", f"groups.{key}.jobs.{name}")
                seen[name] = key
        for index, move in enumerate(self.moves):
            if seen.get(move.job) != move.to_group:
                raise cross_error(
                    f"'{move.job}' is not in group '{move.to_group}'; a move ends where the job is",
                    f"moves.{index}.to_group",
                )
        return self


def load_groups_plan(path: str | Path) -> GroupsPlan:
    """Read a plan of groups. Raises InputError."""
    from .yaml_io import load

    return load(path, GroupsPlan)


_MARK = re.compile(r"^(rlplan\w*)[ \t]*:", re.MULTILINE)


def document_kind(path: str | Path) -> str | None:
    """The mark of the document at `path` (`rlplan_job`, `rlplan_workload`, …), None without one. Nothing else of it is
    looked at. Raises InputError when it cannot be read."""
    from .yaml_io import read_text

    found = _MARK.search(read_text(path))
    return found[1] if found else None
