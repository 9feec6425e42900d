"""Jobs whose trainers have a pool to themselves, from job.yaml to a plan that is checked, simulated and refreshed."""

import dataclasses
from pathlib import Path

import pytest

from rlplan.planner.check.plan_rules import physics
from rlplan.planner.costs.job_pools import NodesTaken, pools_of_plan
from rlplan.planner.costs.memory_table import JobMemory
from rlplan.planner.costs.round_costs import nodes_of, round_costs
from rlplan.planner.refresh import refresh
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.what_if import Documents
from rlplan.plans.check.plan_fit import misfits
from rlplan.plans.check.prediction_rules import price_faults
from rlplan.plans.schema.cluster import Cluster, PoolLink, load_cluster
from rlplan.plans.schema.job import Job, JobPlacement, load_job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.planned_job import PlacementSpec
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile

from .gpu_run import solved_on_gpus
from .solutions import QUICK, few_prompt_sets, once, solution

EXAMPLE = Path(__file__).parents[2] / "plans" / "examples" / "math-32b"

SLOW = 2.3e9
"""Bytes a second of one stream between the pools: RollMux's link."""


def apart(cluster: Cluster, engines: int, trainers: int, *streams_bytes_per_s: float) -> Cluster:
    """The cluster's only pool as `decode` and `learn`, of so many nodes; streams between the pools and among engines,
    if they are named."""
    (pool,) = cluster.pools.values()
    pools = {name: pool.model_copy(update={"nodes": n}) for name, n in (("decode", engines), ("learn", trainers))}
    ends = (("decode", "learn"), ("decode", "decode"))
    links = [
        PoolLink(pools=each, stream_bytes_per_s=speed) for each, speed in zip(ends, streams_bytes_per_s, strict=False)
    ]
    return cluster.model_copy(update={"pools": pools, "links": tuple(links)})


def placed(job: Job, name: str = "learn", streams: bool = True) -> Job:
    return job.model_copy(update={"placement": JobPlacement(train_pool=name, streams=streams)})


def example(*, turns: bool = False, links: tuple[float, ...] = ()) -> Plan:
    """The 32B example in mode sync without its limit on the step, on its 64 GPUs: taking turns, or 32 and 32."""
    cluster, job = load_cluster(EXAMPLE / "cluster.yaml"), load_job(EXAMPLE / "job.yaml")
    job = job.model_copy(update={"slo": type(job.slo)()})
    if not turns:
        cluster, job = apart(cluster, 4, 4, *links), placed(job)
    profile, trace = load(EXAMPLE / "profile.yaml", Profile), read_lengths(EXAMPLE / "lengths.jsonl")
    return solution(job, cluster=cluster, profile=profile, trace=trace, mode="sync").plan


def test_on_two_pools_each_phase_has_the_gpus_of_its_own_pool():
    turns, own = example(turns=True), example()
    assert own.job.placement == PlacementSpec(train_pool="learn", streams=True) and turns.job.placement is None
    assert own.job.rounds.short.rollout.pool == "decode"
    ours, theirs = own.job.rounds.short, turns.job.rounds.short
    assert (ours.rollout.engines * ours.rollout.tp, ours.train.accelerators) == (32, 32)
    assert (theirs.rollout.engines * theirs.rollout.tp, theirs.train.accelerators) == (64, 64)
    assert turns.predicted.phases_s.sync < 0.2 * own.predicted.phases_s.sync, "awake; weights stay on their GPUs"
    assert own.predicted.phases_s.train < 0.6 * turns.predicted.phases_s.train, "it begins while the tail decodes"
    of, alike = (plan.predicted.limit.phases.train.ratio for plan in (own, turns))
    assert 0.5 * alike < of < 1, "the MFU of whole updates, whatever of them is hidden"
    assert own.predicted.limit.short.update_s > own.predicted.phases_s.train
    assert own.predicted.step_s.mean > turns.predicted.step_s.mean, "half of the GPUs decode"
    assert own.predicted.nodes == turns.predicted.nodes == 8 and own.predicted.train_nodes == 4
    assert own.predicted.usd_per_hour == turns.predicted.usd_per_hour == pytest.approx(8 * 20.4)


def test_between_gpus_one_slow_stream_is_waited_for():
    plan, without = example(links=(SLOW, 6.25e9)), example()
    # 65.5 GB at 2.3 GB/s, and start and handling of 771 tensors.
    assert plan.predicted.phases_s.sync == pytest.approx(65.5 / 2.3 + 0.5 + 0.77, abs=0.1)
    assert without.predicted.phases_s.sync == pytest.approx(17.4, abs=0.1)


