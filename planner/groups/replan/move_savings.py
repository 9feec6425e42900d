"""Savings of the moves of a re-planned workload in USD per hour, and the ids of their new groups.

Running groups and their successors fall into clusters that share no job. What a cluster's nodes cost less afterwards is
the saving of the moves within that cluster, all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....plans.schema.groups_plan import GroupsPlan
from ....plans.schema.groups_plan import Move as PlannedMove
from ..inputs.capacity import excess
from ..inputs.group_model import Group, NodeTypes, Rules
from ..inputs.groups_state import GroupsState
from ..simulate.slowdowns import feasible_many
from .move_prices import Move


def planned_moves(
    moves: Sequence[Move],
    previous: GroupsPlan,
    placed: GroupsState,
    after: GroupsState,
    node_types: NodeTypes,
    rules: Rules,
) -> list[PlannedMove]:
    """The moves as the plan document lists them, with their savings.

    Args:
        placed: running jobs where they are, new jobs beside them.
        after: the state that the moves lead to.
    """
    number_of: dict[str, int] = {}
    saves: dict[int, float] = {}
    needed: dict[int, bool] = {}
    moved = {move.job for move in moves}
    short = bool(excess(placed.groups.values(), node_types))
    for old, new in _clusters(tuple(placed.groups.values()), tuple(after.groups.values())):
        names = {pin.job for group in old for pin in group.pins}
        if names & moved:
            number = len(saves) + 1
            number_of |= dict.fromkeys(names, number)
            saves[number] = _usd(old, node_types) - _usd(new, node_types)
            needed[number] = short or not all(feasible_many(old, placed.jobs, rules))
    return [
        PlannedMove(
            job=move.job,
            from_group=next(key for key, group in previous.groups.items() if move.job in group.jobs),
            to_group=after.group_of(move.job),
            price_usd=move.price_usd,
            price_s=move.outage_s,
            together=number_of[move.job],
            saves_usd_per_hour=saves[number_of[move.job]],
            needed=needed[number_of[move.job]],
        )
        for move in moves
    ]


def renumbered(groups: Mapping[str, Group], running: Iterable[str] = ()) -> dict[str, Group]:
    """The groups with ids of `running` kept and the other groups numbered from 1 in the order of their jobs."""
    taken = set(running)
    fresh = (key for number in range(1, 10**9) if (key := f"g{number}") not in taken)
    order = sorted(groups, key=lambda key: [pin.job for pin in groups[key].pins])
    return {key if key in taken else next(fresh): groups[key] for key in order}


def _clusters(old: Sequence[Group], new: Sequence[Group]) -> list[tuple[list[Group], list[Group]]]:
    """Old and new groups that share jobs, directly or through other groups."""
    cluster_of: dict[str, set[str]] = {}
    for group in (*old, *new):
        joined = {pin.job for pin in group.pins}
        for pin in group.pins:
            joined |= cluster_of.get(pin.job, set())
        for name in joined:
            cluster_of[name] = joined
    clusters = {min(names): names for names in cluster_of.values()}
    return [
        ([g for g in old if g.pins[0].job in names], [g for g in new if g.pins[0].job in names])
        for _, names in sorted(clusters.items())
    ]


def _usd(groups: Iterable[Group], node_types: NodeTypes) -> float:
    return sum(group.usd_per_hour(node_types) for group in groups)
