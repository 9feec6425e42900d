"""The steady state of a group with mean durations: one period as a timeline, and its critical cycle of phases."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.compiled_permits import PERMIT_RULES, PlacedArrays, empty_state
from ....rounds.compiled.permit_kernel import period
from ....rounds.permits.permit_events import PhaseName
from ....rounds.permits.permit_machine import PermitMachine
from ..inputs.group_model import Group, Jobs, NodeTypes, Rules, node_of_units
from .permit_simulator import SimulatedSpan, placed_arrays, placed_jobs, simulate_phases

# Maximum cycle ratio of an event graph, by Howard's policy iteration.
#
# In a periodic schedule each phase begins after certain others of its own or of the previous period have ended; the
# largest ratio of seconds to periods over all cycles of these constraints is the shortest possible period, and a
# cycle that attains it limits the rate. The algorithm is Dasdan's variant of Howard's (ACM TODAES 2004,
# "Experimental analysis of the fastest optimum cycle ratio and mean algorithms", figure 1), turned round for the
# maximum.


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


# Seconds of a job's start beside the jobs that run on its nodes.
#
# On GPUs a start computes on host cores that phases leave idle. Where accelerators are host cores (pools of kind
# `cpu`), the start and the running phases share them. Linux gives both the same share of a core, so a phase takes
# twice as long while a start goes on. Phases that hold a core for a share b of the time then hold it for 2b / (1 +
# b), and the start proceeds at half its rate in that time: it takes 1 + b times as long.


def start_s(name: str, group: Group, jobs: Jobs, node_types: NodeTypes, rules: Rules) -> float:
    """Seconds from nothing to the first phase of job `name` of `group`, while the group's other jobs run.

    Rollout and training start at once; the one whose cores are busier takes longer, and decides.
    """
    cold_s = jobs[name].cold_s
    others = tuple(pin for pin in group.pins if pin.job != name)
    if not others or not any(node_types[pool].host_cores for pool in group.nodes):
        return cold_s
    slots = {pool: node_type.slots for pool, node_type in node_types.items()}
    busy = steady_state(replace(group, pins=others), jobs, rules, slots).busy
    node_of = node_of_units(group, node_types)
    [own] = [pin for pin in group.pins if pin.job == name]
    on_cores = (
        unit for unit in (*own.rollout_units, *own.train_units) if node_types[group.nodes[node_of[unit]]].host_cores
    )
    return cold_s * (1.0 + max((busy[unit] for unit in on_cores), default=0.0))


_ROWS = 240
_LONG = 12
"""Iterations of the slowest job that a period has at most. If a group repeats itself later or never, the stretch is
taken over which it comes closest to where it began."""
_TIGHT = 1e-3
"""Share of the period by which a chain may be shorter and still count as what limits it."""


@dataclass(frozen=True)
class HeldNode:
    """A phase, or a part of one, on one node, within a period."""

    start_s: float
    end_s: float
    job: str
    phase: PhaseName
    node: int
    """Index in `Group.nodes`."""
    units: tuple[int, ...]
    """Units of the node that it holds."""


@dataclass(frozen=True)
class Chain:
    """The critical cycle: each phase waits for the one before it, and the first for the last of the period before."""

    phases: tuple[tuple[str, PhaseName], ...]
    """(job, phase) of each."""
    seconds: float
    """Seconds of these phases in a period, switches and interference included."""
    limits: bool
    """Whether the cycle sets the period; else jobs are held back so that others keep their bounds."""


@dataclass(frozen=True)
class SteadyState:
    """A period of a group in its steady state."""

    period_s: float
    repeats: bool
    """Whether the group repeats itself after it; else it only comes close to where it began."""
    iterations: dict[str, int]
    """Iterations of each job in the period."""
    held: tuple[HeldNode, ...]
    """All phases of the period, cut at its ends, by start, job and node; times from 0 to `period_s`."""
    busy: tuple[float, ...]
    """Share of the period that each unit is held."""
    chain: Chain


def node_units(group: Group, slots_of: Mapping[str, int]) -> list[range]:
    """Units of each node; `slots_of`: slots of a node by pool."""
    ranges, first = [], 0
    for pool in group.nodes:
        ranges.append(range(first, first + slots_of.get(pool, 1)))
        first = ranges[-1].stop
    return ranges


def steady_state(group: Group, jobs: Jobs, rules: Rules, slots_of: Mapping[str, int]) -> SteadyState:
    """The steady state of `group`, simulated with mean durations until it repeats itself.

    Args:
        slots_of: slots of a node by pool (`NodeType.slots`).
    """
    plain = {pin.job: jobs[pin.job].with_spread(()) for pin in group.pins}
    arrays = PlacedArrays(*(field[0] for field in placed_arrays([group], plain, rules)))
    log, times = np.zeros((_ROWS, len(group.pins), 4)), np.zeros(_ROWS)
    state, rule = empty_state(len(group.pins), arrays.units.shape[-1]), PERMIT_RULES[rules.permit_rule]
    a, b = period(arrays, state, log, times, rule, rules.interference)
    repeats = b - a <= _LONG
    if not repeats:
        a = min(range(b - _LONG, b), key=lambda row: _distance(log, times, row, b))
    begin_s, end_s = float(times[a]), float(times[b])
    placed, truths = placed_jobs(group, plain, rules)
    spans: list[SimulatedSpan] = []
    for span in simulate_phases(PermitMachine(rules.permit_rule), placed, truths, rules.interference):
        if span.end_s > begin_s:
            spans.append(span)
        # The longest phase ends at most a period later, so all phases that begin in this one have ended by then.
        if span.end_s > end_s + max(end_s - begin_s, sum(max(placed.expected_s) for placed in placed)):
            break
    period_s = end_s - begin_s
    held, busy = _held_nodes(spans, begin_s, end_s, node_units(group, slots_of))
    counts = {pin.job: int(log[b, j, 3] - log[a, j, 3]) for j, pin in enumerate(group.pins)}
    return SteadyState(period_s, repeats, counts, held, busy, _chain([s for s in spans if s.end_s <= end_s], period_s))


def _distance(log: NDArray[np.float64], times: NDArray[np.float64], a: int, b: int) -> tuple[int, float]:
    """How much the state of the group at row b differs from that at row a: jobs in other phases, share of the time."""
    differing_phases = int((log[a, :, 0] != log[b, :, 0]).sum() + (log[a, :, 3] == log[b, :, 3]).sum())
    return differing_phases, float(np.abs(log[a, :, 1] - log[b, :, 1]).max() / (times[b] - times[a]))


def _held_nodes(
    spans: list[SimulatedSpan], begin_s: float, end_s: float, nodes: list[range]
) -> tuple[tuple[HeldNode, ...], tuple[float, ...]]:
    stretches = []
    busy = [0.0] * nodes[-1].stop
    for span in spans:
        start, end = max(span.start_s, begin_s) - begin_s, min(span.end_s, end_s) - begin_s
        if start >= end:
            continue
        for number, units in enumerate(nodes):
            held = tuple(unit for unit in span.units if unit in units)
            for unit in held:
                busy[unit] += (end - start) / (end_s - begin_s)
            if held:
                stretches.append(HeldNode(start, end, span.job, span.phase, number, held))
    return tuple(sorted(stretches, key=lambda stretch: (stretch.start_s, stretch.job, stretch.node))), tuple(busy)


def _chain(spans: list[SimulatedSpan], period_s: float) -> Chain:
    """The critical cycle of the event graph of one period: spans of a job in order, spans on a unit in order."""
    lines: dict[object, list[int]] = {}
    for number, span in enumerate(spans):
        for line in (span.job, *span.units):
            lines.setdefault(line, []).append(number)
    edges = set()
    for line in lines.values():
        line.sort(key=lambda number: (spans[number].start_s, spans[number].end_s))
        for before, after in pairwise(line):
            edges.add(Edge(before, after, spans[before].end_s - spans[before].start_s, 0))
        edges.add(Edge(line[-1], line[0], spans[line[-1]].end_s - spans[line[-1]].start_s, 1))
    ratio, cycle = max_cycle_ratio(sorted(edges))
    phases: list[tuple[str, PhaseName]] = []
    for edge in cycle:
        span = spans[edge.tail]  # type: ignore[call-overload]
        if not phases or phases[-1] != (span.job, span.phase):
            phases.append((span.job, span.phase))
    if len(phases) > 1 and phases[0] == phases[-1]:
        phases.pop()
    phases = _once(phases)
    first = phases.index(min(phases))
    return Chain(tuple(phases[first:] + phases[:first]), ratio, ratio >= period_s * (1 - _TIGHT))


def _once(phases: list[tuple[str, PhaseName]]) -> list[tuple[str, PhaseName]]:
    """A cycle without its repetitions of itself."""
    for length in range(1, len(phases)):
        if len(phases) % length == 0 and phases == phases[:length] * (len(phases) // length):
            return phases[:length]
    return phases
