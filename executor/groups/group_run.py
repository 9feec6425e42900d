"""Executes co-execution groups: the actors that give permits, the jobs' processes, and moves while they run.

Invariants:
- jobs share nodes and nothing else: each has a process, a folder, a trace, engines and trainers of its own;
- a job whose process ends early, or whose phase or start takes too long, loses its permit at once, and is started again
  from its last checkpoint, while the other jobs go on;
- a job that has ended, or failed for good, leaves its group, and the other jobs get its units;
- a new plan is applied by one move after another (move_driver.py);
- no process of a job outlives this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...plans.schema.groups_plan import load_groups_plan
from ...plans.yaml.errors import InputError, RunFailed
from ...traces.groups.group_journal import GROUPS_COPY
from ...traces.groups.groups_folder import MOVES, requests
from ..memory.free_memory import check_host_memory
from ..placement.node_pool import NodePool
from ..prepare import Options
from ..processes.actors import start_ray
from ..processes.host import cluster_address
from ..processes.stopping import StopRequests, stop_requests
from ..records.execution_folder import run_lock, written
from .bound_driver import BoundDriver, Replanner
from .group_change import MoveJournal
from .job_process import GroupWatcher, JobEnd, RunningJobs
from .live_group import LiveGroup
from .member_task import STOPPED
from .move_driver import MoveDriver, bring_job
from .prepare_group import PreparedGroup

LOOK_S = 0.5  # how often phases, ends of jobs, and requests are looked at


def run_groups(
    groups: Sequence[PreparedGroup],
    out: Path,
    alone: bool,
    options: Options,
    watcher: GroupWatcher,
    replanner: Replanner | None = None,
) -> dict[str, JobEnd]:
    """Run all jobs of groups of one plan for `options.steps` steps each; returns how each ended.

    `alone`: there is one group, and `out` is its own folder; then no job is moved. `replanner`: writes the re-plan that
    is proposed before a bound breaks; None: none is proposed. Raises InputError if the cluster has no nodes for the
    groups or another process runs in `out`, RunFailed if the infrastructure failed for good.
    """
    cluster_address()  # refused now, and not after folders were made
    with run_lock(out), contextlib.ExitStack() as locks:
        plan = groups[0].plan_path.read_bytes()
        for folder in (*(() if alone else (out / group.key for group in groups)), out):
            if folder != out:  # a group that was started alone has a lock of its own
                locks.enter_context(run_lock(folder))
            with written(folder / GROUPS_COPY):
                (folder / GROUPS_COPY).write_bytes(plan)
        for request in requests(out):  # for an earlier driver
            request.unlink(missing_ok=True)
        if not options.resume:
            (out / MOVES).unlink(missing_ok=True)
        return asyncio.run(_Driver(groups, out, alone, options, watcher, replanner, locks).run())


class _Driver:
    """Runs the groups; implements `move_driver.RunningGroups`."""

    def __init__(
        self,
        planned: Sequence[PreparedGroup],
        out: Path,
        alone: bool,
        options: Options,
        watcher: GroupWatcher,
        replanner: Replanner | None,
        locks: contextlib.ExitStack,
    ) -> None:
        self.groups: dict[str, LiveGroup] = {}
        self.jobs = RunningJobs(options, watcher)
        self._planned, self._out, self._alone, self._options, self._watcher = planned, out, alone, options, watcher
        self._locks, self._locked = locks, {planned.key for planned in planned}
        self._pool: NodePool
        self._journal = MoveJournal(out)
        self._bounds = BoundDriver(out, planned[0].plan_path, self._journal, watcher.note, None if alone else replanner)

    async def run(self) -> dict[str, JobEnd]:
        """Run all jobs to their ends."""
        self._watcher.phase("starting Ray")
        jobs = [job.execution.checked.job for group in self._planned for job in group.jobs]
        own_machine = start_ray(sum(job.rollout.most_tokens_per_step for job in jobs))
        self._pool = NodePool(self._planned[0].kind, own_machine)
        moves = None if self._alone else MoveDriver(self._out, self._journal, self, self._options.node_patience_s)
        try:
            with stop_requests(self._options.grace_s) as stop:
                await self._start(moves)
                await self._until_all_ended(moves, stop)
        finally:
            await self.jobs.close()
            await self._bounds.close()
            with contextlib.suppress(RunFailed):  # of the journal's disk; the first error is reported
                for job in () if moves is None else moves.stopped():
                    self.jobs.ends.setdefault(job, JobEnd(STOPPED, "it was on its way to another group", 0))
                self._journal.close()
            for group in self.groups.values():
                group.close()
            self._pool.close()
        return self.jobs.ends

    async def _start(self, moves: MoveDriver | None) -> None:
        """Start the groups, and their jobs without those that still have to move, which follow."""
        later = set() if moves is None else moves.pending()
        for planned in self._planned:
            names = [job.name for job in planned.jobs if job.name not in later]
            if not names:
                continue
            folder = self._out if self._alone else self._out / planned.key
            if not self._alone:
                for name in names:  # of a driver that was killed while it moved them
                    bring_job(self._out, name, planned.key)
            self.groups[planned.key] = await LiveGroup.start(planned, names, folder, self._pool, self._options.resume)
        started = [planned for planned in self._planned if planned.key in self.groups]
        copy = load_groups_plan(self._out / GROUPS_COPY)
        await check_host_memory(
            each for key, group in self.groups.items() for each in group.sleeping(copy.groups[key].nodes)
        )
        for planned in started:
            for name in list(self.groups[planned.key].placed):
                self.jobs.start(planned, self.groups[planned.key], name)
        self._bounds.runs(None, self._folders())
        self._watcher.phase(f"starting {', '.join(self.jobs.names)}")
        if moves is not None:
            await moves.go_on({planned.key: planned for planned in self._planned})

    async def _until_all_ended(self, moves: MoveDriver | None, stop: StopRequests) -> None:
        watches = [asyncio.create_task(self._pass_on(stop)), asyncio.create_task(self._guard())]
        try:
            while self.jobs or (moves is not None and moves.under_way and not stop.at_round_end.is_set()):
                await asyncio.sleep(LOOK_S)
                stops = stop.at_round_end.is_set()
                for job, key, end, asked in self.jobs.over():
                    await self._ended(job, key, end, asked, None if stops else moves)
                if stops:
                    continue
                self._bounds.look(set(self.jobs.ends), moves is not None and moves.under_way)
                if moves is not None:
                    await moves.look()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _ended(self, job: str, key: str, end: JobEnd, asked: bool, moves: MoveDriver | None) -> None:
        """A job's process has ended; `moves`: None if no job is moved, since all jobs stop or the group is alone."""
        if end.code != STOPPED or moves is not None:
            with self._actor_may_be_gone():
                await self.groups[key].left(job)
        if moves is None or not await moves.job_ended(job, end):
            self.jobs.ends[job] = end._replace(left=moves is not None and end.code == STOPPED and asked)
            self._bounds.ended(job)

    async def _pass_on(self, stop: StopRequests) -> None:
        """Pass a stop on to all jobs."""
        await stop.at_round_end.wait()
        self.jobs.stop_all(at_once=False)
        await stop.immediately.wait()
        self.jobs.stop_all(at_once=True)

    async def _guard(self) -> None:
        """Kill processes that take too long; a group whose actor does not answer delays no other group."""
        while True:
            await asyncio.sleep(LOOK_S)
            looks = [self._guard_group(key, group) for key, group in self.groups.items()]
            for failed in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(failed, Exception):
                    self.note(f"deadlines of phases and starts cannot be checked: {type(failed).__name__}: {failed}")

    async def _guard_group(self, key: str, group: LiveGroup) -> None:
        try:
            self.jobs.kill_overdue(group, await group.look())
        except RunFailed as error:
            if self.groups.get(key) is group:  # else it was closed meanwhile
                self.note(f"deadlines of phases in group {key} cannot be checked: {error}")

    @contextlib.contextmanager
    def _actor_may_be_gone(self) -> Iterator[None]:
        try:
            yield
        except (RunFailed, InputError) as error:  # its jobs fail by it, too, unless the actor comes back
            self.note(f"a group does not answer: {error}")

    # -- move_driver.RunningGroups -------------------------------------------------------------------------------------

    async def start_job(self, planned: PreparedGroup, job: str) -> int:
        """Start a job in a group of the plan; returns how often it has arrived there before. Raises InputError if the
        nodes or their memory do not suffice, RunFailed."""
        folder, group = self._out / planned.key, self.groups.get(planned.key)
        bring_job(self._out, job, planned.key)
        if group is None:
            if planned.key not in self._locked:
                self._locks.enter_context(run_lock(folder))
                self._locked.add(planned.key)
            group = self.groups[planned.key] = await LiveGroup.start(planned, [job], folder, self._pool, resume=True)
            with written(folder / GROUPS_COPY):
                (folder / GROUPS_COPY).write_bytes((self._out / GROUPS_COPY).read_bytes())
        else:
            await group.enter(planned, [job])
        try:
            nodes = load_groups_plan(planned.plan_path).groups[planned.key].nodes
            await check_host_memory(group.sleeping(nodes))
            before = abs((await group.look()).arrivals.get(job, 0))
        except BaseException:
            await group.left(job)
            raise
        self.jobs.start(planned, group, job)
        return before

    def keep_nodes(self) -> None:
        """Moves begin: keep nodes that are given back, which another group may need."""
        self._pool.keeps = True

    async def settle(self, plan: Path | None, groups: Mapping[str, PreparedGroup]) -> None:
        """All moves to a plan are made: the jobs' seconds and bounds are those of the plan, empty groups end, spare
        nodes go back. `plan`: None if it is the one that this driver was started with."""
        for key, group in list(self.groups.items()):
            if group.placed and key in groups:
                with self._actor_may_be_gone():
                    await group.enter(groups[key], [])
                self._watcher.jobs({job.name: job.planned for job in groups[key].jobs if job.name in group.placed})
            elif not group.placed:
                self.groups.pop(key).close()
        self._pool.release_spare()
        self._bounds.runs(plan, self._folders())

    def _folders(self) -> dict[str, Path]:
        return {key: group.folder for key, group in self.groups.items()}

    def note(self, text: str) -> None:
        """Show a line to the user."""
        self._watcher.note(text)
