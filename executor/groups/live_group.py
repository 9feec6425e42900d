"""A co-execution group that runs: its nodes, the actor that gives its permits, and its jobs.

Invariants:
- a node is held while a job of the group has units on it, and given back when the last such job leaves the group;
- a unit keeps its number, and no unit of another node ever gets that number (`group_change.live_units`).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import ray

from ...plans.schema.groups_plan import GroupNode
from ...plans.yaml.errors import InputError
from ...rounds.permits.permit_events import PlacedJob
from ...traces.groups.group_journal import GROUP_JOURNAL
from ...traces.trace import TraceError
from ..memory.free_memory import Sleeping
from ..placement.live_nodes import LeasedNode
from ..placement.node_pool import NodePool
from .group_change import Units, in_live_units, live_units
from .journal_writer import Journalled, journalled_jobs
from .permit_actor import GroupState, ask, start_permits
from .prepare_group import PreparedGroup


class LiveGroup:
    """See the module; `LiveGroup.start` makes one.

    Attributes:
        key: its id.
        folder: of its journal and of its jobs' runs.
        actor_name: Ray's name of its actor.
        permits: the actor.
        placed: its jobs by name, in live units.
        state: as the actor reported it last; None before.
    """

    def __init__(self, key: str, folder: Path, actor_name: str, permits: Any, pool: NodePool, fresh: int) -> None:
        self.key, self.folder, self.actor_name, self.permits = key, folder, actor_name, permits
        self.placed: dict[str, PlacedJob] = {}
        self.state: GroupState | None = None
        self._pool = pool
        self._nodes: dict[Units, LeasedNode] = {}
        self._live: list[Units] = []  # of each node of the plan
        self._planned_bytes: dict[Units, float] = {}  # of sleeping states on each node, by the last plan
        self._fresh = fresh

    @classmethod
    async def start(
        cls, planned: PreparedGroup, names: Collection[str], folder: Path, pool: NodePool, resume: bool
    ) -> LiveGroup:
        """Start a group with the jobs of these names; other jobs of the plan may follow.

        With `resume` its journal is continued, if there is one. Raises InputError if the cluster has no nodes for it,
        RunFailed if the actor cannot be started.
        """
        journal = folder / GROUP_JOURNAL
        folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            journal.unlink(missing_ok=True)  # of a start in which no phase was completed
        known = _known(journal)
        first = [job.placed for job in planned.jobs if job.name in names] if known is None else known.first
        actor_name = f"permits-{planned.key}-{uuid.uuid4().hex}"
        permits = start_permits(actor_name, planned.key, planned.permit_rule, first, journal)
        group = cls(planned.key, folder, actor_name, permits, pool, 0 if known is None else known.fresh)
        try:
            await group._place_anew(planned, names, {} if known is None else known.now)
        except BaseException:
            group.close()
            raise
        return group

    async def _place_anew(self, planned: PreparedGroup, names: Collection[str], before: dict[str, PlacedJob]) -> None:
        """Place jobs none of which runs yet; `before`: the jobs that are in the group by its journal."""
        for name in before:  # a driver that was killed reported the end of none
            await ask(self._actor, "report", "leave", name, f"before {self.actor_name}")
        jobs = {job.name: job.placed for job in planned.jobs}
        stay = sorted(before.keys() & set(names))
        try:
            live = live_units({name: before[name] for name in stay}, jobs, planned.units, stay, self._fresh)
        except ValueError:  # they had other nodes; none of them runs
            live = live_units({}, jobs, planned.units, (), self._fresh)
        for name, placed in before.items():
            if name not in stay or in_live_units(jobs[name], planned.units, live).units != placed.units:
                await ask(self._actor, "report", "remove_job", name)
        await self._take(planned, live, names)

    async def enter(self, planned: PreparedGroup, names: Collection[str]) -> None:
        """Lease nodes for jobs that join, and place them; the jobs of the group get the seconds of the plan.

        Raises InputError if the cluster lacks nodes, or if jobs of the group would change their nodes; RunFailed.
        """
        planned_jobs = {job.name: job.placed for job in planned.jobs}
        stay = self.placed.keys() & planned_jobs.keys() - set(names)
        try:
            live = live_units(self.placed, planned_jobs, planned.units, stay, self._fresh)
        except ValueError as error:
            raise InputError(f"group {self.key}: {error}", str(planned.plan_path)) from None
        await self._take(planned, live, {*stay, *names})

    async def _take(self, planned: PreparedGroup, live: list[Units], names: Collection[str]) -> None:
        jobs = {job.name: in_live_units(job.placed, planned.units, live) for job in planned.jobs if job.name in names}
        wanted = {unit for placed in jobs.values() for phase in placed.units for unit in phase}
        missing = [n for n, units in enumerate(live) if wanted & set(units) and units not in self._nodes]
        for n, node in zip(missing, await self._pool.take([planned.rooms[n] for n in missing]), strict=True):
            self._nodes[live[n]] = node
        self._live = live
        self._fresh = max([self._fresh, *(unit + 1 for unit in wanted)])
        for name, placed in jobs.items():
            await ask(self._actor, "report", "place_job", placed)
            self.placed[name] = placed

    def nodes_of(self, planned: PreparedGroup, name: str) -> list[LeasedNode]:
        """The nodes that stand for those of a job's own placement, in order; the job is placed by this plan."""
        return [self._nodes[self._live[n]] for n in planned.job(name).nodes]

    def rollout_units_of(self, planned: PreparedGroup, name: str) -> list[list[int]]:
        """The units of a job's rollout on each of these nodes."""
        rollout = frozenset(self.placed[name].units[0])
        return [[unit for unit in self._live[n] if unit in rollout] for n in planned.job(name).nodes]

    def sleeping(self, nodes: Sequence[GroupNode]) -> list[Sleeping]:
        """Sleeping states on each node by the present plan, less those by the plan before; `nodes`: of the group in the
        present plan."""
        held = [(n, units) for n, units in enumerate(self._live) if units in self._nodes]
        asleep = [
            Sleeping(nodes[n].pool, self._nodes[units], nodes[n].resident_bytes - self._planned_bytes.get(units, 0.0))
            for n, units in held
        ]
        self._planned_bytes = {units: nodes[n].resident_bytes for n, units in held}
        return asleep

    async def left(self, name: str) -> None:
        """Remove a job whose processes have ended, and give back the nodes that only it was on. Raises RunFailed."""
        await ask(self._actor, "report", "remove_job", name)
        self.placed.pop(name, None)
        held = {unit for placed in self.placed.values() for phase in placed.units for unit in phase}
        for units in [units for units in self._nodes if not held & set(units)]:
            self._pool.give_back(self._nodes.pop(units))

    async def look(self) -> GroupState:
        """The group as it is now. Raises RunFailed if its actor is gone."""
        self.state = GroupState(*await ask(self._actor, "state"))
        return self.state

    def close(self) -> None:
        """End its actor, and give its nodes back; its jobs' processes have ended."""
        ray.kill(self.permits, no_restart=True)
        for units in list(self._nodes):
            self._pool.give_back(self._nodes.pop(units))

    def _actor(self) -> Any:
        return self.permits


def _known(journal: Path) -> Journalled | None:
    """The jobs of a group by its journal; None if there is none. Raises InputError if it is damaged."""
    if not journal.is_file() or b"\n" not in journal.read_bytes():  # the first line is torn
        return None
    try:
        return journalled_jobs(journal)
    except TraceError as error:
        raise InputError(f"{error}; choose another --out") from None
