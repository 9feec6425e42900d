"""Plans sit on the nodes that they take, and are priced at, of pools that may be larger."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplan.plans
from rlplan.executor.placement.run_placement import run_placement
from rlplan.executor.placement.seats import DoesNotFit, Placement
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.schema.sections.planned_job import PlannedJob

EXAMPLE = Path(rlplan.plans.__file__).parent / "examples" / "math-32b.yaml"


def plan_of(engines: int, tp: int, ranks: int, nodes: int, train_nodes: int | None = None, pool: str = "main") -> Plan:
    """The 32B example with so many engines and trainer ranks in both kinds of round, predicted on so many nodes."""
    plan = load_plan(EXAMPLE)
    document = plan.job.model_dump(mode="json")
    for kind in document["rounds"].values():
        kind["rollout"] |= {"engines": engines, "tp": tp, "pool": pool}
        kind["train"] |= {"dp": ranks, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "sp": 1}
    if train_nodes is not None:
        document["placement"] = {"train_pool": "learn"}
    predicted = plan.predicted.model_copy(update={"nodes": nodes, "train_nodes": train_nodes})
    return plan.model_copy(update={"job": PlannedJob.model_validate(document), "predicted": predicted})


def cluster() -> Cluster:
    """The example's eight nodes of eight GPUs as pool `main`, and the same again as pool `learn`."""
    plan = load_plan(EXAMPLE)
    found = load_cluster(EXAMPLE.parent / plan.inputs.cluster.path)
    (pool,) = found.pools.values()
    assert (pool.nodes, pool.accelerators.per_node) == (8, 8)
    return found.model_copy(update={"pools": {"main": pool, "learn": pool}})


def seated(*plans: Plan) -> Placement:
    return run_placement({f"plan{number}": plan for number, plan in enumerate(plans)}, cluster().pools)


def engine_nodes(placement: Placement) -> set[int]:
    return {seat.node for seat in placement.engines.values()}


def test_a_plan_of_one_node_sits_on_one_node_of_a_pool_of_eight_reward_workers_too():
    placement = seated(plan_of(engines=4, tp=2, ranks=8, nodes=1))
    assert list(placement.nodes_in_use()) == [0] and engine_nodes(placement) == {0}
    assert set(placement.reward_workers) == {0} and len(placement.engines) == 4


def test_engines_of_a_tail_sit_on_devices_of_the_rounds_engines():
    plan = plan_of(engines=8, tp=1, ranks=8, nodes=1)
    tail = {"engines": 2, "tp": 4, "at_finished": 0.8}
    document = plan.job.model_dump(mode="json")
    document["rounds"]["long"]["tail"] = tail
    placement = seated(plan.model_copy(update={"job": PlannedJob.model_validate(document)}))
    assert placement.engine_sets[4] == ("rollout-tp4-0", "rollout-tp4-1")
    assert [placement.engines[name].devices for name in placement.engine_sets[4]] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert placement.double_booked() == []


def test_engines_spread_over_the_nodes_that_a_plan_takes_for_its_trainers_or_for_host_memory():
    assert engine_nodes(seated(plan_of(engines=4, tp=2, ranks=16, nodes=2))) == {0, 1}
    assert engine_nodes(seated(plan_of(engines=4, tp=2, ranks=8, nodes=3))) == {0, 1, 2}


def test_with_pools_apart_each_pool_gives_the_nodes_that_are_predicted_of_it():
    placement = seated(plan_of(engines=4, tp=2, ranks=16, nodes=3, train_nodes=2))
    assert [(room.pool, room.nodes, room.first) for room in placement.rooms] == [("main", 1, 0), ("learn", 2, 1)]
    assert list(placement.nodes_in_use()) == [0, 1, 2] and set(placement.reward_workers) == {0}


def test_plans_in_turns_sit_on_the_nodes_that_the_larger_one_takes():
    placement = seated(plan_of(engines=4, tp=2, ranks=8, nodes=1), plan_of(engines=4, tp=2, ranks=24, nodes=3))
    assert engine_nodes(placement) == set(placement.nodes_in_use()) == {0, 1, 2}


def test_an_edited_plan_has_the_nodes_that_its_layouts_need_and_is_refused_beyond_the_pool():
    assert engine_nodes(seated(plan_of(engines=12, tp=2, ranks=8, nodes=1))) == {0, 1, 2}
    with pytest.raises(DoesNotFit, match=r"9 engines of TP 8 need 72 devices.*the 8 nodes of pool 'main'"):
        seated(plan_of(engines=9, tp=8, ranks=8, nodes=1))


def test_a_plan_that_was_given_a_pool_for_trainers_by_hand_has_all_nodes_of_both():
    plan = plan_of(engines=8, tp=1, ranks=8, nodes=2, train_nodes=1)
    stale = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"train_nodes": None})})
    assert [room.nodes for room in seated(stale).rooms] == [8, 8]
