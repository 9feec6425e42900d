"""The moves that would lead to the cheapest groups and are not made: what they would save and cost, and why not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....plans.schema.groups_plan import DeclinedMoves
from ..inputs.group_model import Group
from ..inputs.groups_state import GroupsState, next_id
from .move_prices import MovePrices
from .moved_jobs import moved_jobs


def declined_moves(
    prices: MovePrices, state: GroupsState, cheapest: Sequence[Group], new: Collection[str]
) -> DeclinedMoves | None:
    """Moves from `state` to the groups `cheapest`, None if they would save nothing; jobs in `new` move for nothing."""
    patience = prices.patience
    target = _with_ids(state, cheapest)
    saves = state.usd_per_hour(prices.node_types) - target.usd_per_hour(prices.node_types)
    moved = [name for name in moved_jobs(state, target, prices.node_types) if name not in new]
    if saves <= 1e-6 or not moved:
        return None
    price = sum(prices.move(state, target, name).price_usd for name in moved)
    dear = saves * patience.change_every_h < (1.0 + patience.hysteresis) * price
    return DeclinedMoves(
        jobs=tuple(moved),
        saves_usd_per_hour=saves,
        price_usd=price,
        hours=patience.change_every_h,
        reason="price" if dear else "bounds",
    )


def _with_ids(state: GroupsState, groups: Sequence[Group]) -> GroupsState:
    """The groups, each under the id of the group of `state` that it shares most jobs with."""
    members = {key: {pin.job for pin in group.pins} for key, group in state.groups.items()}
    pairs = sorted(
        (-len(members[key] & {pin.job for pin in group.pins}), key, index)
        for key in members
        for index, group in enumerate(groups)
    )
    named: dict[str, Group] = {}
    left = set(range(len(groups)))
    for shared, key, index in pairs:
        if shared and key not in named and index in left:
            named[key] = groups[index]
            left.remove(index)
    taken = {**state.groups, **named}
    for index in sorted(left):
        key = next_id(taken)
        named[key] = taken[key] = groups[index]
    return GroupsState(state.jobs, named)
