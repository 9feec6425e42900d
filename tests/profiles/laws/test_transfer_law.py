"""The law of a weight transfer over networks that the cluster names."""

import pytest

from rlplan.profiles.architecture import architecture_of
from rlplan.profiles.laws.sync_law import (
    START_S,
    TENSOR_S,
    Networks,
    between_pools_s,
    chain_s,
    tensors,
    transfer_s,
    tree_copies,
    within_pool_s,
)

SLOW = Networks(between=2.3e9, within=25e9)


def sent_along_a_tree(receivers):
    """Copies that each member sends in gloo's broadcast: in round i members below 2^i send to the member 2^i beyond."""
    copies, reach = [0] * (receivers + 1), 1
    while reach <= receivers:
        for member in range(min(reach, receivers + 1 - reach)):
            copies[member] += 1
        reach *= 2
    return copies


def test_the_copies_of_a_broadcast_are_those_of_a_binomial_tree():
    assert [tree_copies(receivers)[0] for receivers in (1, 2, 3, 8)] == [1, 2, 2, 4], "as measured"
    for receivers in range(70):
        sender, *others = sent_along_a_tree(receivers)
        assert tree_copies(receivers) == (sender, max(others, default=0))


def test_directly_many_copies_cross_the_link_and_relayed_one():
    size = 64e9
    one = size / (2.3e9 * 32)
    assert between_pools_s(size, SLOW, 32, 4, relay=False) == pytest.approx(3 * one)
    assert between_pools_s(size, SLOW, 32, 8, relay=False) == pytest.approx(2 * size / 25e9), "passed on more slowly"
    assert between_pools_s(size, Networks(2.3e9), 32, 8, relay=False) == pytest.approx(4 * one)
    assert between_pools_s(size, SLOW, 32, 4, relay=True) == pytest.approx(one + size / 25e9)
    assert between_pools_s(size, SLOW, 32, 1, relay=True) == between_pools_s(size, SLOW, 32, 1, relay=False)


@pytest.mark.parametrize(
    ("size", "networks", "streams", "relay", "measured_s"),
    [
        (50e6, Networks(25e6), 1, False, 4.4),  # benchmarks.weight_sync, over a shaped link
        (50e6, Networks(25e6), 1, True, 2.5),
        (65.5e9, Networks(2.3e9, 6.25e9), 16, True, 1.8 + 10.5),  # RollMux (arXiv 2512.11306), of a 32B model
    ],
)
def test_transfers_to_two_nodes_are_priced_within_a_quarter(size, networks, streams, relay, measured_s):
    assert between_pools_s(size, networks, streams, 2, relay) == pytest.approx(measured_s, rel=0.25)


def test_between_gpus_the_slowest_hop_of_the_chain_is_waited_for():
    assert chain_s(64e9, SLOW, 1) == chain_s(64e9, SLOW, 8) == pytest.approx(64e9 / 2.3e9)
    assert chain_s(64e9, Networks(25e9, 2.3e9), 2) == pytest.approx(64e9 / 2.3e9)
    assert chain_s(64e9, Networks(25e9, 2.3e9), 1) == pytest.approx(64e9 / 25e9), "one node passes nothing on"
    assert chain_s(64e9, Networks(), 8) == 0.0


def test_a_network_without_a_name_takes_no_time():
    for relay in (False, True):
        assert between_pools_s(64e9, Networks(), 8, 4, relay) == 0.0
    assert within_pool_s(64e9, Networks(between=1e9), 4, 2) == 0.0
    assert between_pools_s(64e9, Networks(within=25e9), 8, 2, relay=False) == 0.0, "two nodes have theirs from the root"
    assert between_pools_s(64e9, Networks(within=25e9), 8, 4, relay=False) == 64e9 / 25e9, "the first passes one on"


@pytest.mark.parametrize(
    ("engine_nodes", "train_nodes", "copies"),
    [(1, 1, 0.0), (2, 1, 1.0), (8, 1, 3.0), (4, 4, 1.25), (1, 4, 0.75), (2, 4, 0.75), (4, 2, 1.5), (3, 7, None)],
)
def test_within_a_pool_the_fullest_node_sends_or_receives_as_many_copies(engine_nodes, train_nodes, copies):
    sent = {node: 0.0 for node in range(8)}
    received = dict(sent)
    for trainer in range(train_nodes):
        members = [trainer, *(node for node in range(engine_nodes) if node != trainer)]
        for node, number in zip(members, sent_along_a_tree(len(members) - 1), strict=True):
            sent[node] += number / train_nodes
            received[node] += (node != trainer) / train_nodes
    most = max(*sent.values(), *received.values())
    assert copies is None or most == pytest.approx(copies)
    assert within_pool_s(50e9, SLOW, engine_nodes, train_nodes) == pytest.approx(most * 50e9 / 25e9)


def test_a_network_makes_itself_felt_where_it_is_slower_than_the_load():
    shape = architecture_of("Qwen2.5-32B")
    fixed_s = START_S + TENSOR_S * tensors(shape)
    assert transfer_s(17.0, 0.0, tensors(shape)) == transfer_s(17.0, 10.0, tensors(shape)) == 17.0
    assert transfer_s(17.0, 40.0, tensors(shape)) == pytest.approx(40.0 + fixed_s)
    assert transfer_s(0.2, 1.0, None) == pytest.approx(1.2), "what was measured is all start, and less than a model's"
