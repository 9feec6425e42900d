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


def two_pools(between: float | None = None, within: float | None = None, nodes: int = 4) -> Cluster:
    """Pools `main` of `nodes` nodes and `learn` of four, of eight H100s each."""
    pool = gpu_pool(nodes).pools["main"]
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
    direct = transfer_s(entry.sync.p50, 4 * size / (1e8 * 32), 771)
    assert seconds(1e8) == pytest.approx(direct, rel=1e-3) and direct > 4 * entry.sync.p50
    relayed = transfer_s(entry.sync.p50, size / (1e8 * 32) + size / 25e9, 771)
    assert seconds(1e8, 25e9) == pytest.approx(relayed, rel=1e-3) and relayed < 0.4 * direct


def test_a_relay_is_taken_where_the_pool_of_the_engines_passes_weights_on_faster():
    assert job_pools(two_pools(1e8, 25e9), "main", "learn").relay
    assert not job_pools(two_pools(25e9, 1e8), "main", "learn").relay
    assert not job_pools(two_pools(1e8, 25e9, nodes=1), "main", "learn").relay, "one node has nobody to pass it on to"
    assert not job_pools(two_pools(None, 25e9), "main", "learn").relay
    assert not job_pools(two_pools(1e8), "main", "learn").relay, "what passing it on takes is unknown"
    assert job_pools(two_pools(25e9, 1e8), "main", "learn", relay=True).relay, "as a plan has it"


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
