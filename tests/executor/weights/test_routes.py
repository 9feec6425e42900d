"""Which node receives which bytes from whom, without any process."""

import pytest

from rlplan.executor.weights.network.routes import part_of, rank_routes, relay_routes, relaying_nodes

FAR = ["c", "d", "e"]


@pytest.mark.parametrize("nbytes", [1, 64, 256, 257, 1000, 4096, 10**6 + 7])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_a_messages_parts_are_all_of_it_once_and_nearly_equal(nbytes, parts):
    spans = [part_of(nbytes, part, parts) for part in range(parts)]
    assert [i for span in spans for i in range(span.start, span.stop)] == list(range(nbytes))
    sizes = [span.stop - span.start for span in spans]
    assert max(sizes) < nbytes / parts + 64
    assert all(span.start % 64 == 0 for span in spans if span.stop > span.start)


def test_with_a_relay_each_far_node_takes_one_part_of_each_message():
    for rank in range(4):
        routes = rank_routes(rank, ["a", *FAR], ["a", "a", "b", "b"], relay=True)
        parts = [route for route in routes if route.parts > 1]
        assert [route.nodes for route in parts] == [(node,) for node in FAR]
        taken = [i for route in parts for i in range(route.span(1000).start, route.span(1000).stop)]
        assert taken == list(range(1000)), "one copy crosses the slow link"
        direct = [route.nodes for route in routes if route.parts == 1]
        assert direct == ([("a",)] if rank >= 2 else []), "a node with trainer ranks is near"


def test_each_far_node_passes_its_part_on_to_all_others():
    relays = relay_routes(FAR, ["a", "a"], relay=True)
    first = {route.part: route.nodes[0] for route in rank_routes(0, FAR, ["a", "a"], relay=True)}
    for node in FAR:
        has = {part for part, at in first.items() if at == node} | {r.part for r in relays if node in r.nodes}
        assert has == {0, 1, 2}
    assert all(first[relay.part] not in relay.nodes for relay in relays)


@pytest.mark.parametrize(
    ("nodes", "rank_nodes", "relay"),
    [(FAR, ["a", "a"], False), (["c"], ["a", "a"], True), (["a", "b"], ["a", "b"], True), (["a", "c"], ["a"], True)],
)
def test_nothing_is_relayed_unless_asked_for_with_two_far_nodes(nodes, rank_nodes, relay):
    assert relaying_nodes(nodes, rank_nodes, relay) == () == relay_routes(nodes, rank_nodes, relay)
    for rank, node in enumerate(rank_nodes):
        assert [route.nodes for route in rank_routes(rank, nodes, rank_nodes, relay)] == [
            tuple(other for other in nodes if other != node)
        ] * (set(nodes) != {node})


def test_no_two_routes_of_a_session_have_the_same_name():
    rank_nodes = ["a", "b", "b"]
    routes = [route for rank in range(3) for route in rank_routes(rank, ["a", *FAR], rank_nodes, relay=True)]
    names = [route.name for route in [*routes, *relay_routes(["a", *FAR], rank_nodes, relay=True)]]
    assert len(set(names)) == len(names)
