"""The units of a group that runs, for those of a plan: nodes of a pool are alike, and a job that stays keeps its own.

A plan numbers the units of its groups from 0. Numbers of a group that runs never change while a job holds the unit, and
none is given to another node later, so that the journal of turns means the same nodes from beginning to end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ....rounds.permits.permit_events import Seat

Units = tuple[int, ...]


def live_units(
    running: Mapping[str, Seat], planned: Mapping[str, Seat], nodes: Sequence[Units], stay: Collection[str], fresh: int
) -> list[Units]:
    """The live units of each node of a plan's group, in the order of the plan's nodes.

    Args:
        running: seats of the jobs that run, in live units.
        planned: seats of the plan's jobs, in its units.
        nodes: the plan's units of each of its nodes; jobs hold whole nodes.
        stay: jobs of both that keep their nodes.
        fresh: the first number that no unit had yet; nodes that no such job is on get these.

    Raises ValueError if the jobs that stay do not meet on nodes as they do in the plan.
    """
    there: dict[frozenset[tuple[str, int]], list[int]] = {}
    for unit in sorted({unit for name in stay for phase in running[name].units for unit in phase}):
        there.setdefault(_on([unit], running, stay), []).append(unit)
    found: list[Units] = []
    for units in nodes:
        met = _on(units, planned, stay)
        if not met:
            found.append(tuple(range(fresh, fresh + len(units))))
            fresh += len(units)
            continue
        left = there.get(met, [])
        if len(left) < len(units):
            raise ValueError(f"{', '.join(sorted({name for name, _ in met}))}: other nodes than those that it has")
        found.append(tuple(left[: len(units)]))
        there[met] = left[len(units) :]
    if any(there.values()):
        raise ValueError(f"{', '.join(sorted(stay))}: fewer nodes than they have")
    return found


def live_seat(seat: Seat, nodes: Sequence[Units], live: Sequence[Units]) -> Seat:
    """A plan's seat in live units; `nodes` and `live`: of each node, as of `live_units`."""
    of = {old: new for olds, news in zip(nodes, live, strict=True) for old, new in zip(olds, news, strict=True)}
    rollout, train = (tuple(sorted(of[unit] for unit in phase)) for phase in seat.units)
    return replace(seat, units=(rollout, train))


def _on(units: Sequence[int], seats: Mapping[str, Seat], stay: Collection[str]) -> frozenset[tuple[str, int]]:
    """The (job, phase) pairs of jobs that stay on a node of these units."""
    return frozenset(
        (name, phase) for name in stay for phase, held in enumerate(seats[name].units) if set(units) & set(held)
    )
