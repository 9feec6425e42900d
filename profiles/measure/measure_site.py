"""The actors that a profile is measured with: engines, trainers and reward workers on devices of Ray, taking turns.

They are placed, started and put to sleep by the executor's own parts, as those of a run are. What a plan says of bytes
on GPUs, for the ledger of the turns, is not known before there is a profile; so the ledger has the least that engines
and trainers can take (weights, states and gradients, no activations), and what it refuses cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ray

from ...executor.configuration import fleet_config, trainer_config
from ...executor.engines.fleet import Fleet
from ...executor.memory.device_holds import ledger_of, trainer_name
from ...executor.memory.device_turns import DeviceTurns
from ...executor.placement.actor_placer import ActorPlacer
from ...executor.placement.live_nodes import PROBE_S, on_node
from ...executor.placement.run_placement import DoesNotFit, Placement, engine_counts, engine_name, place, room_of
from ...executor.processes.actors import track, within
from ...executor.processes.supervision import Supervisor
from ...executor.rollout.reward_sum import PoolSize, RewardSum
from ...executor.trainer.trainer_group import TrainerGroup
from ...executor.weight_sync import WeightSync
from ...plans.facts.device_shares import PLANNED_SHARE, engine_share
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job, JobPaths
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.schema.planned_job import LossPlan
from ...plans.yaml.errors import InputError
from ...rounds.device_ledger import KV_CACHE, MOMENTS, PARAMETERS, Holder, trainer_holder
from ..laws.rank_memory import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES
from ..profile_schema import Machine
from .measure_machine import this_machine

MOST_PROFILED_WORKERS = 16
"""Reward workers that a job is measured with at most, where it does not say how many it has."""

FIRST = "profile"
"""Name of the trainer that takes turns with engines."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled: the job, its files, the pool with its name in the cluster, and the policy's parameters."""

    job: Job
    paths: JobPaths
    pool_name: str
    pool: Pool
    parameters: int


@dataclass(frozen=True, slots=True)
class Site:
    """The actors; none of them is started yet.

    Attributes:
        updates: by name of the trainer, its layout.
        turns: starts and ends engines and trainers, and has them take turns.
    """

    placer: ActorPlacer
    fleet: Fleet
    rewards: RewardSum
    trainers: Mapping[str, TrainerGroup]
    updates: Mapping[str, UpdateLayout]
    turns: DeviceTurns

    async def machine(self, pool: Pool) -> Machine:
        """The node of the first engine; `placer` must be open."""
        node = self.placer.nodes[0]
        call = _machine.options(**on_node(node.node_id)).remote(pool)
        found: Machine = await within(PROBE_S, track(call), f"node {node.facts.address}")
        return found

    def weights(self, path: Path) -> WeightSync:
        """The way of the first trainer's weights to the engines, as in a run; `path` is where a file goes."""
        return WeightSync(self.trainers[FIRST], self.fleet, path)


