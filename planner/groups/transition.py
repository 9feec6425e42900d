"""From running groups to better ones, by the moves that pay.

Running groups (with new jobs placed beside them) and the groups that the program would choose today fall into parts
that share no job: a part can be taken over or left as it is whatever happens to the others. A part is taken over if
what its nodes then cost less, over the time that its jobs are expected to stay, is more than its moves cost; or in any
case if one of its running groups no longer keeps its bounds.

A move costs the job's cold start and half an iteration, the work that a stop loses on average, at the price of the
nodes that the job would have alone (its training for that long).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .model import Group, GroupJob, NodeKind, Rules
from .policy import State, moves
from .rates import feasible_many, slowdowns


@dataclass(frozen=True)
class PricedMove:
    """A running job that changes nodes. `together`: number of the part whose moves pay together; `saves_usd_per_hour`:
    what that part's nodes cost less; `needed`: without them a bound would not be kept."""

    job: str
    seconds: float
    usd: float
    together: int
    saves_usd_per_hour: float
    needed: bool


@dataclass(frozen=True)
class Transition:
    """Groups to go to, and the moves that lead there."""

    state: State
    moves: tuple[PricedMove, ...]


def transition(
    running: State,
    placed: State,
    target: Iterable[Group],
    kinds: Mapping[str, NodeKind],
    rules: Rules,
    remaining_s: Mapping[str, float],
    all_parts: bool = False,
) -> Transition:
    """The parts of `target` that pay, and of `placed` (running jobs where they are, new ones beside them) the rest.

    `all_parts`: take all over, since `placed` cannot be (it needs more nodes than there are).
    """
    jobs, target = placed.jobs, tuple(target)
    priced: list[PricedMove] = []
    chosen: list[Group] = []
    for number, (old, new) in enumerate(_parts(tuple(placed.groups.values()), target), 1):
        saves = sum(group.usd_per_hour(kinds) for group in old) - sum(group.usd_per_hour(kinds) for group in new)
        needed = not all(feasible_many(old, jobs, rules))
        own = {pin.job for group in old for pin in group.pins}
        here = {key: group for key, group in running.groups.items() if any(pin.job in own for pin in group.pins)}
        members = {name: job for name, job in jobs.items() if name in own}
        # A node is the same whichever group it counts to: the part's nodes are matched as if of one group.
        before, after = _union(here.values(), kinds), _union(new, kinds)
        moved = moves(State(members, {"g0": before}), State(members, {"g0": after}), kinds) if here else []
        steps = [_priced(jobs[name], here.values(), jobs, kinds, rules, number, saves, needed) for name in moved]
        stays_s = min((remaining_s.get(name, math.inf) for name in own), default=math.inf)
        pays = saves > 1e-9 and saves * stays_s / 3600 > sum(step.usd for step in steps)
        if all_parts or needed or pays:
            chosen += new
            priced += steps
        else:
            chosen += old
    return Transition(State(jobs, named(chosen, running.groups)), tuple(priced))


def named(groups: Iterable[Group], running: Mapping[str, Group]) -> dict[str, Group]:
    """Ids for groups: that of the running group with which most jobs are shared, each id once, else a new one."""
    jobs = {key: {pin.job for pin in group.pins} for key, group in running.items()}
    listed = sorted(groups, key=lambda group: [pin.job for pin in group.pins])
    pairs = [
        (-len(jobs[key] & {pin.job for pin in group.pins}), at, key)
        for at, group in enumerate(listed)
        for key in jobs
        if jobs[key] & {pin.job for pin in group.pins}
    ]
    key_of: dict[int, str] = {}
    for _, at, key in sorted(pairs):
        if at not in key_of and key not in key_of.values():
            key_of[at] = key
    fresh = (key for number in range(1, 10**9) if (key := f"g{number}") not in running)
    return {key_of[at] if at in key_of else next(fresh): group for at, group in enumerate(listed)}


def _parts(old: Sequence[Group], new: Sequence[Group]) -> list[tuple[list[Group], list[Group]]]:
    """Groups old and new that share jobs, directly or through others; parts that are the same in both come as such."""
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


def _union(groups: Iterable[Group], kinds: Mapping[str, NodeKind]) -> Group:
    """All groups as one, their nodes sorted by pool."""
    listed = list(groups)
    nodes = sorted((pool, g, at) for g, group in enumerate(listed) for at, pool in enumerate(group.nodes))
    first: dict[tuple[int, int], int] = {}
    unit = 0
    for pool, g, at in nodes:
        first[g, at] = unit
        unit += kinds[pool].slots
    pins = []
    for g, group in enumerate(listed):
        place = [first[g, at] + slot for at, pool in enumerate(group.nodes) for slot in range(kinds[pool].slots)]
        pins += [
            replace(
                pin,
                rollout_units=tuple(sorted(place[unit] for unit in pin.rollout_units)),
                train_units=tuple(sorted(place[unit] for unit in pin.train_units)),
            )
            for pin in group.pins
        ]
    return Group(tuple(pool for pool, _, _ in nodes), tuple(sorted(pins, key=lambda pin: pin.job)))


def _priced(
    job: GroupJob,
    groups: Iterable[Group],
    jobs: Mapping[str, GroupJob],
    kinds: Mapping[str, NodeKind],
    rules: Rules,
    together: int,
    saves: float,
    needed: bool,
) -> PricedMove:
    group = next(group for group in groups if any(pin.job == job.name for pin in group.pins))
    iteration_s = slowdowns(group, jobs, rules)[job.name].mean * job.solo_s
    seconds = job.cold_s + iteration_s / 2
    return PricedMove(job.name, seconds, job.solo_usd_per_hour(kinds) * seconds / 3600, together, saves, needed)
