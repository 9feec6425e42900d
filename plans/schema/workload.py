"""workload.yaml: jobs that share a cluster, each with its bound on slowdown, and the rules of sharing.

`rlplan solve` makes co-execution groups from it. Each phase of a job has a *reference*, the pool and nodes on which the
job would run alone (its slowdown is measured against that), and may have other *ways* to run: another pool, another
number of nodes, a part of a node. The seconds of the reference are written here, or read from the job's plan or run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..phrases.numbers import count
from ..yaml.yaml_doc import Loc
from .base import Count, Delay, MemoryBytes, Name, PhaseSeconds, Strict, cross_error, is_none
from .cluster import Cluster, load_cluster


def even_sizes(held: int, nodes: int) -> list[int]:
    """Accelerators that may share one copy of the model, ascending, where `held` of each of `nodes` nodes are taken:
    those that leave none over."""
    return [n for n in range(1, held) if held % n == 0] + [n * held for n in range(1, nodes + 1) if nodes % n == 0]


def pool_faults(
    location: Loc, cluster: Cluster, pool_name: str, nodes: int, slots: int | None, tp: int
) -> Iterator[tuple[Loc, str]]:
    """Yield (location, what is wrong and what to write) for each reason why a way does not fit its pool.

    `location`: the way's location in the workload; `slots`: slots of each node, None for whole nodes; `tp`:
    accelerators that share one copy of the model.
    """
    pool = cluster.pools.get(pool_name)
    if pool is None:
        yield (
            (*location, "pool"),
            f"cluster '{cluster.name}' has no pool '{pool_name}'; its pools are {', '.join(cluster.pools)}",
        )
        return
    if nodes > pool.nodes:
        yield (
            (*location, "nodes"),
            f"needs {count(nodes, 'node')}, {nodes - pool.nodes} more than pool '{pool_name}' has ({pool.nodes}); "
            f"write at most {pool.nodes} or enlarge the pool",
        )
    if slots is not None and slots > pool.slots:
        yield (
            (*location, "slots"),
            f"a node of pool '{pool_name}' has {count(pool.slots, 'slot')}, not {slots}; write at most {pool.slots}",
        )
        return
    held = pool.accelerators.per_node * (slots or pool.slots) // pool.slots  # of a node
    if tp > nodes * held:
        yield (
            (*location, "tp"),
            f"{tp} accelerators share one copy of the model, and this way has {nodes * held}; "
            f"write at most {nodes * held}",
        )
        return
    right = even_sizes(held, nodes)
    if tp not in right:
        yield (
            (*location, "tp"),
            f"{tp} accelerators share one copy of the model, which leaves some of the {held} of a node over; "
            f"write one of {', '.join(map(str, right))}",
        )


Share = Annotated[float, Field(ge=0, lt=1)]

MAX_SPREAD = 100.0
"""Largest ratio of p95_s to p50_s. With it the mean of a lognormal is below its p95."""


Objective = Literal["usd_per_hour", "usd_per_unit"]


class GroupRules(Strict):
    """The rules of every co-execution group."""

    objective: Objective = "usd_per_hour"
    """The cost to minimise: USD per hour of all nodes, or USD per unit of training (the plan states
    both)."""

    policy: Literal["round_robin", "first_come", "multi_rate"] = "multi_rate"
    """Permit rule, which says who gets nodes that become free: each job once in turn, the first that asks, or the job
    with the least slack."""

    group_cap: Count = 5
    """Most jobs in a group."""

    margin: Share = 0.0
    """Share of a bound's excess over 1 that is kept free: slowdown stays below slo - margin * (slo - 1)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Share of stretches of iterations in which the slowdown must keep the bound."""

    stretch: Count = 20
    """Iterations of a stretch."""

    interference: Share = 0.0
    """Share by which a phase is slower while another job's phase runs in its group."""

    tail_keep: Share = 0.0
    """Share of its units that a rollout keeps for its last responses (a job's tail_share); 0: all."""

    host_copies: Literal["per_replica", "one"] = "per_replica"
    """Copies of a job's weights that a node keeps in host memory: one per replica of the model on it, or one."""


class OtherWay(Strict):
    """Another way to run a phase than its reference."""

    pool: Name
    """Pool of the cluster."""

    nodes: Count = 1
    """Nodes that the phase spans."""

    slots: Count | None = None
    """Slots of each node that it holds; null: whole nodes."""

    factor: Annotated[float, Field(ge=1e-3, le=1e3)]
    """Seconds of this way over the seconds of the reference."""

    tp: Count | None = None
    """Accelerators that share one copy of the model; null: as in the reference."""

    resident_bytes: MemoryBytes | None = None
    """Bytes of host memory per node that its state takes between turns; null: as the reference's, for its slots."""


