"""The problem that a workload document states: jobs with their options, node types, rules.

Seconds come from the document, from a job's plan or from a run (phase_seconds.py); host memory, warm and cold switches
from the model's size where the document does not give them (state_memory.py, phase_seconds.py). A weight transfer
over the cluster's links is added to training seconds that the document gives; those of plans and runs include theirs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ....plans.check.plan_check import input_path
from ....plans.facts.model_names import architecture_of
from ....plans.facts.model_shape import model_of_job
from ....plans.facts.public_models import Architecture
from ....plans.phrases.numbers import bytes_text, count
from ....plans.schema.cluster import Accelerators, Cluster, Pool, load_cluster
from ....plans.schema.job import load_job
from ....plans.schema.plan import Plan, load_plan
from ....plans.schema.workload import GroupRules, OtherWay, Phase, Phases, Workload, WorkloadJob, even_sizes
from ....plans.yaml.errors import InputError, joined
from ....plans.yaml.yaml_doc import Loc
from ....plans.yaml.yaml_io import error_at
from ....profiles.hardware import gpu_of
from ....traces.run_log import PLAN_COPY, TRACE
from ...tune.executed_run import load_executed
from .group_model import GroupJob, Jobs, NodeType, NodeTypes, PhaseOption, Rules
from .job_points import alone, job_of_points, points_there
from .phase_seconds import PhaseSeconds, Switch, from_figures, from_plan, from_run, switch_seconds, sync_seconds
from .state_memory import HostCopies, accelerator_bytes, rollout_bytes, train_bytes

# A job's plan or run (its source) must be for the machines of the job's reference in a workload: seconds on one kind of
# accelerator, or number of nodes, say nothing of another. Other machines are written as `ways` with factors.


def other_machines(
    plan: Plan, plan_path: Path, source: str, phases: Phases, cluster: Cluster
) -> Iterator[tuple[Loc, str]]:
    """Faults where a reference is on other machines than the plan: (location within the job, fault and remedy).

    Accelerators are compared as the plan's cluster file names them. Where that file is gone, or no longer has the
    plan's pool, the pools' names have to be the same.

    Args:
        source: how the workload names the plan or the run.
        cluster: the workload's.
    """
    engines, placement = plan.job.rounds.short.rollout.pool, plan.job.placement
    trainers = engines if placement is None else placement.train_pool
    for key, phase, name in (("rollout", phases.rollout, engines), ("train", phases.train, trainers)):
        solved = _pool_of(plan, plan_path, name)
        pool = cluster.pools[phase.pool]
        alike = phase.pool == name if solved is None else _alike(solved.accelerators, pool.accelerators)
        if not alike:
            there = f"pool '{name}'" + ("" if solved is None else f" ({_text(solved.accelerators)})")
            yield (
                ("phases", key, "pool"),
                f"the seconds of '{source}' are of {there}, not of pool '{phase.pool}' ({_text(pool.accelerators)}); "
                "make a pool like that one the reference and write this one under ways with its factor, or remove the "
                "source and write the seconds here",
            )
            continue
        right = _nodes(plan, key, pool)
        if phase.nodes not in right:
            yield (
                ("phases", key, "nodes"),
                f"the seconds of '{source}' are of {count(max(right), 'node')}, not of {phase.nodes}; write "
                f"nodes: {' or '.join(map(str, sorted(right)))} and other widths under ways with their factor, or "
                f"solve the job for {count(phase.nodes, 'node')}",
            )


def _pool_of(plan: Plan, plan_path: Path, name: str) -> Pool | None:
    """The pool that the plan was solved for; None: its cluster file is gone or no longer has the pool."""
    path = input_path(plan.inputs.cluster, plan_path)
    if not path.is_file():
        return None
    try:
        return load_cluster(path).pools.get(name)
    except InputError:
        # `check` of the plan reports the error.
        return None


def _alike(there: Accelerators, here: Accelerators) -> bool:
    """Whether a node has as many of the same accelerators."""
    if (there.kind, there.per_node) != (here.kind, here.per_node):
        return False
    gpu = gpu_of(there.name)
    return there.name == here.name or (there.kind == "cuda" and gpu is not None and gpu == gpu_of(here.name))


def _nodes(plan: Plan, key: str, pool: Pool) -> set[int]:
    """Nodes that the phase may be written with: all nodes of the plan in its pool, or those that its widest round kind
    fills."""
    of_trainers = plan.predicted.train_nodes or 0
    taken = of_trainers if key == "train" and of_trainers else plan.predicted.nodes - of_trainers
    rounds = [r for r in (plan.job.rounds.short, plan.job.rounds.long) if r is not None]
    if key == "rollout":
        needed_nodes = max(pool.nodes_of(r.rollout.engines, r.rollout.tp) for r in rounds)
    else:
        needed_nodes = max(pool.nodes_of(1, r.train.accelerators) for r in rounds)
    return {needed_nodes, taken}


def _text(accelerators: Accelerators) -> str:
    return f"{accelerators.per_node} x {accelerators.name} a node"


MOST_APART = 10_000
"""Largest ratio of the slowest job's iteration to the fastest's in one workload."""


@dataclass(frozen=True)
class Problem:
    """Jobs to be placed on node types under rules.

    Attributes:
        jobs: by name, in the order of the document's names.
        node_types: node type of each pool.
        rules: that every group obeys.
        remaining_s: expected stay of jobs that say so.
        ahead_s: seconds by which jobs that say so are ahead of their bounds.
        read: by job, the file that its seconds were read from, besides the workload itself; of several points that of
            the reference.
        points: by job that has points, the plan of each by name.
    """

    jobs: Jobs
    node_types: NodeTypes
    rules: Rules
    remaining_s: Mapping[str, float] = field(default_factory=dict)
    ahead_s: Mapping[str, float] = field(default_factory=dict)
    read: Mapping[str, Path] = field(default_factory=dict)
    points: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)


def problem_of(workload: Workload, path: Path, cluster: Cluster) -> Problem:
    """The problem that the workload at `path` states.

    Raises InputError, of all jobs at once: a source that cannot be read or is of other machines, a model of unknown
    size where a figure has to be derived from it, a state that no node can hold.
    """
    node_types = {
        name: NodeType(
            name,
            pool.node_price,
            float(pool.host_memory_bytes),
            pool.slots,
            pool.nodes,
            pool.accelerators.kind == "cpu",
        )
        for name, pool in sorted(cluster.pools.items())
    }
    jobs: dict[str, GroupJob] = {}
    read: dict[str, Path] = {}
    points: dict[str, Mapping[str, Path]] = {}
    faults: list[InputError] = []
    for name, document in sorted(workload.jobs.items()):
        try:
            job = _Job(name, document, path, cluster, workload.rules)
            jobs[name] = job.build(node_types)
        except InputError as error:
            faults.append(error)
            continue
        if job.read is not None:
            read[name] = job.read
        if job.points:
            points[name] = job.points
    if faults:
        raise joined(faults)
    _must_be_alike(jobs, path)
    remaining = {name: job.remaining_s for name, job in workload.jobs.items() if job.remaining_s is not None}
    ahead = {name: job.ahead_s for name, job in workload.jobs.items() if job.ahead_s is not None}
    return Problem(jobs, node_types, rules_of(workload.rules), remaining, ahead, read, points)


def _must_be_alike(jobs: Jobs, path: Path) -> None:
    """Raise if one job's iteration takes over MOST_APART times another's.

    A simulation of both runs as many iterations of the fast job as fit into one of the slow job.
    """
    fast, slow = (pick(jobs.values(), key=lambda job: job.solo_s) for pick in (min, max))
    if slow.solo_s > MOST_APART * fast.solo_s:
        raise error_at(
            path,
            ("jobs", slow.name),
            f"jobs.{slow.name}: its iteration takes {slow.solo_s:.6g} s, more than {MOST_APART:,} times the "
            f"{fast.solo_s:.6g} s of '{fast.name}'; check the units, or give them workloads of their own",
        )


def rules_of(rules: GroupRules) -> Rules:
    """The rules of groups from the document's rules."""
    return Rules(
        permit_rule=rules.policy,
        group_cap=rules.group_cap,
        margin=rules.margin,
        quantile=rules.quantile,
        stretch=rules.stretch,
        interference=rules.interference,
        tail_keep=rules.tail_keep,
    )


