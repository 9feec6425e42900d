"""The steady state of a group with mean durations: one period as a timeline, and its critical cycle of turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.compiled_permits import PERMIT_RULES, SeatArrays, empty_state
from ....rounds.compiled.permit_kernel import period
from ....rounds.permits.permit_events import PhaseName
from ....rounds.permits.permit_machine import PermitMachine
from ..inputs.group_model import Group, Jobs, Rules
from .cycle_ratio import Edge, max_cycle_ratio
from .permit_seats import machine_seats, seats_of
from .permit_simulator import Span, simulate_turns

_ROWS = 240
_LONG = 12
"""Iterations of the slowest job that a period has at most. If a group repeats itself later or never, the stretch is
taken over which it comes closest to where it began."""
_TIGHT = 1e-3
"""Share of the period by which a chain may be shorter and still count as what limits it."""


@dataclass(frozen=True)
class HeldNode:
    """A stretch of a turn on one node, within a period."""

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
    """The critical cycle: each turn waits for the one before it, and the first for the last of the period before."""

    turns: tuple[tuple[str, PhaseName], ...]
    seconds: float
    """Seconds of these turns in a period, switches and interference included."""
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
    """All turns of the period, cut at its ends, by start, job and node; times from 0 to `period_s`."""
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
    arrays = SeatArrays(*(field[0] for field in seats_of([group], plain, rules)))
    log, times = np.zeros((_ROWS, len(group.pins), 4)), np.zeros(_ROWS)
    state, rule = empty_state(len(group.pins), arrays.units.shape[-1]), PERMIT_RULES[rules.permit_rule]
    a, b = period(arrays, state, log, times, rule, rules.interference)
    repeats = b - a <= _LONG
    if not repeats:
        a = min(range(b - _LONG, b), key=lambda row: _distance(log, times, row, b))
    begin_s, end_s = float(times[a]), float(times[b])
    seats, truths = machine_seats(group, plain, rules)
    spans: list[Span] = []
    for span in simulate_turns(PermitMachine(rules.permit_rule), seats, truths, rules.interference):
        if span.end_s > begin_s:
            spans.append(span)
        # The longest turn ends a period later at most, so all that begins in this one has ended by then.
        if span.end_s > end_s + max(end_s - begin_s, sum(max(seat.expected_s) for seat in seats)):
            break
    period_s = end_s - begin_s
    held, busy = _held_nodes(spans, begin_s, end_s, node_units(group, slots_of))
    counts = {pin.job: int(log[b, j, 3] - log[a, j, 3]) for j, pin in enumerate(group.pins)}
    return SteadyState(period_s, repeats, counts, held, busy, _chain([s for s in spans if s.end_s <= end_s], period_s))


def _distance(log: NDArray[np.float64], times: NDArray[np.float64], a: int, b: int) -> tuple[int, float]:
    """How far the group stands at row b from where it stood at row a: jobs in other phases, share of the time."""
    differing_phases = int((log[a, :, 0] != log[b, :, 0]).sum() + (log[a, :, 3] == log[b, :, 3]).sum())
    return differing_phases, float(np.abs(log[a, :, 1] - log[b, :, 1]).max() / (times[b] - times[a]))


def _held_nodes(
    spans: list[Span], begin_s: float, end_s: float, nodes: list[range]
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


def _chain(spans: list[Span], period_s: float) -> Chain:
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
    turns: list[tuple[str, PhaseName]] = []
    for edge in cycle:
        span = spans[edge.tail]  # type: ignore[call-overload]
        if not turns or turns[-1] != (span.job, span.phase):
            turns.append((span.job, span.phase))
    if len(turns) > 1 and turns[0] == turns[-1]:
        turns.pop()
    turns = _once(turns)
    first = turns.index(min(turns))
    return Chain(tuple(turns[first:] + turns[:first]), ratio, ratio >= period_s * (1 - _TIGHT))


def _once(turns: list[tuple[str, PhaseName]]) -> list[tuple[str, PhaseName]]:
    """A cycle without its repetitions of itself."""
    for length in range(1, len(turns)):
        if len(turns) % length == 0 and turns == turns[:length] * (len(turns) // length):
            return turns[:length]
    return turns
