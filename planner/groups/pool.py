"""A standing pool of columns: the cheapest feasible group of every small set of running jobs, kept up to date.

Between two arrivals or departures almost all of these sets are the same, so that what is new is only the sets with the
job that came: their loads are checked for all shapes of all sets at once, in arrays, and what is left is simulated
in batches, the cheapest shape of each set first. A set is kept if its group is cheaper than the best split into one
job and the rest, and a set of n jobs is looked at only if all its sets of n - 1 are kept.

Shapes: one training node that all members share; each member rolls out on one of the group's rollout nodes or, by a way
on the training pool, on the training node. Jobs on two or more nodes join in pairs only (brute_force.py finds those).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from .brute_force import cheapest_group
from .columns import FULL, Column
from .master import Relaxation
from .model import Group, GroupJob, NodeKind, Pin, Rules
from .rates import bound, feasible_many

Names = tuple[str, ...]
_SPILLED = -1


@lru_cache
def shapes(jobs: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(rollout nodes, rollout node of each member or -1: on the training node), each pattern once, few nodes first."""
    found: list[tuple[int, tuple[int, ...]]] = []

    def extend(nodes: int, where: tuple[int, ...]) -> None:
        if len(where) == jobs:
            found.append((nodes, where))
            return
        for node in range(_SPILLED, nodes + 1):
            extend(max(nodes, node + 1), (*where, node))

    extend(0, ())
    return tuple(sorted(found, key=lambda s: (s[0], s[1].count(_SPILLED), s[1])))


