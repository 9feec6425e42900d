"""Maximum cycle ratio of an event graph, by Howard's policy iteration.

In a periodic schedule each turn begins after certain others of its own or of the previous period have ended; the
largest ratio of seconds to periods over all cycles of these constraints is the shortest possible period, and a cycle
that attains it is what limits the rate. The algorithm is Dasdan's variant of Howard's (ACM TODAES 2004, "Experimental
analysis of the fastest optimum cycle ratio and mean algorithms", figure 1), turned round for the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import networkx as nx


class Edge(NamedTuple):
    """`head` begins no sooner than `seconds` after `tail` began `periods` periods before."""

    tail: Hashable
    head: Hashable
    seconds: float
    periods: int


def max_cycle_ratio(edges: Sequence[Edge]) -> tuple[float, list[Edge]]:
    """(seconds a period, a cycle that attains it); -inf and no edges if there is no cycle.

    Raises:
        ValueError: a cycle within one period, which no schedule could obey.
    """
    graph: nx.MultiDiGraph[Hashable] = nx.MultiDiGraph()
    graph.add_edges_from((edge.tail, edge.head) for edge in edges)
    within: nx.DiGraph[Hashable] = nx.DiGraph((edge.tail, edge.head) for edge in edges if not edge.periods)
    if not nx.is_directed_acyclic_graph(within):
        raise ValueError(f"turns that wait for each other within a period: {nx.find_cycle(within)}")
    best: tuple[float, list[Edge]] = -math.inf, []
    for component in nx.strongly_connected_components(graph):
        inside = [edge for edge in edges if edge.tail in component and edge.head in component]
        if inside:
            best = max(best, _howard(inside), key=lambda ratio_and_cycle: ratio_and_cycle[0])
    return best


def _howard(edges: list[Edge]) -> tuple[float, list[Edge]]:
    """(ratio, cycle) of a strongly connected graph. `chosen` is each node's next edge; its best cycle only gets
    better."""
    chosen: dict[Hashable, Edge] = {}
    for edge in edges:
        if edge.tail not in chosen or edge.seconds > chosen[edge.tail].seconds:
            chosen[edge.tail] = edge
    value = dict.fromkeys(chosen, 0.0)
    while True:
        ratio, cycle = max((_ratio(cycle), cycle) for cycle in _cycles(chosen))
        # Values relative to the cycle, of all nodes from which the chosen edges lead to it.
        into: dict[Hashable, list[Edge]] = {}
        for edge in chosen.values():
            into.setdefault(edge.head, []).append(edge)
        root = cycle[0].tail
        reached, frontier = {root}, [root]
        while frontier:
            for edge in into.get(frontier.pop(), []):
                if edge.tail not in reached:
                    value[edge.tail] = value[edge.head] + edge.seconds - ratio * edge.periods
                    reached.add(edge.tail)
                    frontier.append(edge.tail)
        better = False
        for edge in edges:
            gain = value[edge.head] + edge.seconds - ratio * edge.periods - value[edge.tail]
            if gain > 1e-9 * max(1.0, abs(ratio)):
                value[edge.tail] += gain
                chosen[edge.tail] = edge
                better = True
        if not better:
            return ratio, cycle


def _ratio(cycle: list[Edge]) -> float:
    return sum(edge.seconds for edge in cycle) / sum(edge.periods for edge in cycle)


def _cycles(chosen: dict[Hashable, Edge]) -> list[list[Edge]]:
    """The cycles in which paths along the chosen edges end."""
    cycles, seen_in = [], dict[Hashable, int]()
    for number, start in enumerate(chosen):
        node, path = start, list[Edge]()
        while node not in seen_in:
            seen_in[node] = number
            path.append(chosen[node])
            node = chosen[node].head
        if seen_in[node] == number:
            begins = next(i for i, edge in enumerate(path) if edge.tail == node)
            cycles.append(path[begins:])
    return cycles
