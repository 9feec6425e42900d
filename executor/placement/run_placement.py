"""The placement of the plans that are executed together, from the plans alone; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping

from ...plans.schema.cluster import Pool
from ...plans.schema.sections.planned_job import PlannedJob
from ..engines.messages import engine_counts, engine_name
from .seats import Placement, Room, place


def run_placement(plans: Mapping[str, PlannedJob], pools: Mapping[str, Pool]) -> Placement:
    """Seats of the engines, trainer ranks and reward workers of plans that take turns, by name.

    They share engines and reward workers, and agree on their pools (prepare.py). Raises DoesNotFit.
    """
    first = next(iter(plans.values()))
    rollout_pool = first.rounds.short.rollout.pool
    train_pool = rollout_pool if first.placement is None else first.placement.train_pool
    kinds = [kind for plan in plans.values() for kind in (plan.rounds.short, plan.rounds.long) if kind is not None]
    counts = engine_counts({kind.rollout.layout for kind in kinds})
    engines = {tp: [engine_name(tp, number) for number in range(count)] for tp, count in counts.items()}
    ranks = {name: plan.rounds.short.train.accelerators for name, plan in plans.items()}
    train_room = None if train_pool == rollout_pool else room_of(train_pool, pools)
    return place(room_of(rollout_pool, pools), engines, ranks, first.reward.workers, train_room)


def room_of(name: str, pools: Mapping[str, Pool]) -> Room:
    """The nodes of a pool, numbered from 0."""
    pool = pools[name]
    return Room(name, pool.nodes, pool.accelerators.per_node, pool.cores)
