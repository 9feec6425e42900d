"""Executes co-execution groups: the actors that give permits, a process for each job, and moves while they run.

Invariants:
- jobs share nodes and nothing else: each has a process, a folder, a trace, engines and trainers of its own;
- a job whose process ends early, or whose turn takes longer than TURN_FACTOR times what it should, loses its turn as
  soon as nothing of it runs (placement/orphans.py), and is started again from its last checkpoint; others go on;
- a job that has ended, or failed for good, leaves its group, and the others take its turns;
- a new plan is applied by one move after another (moves/move_driver.py);
- no process of a job outlives this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...plans.yaml.errors import RunFailed
from ...traces.groups.group_turns import GROUPS_COPY
from ...traces.groups.groups_folder import MOVES, REQUEST
from ..actors import start_ray
from ..placement.cluster_address import cluster_address
from ..placement.node_pool import NodePool
from ..prepare import Options
from ..records.execution_folder import run_lock, written
from ..stopping import StopRequests, stop_requests
from .job_process import GroupWatcher, JobEnd, JobProcess
from .live_group import LiveGroup
from .member_task import FAILED, STOPPED
from .memory_check import check_host_memory
from .moves.bound_driver import BoundDriver, Replanner
from .moves.move_driver import MoveDriver, bring_job
from .moves.move_journal import MoveJournal
from .prepare_group import PreparedGroup

LOOK_S = 0.5  # how often turns, ends of jobs, and what is asked, are looked at
TURN_FACTOR, LEAST_TURN_S = 10.0, 300.0  # seconds that a turn may take, over those expected, and at least


def run_groups(
    groups: Sequence[PreparedGroup],
    out: Path,
    alone: bool,
    options: Options,
    watcher: GroupWatcher,
    replanner: Replanner | None = None,
) -> dict[str, JobEnd]:
    """Run all jobs of groups of one plan for `options.steps` steps each; returns how each ended.

    `alone`: there is one group, and `out` is its own folder; then nothing is moved. `replanner`: writes the re-plan
    that is proposed before a bound breaks; None: none is. Raises InputError if the cluster has no nodes for the
    groups or another process runs in `out`, RunFailed if the infrastructure failed for good.
    """
    cluster_address()  # refused now, and not after folders were made
    with run_lock(out), contextlib.ExitStack() as locks:
        if not alone:
            for group in groups:  # a group that was started alone has a lock of its own
                locks.enter_context(run_lock(out / group.key))
        plan = groups[0].plan_path.read_bytes()
        for folder in (*(() if alone else (out / group.key for group in groups)), out):
            with written(folder / GROUPS_COPY):
                (folder / GROUPS_COPY).write_bytes(plan)
        if not options.resume:
            for name in (MOVES, REQUEST):
                (out / name).unlink(missing_ok=True)
        return asyncio.run(_Driver(groups, out, alone, options, watcher, replanner).run())


class _Driver:
    """Runs the groups; implements moves.move_driver.RunningGroups."""

    def __init__(
        self,
        planned: Sequence[PreparedGroup],
        out: Path,
        alone: bool,
        options: Options,
        watcher: GroupWatcher,
        replanner: Replanner | None,
    ) -> None:
        self.groups: dict[str, LiveGroup] = {}
        self._planned, self._out, self._alone, self._options, self._watcher = planned, out, alone, options, watcher
        self._processes: dict[str, tuple[str, JobProcess]] = {}
        self._runs: dict[asyncio.Task[JobEnd], str] = {}
        self._ends: dict[str, JobEnd] = {}
        self._pool: NodePool
        self._journal = MoveJournal(out)
        self._bounds = BoundDriver(out, planned[0].plan_path, self._journal, watcher.note, None if alone else replanner)

    async def run(self) -> dict[str, JobEnd]:
        """Run all jobs to their ends."""
        self._watcher.phase("starting Ray")
        self._pool = NodePool(self._planned[0].kind, start_ray())
        moves = None if self._alone else MoveDriver(self._out, self._journal, self, self._options.node_patience_s)
        try:
            with stop_requests(self._options.grace_s) as stop:
                await self._start(moves)
                await self._until_all_ended(moves, stop)
        finally:
            for task in self._runs:
                task.cancel()
            await asyncio.gather(*self._runs, return_exceptions=True)
            for _, process in self._processes.values():
                process.kill()
            await self._bounds.close()
            for job in () if moves is None else moves.stopped():
                self._ends.setdefault(job, JobEnd(STOPPED, "it was on its way to another group", 0))
            self._journal.close()
            for group in self.groups.values():
                group.close()
            self._pool.close()
        return self._ends

    async def _start(self, moves: MoveDriver | None) -> None:
        """Start the groups, and the jobs that are where they should be; those that still move follow."""
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
        await check_host_memory(
            (planned, self.groups[planned.key]) for planned in self._planned if planned.key in self.groups
        )
        for planned in self._planned:
            for job in planned.jobs:
                if job.name not in later:
                    self._run_job(planned, job.name)
        self._bounds.runs(None, self._folders())
        self._watcher.phase(f"starting {', '.join(self._processes)}")
        if moves is not None:
            await moves.go_on({planned.key: planned for planned in self._planned})

    async def _until_all_ended(self, moves: MoveDriver | None, stop: StopRequests) -> None:
        passing = asyncio.create_task(self._pass_on(stop))
        looking = asyncio.create_task(self._guard())
        try:
            while self._runs or (moves is not None and moves.under_way and not stop.at_round_end.is_set()):
                await asyncio.sleep(LOOK_S)
                stops = stop.at_round_end.is_set()
                for task in [task for task in self._runs if task.done()]:
                    await self._ended(self._runs.pop(task), _end_of(task), None if stops else moves)
                if stops:
                    continue
                self._bounds.look(self.ended(), moves is not None and moves.under_way)
                if moves is not None:
                    await moves.look()
        finally:
            for watch in (passing, looking):
                watch.cancel()
            await asyncio.gather(passing, looking, return_exceptions=True)

    async def _ended(self, name: str, end: JobEnd, moves: MoveDriver | None) -> None:
        """A job's process has ended; `moves`: None if none is made, since all jobs stop or the group is alone."""
        key, process = self._processes.pop(name)
        if end.code != STOPPED or moves is not None:
            with self._actor_may_be_gone():
                await self.groups[key].left(name)
        if moves is None or not await moves.job_ended(name, end):
            left = moves is not None and end.code == STOPPED and process.stop.at_round_end.is_set()
            self._ends[name] = end._replace(left=left)
            self._bounds.ended(name)

    async def _pass_on(self, stop: StopRequests) -> None:
        """Pass a stop on to all jobs, those that start later too."""
        await stop.at_round_end.wait()
        for name in list(self._processes):
            self.stop_job(name, at_once=False)
        await stop.immediately.wait()
        for name in list(self._processes):
            self.stop_job(name, at_once=True)

    async def _guard(self) -> None:
        """End the process of a job whose turn takes too long."""
        while True:
            await asyncio.sleep(LOOK_S)
            for group in list(self.groups.values()):
                with self._actor_may_be_gone():
                    await group.look()
                    self._kill_overdue(group)

    @contextlib.contextmanager
    def _actor_may_be_gone(self) -> Iterator[None]:
        try:
            yield
        except RunFailed as error:  # the jobs end by it themselves, unless the actor comes back
            self.note(f"turns are not looked at: {error}")

    def _kill_overdue(self, group: LiveGroup) -> None:
        assert group.state is not None, "it was looked at"
        for name, held in group.state.held.items():
            if name not in group.seats or self.group_of(name) != group.key:
                continue
            expected_s = group.seats[name].expected_s[held["turn"] % 2]
            most_s = max(LEAST_TURN_S, TURN_FACTOR * expected_s)
            if group.state.now_s - held["begun_s"] > most_s:
                why = f"its {held['phase']} took more than {most_s:.0f} s, expected were {expected_s:.0f} s"
                self.kill_job(name, why)

    def _run_job(self, planned: PreparedGroup, name: str) -> None:
        group = self.groups[planned.key]
        self._watcher.jobs({name: planned.job(name).planned})
        process = JobProcess(
            planned.job(name),
            group.folder / name,
            group.actor_name,
            group.permits,
            group.nodes_of(planned, name),
            group.rollout_units_of(planned, name),
            self._options,
            self._watcher,
        )
        self._processes[name] = planned.key, process
        self._runs[asyncio.create_task(process.run())] = name

    # -- what moves need -----------------------------------------------------------------------------------------------

    def group_of(self, job: str) -> str | None:
        """The group in which a job's process runs."""
        return self._processes[job][0] if job in self._processes else None

    def ended(self) -> set[str]:
        """Jobs that ran and have ended for good."""
        return set(self._ends)

    def stop_job(self, job: str, at_once: bool) -> None:
        """Ask a job to stop, with a checkpoint."""
        if job in self._processes:
            stop = self._processes[job][1].stop
            stop.at_round_end.set()
            if at_once:
                stop.immediately.set()

    def give_up(self, job: str, reason: str) -> None:
        """A job that was on its way has failed for good."""
        self._ends[job] = JobEnd(FAILED, reason, 0)
        self.note(f"{job} is given up: {reason}")

    def kill_job(self, job: str, reason: str) -> None:
        """End a job's process."""
        if job in self._processes:
            self._processes[job][1].kill(reason)

    async def start_job(self, planned: PreparedGroup, job: str) -> None:
        """Start a job in a group of the plan. Raises InputError if there are no nodes, RunFailed."""
        group = self.groups.get(planned.key)
        if group is None:
            folder = self._out / planned.key
            group = await LiveGroup.start(planned, [job], folder, self._pool, resume=True)
            with written(folder / GROUPS_COPY):
                (folder / GROUPS_COPY).write_bytes((self._out / GROUPS_COPY).read_bytes())
            self.groups[planned.key] = group
        else:
            await group.enter(planned, [job])
        self._ends.pop(job, None)
        self._run_job(planned, job)

    def keep_nodes(self) -> None:
        """Moves begin: nodes that are given back may be needed."""
        self._pool.keeps = True

    async def settle(self, plan: Path | None, groups: Mapping[str, PreparedGroup]) -> None:
        """All moves to a plan are made: the jobs' seconds and bounds are those of the plan, empty groups end, spare
        nodes go back. `plan`: None if it is the one that this driver was started with."""
        for key, group in list(self.groups.items()):
            if group.seats and key in groups:
                with self._actor_may_be_gone():
                    await group.enter(groups[key], [])
                self._watcher.jobs({job.name: job.planned for job in groups[key].jobs if job.name in group.seats})
            elif not group.seats:
                self.groups.pop(key).close()
        self._pool.release_spare()
        self._bounds.runs(plan, self._folders())

    def _folders(self) -> dict[str, Path]:
        return {key: group.folder for key, group in self.groups.items()}

    def note(self, text: str) -> None:
        """A line for the person who watches."""
        self._watcher.note(text)


def _end_of(task: asyncio.Task[JobEnd]) -> JobEnd:
    """How a job ended; one whose group's actor is gone for good has failed, and touches no other group."""
    try:
        return task.result()
    except RunFailed as error:
        return JobEnd(FAILED, str(error), 0)
