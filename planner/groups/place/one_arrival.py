"""Incremental placement: one arrival into running groups, nobody moves.

A candidate is a group, a mode of the job and nodes of the group, some of them new. Its score is

    added USD per hour - worth * (value of the room after - value of the room before)

Room is the time of the group's nodes that its members do not need, at the price of these nodes; later arrivals can use
it as far as the group cap leaves seats, each as much as this job takes. `worth` is the share of its price that room
is expected to save; at 0 this is the published rule (least added price), which spends room and seats as if they were
free. Between equal scores the fullest group wins (best fit), so that room stays in one piece.

The order of work makes it fast: for all groups at once, arrays say which could hold the job by share of node and what
that would score at least; groups are opened in this order, and only what could still win is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..choose.group_columns import FULL, Checker, Mode, extensions, lone, modes, unit_shares
from ..inputs.group_model import Group, GroupJob, NodeKind, Rules
from .placing import State, depart_in_place, next_id, node_of_units, without_idle_nodes

WORTH = 0.75
_BATCH = 16
_EPS = 1e-6


class BestFit:
    """Ours without moves: all ways of a job, room valued, the fullest group first.

    Departures: the others stay where they are, though one of them may then be slower than before (moves.py repairs).
    """

    def __init__(
        self,
        kinds: Mapping[str, NodeKind],
        rules: Rules,
        worth: float = WORTH,
        checker: Checker | None = None,
        robust: bool = True,
    ) -> None:
        """`robust`: take only groups that stay feasible whoever leaves, since nobody can be moved then."""
        self.kinds, self.rules, self.worth, self.robust = kinds, rules, worth, robust
        self.checker = checker or Checker(rules)
        self._usd = {pool: kind.usd_per_hour for pool, kind in kinds.items()}

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job` at the least score."""
        jobs = {**state.jobs, job.name: job}
        key, group = self._best(state, job, jobs)
        return State(jobs, {**state.groups, key: group})

    def depart(self, state: State, name: str) -> State:
        """The state without the job; nobody moves."""
        return depart_in_place(state, name, self.kinds)

    def _best(self, state: State, job: GroupJob, jobs: Mapping[str, GroupJob]) -> tuple[str, Group]:
        found = modes(job, self.kinds, self.rules)
        if not found:
            raise ValueError(f"job {job.name} fits no node")
        fluid = [mode.fluid_usd_per_hour(self._usd) for mode in found]
        best_key = next_id(state.groups)
        best_score, best_room, best = np.inf, np.inf, Group((), ())
        typical = min(fluid)
        for mode, takes in zip(found, fluid, strict=True):
            group = lone(mode, self.kinds)
            score = self._score(group.usd_per_hour(self.kinds), takes, 0.0, self.rules.group_cap, typical)
            if score < best_score and self.checker.keeps([group], jobs)[0]:
                best_score, best = score, group
        open_ = [key for key, group in state.groups.items() if len(group.pins) < self.rules.group_cap]
        if not open_:
            return best_key, best
        room = _room([state.groups[key] for key in open_], state.jobs, self.rules, self.kinds)
        unused = np.sum([self._usd[pool] * free.sum(axis=1) for pool, free in room.items()], axis=0)
        seats = np.array([self.rules.group_cap - len(state.groups[key].pins) for key in open_], float)
        queue = sorted(
            (score, float(unused[at]), open_[at], m, at)
            for m, mode in enumerate(found)
            for at, score in self._least_scores(mode, fluid[m], room, unused, seats, typical, best_score)
        )
        for first in range(0, len(queue), _BATCH):
            if queue[first][0] > best_score + _EPS:
                break
            candidates = []
            for least, waste, key, m, at in queue[first : first + _BATCH]:
                if least > best_score + _EPS:
                    break
                for added, group in extensions(state.groups[key], found[m], jobs, self.kinds, self.rules):
                    score = self._score(added, fluid[m], waste, float(seats[at]), typical)
                    if score < best_score + _EPS:
                        candidates.append((score, waste + added - fluid[m], key, group))
            candidates.sort(key=lambda c: (c[0], c[1], c[2]))
            for begin in range(0, len(candidates), _BATCH):
                some = candidates[begin : begin + _BATCH]
                if not _wins(some[0], best_score, best_room):
                    continue
                for candidate, keeps in zip(some, self.checker.keeps([c[3] for c in some], jobs), strict=True):
                    if not keeps or not _wins(candidate, best_score, best_room):
                        continue
                    if not self.checker.holds(candidate[3], jobs):
                        continue
                    if not self.robust or lasts(candidate[3], jobs, self.kinds, self.checker):
                        best_score, best_room, best_key, best = candidate
        return best_key, best

    def _score(self, added: Any, takes: float, unused: Any, seats: Any, typical: float) -> Any:
        """Of placements into groups with this much unused and so many seats; numbers or arrays of them."""
        before = np.minimum(unused, seats * typical)
        after = np.minimum(unused + added - takes, (seats - 1) * typical)
        return added - self.worth * (after - before)

    def _least_scores(
        self,
        mode: Mode,
        takes: float,
        room: Mapping[str, NDArray[np.float64]],
        unused: NDArray[np.float64],
        seats: NDArray[np.float64],
        typical: float,
        below: float,
    ) -> list[tuple[int, float]]:
        """(group, least score) of the groups that a mode may fit into with a score of at most `below`."""
        least = np.full(len(next(iter(room.values()))), np.inf)
        for new_r in range(mode.nodes[0] + 1):
            for new_t in range(mode.nodes[1] + 1):
                if new_r == mode.nodes[0] and new_t == mode.nodes[1] and mode.pools[0] != mode.pools[1]:
                    continue  # nothing shared
                fits = np.ones(len(least), bool)
                for phase, new in ((0, new_r), (1, new_t)):
                    free, old = room[mode.pools[phase]], mode.nodes[phase] - new
                    if old > 0 and mode.pools[0] != mode.pools[1]:
                        fits &= free[:, old - 1] + _EPS >= mode.share[phase] if old <= free.shape[1] else False
                added = new_r * self._usd[mode.pools[0]] + new_t * self._usd[mode.pools[1]]
                np.minimum(least, np.where(fits, self._score(added, takes, unused, seats, typical), np.inf), out=least)
        return [(int(at), float(least[at])) for at in np.flatnonzero(least <= below + _EPS)]


