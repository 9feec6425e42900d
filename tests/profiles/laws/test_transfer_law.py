"""The law of a weight transfer over networks that the cluster names."""

from __future__ import annotations

import pytest

from rlplan.planner.groups.inputs.switch_seconds import sync_seconds
from rlplan.plans.schema.cluster import Cluster
from rlplan.profiles.architecture import architecture_of
from rlplan.profiles.laws.sync_law import (
    START_S,
    TENSOR_S,
    Networks,
    between_pools_s,
    tensors,
    transfer_s,
    within_pool_s,
)

SLOW = Networks(between=2.3e9, within=25e9)


def test_directly_each_node_has_a_copy_over_the_link_and_relayed_one_copy_crosses_and_is_broadcast():
    size = 64e9
    one = size / (2.3e9 * 32)
    assert between_pools_s(size, SLOW, 32, 4, relay=False) == pytest.approx(4 * one)
    assert between_pools_s(size, SLOW, 32, 4, relay=True) == pytest.approx(one + size / 25e9)
    assert between_pools_s(size, SLOW, 32, 1, relay=True) == between_pools_s(size, SLOW, 32, 1, relay=False)


def test_a_network_without_a_name_takes_no_time():
    for relay in (False, True):
        assert between_pools_s(64e9, Networks(), 8, 4, relay) == 0.0
    assert within_pool_s(64e9, Networks(between=1e9), 4, 2) == 0.0
    assert between_pools_s(64e9, Networks(within=25e9), 8, 4, relay=False) == 0.0


def test_plans_of_groups_and_of_jobs_have_one_law_of_the_relay():
    accelerators = {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9}
    pool = {
        "nodes": 2, "accelerators": accelerators, "cores": 64, "host_memory_bytes": 10**12, "usd_per_node_hour": 1.0
    }  # fmt: skip
    links = [
        {"pools": ["a", "b"], "stream_bytes_per_s": 2.3e9},
        {"pools": ["a", "a"], "stream_bytes_per_s": 6.25e9},
    ]
    cluster = Cluster.model_validate(
        {"rlplan_cluster": 1, "name": "c", "pools": {"a": pool, "b": pool}, "links": links}
    )
    shape = architecture_of("Qwen2.5-32B")
    assert shape is not None
    law = between_pools_s(2 * shape.parameters, Networks(2.3e9, 6.25e9), 16, 2, relay=True)
    assert sync_seconds(shape, cluster, ("a", 2), ("b", 2)) == law
    # RollMux measured 1.8 s between the pools and 10.5 s within the second (arXiv 2512.11306).
    assert law == pytest.approx(12.3, rel=0.05)


@pytest.mark.parametrize(
    ("engine_nodes", "train_nodes", "copies"),
    [(1, 1, 0.0), (2, 1, 1.0), (8, 1, 7.0), (4, 4, 0.75), (1, 4, 0.75), (2, 4, 0.75), (4, 2, 1.5)],
)
def test_within_a_pool_the_fullest_node_sends_or_receives_as_many_copies(engine_nodes, train_nodes, copies):
    sent = {node: 0.0 for node in range(8)}
    received = dict(sent)
    for trainer in range(train_nodes):
        for engines in range(engine_nodes):
            if engines != trainer:
                sent[trainer] += 1 / train_nodes
                received[engines] += 1 / train_nodes
    assert max(*sent.values(), *received.values()) == pytest.approx(copies)
    assert within_pool_s(50e9, SLOW, engine_nodes, train_nodes) == pytest.approx(copies * 50e9 / 25e9)


def test_a_network_makes_itself_felt_where_it_is_slower_than_the_load():
    shape = architecture_of("Qwen2.5-32B")
    assert shape is not None
    fixed_s = START_S + TENSOR_S * tensors(shape)
    assert transfer_s(17.0, 0.0, tensors(shape)) == transfer_s(17.0, 10.0, tensors(shape)) == 17.0
    assert transfer_s(17.0, 40.0, tensors(shape)) == pytest.approx(40.0 + fixed_s)
    assert transfer_s(0.2, 1.0, None) == pytest.approx(1.2), "what was measured is all start, and less than a model's"
