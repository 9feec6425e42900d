"""What moves save, and which groups they go to.

Running groups and the groups that follow them fall into parts that share no job: what a part's nodes cost less is owed
to the moves in that part, all of them together, and to no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....plans.schema.groups_plan import GroupsPlan
from ....plans.schema.groups_plan import Move as PlannedMove
from ..inputs.capacity import excess
from ..inputs.group_model import Group, NodeKind, Rules
from ..place.placing import State
from ..simulate.slowdowns import feasible_many
from .moves import Move


def attributed(
    moves: Sequence[Move],
    previous: GroupsPlan,
    placed: State,
    found: State,
    kinds: Mapping[str, NodeKind],
    rules: Rules,
) -> list[PlannedMove]:
    """The moves as the plan has them, in their order; `placed`: running jobs where they are, new ones beside them."""
    number_of: dict[str, int] = {}
    saves: dict[int, float] = {}
    needed: dict[int, bool] = {}
    parts = _parts(tuple(placed.groups.values()), tuple(found.groups.values()))
    moved = {move.job for move in moves}
    short = bool(excess(placed.groups.values(), kinds))
    for old, new in parts:
        names = {pin.job for group in old for pin in group.pins}
        if names & moved:
            number = len(saves) + 1
            number_of |= dict.fromkeys(names, number)
            saves[number] = _usd(old, kinds) - _usd(new, kinds)
            needed[number] = short or not all(feasible_many(old, placed.jobs, rules))
    return [
        PlannedMove(
            job=move.job,
            from_group=next(key for key, group in previous.groups.items() if move.job in group.jobs),
            to_group=found.group_of(move.job),
            price_usd=move.price_usd,
            price_s=move.outage_s,
            together=number_of[move.job],
            saves_usd_per_hour=saves[number_of[move.job]],
            needed=needed[number_of[move.job]],
        )
        for move in moves
    ]


def renumbered(groups: Mapping[str, Group], running: Iterable[str] = ()) -> dict[str, Group]:
    """Groups with ids of `running` kept, and the others numbered from 1 in the order of their jobs."""
    taken = set(running)
    fresh = (key for number in range(1, 10**9) if (key := f"g{number}") not in taken)
    order = sorted(groups, key=lambda key: [pin.job for pin in groups[key].pins])
    return {key if key in taken else next(fresh): groups[key] for key in order}


def _parts(old: Sequence[Group], new: Sequence[Group]) -> list[tuple[list[Group], list[Group]]]:
    """Groups old and new that share jobs, directly or through others."""
    part_of: dict[str, set[str]] = {}
    for group in (*old, *new):
        joined = {pin.job for pin in group.pins}
        for pin in group.pins:
            joined |= part_of.get(pin.job, set())
        for name in joined:
            part_of[name] = joined
    unique = {min(part): part for part in part_of.values()}
    return [
        ([g for g in old if g.pins[0].job in part], [g for g in new if g.pins[0].job in part])
        for _, part in sorted(unique.items())
    ]


def _usd(groups: Iterable[Group], kinds: Mapping[str, NodeKind]) -> float:
    return sum(group.usd_per_hour(kinds) for group in groups)
