"""Maximum cycle ratios, against networkx."""

from __future__ import annotations

import math

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.simulate.cycle_ratio import Edge, max_cycle_ratio

EDGES = st.lists(
    st.builds(
        lambda tail, head, seconds, periods: Edge(tail, head, float(seconds), periods if tail < head else periods + 1),
        st.integers(0, 7),
        st.integers(0, 7),
        st.integers(0, 100),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=30,
)


def has_cycle_above(edges: list[Edge], ratio: float) -> bool:
    """Whether some cycle takes more than `ratio` seconds a period."""
    graph = nx.DiGraph()
    for edge in edges:
        weight = ratio * edge.periods - edge.seconds
        known = graph.get_edge_data(edge.tail, edge.head)
        if known is None or weight < known["weight"]:
            graph.add_edge(edge.tail, edge.head, weight=weight)
    return nx.negative_edge_cycle(graph)


@settings(max_examples=300, deadline=None)
@given(EDGES)
def test_no_cycle_exceeds_the_ratio_and_the_cycle_found_attains_it(edges: list[Edge]) -> None:
    ratio, cycle = max_cycle_ratio(edges)
    if not cycle:
        assert ratio == -math.inf
        assert not has_cycle_above(edges, -1.0)
        return
    assert all(one.head == two.tail for one, two in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    assert ratio == pytest.approx(sum(e.seconds for e in cycle) / sum(e.periods for e in cycle))
    assert not has_cycle_above(edges, ratio + 1e-6)


def test_a_wait_for_each_other_within_a_period_is_refused() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        max_cycle_ratio([Edge("a", "b", 1.0, 0), Edge("b", "a", 1.0, 0)])
