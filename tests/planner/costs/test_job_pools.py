"""Pools of their own for engines and trainers: what is not charged, who holds which memory, and the way of weights."""

from __future__ import annotations

import dataclasses

import pytest

from rlplan.executor.weights.by_broadcast import BUCKET_BYTES
from rlplan.planner.costs import host_memory
from rlplan.planner.costs.colocation import sleep_and_wake_s, state_moves_s
from rlplan.planner.costs.decode_costs import decode_cost, engines_of, layout_cost
from rlplan.planner.costs.job_pools import JobPools, NodesTaken, job_pools
from rlplan.planner.costs.memory_table import memory_table
from rlplan.planner.costs.update_costs import train_cost_in
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.profiles.laws.sync_law import Networks, transfer_s
from rlplan.profiles.library import library_profile

from ...profiles.public_laws import update_layout
from ..conftest import laptop, small_profile
from .test_memory_table import BF16, gpu_pool

PROFILE = library_profile("H100", "Qwen2.5-32B")
LAYOUT = EngineLayout(8, 4)


def two_pools(between: float | None = None, within: float | None = None, nodes: int = 4, kind: str = "cuda") -> Cluster:
    """Pools `main` of `nodes` nodes and `learn` of four, of eight H100s each, or of two cores (`kind` cpu)."""
    pool = (gpu_pool(nodes) if kind == "cuda" else laptop(nodes=nodes)).pools["main"]
    links = [
        {"pools": pools, "stream_bytes_per_s": rate}
        for pools, rate in ((["main", "learn"], between), (["main", "main"], within))
        if rate is not None
    ]
    pools = {"main": pool, "learn": pool.model_copy(update={"nodes": 4})}
    fields = {name: each.model_dump(mode="json") for name, each in pools.items()}
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "two", "pools": fields, "links": links})


def test_engines_and_trainers_apart_neither_sleep_nor_move_states():
    apart = job_pools(two_pools(), "main", "learn")
    for entry in PROFILE.rollout:
        assert sleep_and_wake_s(PROFILE, entry.tp) > 0
        cost = decode_cost(PROFILE, entry, pools=apart)
        assert cost.sync_s == entry.sync.p50 and cost.turns_s == 0.0
        assert cost.sync_beside(update_layout(32)) == entry.sync.p50
    layout = update_layout(32)
    turns, own = train_cost_in(PROFILE, layout), train_cost_in(PROFILE, layout, apart=True)
    assert turns.step_s - own.step_s == pytest.approx(state_moves_s(PROFILE, layout)) and own.step_s < turns.step_s
    assert dataclasses.replace(own, step_s=turns.step_s, host_link_s=turns.host_link_s) == turns


def test_without_links_and_without_pools_of_their_own_a_transfer_takes_what_the_profile_says():
    for pools in (None, job_pools(gpu_pool(8), "main", None)):
        for entry in PROFILE.rollout:
            cost = decode_cost(PROFILE, entry, pools=pools)
            assert cost == decode_cost(PROFILE, entry) and cost.travel is None
            assert cost.sync_beside(update_layout(64)) == cost.sync_s


def test_each_pool_has_memory_bars_of_its_own_and_nothing_of_a_trainer_leaves_its_gpu():
    trainers = update_layout(32)
    pools = job_pools(two_pools(), "main", "learn")
    bars = memory_table(PROFILE, pools, BF16, NodesTaken(4, 4), [(engines_of(PROFILE, LAYOUT), trainers)])
    assert {bar.side for bar in bars} == {"engines", "trainers"}
    for bar in bars:
        held = " ".join(bar.holds_bytes)
        assert ("engine" in held) <= (bar.side == "engines") and ("trainer" in held) <= (bar.side == "trainers")
    turns = memory_table(
        PROFILE, JobPools(pools.rollout), BF16, NodesTaken(4), [(engines_of(PROFILE, LAYOUT), trainers)]
    )
    on_host = {bar.phase: bar.holds_bytes for bar in turns if bar.place == "host"}
    assert on_host["rollout"]["trainer_optimizer"] > 50e9, "beside engines the moments leave the GPU"
    assert not any("trainer_optimizer" in bar.holds_bytes for bar in bars if bar.place == "host")
    training = next(bar for bar in bars if (bar.place, bar.phase) == ("device", "train"))
    assert training.needed_bytes == next(
        bar.needed_bytes for bar in turns if (bar.place, bar.phase) == ("device", "train")
    )