@once
def small_documents(objective: str = "seconds", streams: bool = True) -> Documents:
    """A job of 8 x 4 on pools of two nodes and of one, at two prices."""
    base = solved_on_gpus()
    cluster = apart(base.cluster, 2, 1)
    cheap = cluster.pools["learn"].model_copy(update={"usd_per_node_hour": 1.0})
    cluster = cluster.model_copy(update={"pools": {**cluster.pools, "learn": cheap}})
    job = placed(base.job, streams=streams)
    plan = solution(job, cluster=cluster, profile=base.profile, mode="sync", objective=objective).plan
    return dataclasses.replace(base, cluster=cluster, job=job, plan=plan)


@pytest.mark.parametrize(("objective", "streams"), [("seconds", True), ("usd", True), ("seconds", False)])
def test_check_finds_no_fault_and_each_pool_is_paid_at_its_price(objective, streams):
    documents = small_documents(objective, streams)
    plan, cluster, job = documents.plan, documents.cluster, documents.job
    assert plan.job.placement == PlacementSpec(train_pool="learn", streams=streams)
    assert list(misfits(plan, cluster, job, None)) == []
    assert physics(plan, cluster, job, documents.profile) == []
    pools = pools_of_plan(plan.job, cluster)
    assert pools is not None and pools.apart
    taken = nodes_of(plan.job, JobMemory(documents.profile, pools, "float32"))
    assert taken.total == plan.predicted.nodes and taken.train == plan.predicted.train_nodes == 1
    assert list(price_faults(plan, cluster, taken)) == []
    node_usd = cluster.pools["decode"].usd_per_node_hour
    assert plan.predicted.usd_per_hour == pytest.approx(taken.rollout * node_usd + 1.0)
    if not streams:
        streamed = small_documents().plan.predicted
        assert plan.predicted.phases_s.train > streamed.phases_s.train, "trainers wait for the end of the rollout"
    if objective == "usd":
        assert taken == NodesTaken(1, 1), "a few samples do not pay for a second node of engines"


@pytest.mark.parametrize("streams", [True, False])
def test_a_plan_is_simulated_as_predicted_and_refreshed_into_itself(streams):
    documents = small_documents(streams=streams)
    plan, job, profile, trace = documents.plan, documents.job, documents.profile, documents.trace
    run = simulate_plan(plan, job, profile, trace, steps=40, cluster=documents.cluster)
    (sync_s,) = {step.sync_s for step in run.steps}
    assert sync_s == pytest.approx(plan.predicted.phases_s.sync)
    mean = sum(step.step_s for step in run.steps) / len(run.steps)
    assert mean == pytest.approx(plan.predicted.step_s.mean, rel=0.1)
    assert round_costs(plan.job, profile)[0].train.host_link_s == 0.0
    with few_prompt_sets():
        again = refresh(plan, documents.cluster, job, profile, trace, plan.inputs, None, passes=QUICK)
    assert again.job == plan.job and again.predicted == plan.predicted and not again.solver.refreshed


def test_a_plan_moved_to_another_pool_by_hand_is_refreshed_there():
    base = solved_on_gpus()
    cluster, plan = apart(base.cluster, 1, 1), base.plan
    rollout = plan.job.rounds.short.rollout.model_copy(update={"pool": "decode"})
    short = plan.job.rounds.short.model_copy(update={"rollout": rollout})
    rounds = plan.job.rounds.model_copy(update={"short": short})

    def train_s(of_job: bool | None, of_plan: bool) -> float:
        placement = PlacementSpec(train_pool="learn", streams=of_plan)
        moved = plan.model_copy(update={"job": plan.job.model_copy(update={"placement": placement, "rounds": rounds})})
        job = base.job if of_job is None else placed(base.job, streams=of_job)
        with few_prompt_sets():
            again = refresh(moved, cluster, job, base.profile, base.trace, plan.inputs, None, passes=QUICK)
        assert again.job.placement == placement
        assert (again.predicted.nodes, again.predicted.train_nodes) == (2, 1)
        assert again.predicted.phases_s.sync > plan.predicted.phases_s.sync, "weights travel between the pools"
        return again.predicted.phases_s.train

    # What the plan says of its trainers counts, not what the job says.
    assert train_s(None, True) == train_s(False, True) < train_s(True, False)
