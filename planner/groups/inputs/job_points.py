"""The points of a job's front: its plans on several numbers of nodes, which `rlplan solve` writes beside the workload.

Each is a plan of its own (`WORKLOAD.points/JOB/2+1-exact.yaml`: two nodes to decode, one to train), so that seconds,
spread, tail and reward cores of a point are those of the rounds that it plans, and the executor can run it. A plan
whose inputs have changed since is no point any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....plans.check.solved_rules import has_edited_decisions, has_edited_predictions, stale_inputs
from ....plans.facts.public_models import Architecture
from ....plans.schema.plan import Plan, load_plan
from ....plans.schema.predicted import PredictedRound
from ....plans.yaml.errors import InputError
from .group_model import GroupJob, NodeTypes, PhaseOption, PhasesPoint
from .phase_seconds import Switch, from_plan
from .state_memory import PROCESS_BYTES, TRAINED_BYTES, HostCopies, rollout_bytes

Nodes = tuple[int, int]
"""Nodes that a point decodes on, and trains on."""


@dataclass(frozen=True)
class PlannedPoint:
    """A plan of the job in a file."""

    path: Path
    plan: Plan

    @property
    def nodes(self) -> Nodes:
        of_trainers = self.plan.predicted.train_nodes or 0
        return self.plan.predicted.nodes - of_trainers, of_trainers

    @property
    def name(self) -> str:
        """Its nodes and its mode."""
        return "{}+{}-{}".format(*self.nodes, self.plan.job.bias.mode)

    @property
    def usd_per_1k_samples(self) -> float:
        return self.plan.predicted.usd_per_1k_samples


def points_folder(workload: Path, job: str) -> Path:
    """The folder of the plans of a job's points."""
    return workload.with_name(f"{workload.stem}.points") / job


def points_there(workload: Path, job: str) -> list[PlannedPoint]:
    """The points that are planned, the narrowest first; plans of changed inputs, of other versions and such that were
    edited and not refreshed are left out."""
    points = []
    for path in sorted(points_folder(workload, job).glob("[!.]*.yaml")):
        try:
            plan = load_plan(path)
        except InputError:
            continue
        if not (any(stale_inputs(plan, path)) or has_edited_decisions(plan) or has_edited_predictions(plan)):
            points.append(PlannedPoint(path, plan))
    return sorted(points, key=lambda point: (point.nodes, point.name))


def alone(points: list[PlannedPoint], nodes: Nodes | None) -> PlannedPoint | None:
    """The point by which the job would run on nodes of its own: the fastest on `nodes`, or without `nodes` the one with
    the cheapest samples. None: there is none."""
    if nodes is None:
        return min(points, key=lambda point: (point.usd_per_1k_samples, point.name), default=None)
    on_nodes = [point for point in points if point.nodes == nodes]
    return min(on_nodes, key=lambda point: (point.plan.predicted.seconds_per_sample, point.name), default=None)


def job_of_points(
    name: str,
    points: list[PlannedPoint],
    reference: PlannedPoint,
    shape: Architecture,
    switch: Switch,
    node_types: NodeTypes,
    copies: HostCopies,
    per_node: Mapping[str, int],
    tail_finished: float,
    **fields: float,
) -> GroupJob:
    """The job whose options are its points, the reference first.

    Args:
        per_node: accelerators of a node by pool.
        tail_finished: share of a round's samples that have ended when its tail begins.
        fields: of the GroupJob, as the workload states them.
    """
    rollout, train, of_points = [], [], []
    for point in [reference, *(point for point in points if point is not reference)]:
        planned, seconds = point.plan.job, from_plan(point.plan, name)
        assert planned.placement is not None, "the job's placement is checked before it is planned"
        pools = planned.rounds.short.rollout.pool, planned.placement.train_pool
        kinds = [kind for kind in (planned.rounds.short, planned.rounds.long) if kind is not None]
        engines = max(rollout_bytes(shape, per_node[pools[0]], kind.rollout.tp, copies) for kind in kinds)
        trained = TRAINED_BYTES * shape.parameters * max(kind.train.state_copies for kind in kinds) / point.nodes[1]
        trainers = trained + per_node[pools[1]] * PROCESS_BYTES
        slots = [node_types[pool].slots for pool in pools]
        rollout.append(
            PhaseOption(pools[0], point.nodes[0], slots[0], seconds.rollout_s, engines, switch.rollout_warm_s)
        )
        train.append(PhaseOption(pools[1], point.nodes[1], slots[1], seconds.train_s, trainers, switch.train_warm_s))
        tail, cores = tail_share(point.plan, tail_finished), planned.reward.all_workers
        of_points.append(PhasesPoint(point.name, seconds.spread, tail, cores))
    return GroupJob(
        name,
        rollout=tuple(rollout),
        train=tuple(train),
        spread=of_points[0].spread,
        tail_share=of_points[0].tail_share,
        tail_finished=tail_finished,
        points=tuple(of_points),
        **fields,
    )


def tail_share(plan: Plan, finished: float) -> float:
    """Share of a plan's rollout seconds, rewards that are waited for included, after a share `finished` of the samples
    has ended: mean over kinds of round, by their predicted curves of running sequences."""
    rounds = plan.predicted.rounds
    kinds = [kind for kind in (rounds.short, rounds.long) if kind is not None and kind.share > 0]
    waits = [kind.share * kind.reward_exposed_s.mean for kind in kinds]
    tails = [kind.share * kind.rollout_s.mean * _after(kind, 1.0 - finished) for kind in kinds]
    whole = sum(waits) + sum(kind.share * kind.rollout_s.mean for kind in kinds)
    return (sum(tails) + sum(waits)) / whole if whole else 0.0


def _after(kind: PredictedRound, level: float) -> float:
    """Share of a rollout after which no more than `level` of its most sequences run; linear between twentieths."""
    curve = kind.running
    last = max((n for n, share in enumerate(curve) if share > level), default=-1)
    if last in (-1, len(curve) - 1):
        return float(last < 0)
    begins = last + (curve[last] - level) / (curve[last] - curve[last + 1])
    return 1.0 - begins / (len(curve) - 1)
