"""Jobs whose trainers have a pool to themselves, from job.yaml to a plan that is checked, simulated and refreshed."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from rlplan.planner.check.plan_rules import physics
from rlplan.planner.choose.candidates.job_limits import Unplannable
from rlplan.planner.choose.candidates.pool_choice import choose_pools
from rlplan.planner.costs.job_pools import NodesTaken, pools_of_plan
from rlplan.planner.costs.round_costs import nodes_of, round_costs
from rlplan.planner.refresh import refresh
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.check.plan_fit import misfits
from rlplan.plans.check.prediction_rules import price_faults
from rlplan.plans.schema.cluster import Cluster, Link, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.sections.job_terms import JobPlacement
from rlplan.plans.schema.sections.planned_job import PlacementSpec
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile

from .conftest import laptop, small_job, small_profile
from .gpu_run import solved_on_gpus
from .synthetic_run import QUICK, solved

EXAMPLE = Path(__file__).parents[2] / "plans" / "examples" / "math-32b"

SLOW = 2.3e9
"""Bytes a second of one stream between the pools: RollMux's link."""


def apart(cluster: Cluster, engines: int, trainers: int, links: tuple[Link, ...] = ()) -> Cluster:
    """The cluster's only pool as `decode` and `learn`, of so many nodes."""
    (pool,) = cluster.pools.values()
    pools = {name: pool.model_copy(update={"nodes": n}) for name, n in (("decode", engines), ("learn", trainers))}
    return cluster.model_copy(update={"pools": pools, "links": links})


def placed(job: Job, name: str = "learn", streams: bool = True) -> Job:
    return job.model_copy(update={"placement": JobPlacement(train_pool=name, streams=streams)})


@cache
def example(turns: bool, links: bool = False) -> Solved:
    """The 32B example in mode sync without its limit on the step, on its 64 GPUs: taking turns, or 32 and 32."""
    cluster, job = load_cluster(EXAMPLE / "cluster.yaml"), load_job(EXAMPLE / "job.yaml")
    job = job.model_copy(update={"slo": type(job.slo)()})
    named = (
        Link(pools=("decode", "learn"), stream_bytes_per_s=SLOW),
        Link(pools=("decode", "decode"), stream_bytes_per_s=6.25e9),
    )
    if not turns:
        cluster, job = apart(cluster, 4, 4, named if links else ()), placed(job)
    return solve(
        cluster,
        job,
        load(EXAMPLE / "profile.yaml", Profile),
        read_lengths(EXAMPLE / "lengths.jsonl"),
        solved_on_gpus().plan.inputs,
        SolveOptions(mode="sync", passes=QUICK),
    )


def test_the_32b_example_on_two_pools_takes_no_turns_and_each_phase_has_the_gpus_of_its_own_pool():
    turns, own = example(True).plan, example(False).plan
    assert own.job.placement == PlacementSpec(train_pool="learn", streams=True) and turns.job.placement is None
    assert own.job.rounds.short.rollout.pool == "decode"
    ours, theirs = own.job.rounds.short, turns.job.rounds.short
    assert (ours.rollout.engines * ours.rollout.tp, ours.train.accelerators) == (32, 32)
    assert (theirs.rollout.engines * theirs.rollout.tp, theirs.train.accelerators) == (64, 64)
    # Sleep and wake of engines of two 72 GB shares at 217 GB/s; the rest of the transfer is the same.
    assert turns.predicted.phases_s.sync - own.predicted.phases_s.sync == pytest.approx(0.66, abs=0.01)
    assert own.predicted.phases_s.train < 0.6 * turns.predicted.phases_s.train, "it begins while the tail decodes"
    assert own.predicted.step_s.mean > turns.predicted.step_s.mean, "half of the GPUs decode"
    assert own.predicted.nodes == turns.predicted.nodes == 8 and own.predicted.train_nodes == 4
    assert own.predicted.usd_per_hour == turns.predicted.usd_per_hour == pytest.approx(8 * 20.4)
    assert "colocation" not in own.job.why and "turns would take" in own.job.why["placement"]
    assert "engines on 4 nodes of pool 'decode', trainers on 4 nodes of pool 'learn'" in own.job.why["placement"]


