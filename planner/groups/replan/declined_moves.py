"""Moves that would lead to the cheapest groups and are not made: what they would save, cost, and why they are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....plans.schema.groups_plan import DeclinedMoves
from ..inputs.group_model import Group
from ..place.placing import State, moves, next_id
from .moves import Replanner


def declined(planner: Replanner, state: State, cheapest: Sequence[Group], new: Collection[str]) -> DeclinedMoves | None:
    """Moves from `state` to the groups `cheapest`, None if they would save nothing; jobs in `new` move for nothing."""
    kinds, patience = planner.kinds, planner.patience
    target = _succeeding(state, cheapest)
    saves = state.usd_per_hour(kinds) - target.usd_per_hour(kinds)
    moved = [name for name in moves(state, target, kinds) if name not in new]
    if saves <= 1e-6 or not moved:
        return None
    price = sum(planner.move(state, target, name).price_usd for name in moved)
    dear = saves * patience.change_every_h < (1.0 + patience.hysteresis) * price
    return DeclinedMoves(
        jobs=tuple(moved),
        saves_usd_per_hour=saves,
        price_usd=price,
        hours=patience.change_every_h,
        reason="price" if dear else "bounds",
    )


def _succeeding(state: State, groups: Sequence[Group]) -> State:
    """The groups under the ids of those that they share most jobs with."""
    members = {key: {pin.job for pin in group.pins} for key, group in state.groups.items()}
    pairs = sorted(
        (-len(members[key] & {pin.job for pin in group.pins}), key, at)
        for key in members
        for at, group in enumerate(groups)
    )
    named: dict[str, Group] = {}
    left = set(range(len(groups)))
    for shared, key, at in pairs:
        if shared and key not in named and at in left:
            named[key] = groups[at]
            left.remove(at)
    taken = {**state.groups, **named}
    for at in sorted(left):
        key = next_id(taken)
        named[key] = taken[key] = groups[at]
    return State(state.jobs, named)