def site_of(
    subject: Subject, layouts: Sequence[EngineLayout], updates: Sequence[UpdateLayout], most_samples: int
) -> Site:
    """The actors of these engines and trainers; the first of `updates` takes turns with the engines.

    `most_samples`: that an engine decodes at a time. Raises InputError if the pool has no room for them.
    """
    job, paths, pool = subject.job, subject.paths, subject.pool
    named = {FIRST if not number else f"{FIRST} {update_name(each)}": each for number, each in enumerate(updates)}
    placement = _placement(subject, layouts, named)
    supervisor, placer = Supervisor(), ActorPlacer(placement, pool.accelerators.kind)
    config = fleet_config(layouts, job, paths.model, pool, most_samples)
    fleet = Fleet(config, supervisor, placer=placer)
    # By what a loss is divided costs nothing; these are a synchronous step's at most.
    samples = job.rollout.samples_per_step
    most = LossPlan(samples=samples, tokens=samples * job.rollout.max_response_tokens)
    # Updates cost what they cost at any learning rate; at 0 they leave the policy as it is.
    frozen = job.model_copy(update={"algorithm": job.algorithm.model_copy(update={"learning_rate": 0.0, "kl": None})})
    trainers = {}
    for name, update in named.items():
        trainer = trainer_config(frozen, paths.weights or paths.model, update, pool.accelerators.kind, most)
        trainer = replace(trainer, threads=max(1, pool.cores // trainer.ranks))
        trainers[name] = TrainerGroup(name, trainer, supervisor, placer)
    ledger = ledger_of(
        config,
        {tp: engine_bytes(subject, tp) for tp in config.engines()},
        {name: (trainer_bytes(subject, name, update), update.accelerators) for name, update in named.items()},
        pool,
        where=placement.device_names(pool.accelerators.kind),
    )
    counts = _profiled_pools(job, pool)
    sizes = {part.label: PoolSize(counts[part.label], part.deadline_s) for part in job.reward.pooled}
    return Site(
        placer=placer,
        fleet=fleet,
        rewards=RewardSum.of_job(job, paths, sizes, supervisor, placer=placer),
        trainers=trainers,
        updates=named,
        turns=DeviceTurns(ledger, fleet, trainers),
    )


def profiled_workers(job: Job, pool: Pool) -> int:
    """Reward workers that a job is measured with: as many as it has; where `solve` is to decide, one for each core that
    no GPU needs, within bounds."""
    if job.reward.workers is not None:
        return job.reward.workers
    gpus = pool.accelerators.per_node if pool.accelerators.kind == "cuda" else 0
    return max(1, min(MOST_PROFILED_WORKERS, pool.nodes * (pool.cores - gpus)))


def _profiled_pools(job: Job, pool: Pool) -> dict[str, int]:
    """Reward workers by part of the reward: the first one's are those that `solve` decides."""
    return {
        part.label: part.workers or 1 if place else profiled_workers(job, pool)
        for place, part in enumerate(job.reward.pooled)
    }


def update_name(layout: UpdateLayout) -> str:
    """A layout of trainers in progress lines: sizes above 1, and what saves memory."""
    sizes = [f"{key} {size}" for key in ("dp", "tp", "sp") if (size := getattr(layout, key)) > 1] or ["dp 1"]
    sizes += [f"{layout.state_copies} copies"] * (layout.state_copies > 1)
    saves = ["recompute"] * (layout.recompute != "none") + ["offload"] * layout.offload
    return ", ".join(sizes + saves)


def _placement(subject: Subject, layouts: Sequence[EngineLayout], named: Mapping[str, UpdateLayout]) -> Placement:
    counts = engine_counts(layouts)
    engines = {tp: [engine_name(tp, number) for number in range(count)] for tp, count in counts.items()}
    ranks = {name: update.accelerators for name, update in named.items()}
    room = room_of(subject.pool_name, {subject.pool_name: subject.pool})
    try:
        return place(room, engines, ranks, sum(_profiled_pools(subject.job, subject.pool).values()))
    except DoesNotFit as error:
        raise InputError(f"pool '{subject.pool_name}' has no room for what is measured: {error}") from None


def engine_bytes(subject: Subject, tp: int) -> dict[str, float]:
    """What an engine of `tp` GPUs holds on each while it decodes: its weights, and a cache in the rest of its share."""
    share = engine_share(subject.job) * subject.pool.accelerators.memory_bytes
    weights = min(weight_bytes(subject) / tp, share)
    return {"engine_weights": weights, KV_CACHE: share - weights}


def weight_bytes(subject: Subject) -> float:
    """Bytes of all weights of the policy in an engine."""
    each = 4 if subject.job.model.dtype == "float32" else 2
    return float(each * subject.parameters)


def trainer_bytes(subject: Subject, name: str, update: UpdateLayout) -> Holder:
    """What a rank of a trainer holds at least: its share of parameters and moments and, while it trains, gradients."""
    rank = subject.parameters * update.state_copies / update.accelerators
    if subject.job.model.lora is not None:  # of adapters, a percent or so, nothing is said
        return trainer_holder(trainer_name(name), rank * (2 if subject.job.model.dtype == "bfloat16" else 4), 0.0, 0.0)
    parameters, moments = rank * MASTER_BYTES, rank * MOMENT_BYTES
    room = (PLANNED_SHARE - engine_share(subject.job)) * subject.pool.accelerators.memory_bytes
    training = {
        PARAMETERS: parameters,
        MOMENTS: 0.0 if update.offload else moments,
        "trainer_gradients": rank * GRADIENT_BYTES,
    }
    return trainer_holder(trainer_name(name), parameters, moments, room, offload=update.offload, training=training)


@ray.remote(num_cpus=0, max_retries=0)
def _machine(pool: Pool) -> Machine:
    return this_machine(pool)