def test_over_a_slow_link_the_32b_example_waits_for_one_copy_in_one_stream_and_needs_no_relay():
    plan, without = example(False, links=True).plan, example(False).plan
    assert not plan.job.sync.relay and not without.job.sync.relay
    assert "sync.relay" not in plan.job.why and "sync.relay" not in without.job.why
    # 65.5 GB at 2.3 GB/s, and start and handling of 771 tensors.
    assert plan.predicted.phases_s.sync == pytest.approx(65.5 / 2.3 + 0.5 + 0.77, abs=0.1)
    assert without.predicted.phases_s.sync == pytest.approx(17.4, abs=0.1)


def test_over_a_slow_link_between_pools_of_cpus_weights_are_relayed_and_the_plan_says_what_either_way_takes():
    base = solved(mode="sync")
    one_core = base.cluster.pools["main"].accelerators.model_copy(update={"per_node": 1})
    pool = base.cluster.pools["main"].model_copy(update={"accelerators": one_core})
    links = (
        Link(pools=("decode", "learn"), stream_bytes_per_s=4e6),
        Link(pools=("decode", "decode"), stream_bytes_per_s=1e9),
    )
    cluster = apart(base.cluster.model_copy(update={"pools": {"main": pool}}), 2, 1, links)
    options = SolveOptions(mode="sync", passes=QUICK)
    plan = solve(cluster, placed(base.job), base.profile, base.trace, base.plan.inputs, options).plan
    # 8 MB twice over the one trainer rank's stream, or once, and 8 ms among the two nodes.
    assert plan.job.sync.relay and plan.predicted.nodes == 3
    assert plan.job.why["sync.relay"] == (
        "one copy of the weights crosses the link between the pools and is relayed: 2.16 s; "
        "a broadcast to each node with engines: 4.15 s"
    )
    assert plan.predicted.phases_s.sync == pytest.approx(2.158, abs=1e-3)


@cache
def small_documents(objective: str = "seconds", streams: bool = True):
    """A job of 8 x 4 on pools of two nodes and of one, at two prices."""
    base = solved_on_gpus()
    cluster = apart(base.cluster, 2, 1)
    cheap = cluster.pools["learn"].model_copy(update={"usd_per_node_hour": 1.0})
    cluster = cluster.model_copy(update={"pools": {**cluster.pools, "learn": cheap}})
    job = placed(base.job, streams=streams)
    options = SolveOptions(mode="sync", objective=objective, passes=QUICK)
    plan = solve(cluster, job, base.profile, base.trace, base.plan.inputs, options).plan
    return dataclasses.replace(base, cluster=cluster, job=job, plan=plan)


@pytest.mark.parametrize(("objective", "streams"), [("seconds", True), ("usd", True), ("seconds", False)])
def test_what_solve_writes_check_finds_no_fault_in_and_pays_each_pool_at_its_price(objective, streams):
    documents = small_documents(objective, streams)
    plan, cluster, job = documents.plan, documents.cluster, documents.job
    assert list(misfits(plan, cluster, job, None)) == []
    assert physics(plan, cluster, job, documents.profile, None) == []
    pools = pools_of_plan(plan.job, cluster)
    assert pools is not None and pools.apart
    taken = nodes_of(plan.job, documents.profile, pools, 4)
    assert taken.total == plan.predicted.nodes and taken.train == plan.predicted.train_nodes == 1
    assert list(price_faults(plan, cluster, taken)) == []
    node_usd = cluster.pools["decode"].usd_per_node_hour
    assert node_usd is not None
    assert plan.predicted.usd_per_hour == pytest.approx(taken.rollout * node_usd + 1.0)
    if objective == "usd":
        assert taken == NodesTaken(1, 1), "a few samples do not pay for a second node of engines"


