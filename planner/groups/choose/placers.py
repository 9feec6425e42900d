"""Best-fit placement: one job arrives among running groups, and no running job moves.

A candidate is a group, a placement of the job and nodes of the group, batch of them new. Its score is

    added USD per hour - worth * (value of the room after - value of the room before)

Room is the time of the group's nodes that its members do not need, at the price of these nodes; later arrivals can use
it as far as the group cap leaves seats, each as much as this job takes. `worth` is the share of its price that room
is expected to save; at 0 this is the published rule (least added price), which spends room and seats as if they were
free. Between equal scores the fullest group wins (best fit), so that room stays in one piece.

For speed, arrays over all groups first say which groups could hold the job by share of node and what score that would
give at least; groups are opened in this order, and only candidates that could still win are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inputs.group_model import (
    Group,
    GroupJob,
    GroupsState,
    Jobs,
    NodeTypes,
    Rules,
    next_id,
    node_of_units,
    without_idle_nodes,
)
from ..simulate.slowdowns import feasible
from .group_columns import FULL, WayPair, extensions, job_placements, placed_solo, unit_shares
from .group_nodes import depart_in_place, grow, node_choices, pinned, resident, solo_group
from .group_solution import GroupChecker

# The published placers that every plan of groups is compared with: Solo-D and RollMux's Algorithm 1.
#
# Solo-D gives every job its own rollout and training nodes. Algorithm 1 is the greedy placement of RollMux (arXiv
# 2512.11306): one arrival at a time; a placed job never moves. For every group that is not saturated (T_load <
# T_cycle), the oldest first: pack into existing nodes (price 0), or add the rollout nodes that the job needs;
# otherwise a group of its own. A placement must leave host memory on every node and keep the bound of every member,
# old and new, in a simulation of the group's schedule. The cheapest placement wins, the first among equals (strict
# <).


class SoloD:
    """Every job on nodes of its own, rollout and training apart."""

    def __init__(self, node_types: NodeTypes) -> None:
        self.node_types = node_types

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with a group of its own for `job`."""
        return state.with_job(job, next_id(state.groups), solo_group(job, self.node_types))

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job and its group."""
        return depart_in_place(state, name, self.node_types)


class Algorithm1:
    """RollMux's greedy placer; `rules.permit_rule` is that of its executor, `first_come`."""

    def __init__(self, node_types: NodeTypes, rules: Rules) -> None:
        self.node_types, self.rules = node_types, rules

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` where it adds the least to the price; no other job moves."""
        jobs = {**state.jobs, job.name: job}
        best, best_key = solo_group(job, self.node_types), next_id(state.groups)
        price = best.usd_per_hour(self.node_types)
        for key, group in state.groups.items():
            if price <= 0.0:
                break  # nothing is strictly cheaper
            if len(group.pins) >= self.rules.group_cap or load_s(group, jobs) >= cycle_s(group, jobs):
                continue
            for added, candidate in packings(group, job, self.node_types):
                if added >= price:
                    break  # ascending in price
                if resident(candidate, jobs, self.node_types) and within_cap_and_bounds(candidate, jobs, self.rules):
                    best, best_key, price = candidate, key, added
                    break
        return state.with_job(job, best_key, best)

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job; no other job moves."""
        return depart_in_place(state, name, self.node_types)


def packings(group: Group, job: GroupJob, node_types: NodeTypes) -> Iterator[tuple[float, Group]]:
    """(added USD per hour, group with the job) in ascending order of price: direct packing, then rollout scaling.

    The job trains on all training nodes of the group, by its first way of that width; a job without one cannot join.
    """
    rollout, pool = job.rollout[0], job.train[0].pool
    width = group.nodes.count(pool)
    options = [t for r, t in job.pairs() if r == 0]
    option = next((t for t in options if job.train[t].pool == pool and job.train[t].nodes == width), None)
    if option is None:
        return
    for new in range(rollout.nodes + 1):
        grown, added = grow(group, [rollout.pool] * new, node_types)
        on_train = [node for node, p in enumerate(grown.nodes) if p == pool]
        old = [node for node, p in enumerate(grown.nodes) if p == rollout.pool and node not in added]
        for kept in node_choices(grown, old, rollout.nodes - new, node_types):
            yield (
                new * node_types[rollout.pool].usd_per_hour,
                pinned(grown, job.name, (0, option), (*kept, *added), on_train, node_types),
            )


def load_s(group: Group, jobs: Jobs) -> float:
    """T_load: seconds that the most loaded unit is held if each member does one iteration (RollMux)."""
    load: dict[int, float] = {}
    for pin in group.pins:
        job = jobs[pin.job]
        for unit in pin.rollout_units:
            load[unit] = load.get(unit, 0.0) + job.rollout[pin.rollout].mean_s
        for unit in pin.train_units:
            load[unit] = load.get(unit, 0.0) + job.train[pin.train].mean_s
    return max(load.values())


def cycle_s(group: Group, jobs: Jobs) -> float:
    """T_cycle: seconds of a solo iteration of the longest member (RollMux)."""
    return max(jobs[pin.job].solo_s for pin in group.pins)


def within_cap_and_bounds(group: Group, jobs: Jobs, rules: Rules) -> bool:
    """Whether the group is within the group cap and every member keeps its bound under `rules`."""
    return len(group.pins) <= rules.group_cap and feasible(group, jobs, rules)


WORTH = 0.75
_BATCH = 16
_EPS = 1e-6


class BestFit:
    """The placer without moves: all ways of a job, room valued, the fullest group first.

    After a departure the other jobs stay where they are, though one of them may then be slower than before
    (../replanner.py repairs that).
    """

    def __init__(
        self,
        node_types: NodeTypes,
        rules: Rules,
        worth: float = WORTH,
        checker: GroupChecker | None = None,
        robust: bool = True,
    ) -> None:
        """`robust`: take only groups that stay feasible after any departures, since no job can be moved then."""
        self.node_types, self.rules, self.worth, self.robust = node_types, rules, worth, robust
        self.checker = checker or GroupChecker(rules)
        self._usd = {pool: node_type.usd_per_hour for pool, node_type in node_types.items()}

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` at the least score."""
        return state.with_job(job, *self._best(state, job, {**state.jobs, job.name: job}))

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job; no other job moves."""
        return depart_in_place(state, name, self.node_types)

    def _best(self, state: GroupsState, job: GroupJob, jobs: Jobs) -> tuple[str, Group]:
        placements = job_placements(job, self.node_types, self.rules)
        if not placements:
            raise ValueError(f"job {job.name} fits no node")
        fluid = [placement.fluid_usd_per_hour(self._usd) for placement in placements]
        best_key = next_id(state.groups)
        best_score, best_room, best = np.inf, np.inf, Group((), ())
        typical = min(fluid)
        for placement, takes in zip(placements, fluid, strict=True):
            group = placed_solo(placement, self.node_types)
            score = self._score(group.usd_per_hour(self.node_types), takes, 0.0, self.rules.group_cap, typical)
            if score < best_score and self.checker.keeps([group], jobs)[0]:
                best_score, best = score, group
        open_ = [key for key, group in state.groups.items() if len(group.pins) < self.rules.group_cap]
        if not open_:
            return best_key, best
        room = _room([state.groups[key] for key in open_], state.jobs, self.rules, self.node_types)
        unused = np.sum([self._usd[pool] * free.sum(axis=1) for pool, free in room.items()], axis=0)
        seats = np.array([self.rules.group_cap - len(state.groups[key].pins) for key in open_], float)
        queue = sorted(
            (score, float(unused[row]), open_[row], m, row)
            for m, placement in enumerate(placements)
            for row, score in self._least_scores(placement, fluid[m], room, unused, seats, typical, best_score)
        )
        for first in range(0, len(queue), _BATCH):
            if queue[first][0] > best_score + _EPS:
                break
            candidates = []
            for least, waste, key, m, row in queue[first : first + _BATCH]:
                if least > best_score + _EPS:
                    break
                for added, group in extensions(state.groups[key], placements[m], jobs, self.node_types, self.rules):
                    score = self._score(added, fluid[m], waste, float(seats[row]), typical)
                    if score < best_score + _EPS:
                        candidates.append((score, waste + added - fluid[m], key, group))
            candidates.sort(key=lambda c: (c[0], c[1], c[2]))
            for begin in range(0, len(candidates), _BATCH):
                batch = candidates[begin : begin + _BATCH]
                if not _wins(batch[0], best_score, best_room):
                    continue
                for candidate, keeps in zip(batch, self.checker.keeps([c[3] for c in batch], jobs), strict=True):
                    if not keeps or not _wins(candidate, best_score, best_room):
                        continue
                    if not self.checker.holds(candidate[3], jobs):
                        continue
                    if not self.robust or lasts(candidate[3], jobs, self.node_types, self.checker):
                        best_score, best_room, best_key, best = candidate
        return best_key, best

    def _score(self, added: Any, takes: float, unused: Any, seats: Any, typical: float) -> Any:
        """Score of placements into groups with this much unused and so many seats; numbers or arrays."""
        before = np.minimum(unused, seats * typical)
        after = np.minimum(unused + added - takes, (seats - 1) * typical)
        return added - self.worth * (after - before)

    def _least_scores(
        self,
        placement: WayPair,
        takes: float,
        room: Mapping[str, NDArray[np.float64]],
        unused: NDArray[np.float64],
        seats: NDArray[np.float64],
        typical: float,
        below: float,
    ) -> list[tuple[int, float]]:
        """(group, least score) of the groups that a placement may fit into with a score of at most `below`."""
        least = np.full(len(next(iter(room.values()))), np.inf)
        for new_r in range(placement.nodes[0] + 1):
            for new_t in range(placement.nodes[1] + 1):
                if (
                    new_r == placement.nodes[0]
                    and new_t == placement.nodes[1]
                    and placement.pools[0] != placement.pools[1]
                ):
                    continue  # nothing shared
                fits = np.ones(len(least), bool)
                for phase, new in ((0, new_r), (1, new_t)):
                    free, old = room[placement.pools[phase]], placement.nodes[phase] - new
                    if old > 0 and placement.pools[0] != placement.pools[1]:
                        fits &= free[:, old - 1] + _EPS >= placement.share[phase] if old <= free.shape[1] else False
                added = new_r * self._usd[placement.pools[0]] + new_t * self._usd[placement.pools[1]]
                np.minimum(least, np.where(fits, self._score(added, takes, unused, seats, typical), np.inf), out=least)
        return [(int(row), float(least[row])) for row in np.flatnonzero(least <= below + _EPS)]