class _Job:
    """Builds the GroupJob of one job of a workload."""

    def __init__(self, name: str, document: WorkloadJob, path: Path, cluster: Cluster, rules: GroupRules) -> None:
        self.name, self.document, self.path, self.cluster, self.rules = name, document, path, cluster, rules
        self.read: Path | None = None
        self.points: dict[str, Path] = {}
        self.model = document.model
        self.cold_s = document.cold_s
        self.shape: Architecture | None = None
        self.seconds = self._seconds()
        if self.shape is None and self.model:
            self.shape = architecture_of(self.model)
        if self.shape is not None and self.shape.guessed:
            where = f"jobs.{name}: the shape of {self.model} is guessed"
            warnings.warn(f"{where} ({self.shape.parameters / 1e9:.3g}B parameters)", stacklevel=2)
        self.switch = switch_seconds(self.shape) if self.shape else None

    def build(self, node_types: NodeTypes) -> GroupJob:
        phases, cold = self.document.phases, self.cold_s
        if phases is None:
            return self._of_points(node_types)
        assert self.seconds is not None, "only a job of points is without"
        sync = 0.0
        if self.document.source is None and self.shape is not None:
            rollout, train = ((p.pool, p.nodes) for p in (phases.rollout, phases.train))
            sync = sync_seconds(self.shape, self.cluster, rollout, train)
        return GroupJob(
            name=self.name,
            slo=self.document.slo,
            rollout=self._options("rollout", phases.rollout, self.seconds.rollout_s, 0.0, node_types),
            train=self._options("train", phases.train, self.seconds.train_s, sync, node_types),
            spread=self.seconds.spread,
            cold_s=cold if cold is not None else self._switch("cold_s").cold_s,
            tail_share=self.document.tail_share,
            tail_finished=self.document.tail_finished,
        )

    def _of_points(self, node_types: NodeTypes) -> GroupJob:
        """The job by its planned points. Raises InputError where there is none."""
        source = self.document.source
        assert source is not None and source.job is not None, "the document has phases, or a job to plan"
        points = points_there(self.path, self.name)
        reference = alone(points, source.nodes)
        if reference is None:
            on = "" if source.nodes is None else " on {}+{} nodes".format(*source.nodes)
            raise self._error(f"'{source.job}' is not planned yet{on}; run rlplan solve {self.path}", "source", "job")
        self.read, self.points = reference.path, {point.name: point.path for point in points}
        return job_of_points(
            self.name,
            points,
            reference,
            self._shape("source", "resident_bytes"),
            self._switch("source", "warm_s"),
            node_types,
            self.rules.host_copies,
            {name: pool.accelerators.per_node for name, pool in self.cluster.pools.items()},
            self.document.tail_finished,
            slo=self.document.slo,
            cold_s=self.cold_s if self.cold_s is not None else self._switch("source", "cold_s").cold_s,
        )

    def _seconds(self) -> PhaseSeconds | None:
        phases, source = self.document.phases, self.document.source
        if phases is None:
            assert source is not None and source.job is not None, "the document has phases, or a job to plan"
            job_path = self.path.parent / source.job
            if not job_path.is_file():
                raise self._error(f"no such file: '{source.job}'; paths are relative to this file", "source", "job")
            self._is_of(job_path)
            return None
        if source is None:
            return from_figures(phases.rollout, phases.train, self.name)
        if source.plan is not None:
            self.read = self.path.parent / source.plan
            if not self.read.is_file():
                raise self._error(f"no such file: '{source.plan}'; paths are relative to this file", "source", "plan")
            plan = load_plan(self.read)
            job_path = input_path(plan.inputs.job, self.read)
            self._is_of(job_path)
            self._must_be_of_these_machines(plan, self.read, source.plan)
            return from_plan(plan, self.name)
        assert source.run is not None, "the document has one of the two"
        folder = self.path.parent / source.run
        if not folder.is_dir():
            raise self._error(f"no such folder: '{source.run}'; paths are relative to this file", "source", "run")
        self.read = folder / TRACE
        run = load_executed(folder)
        job_path = input_path(run.plan.inputs.job, folder / PLAN_COPY)
        self._is_of(job_path)
        original = run.plan_path if run.plan_path is not None and run.plan_path.is_file() else folder / PLAN_COPY
        self._must_be_of_these_machines(run.plan, original, source.run)
        if self.cold_s is None:
            self.cold_s = run.cold_s
        return from_run(run)

    def _is_of(self, job_path: Path) -> None:
        """Take the model of the job at `job_path`, where the document names none."""
        if self.model is None and job_path.is_file():
            job = load_job(job_path)
            self.model, self.shape = job.model.path, model_of_job(job, job_path).architecture

    def _must_be_of_these_machines(self, plan: Plan, plan_path: Path, source: str) -> None:
        phases = self.document.phases
        assert phases is not None, "the source is a plan or a run"
        mismatches = other_machines(plan, plan_path, source, phases, self.cluster)
        faults = [self._error(fault, *loc) for loc, fault in mismatches]
        if faults:
            raise joined(faults)

    def _options(
        self, name: str, phase: Phase, seconds: float, sync_s: float, node_types: NodeTypes
    ) -> tuple[PhaseOption, ...]:
        """The reference of a phase, then its other options (`ways` of the document)."""
        warm = phase.warm_s
        if warm is None:
            switch = self._switch("phases", name, "warm_s")
            warm = switch.rollout_warm_s if name == "rollout" else switch.train_warm_s
        reference = OtherWay.model_construct(
            pool=phase.pool, nodes=phase.nodes, factor=1.0, tp=phase.tp, resident_bytes=phase.resident_bytes
        )
        options = []
        for index, way in enumerate([reference, *phase.ways]):
            where = ("phases", name, "ways", index - 1) if index else ("phases", name)
            node_slots = node_types[way.pool].slots
            slots, tp = way.slots or node_slots, way.tp or phase.tp
            taken = self.cluster.pools[way.pool].accelerators.per_node * slots // node_slots
            stated = way.resident_bytes is not None or phase.resident_bytes is not None
            if way.resident_bytes is not None:
                held = float(way.resident_bytes)
            elif phase.resident_bytes is not None:
                held = phase.resident_bytes * slots / node_slots
            else:
                held = self._derived_bytes(name, taken, way.nodes, tp, self.rules.host_copies)
            self._must_load(name, where, way.pool, way.nodes, taken, tp)
            if held >= node_types[way.pool].host_memory_bytes:
                raise self._no_host_memory(name, where, way.pool, way.nodes, taken, tp, held, stated)
            options.append(
                PhaseOption(way.pool, way.nodes, slots, seconds * way.factor + sync_s, held, warm, phase.resume_s)
            )
        return tuple(options)

    def _derived_bytes(self, name: str, accelerators: int, nodes: int, tp: int, copies: HostCopies) -> float:
        """Host bytes per node of an option that does not state them, on `accelerators` of each node."""
        shape = self._shape("phases", name, "resident_bytes")
        if name == "rollout":
            return rollout_bytes(shape, accelerators, tp, copies)
        return train_bytes(shape, accelerators, tp, nodes, copies)

    def _no_host_memory(
        self,
        name: str,
        where: tuple[str | int, ...],
        pool: str,
        nodes: int,
        taken: int,
        tp: int,
        held: float,
        given: bool,
    ) -> InputError:
        """The error of an option whose state does not fit into the host memory of a node, of which it takes `taken`
        accelerators."""
        memory, remedies = self.cluster.pools[pool].host_memory_bytes, list[str]()
        if not given:
            copies = self.rules.host_copies
            fits = (n for n in even_sizes(taken, nodes) if self._derived_bytes(name, taken, nodes, n, copies) < memory)
            if (wider := next(fits, None)) is not None:
                remedies.append(f"write tp: {wider}")
            if copies != "one" and self._derived_bytes(name, taken, nodes, tp, "one") < memory:
                remedies.append("write host_copies: one")
        other = "write less, or take nodes with more" if given else "no tp makes it fit: take nodes with more"
        return self._error(
            f"its state takes {bytes_text(held)} of host memory on a node, {bytes_text(held - memory)} more than a "
            f"node of pool '{pool}' has ({bytes_text(memory)}); {', or '.join(remedies) or other}",
            *where,
        )

    def _must_load(self, name: str, where: tuple[str | int, ...], pool: str, nodes: int, taken: int, tp: int) -> None:
        """Raise an error where the least bytes of a phase (state_memory.accelerator_bytes) exceed an accelerator, with
        what the pool allows in its place."""
        accelerators, has = self.cluster.pools[pool].accelerators, self.cluster.pools[pool].nodes
        if self.shape is None or accelerators.kind != "cuda":
            return
        least, memory = accelerator_bytes(self.shape, tp, name == "train"), accelerators.memory_bytes
        if least <= memory:
            return
        enough = math.ceil(tp * least / memory)
        wider = next((size for size in even_sizes(taken, nodes) if size >= enough), None)
        more = math.ceil(enough / taken)
        if wider is not None:
            remedy = f"write tp: {wider}"
        elif more <= has:
            remedy = f"write nodes: {more} and tp: {more * taken}"
        else:
            remedy = (
                f"the pool's {count(has, 'node')} of {accelerators.per_node} do not hold it: {enough} are needed; take "
                "more nodes, accelerators with more memory, or a smaller model"
            )
        need = "weights and gradients take" if name == "train" else "weights, and the KV cache beside them, take"
        raise self._error(
            f"{self.model}'s {need} at least {bytes_text(least)} of an accelerator at tp {tp}, and one of pool "
            f"'{pool}' has {bytes_text(memory)}; {remedy}",
            *where,
        )

    def _shape(self, *wanted: str | int) -> Architecture:
        if self.shape is not None:
            return self.shape
        if self.model is None:
            raise self._error(f"no {wanted[-1]}, and no model to derive it from; write one of the two", *wanted[:-1])
        raise self._error(
            f"nothing is known of the size of '{self.model}', from which {wanted[-1]} would be derived; write "
            f"{wanted[-1]}, or a model name with its size, as in '7B'",
            *(("model",) if self.document.model else wanted[:-1]),
        )

    def _switch(self, *wanted: str | int) -> Switch:
        self._shape(*wanted)
        assert self.switch is not None, "it is made with the shape"
        return self.switch

    def _error(self, text: str, *where: str | int) -> InputError:
        loc = ("jobs", self.name, *where)
        return error_at(self.path, loc, f"{'.'.join(str(part) for part in loc)}: {text}")