@pytest.mark.parametrize("streams", [True, False])
def test_such_a_plan_is_simulated_as_it_was_predicted_and_refreshed_into_itself(streams):
    documents = small_documents(streams=streams)
    plan, cluster, job, profile, trace = (
        documents.plan, documents.cluster, documents.job, documents.profile, documents.trace
    )  # fmt: skip
    run = simulate_plan(plan, job, profile, trace, steps=40, cluster=cluster)
    (sync_s,) = {step.sync_s for step in run.steps}
    assert sync_s == pytest.approx(plan.predicted.phases_s.sync)
    mean = sum(step.step_s for step in run.steps) / len(run.steps)
    assert mean == pytest.approx(plan.predicted.step_s.mean, rel=0.1)
    assert round_costs(plan.job, profile)[0].train.host_link_s == 0.0
    again = refresh(plan, cluster, job, profile, trace, plan.inputs, None, passes=QUICK)
    assert again.job == plan.job and again.predicted == plan.predicted and not again.solver.refreshed


def test_a_job_of_a_group_asks_for_trainers_that_wait_for_the_end_of_the_rollout():
    streamed, waits = (small_documents(streams=streams).plan for streams in (True, False))
    assert streamed.job.placement == PlacementSpec(train_pool="learn", streams=True)
    assert waits.job.placement == PlacementSpec(train_pool="learn", streams=False)
    assert waits.predicted.phases_s.train > streamed.predicted.phases_s.train
    assert waits.predicted.step_s.mean > streamed.predicted.step_s.mean


@pytest.mark.parametrize("of_job", [None, True, False])
def test_a_plan_whose_trainers_were_moved_to_another_pool_by_hand_is_refreshed_there(of_job):
    base = solved_on_gpus()
    cluster = apart(base.cluster, 1, 1)
    job = base.job if of_job is None else placed(base.job, streams=of_job)
    short = base.plan.job.rounds.short
    rollout = short.rollout.model_copy(update={"pool": "decode"})
    rounds = base.plan.job.rounds.model_copy(update={"short": short.model_copy(update={"rollout": rollout})})
    train_s = {}
    for streams in (True, False):
        placement = PlacementSpec(train_pool="learn", streams=streams)
        moved = base.plan.job.model_copy(update={"placement": placement, "rounds": rounds})
        plan = base.plan.model_copy(update={"job": moved})
        again = refresh(plan, cluster, job, base.profile, base.trace, plan.inputs, None, passes=QUICK)
        assert again.job.placement == placement
        assert (again.predicted.nodes, again.predicted.train_nodes) == (2, 1)
        assert again.predicted.phases_s.sync < base.plan.predicted.phases_s.sync
        train_s[streams] = again.predicted.phases_s.train
    assert train_s[True] < train_s[False], "what the plan says of its trainers counts, not what the job says"


def other(**accelerators):
    return {"kind": "cpu", "name": "cpu", "per_node": 2, "memory_bytes": 16 * 10**9, **accelerators}


@pytest.mark.parametrize(
    ("pools", "train", "words"),
    [
        ({"a": other(), "b": other()}, "c", "cluster '.*' has no pool 'c'; its pools are a, b"),
        ({"a": other()}, "a", "is a, the only pool of cluster '.*', and engines need another; add a pool"),
        (
            {"a": other(), "b": other(kind="cuda", name="H100", per_node=8, memory_bytes=80 * 10**9)},
            "b",
            "pool 'b' is of kind cuda, and no other pool of cluster 'c' is; name one of two",
        ),
        (
            {"a": other(), "b": other(kind="cuda", name="H100", per_node=8, memory_bytes=80 * 10**9)},
            "a",
            "pool 'a' is of kind cpu, and no other pool of cluster 'c' is; name one of two",
        ),
        ({"a": other(), "b": other(name="epyc")}, "b", "pool 'b' has accelerators 'epyc', and the profile.*workload"),
    ],
)
def test_a_pool_that_trainers_cannot_have_is_refused_at_the_jobs_key(pools, train, words):
    cluster = laptop()
    (pool,) = cluster.pools.values()
    fields = pool.model_dump(mode="json")
    document = {"rlplan_cluster": 1, "name": "c", "pools": {n: {**fields, "accelerators": a} for n, a in pools.items()}}
    with pytest.raises(Unplannable, match=words) as refused:
        choose_pools(Cluster.model_validate(document), placed(small_job(), train), small_profile())
    assert (refused.value.document, refused.value.loc) == ("job", ("placement", "train_pool"))