def lasts(group: Group, jobs: Jobs, node_types: NodeTypes, checker: GroupChecker) -> bool:
    """Whether the members that are left keep their bounds after any departures."""
    rest = [
        without_idle_nodes(Group(group.nodes, pins), node_types)
        for size in range(len(group.pins) - 1, 1, -1)
        for pins in combinations(group.pins, size)
    ]
    return all(checker.keeps(rest, jobs))


def _wins(candidate: tuple[float, float, str, Group], score: float, room: float) -> bool:
    return candidate[0] < score - _EPS or (candidate[0] < score + _EPS and candidate[1] < room - _EPS)


def _room(groups: Sequence[Group], jobs: Jobs, rules: Rules, node_types: NodeTypes) -> dict[str, NDArray[np.float64]]:
    """Free share of each node by pool, (groups, nodes), the freest first; 0 where a group has fewer nodes."""
    rows: dict[str, list[list[float]]] = {pool: [] for pool in node_types}
    for group in groups:
        held = unit_shares(group, jobs, rules, node_types)
        free: dict[str, dict[int, float]] = {pool: {} for pool in node_types}
        for unit, node in enumerate(node_of_units(group, node_types)):
            pool = group.nodes[node]
            free[pool][node] = free[pool].get(node, 0.0) + max(0.0, FULL - held[unit]) / node_types[pool].slots
        for pool in node_types:
            rows[pool].append(sorted(free[pool].values(), reverse=True))
    most = {pool: max(1, max(map(len, shares))) for pool, shares in rows.items()}
    return {pool: np.array([row + [0.0] * (most[pool] - len(row)) for row in shares]) for pool, shares in rows.items()}
