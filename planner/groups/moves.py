"""Moves of running jobs to other nodes: which jobs move, what a move costs in seconds of outage and in USD, what the
moves of a re-plan save, and which moves are declined.

A job that moves loses the iteration in progress (half of one on average; nothing if it waits for the boundary) and
starts cold on its new nodes while its old nodes may still be held. The price in USD is the outage at the price of the
nodes that the job would need solo, with the cold start counted twice.

A job that moves falls behind by the outage, so a move is paid out of credit: the seconds by which the job is ahead of
its bound so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ...plans.schema.groups_plan import DeclinedMoves, GroupsPlan, Move
from .choose.group_columns import GroupColumn
from .choose.group_solution import GroupChecker
from .inputs.group_model import Group, GroupJob, GroupsState, NodeTypes, Rules, excess, next_id, nodes_of_pins
from .simulate.slowdowns import feasible_many
from .simulate.steady_state import start_s

# Nodes of one pool in a group are alike, so the jobs that move follow from the two states alone: the nodes of a group
# before and after are matched, pool by pool, so that the most jobs stay where they were.


def moved_jobs(before: GroupsState, after: GroupsState, node_types: NodeTypes) -> list[str]:
    """Names, sorted, of the jobs in both states whose nodes changed other than by nodes being added for others."""
    moved: list[str] = []
    for key, old in before.groups.items():
        new = after.groups.get(key)
        if new is old:
            continue
        here = {pin.job for pin in old.pins} & ({pin.job for pin in new.pins} if new else set())
        moved += [pin.job for pin in old.pins if pin.job not in here and pin.job in after.jobs]
        if new and here:
            stay = staying(old, new, sorted(here), node_types)
            moved += [pin.job for pin in new.pins if pin.job in here and pin.job not in stay]
    return sorted(moved)


def staying(
    old: Group, new: Group, names: Sequence[str], node_types: NodeTypes, worth: Mapping[str, float] | None = None
) -> frozenset[str]:
    """The jobs of `names` that keep the nodes they have in `old` if `new` takes these nodes over: the most of them, or
    the most in `worth`. Nodes of one pool are alike, so jobs can stay where they meet on as many nodes, in the same
    phases.
    """
    before, after = _occupants(old, node_types), _occupants(new, node_types)
    if _meetings(before, names) == _meetings(after, names):
        return frozenset(names)
    subsets = sorted(
        (frozenset(s) for size in range(1, len(names)) for s in combinations(names, size)),
        key=lambda s: (-sum(worth[name] if worth else 1.0 for name in sorted(s)), sorted(s)),
    )
    return next((s for s in subsets if _meetings(before, s) == _meetings(after, s)), frozenset())


_Occupants = list[tuple[str, list[tuple[str, int]]]]
"""Of each node: its pool, and the (job, phase) pairs on it; phase 0 is rollout, 1 training."""


def _occupants(group: Group, node_types: NodeTypes) -> _Occupants:
    nodes: _Occupants = [(pool, []) for pool in group.nodes]
    for name, phases in sorted(nodes_of_pins(group, node_types).items()):
        for phase, held in enumerate(phases):
            for node in held:
                nodes[node][1].append((name, phase))
    return nodes


def _meetings(nodes: _Occupants, names: Collection[str]) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    """How the phases of `names` meet on nodes, whatever the order of nodes."""
    met = ((pool, tuple(sorted(pair for pair in on if pair[0] in names))) for pool, on in nodes)
    return sorted(row for row in met if row[1])


# Running groups and their successors fall into clusters that share no job. The moves within a cluster together save the
# difference between the prices of its nodes before and after.


def planned_moves(
    moves: Sequence[PricedMove],
    previous: GroupsPlan,
    placed: GroupsState,
    after: GroupsState,
    node_types: NodeTypes,
    rules: Rules,
) -> list[Move]:
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
        Move(
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


@dataclass(frozen=True)
class PricedMove:
    """One job that changes nodes."""

    job: str
    from_group: str
    to_group: str
    outage_s: float
    """Cold start and work done again."""
    price_usd: float


@dataclass(frozen=True)
class MovePatience:
    """When a move pays: savings count for `change_every_h` hours, and must exceed the price by `hysteresis`."""

    change_every_h: float = 1.0
    hysteresis: float = 0.25
    wait_for_boundary: bool = False
    """Whether moves are made between iterations: no work is lost, and the old nodes are held until then."""

    @property
    def usd_per_hour_of_a_usd(self) -> float:
        """USD per hour that a placement must save for each USD of its moves."""
        return (1.0 + self.hysteresis) / self.change_every_h


class MovePrices:
    """Prices and outages of moves, and the credit of each job."""

    def __init__(self, node_types: NodeTypes, patience: MovePatience, checker: GroupChecker) -> None:
        self.node_types, self.patience, self.checker = node_types, patience, checker
        self.credit_s: dict[str, float] = {}
        """Seconds that each job is ahead of its bound."""
        self.usd_per_unit = 0.0
        """Price of a unit of training that members do less than alone; 0: only USD per hour counts."""

    def outage_s(self, job: GroupJob, slowdown: float) -> float:
        """Seconds that a move takes on average from a job that now runs at this slowdown."""
        return job.cold_s + self._half_iteration_s(job, slowdown)

    def longest_outage_s(self, job: GroupJob, slowdown: float) -> float:
        """Seconds that a move takes if it comes at the worst moment of an iteration."""
        return self.outage_s(job, slowdown) + self._half_iteration_s(job, slowdown)

    def _half_iteration_s(self, job: GroupJob, slowdown: float) -> float:
        return 0.0 if self.patience.wait_for_boundary else 0.5 * slowdown * job.solo_s

    def price_usd(self, job: GroupJob, slowdown: float) -> float:
        """USD of a move: the outage on the job's own nodes, and the cold start on the old nodes too."""
        return (self.outage_s(job, slowdown) + job.cold_s) / 3600.0 * job.solo_usd_per_hour(self.node_types)

    def lacks_credit(self, job: GroupJob, slowdown: float, besides_s: float = 0.0) -> bool:
        """Whether the job's credit does not cover the longest outage and `besides_s` seconds."""
        return self.credit_s.get(job.name, 0.0) < besides_s + self.longest_outage_s(job, slowdown)

    def with_lost_training(self, column: GroupColumn, state: GroupsState) -> GroupColumn:
        """The column with the price of the training that its members do less than solo added to its USD per hour."""
        if not self.usd_per_unit:
            return column
        lost = self.checker.lost(column.group, state.jobs, self.node_types)
        return replace(column, usd_per_hour=column.usd_per_hour + self.usd_per_unit * lost)

    def move(self, before: GroupsState, after: GroupsState, name: str) -> PricedMove:
        """The move of a job from its group in `before` to its group in `after`, whose other jobs run meanwhile."""
        key, new_key = before.group_of(name), after.group_of(name)
        slow = self.checker.slowdowns(before.groups[key], before.jobs)[name].mean
        cold_s = start_s(name, after.groups[new_key], after.jobs, self.node_types, self.checker.rules)
        job = replace(before.jobs[name], cold_s=cold_s)
        return PricedMove(name, key, new_key, self.outage_s(job, slow), self.price_usd(job, slow))