def lasts(group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind], checker: Checker) -> bool:
    """Whether whoever is left after any departures keeps their bounds."""
    rest = [
        without_idle_nodes(Group(group.nodes, some), kinds)
        for size in range(len(group.pins) - 1, 1, -1)
        for some in combinations(group.pins, size)
    ]
    return all(checker.keeps(rest, jobs))


def _wins(candidate: tuple[float, float, str, Group], score: float, room: float) -> bool:
    return candidate[0] < score - _EPS or (candidate[0] < score + _EPS and candidate[1] < room - _EPS)


def _room(
    groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules, kinds: Mapping[str, NodeKind]
) -> dict[str, NDArray[np.float64]]:
    """Free share of each node by pool, (groups, nodes), the freest first; 0 where a group has fewer nodes."""
    rows: dict[str, list[list[float]]] = {pool: [] for pool in kinds}
    for group in groups:
        held = unit_shares(group, jobs, rules, kinds)
        free: dict[str, dict[int, float]] = {pool: {} for pool in kinds}
        for unit, at in enumerate(node_of_units(group, kinds)):
            pool = group.nodes[at]
            free[pool][at] = free[pool].get(at, 0.0) + max(0.0, FULL - held[unit]) / kinds[pool].slots
        for pool in kinds:
            rows[pool].append(sorted(free[pool].values(), reverse=True))
    found = {}
    for pool, lists in rows.items():
        most = max(1, max(map(len, lists)))
        found[pool] = np.array([some + [0.0] * (most - len(some)) for some in lists])
    return found
