"""The placement of the plans that are executed together, from the plans alone; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...plans.check.prediction_rules import nodes_taken
from ...plans.schema.cluster import Pool
from ...plans.schema.plan import Plan
from .seats import Judges, Placement, Room, engine_counts, engine_name, judge_name, place


def run_placement(plans: Mapping[str, Plan], pools: Mapping[str, Pool]) -> Placement:
    """Seats of the engines, trainer ranks and reward workers of plans that take turns, by name, on the nodes that the
    plans take.

    They share engines and reward workers, and agree on their pools (prepare.py). Raises DoesNotFit.
    """
    jobs = {name: plan.job for name, plan in plans.items()}
    first = next(iter(jobs.values()))
    rollout_pool = first.rounds.short.rollout.pool
    train_pool = None if first.placement is None else first.placement.train_pool
    kinds = [kind for job in jobs.values() for kind in (job.rounds.short, job.rounds.long) if kind is not None]
    counts = engine_counts({layout for kind in kinds for layout in kind.layouts})
    engines = {tp: [engine_name(tp, number) for number in range(count)] for tp, count in counts.items()}
    ranks = {name: job.rounds.short.train.accelerators for name, job in jobs.items()}
    nodes, train_nodes = _nodes(plans.values(), pools[rollout_pool], None if train_pool is None else pools[train_pool])
    train_room = None if train_pool is None else room_of(train_pool, pools, train_nodes)
    judge = first.reward.judge
    judges = None
    if judge is not None:
        names = tuple(judge_name(number) for number in range(judge.instances))
        judges = Judges(names, judge.tp, judge.place == "beside")
    room = room_of(rollout_pool, pools, nodes)
    return place(room, engines, ranks, first.reward.all_workers, train_room, judges)


def room_of(name: str, pools: Mapping[str, Pool], nodes: int | None = None) -> Room:
    """The first `nodes` nodes of a pool, numbered from 0; None: all."""
    pool = pools[name]
    return Room(name, pool.nodes if nodes is None else nodes, pool.accelerators.per_node, pool.cores)


def _nodes(plans: Iterable[Plan], pool: Pool, train_pool: Pool | None) -> tuple[int, int]:
    """Nodes of the engines' pool and of the trainers' own (0 without one) that serve each of the plans.

    A plan takes the nodes of its prediction, which are what it is priced at; an edited one that needs more, as many as
    it needs. A prediction that is not of these pools (its `placement` was edited) says nothing: all nodes are taken.
    """
    whole = pool.nodes, 0 if train_pool is None else train_pool.nodes
    most = 0, 0
    for plan in plans:
        trainers = plan.predicted.train_nodes
        taken = whole
        if (trainers is None) == (train_pool is None):
            needed = nodes_taken(plan, pool, train_pool)
            taken = max(plan.predicted.nodes - (trainers or 0), needed[0]), max(trainers or 0, needed[1])
        most = max(most[0], taken[0]), max(most[1], taken[1])
    return min(most[0], whole[0]), min(most[1], whole[1])