def test_a_node_holds_buckets_of_the_weights_on_their_way_and_not_the_model():
    assert host_memory.BUCKET_BYTES == BUCKET_BYTES
    embedding = 2 * 152064 * 5120  # Qwen2.5-32B: its largest tensor is larger than a bucket
    assert host_memory.weights_under_way(PROFILE, 2, "both") == 3 * embedding
    assert host_memory.weights_under_way(PROFILE, 2, "trainers") == embedding
    unknown = small_profile()
    assert host_memory.weights_under_way(unknown, 4, "both") == 4 * unknown.model_parameters, "as by a file"


def test_a_transfer_over_a_slow_link_waits_for_it_and_a_fast_one_changes_nothing():
    entry = next(entry for entry in PROFILE.rollout if entry.tp == 8)
    layout = update_layout(32)

    def seconds(between: float, within: float | None = None) -> float:
        cost = layout_cost(PROFILE, LAYOUT, job_pools(two_pools(between, within), "main", "learn"))
        assert cost is not None
        return cost.sync_beside(layout)

    size = 2 * PROFILE.model_parameters
    assert seconds(1e12) == pytest.approx(entry.sync.p50)
    # One copy along the chain of NCCL, one trainer rank after another, whatever the numbers of ranks and nodes.
    chain = transfer_s(entry.sync.p50, size / 1e9, 771)
    assert seconds(1e9) == seconds(1e9, 25e9) == pytest.approx(chain, rel=1e-3) and chain > 3 * entry.sync.p50
    assert seconds(1e12, 1e9) == pytest.approx(chain, rel=1e-3), "the nodes of engines pass it on"


def test_through_host_memory_a_transfer_takes_the_copies_that_cross_or_a_relay_and_is_priced_by_nodes_in_use():
    size, trainers = 64e9, update_layout(8)

    def seconds(engines: int, relay: bool) -> float:
        pools = job_pools(two_pools(1e9, 25e9, nodes=8, kind="cpu"), "main", "learn")
        return pools.network_s(size, EngineLayout(1, engines), trainers, relay)

    over = size / 1e9
    assert seconds(2, False) == seconds(2, True) == pytest.approx(over / 2), "two engines of one core are on one node"
    assert seconds(16, False) == pytest.approx(4 * over / 8), "eight nodes"
    assert seconds(16, True) == pytest.approx(over / 8 + size / 25e9)


def test_within_a_pool_of_gpus_trainers_on_all_gpus_of_engines_send_along_a_chain_and_fewer_through_host_memory():
    pools = job_pools(gpu_pool(8), "main", None)
    pools = dataclasses.replace(pools, networks=Networks(within=1e9))
    assert pools.network_s(64e9, EngineLayout(8, 4), update_layout(32), False) == pytest.approx(64.0)
    assert pools.network_s(64e9, EngineLayout(8, 4), update_layout(8), False) == pytest.approx(2 * 64.0)
    assert pools.network_s(64e9, EngineLayout(2, 4), update_layout(8), False) == 0.0, "both are on one node"


def test_a_relay_is_taken_where_the_pool_of_the_engines_passes_weights_on_faster():
    def relays(between: float | None, within: float | None = None, nodes: int = 4, relay: bool | None = None) -> bool:
        return job_pools(two_pools(between, within, nodes, "cpu"), "main", "learn", relay).relay

    assert relays(1e8, 25e9)
    assert not relays(25e9, 1e8)
    assert not relays(1e8, 25e9, nodes=1), "one node has nobody to pass it on to"
    assert not relays(None, 25e9)
    assert not relays(1e8), "what passing it on takes is unknown"
    assert relays(25e9, 1e8, relay=True), "as a plan has it"
    assert not job_pools(two_pools(1e8, 25e9), "main", "learn").relay, "NCCL needs none"


def test_a_measured_transfer_is_taken_as_it_is_within_its_pool_and_no_faster_than_the_link_between_two():
    profile = small_profile()
    size = 4 * profile.model_parameters
    pool = laptop().pools["main"]
    for between, expected in ((1e12, 0.15), (1e6, 0.15 + size / 2e6)):
        apart = JobPools(pool, pool, Networks(between))
        assert decode_cost(profile, profile.rollout[0], pools=apart).sync_beside(update_layout(2)) == pytest.approx(
            expected, rel=1e-3
        )
    alone = JobPools(pool, None, Networks(within=1e3))
    assert decode_cost(profile, profile.rollout[0], pools=alone).sync_beside(update_layout(2)) == 0.15
