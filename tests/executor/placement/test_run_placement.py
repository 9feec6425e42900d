"""Plans sit on the nodes that they take, and are priced at, of pools that may be larger."""

from pathlib import Path

import pytest

import rlplan.plans
from rlplan.executor.placement.seats import DoesNotFit, Room, run_placement
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.schema.planned_job import PlannedJob

EXAMPLE = Path(rlplan.plans.__file__).parent / "examples" / "math-32b.yaml"


@pytest.fixture(scope="module")
def shipped():
    """The 32B example's plan, and its eight nodes of eight GPUs as pool `main`, and again as pool `learn`."""
    plan = load_plan(EXAMPLE)
    (pool,) = load_cluster(EXAMPLE.parent / plan.inputs.cluster.path).pools.values()
    assert (pool.nodes, pool.accelerators.per_node) == (8, 8)
    return plan, {"main": pool, "learn": pool}


@pytest.fixture
def seated(shipped):
    """Placement of plans of (engines, TP, trainer ranks, nodes predicted, nodes of the trainers) in both kinds of
    round; `change` edits them."""
    plan, pools = shipped

    def edited(engines, tp, ranks, nodes, train_nodes=None, change=lambda job: None):
        document = plan.job.model_dump(mode="json")
        for kind in document["rounds"].values():
            kind["rollout"] |= {"engines": engines, "tp": tp, "pool": "main"}
            kind["train"] |= {"dp": ranks, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "sp": 1}
        if train_nodes is not None:
            document["placement"] = {"train_pool": "learn"}
        change(document)
        predicted = plan.predicted.model_copy(update={"nodes": nodes, "train_nodes": train_nodes or None})
        return plan.model_copy(update={"job": PlannedJob.model_validate(document), "predicted": predicted})

    def placed(*plans, **options):
        return run_placement({f"plan{n}": edited(*each, **options) for n, each in enumerate(plans)}, pools)

    return placed


def engine_nodes(placement):
    return {seat.node for seat in placement.engines.values()}


@pytest.mark.parametrize(
    ("plans", "nodes"),
    [
        ([(4, 2, 8, 1)], {0}),  # of a pool of eight, reward workers too
        ([(4, 2, 16, 2)], {0, 1}),  # for its trainers
        ([(4, 2, 8, 3)], {0, 1, 2}),  # for host memory
        ([(4, 2, 8, 1), (4, 2, 24, 3)], {0, 1, 2}),  # in turns: those of the larger one
        ([(12, 2, 8, 1)], {0, 1, 2}),  # edited: those that its layouts need
    ],
)
def test_engines_spread_over_the_nodes_that_plans_take(seated, plans, nodes):
    placement = seated(*plans)
    assert engine_nodes(placement) == set(placement.nodes_in_use()) == nodes
    assert set(placement.reward_workers) <= nodes and len(placement.engines) == max(plan[0] for plan in plans)


def test_an_edited_plan_is_refused_beyond_the_pool(seated):
    with pytest.raises(DoesNotFit, match=r"9 engines of TP 8 need 72 devices.*the 8 nodes of pool 'main'"):
        seated((9, 8, 8, 1))


def test_engines_of_a_tail_sit_on_devices_of_the_rounds_engines(seated):
    tail = {"engines": 2, "tp": 4, "at_finished": 0.8}
    placement = seated((8, 1, 8, 1), change=lambda job: job["rounds"]["long"].update(tail=tail))
    assert placement.engine_sets[4] == ("rollout-tp4-0", "rollout-tp4-1")
    assert [placement.engines[name].devices for name in placement.engine_sets[4]] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert placement.double_booked() == []


def test_with_pools_apart_each_gives_the_nodes_that_are_predicted_of_it(seated):
    placement = seated((4, 2, 16, 3, 2))
    assert [(room.pool, room.nodes, room.first) for room in placement.rooms] == [("main", 1, 0), ("learn", 2, 1)]
    assert placement.rooms[0] == Room("main", 1, 8, placement.rooms[0].cores)
    assert list(placement.nodes_in_use()) == [0, 1, 2] and set(placement.reward_workers) == {0}
    by_hand = seated((8, 1, 8, 2, 0))  # the prediction is of a plan without this pool
    assert [room.nodes for room in by_hand.rooms] == [8, 8]


@pytest.mark.parametrize(("place", "devices"), [("beside", (0,)), ("own", (4,))])
def test_a_judges_copies_have_seats_of_their_own_kind(seated, place, devices):
    judge = {"place": place, "instances": 1, "tp": 1}
    placement = seated((4, 1, 8, 1), change=lambda job: job["reward"].update(judge=judge))
    assert placement.engines["judge-0"].devices == devices and placement.double_booked() == []
