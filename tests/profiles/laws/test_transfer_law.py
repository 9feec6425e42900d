"""The law of a weight transfer over networks that the cluster names."""

import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.profiles.laws.sync_law import (
    START_S,
    TENSOR_S,
    Networks,
    between_pools_s,
    chain_s,
    tensors,
    transfer_s,
    within_pool_s,
)

SLOW = Networks(between=2.3e9, within=25e9)


def test_directly_a_copy_for_each_node_crosses_the_link_and_relayed_one():
    size = 64e9
    one = size / (2.3e9 * 32)
    assert between_pools_s(size, SLOW, 32, 4) == pytest.approx(4 * one)
    assert between_pools_s(size, SLOW, 32, 4, relay=True) == pytest.approx(one + size / 25e9)
    assert between_pools_s(size, SLOW, 32, 1, relay=True) == between_pools_s(size, SLOW, 32, 1)


def test_rollmuxs_transfer_of_a_32b_model_is_priced_within_a_quarter():
    """arXiv 2512.11306."""
    seconds = between_pools_s(65.5e9, Networks(2.3e9, 6.25e9), 16, 2, relay=True)
    assert seconds == pytest.approx(1.8 + 10.5, rel=0.25)


def test_between_gpus_the_slowest_hop_of_the_chain_is_waited_for():
    assert chain_s(64e9, SLOW, 1) == chain_s(64e9, SLOW, 8) == pytest.approx(64e9 / 2.3e9)
    assert chain_s(64e9, Networks(25e9, 2.3e9), 2) == pytest.approx(64e9 / 2.3e9)
    assert chain_s(64e9, Networks(25e9, 2.3e9), 1) == pytest.approx(64e9 / 25e9), "one node passes nothing on"
    assert chain_s(64e9, Networks(), 8) == 0.0


def test_a_network_without_a_name_takes_no_time():
    for relay in (False, True):
        assert between_pools_s(64e9, Networks(), 8, 4, relay=relay) == 0.0
    assert within_pool_s(64e9, Networks(between=1e9), 4, 2) == 0.0


@pytest.mark.parametrize(
    ("engine_nodes", "train_nodes", "copies"),
    [(1, 1, 0.0), (2, 1, 1.0), (8, 1, 7.0), (4, 4, 0.75), (1, 4, 0.75), (2, 4, 0.75), (4, 2, 1.5), (3, 7, 6 / 7)],
)
def test_within_a_pool_the_fullest_node_sends_or_receives_as_many_copies(engine_nodes, train_nodes, copies):
    sent = {node: 0.0 for node in range(8)}
    received = dict(sent)
    for trainer in range(train_nodes):
        for node in range(engine_nodes):
            sent[trainer] += (node != trainer) / train_nodes
            received[node] += (node != trainer) / train_nodes
    most = max(*sent.values(), *received.values())
    assert most == pytest.approx(copies)
    assert within_pool_s(50e9, SLOW, engine_nodes, train_nodes) == pytest.approx(most * 50e9 / 25e9)


def test_a_network_makes_itself_felt_where_it_is_slower_than_the_load():
    shape = architecture_of("Qwen2.5-32B")
    fixed_s = START_S + TENSOR_S * tensors(shape)
    assert transfer_s(17.0, 0.0, tensors(shape)) == transfer_s(17.0, 10.0, tensors(shape)) == 17.0
    assert transfer_s(17.0, 40.0, tensors(shape)) == pytest.approx(40.0 + fixed_s)
    assert transfer_s(0.2, 1.0, None) == pytest.approx(1.2), "what was measured is all start, and less than a model's"
