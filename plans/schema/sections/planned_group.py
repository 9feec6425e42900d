"""One co-execution group of a plan: its nodes, who runs where on them, what that does to each job, and why.

A `PlannedGroup` that exists is consistent in itself: its jobs' phases hold units of nodes of their pool, no node holds
more state than its memory, and its timeline speaks of its own jobs only. With `rules.policy` of the plan it is all that
the permit machine (rounds/permits/permit_machine.py) has to know: the seat of each job can be made from its member
alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..base import Count, MemoryBytes, Name, NonNegative, Positive, Strict, cross_error, cross_errors
from ..plan import WhyKey

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
    """Mean seconds of the phase on these units, alone."""

    switch_s: NonNegative
    """Seconds that a turn takes longer if another job had one of its units last: the load of its sleeping state."""

    resume_s: NonNegative | None
    """Seconds lost, beside the switch, when a turn is put aside for a more urgent one; null: it cannot be."""


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
    """Whether the bound, less the margin, holds at the rules' quantile; alone on its reference a job keeps it."""

    alone_s: Positive
    """Mean seconds of an iteration alone, on the reference."""


class GroupMember(Strict):
    """A job of a group."""

    rollout: PinnedPhase
    """Where it decodes."""

    train: PinnedPhase
    """Where it trains."""

    pace_s: Positive
    """Seconds within which an iteration should end on average: what the policy multi_rate holds the job to. A little
    less than its bound on slowdown times its seconds alone, so that what is regulated ends inside the bound."""

    tail_from: Annotated[float, Field(gt=0, lt=1)] | None
    """Share of a rollout's seconds after which its last responses move together onto `tail_units` of its units; null:
    never."""

    tail_units: Count | None
    """Units on which they continue; null: they do not move."""

    slowdown: PlannedSlowdown
    """What the group does to it."""


class GroupNode(Strict):
    """A node of a group."""

    pool: Name
    """Its pool."""

    slots: Annotated[int, Field(ge=1, le=4096)]
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
    def _tails_move_onto_some_of_the_units(self) -> PlannedGroup:
        for name, member in self.jobs.items():
            where = f"jobs.{name}.tail_units"
            if (member.tail_from is None) != (member.tail_units is None):
                raise cross_error("write both tail_from and tail_units, or null for both", where)
            if member.tail_units is not None and member.tail_units >= len(member.rollout.units):
                raise cross_error(f"a rollout of {len(member.rollout.units)} unit(s) frees none of them then", where)
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
                    what = (
                        f"unit {wrong[0]} is none of pool '{pinned.pool}' in this group; write of {right or 'no unit'}"
                    )
                    faults.append((what, f"jobs.{name}.{phase}.units", "units-of-wrong-pool"))
        for index, node in enumerate(self.nodes):
            if node.resident_bytes > node.host_memory_bytes:
                what = f"{node.resident_bytes:.6g} bytes of state do not fit into the node's {node.host_memory_bytes}"
                faults.append((what, f"nodes.{index}.resident_bytes", "residency"))
        for index, span in enumerate(self.timeline.spans):
            if span.job not in self.jobs:
                what = f"no job of the group is called '{span.job}'"
                faults.append((what, f"timeline.spans.{index}.job", "unknown-member"))
        if faults:
            raise cross_errors("PlannedGroup", faults)
        return self

    def node_of_unit(self, unit: int) -> int:
        """Index of the node that a unit lies in."""
        return [index for index, node in enumerate(self.nodes) for _ in range(node.slots)][unit]