class Phase(Strict):
    """A phase of a job: its reference, and other ways to run it."""

    pool: Name
    """Pool of the cluster."""

    nodes: Count = 1
    """Nodes that the phase spans; whole ones."""

    tp: Count = 1
    """Accelerators that share one copy of the model; how many copies a node holds follows from it."""

    mean_s: PhaseSeconds | None = None
    """Mean seconds; null: from p50_s and p95_s, or from the job's source."""

    p50_s: PhaseSeconds | None = None
    """Median in seconds; null: the phase always takes its mean."""

    p95_s: PhaseSeconds | None = None
    """95th percentile in seconds; given with p50_s."""

    resident_bytes: MemoryBytes | None = None
    """Bytes of host memory per node that its state takes between turns; null: from the model's size."""

    warm_s: Delay | None = None
    """Seconds to load that state into the accelerators; null: from the model's size."""

    resume_s: Delay | None = None
    """Seconds lost, beside the warm switch, when the phase is put aside for a more urgent job's; null: it never is.
    Permit rule multi_rate only."""

    ways: Annotated[tuple[OtherWay, ...], Field(strict=False)] = ()
    """Other ways to run the phase."""

    @property
    def has_seconds(self) -> bool:
        """Whether the workload states the phase's seconds."""
        return self.mean_s is not None or self.p50_s is not None

    @model_validator(mode="after")
    def _quantiles_come_in_pairs(self) -> Phase:
        if (self.p50_s is None) != (self.p95_s is None):
            there, missing = ("p50_s", "p95_s") if self.p95_s is None else ("p95_s", "p50_s")
            raise cross_error(f"a spread needs p50_s and p95_s; add {missing}", there)
        if self.p50_s is not None and self.p95_s is not None and self.p95_s < self.p50_s:
            raise cross_error(f"p95_s is {self.p95_s:g}, below p50_s, {self.p50_s:g}; write at least that", "p95_s")
        return self

    @model_validator(mode="after")
    def _mean_lies_where_the_quantiles_allow(self) -> Phase:
        if self.p50_s is None or self.p95_s is None:
            return self
        if self.p95_s > MAX_SPREAD * self.p50_s:
            raise cross_error(
                f"p95_s is {self.p95_s:g}, more than {MAX_SPREAD:g} times p50_s, {self.p50_s:g}; write seconds of one "
                "kind of iteration",
                "p95_s",
            )
        # Half of the seconds are at least p50_s, and 5 % at least p95_s. From above nothing binds but what is drawn
        # from the three: a mean beyond p95_s would be the doing of a few iterations that no quantile here shows.
        least = 0.45 * self.p50_s + 0.05 * self.p95_s
        if self.mean_s is not None and not least <= self.mean_s <= self.p95_s:
            raise cross_error(
                f"mean_s is {self.mean_s:g}, with p50_s {self.p50_s:g} and p95_s {self.p95_s:g} it lies between "
                f"{least:.4g} and {self.p95_s:g}; correct one of the three, or remove mean_s",
                "mean_s",
            )
        return self


class Phases(Strict):
    """The two phases that a job alternates between."""

    rollout: Phase
    """Decoding, and waiting for rewards after the last token."""

    train: Phase
    """Gradients, update and transfer of the weights."""


class PhaseSource(Strict):
    """Where the seconds of a job's phases come from."""

    plan: Annotated[str, Field(min_length=1)] | None = None
    """The job's own plan.yaml, relative to this file: its predicted phases. The reference of both phases must be what
    it was solved for: as many nodes with the same accelerators."""

    run: Annotated[str, Field(min_length=1)] | None = None
    """Folder of a run of the job, relative to this file: its measured steps, of the machines of its plan."""

    job: Annotated[str, Field(min_length=1)] | None = None
    """The job.yaml, relative to this file. `solve` plans it on several numbers of nodes of this workload's pools, its
    profile.yaml beside it, and decides together with the groups which of these plans it runs by."""

    lengths: Annotated[str, Field(min_length=1)] | None = None
    """With `job`, its response lengths: a trace, relative to this file, or as in `solve --lengths`; null: the
    profile's."""

    nodes: Annotated[tuple[Count, Count], Field(strict=False)] | None = None
    """With `job`, the nodes to decode and to train that it would have on its own; its slowdown is against them. Null:
    those at which a trained sample costs least."""

    @model_validator(mode="after")
    def _one_of_the_three(self) -> PhaseSource:
        if sum(each is not None for each in (self.plan, self.run, self.job)) != 1:
            raise cross_error("seconds come from a plan, a run, or plans of the job; write one of the three", "plan")
        for key in ("lengths", "nodes"):
            if self.job is None and getattr(self, key) is not None:
                raise cross_error("is of a job that is planned here; write source: {job: ...}, or remove it", key)
        return self


