"""The processes of the jobs of all groups of one driver: started, asked to stop, killed when overdue, and their ends.

Invariant: a job has one process at a time; once all are asked to stop, one that starts later is asked at once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from ...plans.yaml.errors import RunFailed
from ..prepare import Options
from .job_process import GroupWatcher, JobEnd, JobProcess
from .live_group import LiveGroup
from .member_state import Held
from .member_task import FAILED
from .permit_actor import GroupState
from .prepare_group import PreparedGroup

TURN_FACTOR, LEAST_TURN_S = 10.0, 300.0  # seconds that a turn may take, over those expected, and at least
START_S = 3600.0  # that a process may take until it is ready; its engines and trainers have deadlines of their own


@dataclass
class _Running:
    """A job that runs: its group, its process, and of its latest process the name, since when it is looked at, in
    seconds of `time.monotonic`, and how often the job had arrived before it."""

    group: str
    process: JobProcess
    latest: str = ""
    since: float = 0.0
    arrivals: int = 0


class RunningJobs:
    """See the module.

    Attributes:
        ends: how each job ended that has ended for good.
    """

    def __init__(self, options: Options, watcher: GroupWatcher) -> None:
        self.ends: dict[str, JobEnd] = {}
        self._options, self._watcher = options, watcher
        self._running: dict[str, _Running] = {}
        self._tasks: dict[asyncio.Task[JobEnd], str] = {}
        self._all_stop = self._all_stop_at_once = False

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def names(self) -> list[str]:
        """Jobs that run."""
        return list(self._running)

    def group_of(self, job: str) -> str | None:
        """The group in which a job's process runs."""
        return self._running[job].group if job in self._running else None

    def start(self, planned: PreparedGroup, group: LiveGroup, job: str) -> None:
        """Start a job that has its seat in a group."""
        self._watcher.jobs({job: planned.job(job).planned})
        process = JobProcess(
            planned.job(job),
            group.folder / job,
            group.actor_name,
            group.permits,
            group.nodes_of(planned, job),
            group.rollout_units_of(planned, job),
            self._options,
            self._watcher,
        )
        self.ends.pop(job, None)
        self._running[job] = _Running(group.key, process)
        self._tasks[asyncio.create_task(process.run())] = job
        if self._all_stop:
            self.stop(job, self._all_stop_at_once)

    def over(self) -> list[tuple[str, str, JobEnd, bool]]:
        """Jobs whose processes have ended since the last call: the job, its group, how it ended, and whether it had
        been asked to stop."""
        found = []
        for task in [task for task in self._tasks if task.done()]:
            job = self._tasks.pop(task)
            running = self._running.pop(job)
            found.append((job, running.group, _end_of(task), running.process.stop.at_round_end.is_set()))
        return found

    def stop(self, job: str, at_once: bool) -> None:
        """Ask a job to stop, with a checkpoint."""
        if job in self._running:
            stop = self._running[job].process.stop
            stop.at_round_end.set()
            if at_once:
                stop.immediately.set()

    def stop_all(self, at_once: bool) -> None:
        """Ask all jobs to stop, and those that start later."""
        self._all_stop, self._all_stop_at_once = True, at_once
        for job in self.names:
            self.stop(job, at_once)

    def kill_overdue(self, group: LiveGroup, state: GroupState) -> None:
        """End processes of a group whose turn, or whose start, takes too long."""
        for job, running in self._running.items():
            if running.group != group.key or job not in group.seats:
                continue
            if (held := state.held.get(job)) is not None:
                expected_s = group.seats[job].expected_s[held["turn"] % 2]
                most_s = max(LEAST_TURN_S, TURN_FACTOR * expected_s)
                if Held(**held).ran_s(state.now_s) > most_s:
                    took = f"its {held['phase']} took more than {most_s:.0f} s, expected were {expected_s:.0f} s"
                    running.process.kill(took)
            self._look_at_start(running, state.arrivals.get(job, 0))

    def _look_at_start(self, running: _Running, arrivals: int) -> None:
        now, latest = time.monotonic(), running.process.latest
        if latest != running.latest:  # a process takes seconds until it can be ready
            running.latest, running.since, running.arrivals = latest, now, abs(arrivals)
        elif latest and arrivals <= running.arrivals and now - running.since > START_S:
            running.process.kill(f"it was not ready within {START_S:.0f} s")

    async def close(self) -> None:
        """End all processes at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for running in self._running.values():
            running.process.kill()


def _end_of(task: asyncio.Task[JobEnd]) -> JobEnd:
    """How a job ended. Whatever went wrong with its process or its group's actor, the job has failed; others go on."""
    try:
        return task.result()
    except RunFailed as error:
        return JobEnd(FAILED, str(error), 0)
    except Exception as error:  # noqa: BLE001
        return JobEnd(FAILED, f"{type(error).__name__}: {error}", 0)