class Pool:
    """Columns of the jobs that it was last told of; a job whose object changed counts as another job."""

    def __init__(self, kinds: Mapping[str, NodeKind], rules: Rules, most_jobs: int = 3) -> None:
        self.kinds, self.rules = kinds, rules
        self.most_jobs = min(most_jobs, rules.group_cap)
        self.columns: dict[Names, Column] = {}
        self._jobs: dict[str, GroupJob] = {}

    def update(self, jobs: Mapping[str, GroupJob]) -> None:
        """Make the pool that of `jobs`."""
        gone = {name for name, job in self._jobs.items() if jobs.get(name) is not job}
        if gone:
            self.columns = {names: column for names, column in self.columns.items() if gone.isdisjoint(names)}
            self._jobs = {name: job for name, job in self._jobs.items() if name not in gone}
        for name in sorted(jobs):
            if name not in self._jobs:
                self._add(jobs[name])

    def near(self, count: int) -> list[Column]:
        """Columns of single jobs, and the `count` of least reduced cost in the linear set-partitioning program."""
        columns = list(self.columns.values())
        names = sorted(self._jobs)
        program = Relaxation(names, {})
        for column in columns:
            program.add(column)
        _, worth, _ = program.solve()
        value = dict(zip(names, worth.tolist(), strict=True))
        reduced = np.array([column.usd_per_hour - sum(value[name] for name in column.jobs) for column in columns])
        kept = set(np.argsort(reduced, kind="stable")[:count].tolist())
        return [column for at, column in enumerate(columns) if at in kept or len(column.jobs) == 1]

    def _add(self, job: GroupJob) -> None:
        others = sorted(self._jobs)
        self._jobs[job.name] = job
        self._keep((job.name,), cheapest_group([job], self.kinds, self.rules, np.inf))
        slim = [name for name in others if _is_slim(self._jobs[name])]
        for name in others:
            if name not in slim or not _is_slim(job):
                pair = tuple(sorted((job.name, name)))
                members = [self._jobs[n] for n in pair]
                self._keep(pair, cheapest_group(members, self.kinds, self.rules, self._split(pair), True))
        level: list[Names] = [(job.name,)] if _is_slim(job) else []
        for _ in range(1, self.most_jobs):
            sets = sorted({tuple(sorted((*names, name))) for names in level for name in slim if name not in names})
            level = self._cheapest([s for s in sets if len(s) == 2 or all(_less(s, n) in self.columns for n in s)])

    def _split(self, names: Names) -> float:
        """Price of the best split of a set into one job and the rest, or into single jobs."""
        alone = [self.columns[(name,)].usd_per_hour for name in names]
        rest = (self.columns.get(_less(names, name)) for name in names)
        return min([sum(alone), *(a + r.usd_per_hour for a, r in zip(alone, rest, strict=True) if r is not None)])

    def _keep(self, names: Names, group: Group | None) -> None:
        if group is not None:
            self.columns[names] = Column(group, group.usd_per_hour(self.kinds))

    def _cheapest(self, sets: Sequence[Names]) -> list[Names]:
        """Those of the sets, all of one size, that have a feasible group worth keeping; it is kept."""
        waiting = self._candidates(sets)
        found = []
        while waiting:
            groups = [groups[0] for groups in waiting.values()]
            for names, group, keeps in zip(
                list(waiting), groups, feasible_many(groups, self._jobs, self.rules), strict=True
            ):
                if keeps:
                    self._keep(names, group)
                    found.append(names)
                if keeps or len(waiting[names]) == 1:
                    del waiting[names]
                else:
                    waiting[names] = waiting[names][1:]
        return found

    def _candidates(self, sets: Sequence[Names]) -> dict[Names, list[Group]]:
        """Groups that price, load and host memory leave, by set, the cheapest first."""
        if not sets:
            return {}
        facts = {name: self._facts(self._jobs[name]) for names in sets for name in names}
        # (sets, members) each; shares are of all time, bytes are resident.
        rollout, spilled, train, rollout_bytes, train_bytes = np.moveaxis(
            np.array([[facts[name] for name in names] for names in sets]), 2, 0
        )
        below = np.array([self._split(names) for names in sets])
        one = self._jobs[sets[0][0]]
        pools = one.rollout[0].pool, one.train[0].pool
        memory = [self.kinds[pool].host_memory_bytes for pool in pools]
        found: dict[Names, list[Group]] = {}
        for nodes, where in shapes(len(sets[0])):
            at = np.array(where)
            here = at == _SPILLED
            price = nodes * self.kinds[pools[0]].usd_per_hour + self.kinds[pools[1]].usd_per_hour
            fits = price < below - 1e-6
            fits &= train.sum(1) + spilled[:, here].sum(1) <= FULL
            fits &= train_bytes.sum(1) + rollout_bytes[:, here].sum(1) < memory[1]
            for node in range(nodes):
                fits &= rollout[:, at == node].sum(1) <= FULL
                fits &= rollout_bytes[:, at == node].sum(1) < memory[0]
            for row in np.flatnonzero(fits).tolist():
                found.setdefault(sets[row], []).append(self._group(sets[row], nodes, where, pools))
        return found

    def _facts(self, job: GroupJob) -> tuple[float, float, float, float, float]:
        pace = bound(job, self.rules) * job.solo_s
        spill = _spill(job)
        spilled = np.inf if spill is None else job.rollout[spill].mean_s / pace
        rollout, train = job.rollout[0], job.train[0]
        return rollout.mean_s / pace, spilled, train.mean_s / pace, rollout.state_bytes, train.state_bytes

    def _group(self, names: Names, nodes: int, where: tuple[int, ...], pools: tuple[str, str]) -> Group:
        """Units are nodes: rollout nodes first if their pool's name is, as `Group.nodes` is sorted."""
        first = pools[0] < pools[1]
        training = nodes if first else 0
        pins = []
        for name, node in zip(names, where, strict=True):
            way = _spill(self._jobs[name]) if node == _SPILLED else 0
            assert way is not None
            unit = training if node == _SPILLED else node + (0 if first else 1)
            pins.append(Pin(name, way, (unit,), 0, (training,)))
        return Group(tuple(sorted([pools[0]] * nodes + [pools[1]])), tuple(pins))


def _less(names: Names, name: str) -> Names:
    return tuple(n for n in names if n != name)


def _is_slim(job: GroupJob) -> bool:
    return job.rollout[0].nodes == job.train[0].nodes == 1


def _spill(job: GroupJob) -> int | None:
    """The job's rollout way on one node of its training pool."""
    pool = job.train[0].pool
    return next((at for at, way in enumerate(job.rollout) if way.pool == pool and way.nodes == 1), None)