class WorkloadJob(Strict):
    """A job that shares the cluster."""

    slo: Annotated[float, Field(ge=1, le=100)]
    """Bound on the job's slowdown: mean seconds of an iteration in its group over those on nodes of its own."""

    model: Annotated[str, Field(min_length=1)] | None = None
    """Hub id or name with its size, as in `Qwen2.5-7B`; what memory and switches are derived from. Null: as in the
    source's job."""

    source: PhaseSource | None = None
    """Where the seconds of its phases come from; null: they are written here."""

    phases: Annotated[Phases | None, Field(exclude_if=is_none)] = None
    """The two phases of the job; null where its source is a job, whose plans have them."""

    tail_share: Share = 0.0
    """Last share of a rollout's seconds that few responses need, so that a few units can do it; of a source `job` its
    plans say it."""

    tail_finished: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of a round's samples that have ended when these seconds begin; the executor begins the tail there."""

    cold_s: Delay | None = None
    """Seconds until the job's first phase begins on nodes that hold nothing of it; null: as the source's run took, else
    from the model's size."""

    remaining_s: PhaseSeconds | None = None
    """Seconds that the job is expected to stay, over which a move of it must pay; null: long enough for any."""

    ahead_s: Delay | None = None
    """Seconds by which the job is ahead of its bound so far; a move that takes longer is made only where a bound needs
    it. Null: any move may be made, and what it takes is made up for later."""

    @model_validator(mode="after")
    def _seconds_have_one_origin(self) -> WorkloadJob:
        planned_here = self.source is not None and self.source.job is not None
        if self.phases is None:
            if not planned_here:
                raise cross_error("are needed: write the pool of each, or source: {job: ...}", "phases")
            if self.tail_share:
                raise cross_error("follows from the job's lengths; remove it", "tail_share")
            return self
        if planned_here:
            raise cross_error("follow from the plans of source.job; remove them", "phases")
        for name, phase in (("rollout", self.phases.rollout), ("train", self.phases.train)):
            if self.source is None and not phase.has_seconds:
                raise cross_error("no seconds: write mean_s, or p50_s and p95_s, or a source", f"phases.{name}")
            if self.source is not None and phase.has_seconds:
                raise cross_error(
                    "the seconds come from the source; remove mean_s, p50_s and p95_s here, or the source",
                    f"phases.{name}",
                )
        return self


class Workload(Strict):
    """The document workload.yaml."""

    rlplan_workload: Literal[1]
    """Version of the format."""

    cluster: Annotated[str, Field(min_length=1)]
    """cluster.yaml, relative to this file."""

    rules: GroupRules = GroupRules()
    """The rules of every group."""

    jobs: Annotated[dict[Name, WorkloadJob], Field(min_length=1)]
    """The jobs by name."""


def load_workload(path: str | Path) -> tuple[Workload, Cluster]:
    """Read workload.yaml and the cluster that it names, and check that each job fits its pools. Raises InputError."""
    from ..yaml.yaml_io import error_at, load

    workload = load(path, Workload)
    cluster_path = Path(path).parent / workload.cluster
    if not cluster_path.is_file():
        raise error_at(
            path, ("cluster",), f"cluster: no such file: '{workload.cluster}'; paths are relative to this file"
        )
    cluster = load_cluster(cluster_path)
    for loc, fault in way_faults(workload, cluster):
        raise error_at(path, loc, f"{'.'.join(str(part) for part in loc)}: {fault}")
    return workload, cluster


def way_faults(workload: Workload, cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """Yield (location in the workload, what is wrong and what to write) for each way that does not fit its pool."""
    for name, job in workload.jobs.items():
        if job.phases is None:
            continue
        for phase_name, phase in (("rollout", job.phases.rollout), ("train", job.phases.train)):
            location: Loc = ("jobs", name, "phases", phase_name)
            yield from pool_faults(location, cluster, phase.pool, phase.nodes, None, phase.tp)
            for index, way in enumerate(phase.ways):
                yield from pool_faults(
                    (*location, "ways", index), cluster, way.pool, way.nodes, way.slots, way.tp or phase.tp
                )
