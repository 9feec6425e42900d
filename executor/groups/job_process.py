"""The processes of jobs in co-execution groups: each runs `member_process`, and is started again when it dies.

A job's process ends with this process at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray

from ...plans.schema.groups_plan import GroupMember
from ...plans.yaml.errors import RunFailed
from ..placement.live_nodes import PROBE_S, LeasedNode, on_node
from ..prepare import Options
from ..processes.actors import track, within
from ..processes.faults import ActorFailed
from ..processes.stopping import StopRequests
from ..processes.supervision import RestartBudget
from ..records.execution_folder import has_checkpoint
from .live_group import LiveGroup
from .member_state import HeldPhase
from .member_task import BAD_INPUT, DONE, FAILED, STOPPED, MemberTask
from .permit_actor import GroupState, ask
from .prepare_group import MemberJob, PreparedGroup

# Ray ends the actors of a driver that was killed a moment later on each node; until then their devices are not free.

GONE_S = 30.0  # within which Ray and the kernel end the processes of a killed driver
LOOK_S = 0.1


async def left_by(driver: int, deadline_s: float = GONE_S) -> dict[str, list[int]]:
    """Wait until the actors' processes of a driver that has ended are gone, wherever they ran.

    `driver`: its process id; it ran on this node. Returns those that still run after the deadline, by Ray's id of their
    node; {} if none does.
    """
    pids = await asyncio.to_thread(_pids_by_node, driver)
    here = ray.get_runtime_context().get_node_id()
    waits: dict[str, Awaitable[list[int]]] = {}
    for node, own in pids.items():
        if node == here:
            waits[node] = asyncio.to_thread(still_running, own, deadline_s)
        elif _alive(node):
            call = _left.options(**on_node(node)).remote(own, deadline_s)
            waits[node] = within(deadline_s + PROBE_S, track(call), f"node {node}")
    left = dict(zip(waits, await asyncio.gather(*waits.values()), strict=True))
    return {node: own for node, own in left.items() if own}


def _pids_by_node(driver: int) -> dict[str, list[int]]:
    """Process ids of the actors that a driver of this node started last, by Ray's id of the node."""
    from ray._private.state import actors, jobs  # Ray has no public call for it without its dashboard

    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    own = [job for job in jobs() if (job["DriverIPAddress"], job["DriverPid"]) == (address, driver)]  # type: ignore[no-untyped-call]
    if not own:  # it ended before it had connected
        return {}
    job_id = max(own, key=lambda job: job["StartTime"])["JobID"]
    found: dict[str, list[int]] = {}
    for actor in actors().values():
        if actor["JobID"] == job_id and actor["Pid"]:
            found.setdefault(actor["Address"]["NodeID"], []).append(int(actor["Pid"]))
    return found


def _alive(node_id: str) -> bool:
    """Whether a node is there: on one that is lost, nothing runs."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]


def still_running(pids: Collection[int], deadline_s: float) -> list[int]:
    """Wait until these processes of this node are gone; those that run after the deadline."""
    began = time.monotonic()
    left = sorted(pids)
    while (left := [pid for pid in left if _runs(pid)]) and time.monotonic() - began < deadline_s:
        time.sleep(LOOK_S)
    return left


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie, whose memory is free."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@ray.remote(num_cpus=0, max_retries=0)
def _left(pids: list[int], deadline_s: float) -> list[int]:
    return still_running(pids, deadline_s)


PAUSE_S = 1.0  # before a job's process is started again
END_S = 300.0  # for a process that was asked to leave its round: it may write a checkpoint
LINE_BYTES = 2**24  # longest line that a job's process prints


class JobEnd(NamedTuple):
    """How a job ended: its exit code (member_task.py), the reason, how often its process was started again, and whether
    it left because a plan without it was applied."""

    code: int
    reason: str
    restarts: int
    left: bool = False


class GroupWatcher(Protocol):
    """What the command's screen implements; all calls come on the event loop."""

    def phase(self, text: str) -> None:
        """Something slow begins."""

    def jobs(self, planned: Mapping[str, GroupMember]) -> None:
        """The jobs that run from now on, as their plan has them."""

    def reported(self, job: str, what: dict[str, Any]) -> None:
        """A line that a job's process printed (member_process.py)."""

    def note(self, text: str) -> None:
        """A line for the person who watches."""


class JobProcess:
    """See the module.

    Args:
        job: the job.
        folder: of its run.
        actor_name: Ray's name of the actor that gives its permits.
        permits: that actor.
        nodes: of the job's placement, in order.
        units: of its rollout on each of them.
        options: of `execute`.
        watcher: gets the lines that the process prints.
    """

    def __init__(
        self,
        job: MemberJob,
        folder: Path,
        actor_name: str,
        permits: Any,
        nodes: Sequence[LeasedNode],
        units: Sequence[Sequence[int]],
        options: Options,
        watcher: GroupWatcher,
    ) -> None:
        self.job, self.name = job, job.name
        self.stop = StopRequests()
        """Requests to stop at the end of its step, or at once; either way with a checkpoint."""
        self._folder, self._actor_name, self._options = folder, actor_name, options
        self._nodes = [(node.node_id, list(node.facts), node.part) for node in nodes]
        self._units = [list(each) for each in units]
        self._watcher, self._permits = watcher, permits
        self._process: asyncio.subprocess.Process | None = None
        self._budget = RestartBudget(options.restarts_per_hour)
        self._killed = ""
        self.latest = ""
        """Unique name of its latest process."""

    async def run(self) -> JobEnd:
        """Run the job to its end, from its last checkpoint if there is one. Raises RunFailed if the actor is gone."""
        restarts, resume = 0, has_checkpoint(self._folder)
        while True:
            try:
                code, reason = await self._once(resume)
            except OSError as error:  # of its folder; the other jobs go on
                code, reason = FAILED, f"its process cannot be started: {error}"
            finally:
                self.kill()
            if code not in (DONE, BAD_INPUT, STOPPED, FAILED):
                await self._orphans_end()
            await ask(lambda: self._permits, "report", "leave", self.name, self.latest)
            if code in (DONE, BAD_INPUT, STOPPED):
                return JobEnd(code, reason, restarts)
            if self.stop.at_round_end.is_set():
                return JobEnd(STOPPED if code == -signal.SIGINT else FAILED, reason, restarts)
            if code == FAILED or not self._budget.take(time.monotonic()):
                self._watcher.note(f"{self.name} has failed and leaves the group: {reason}")
                return JobEnd(FAILED, reason, restarts)
            restarts += 1
            self._watcher.note(f"{self.name} is started again: {reason}")
            await asyncio.sleep(PAUSE_S)
            resume = has_checkpoint(self._folder)

    async def _orphans_end(self) -> None:
        """Wait until no actor of its last process runs on the nodes; until then other jobs may not have its devices."""
        assert self._process is not None, "it has ended"
        try:
            left = await left_by(self._process.pid)
        except ActorFailed as error:  # of a node that is lost with what ran there, or does not answer
            left = {}
            self._watcher.note(f"{self.name}: whether anything of it still runs is not known: {error}")
        for node, pids in left.items():
            self._watcher.note(f"{self.name}: processes {', '.join(map(str, pids))} of it still run on node {node}")

    async def _once(self, resume: bool) -> tuple[int, str]:
        """Start its process and wait for its end: (exit code, why)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = asdict(self._options) | {"resume": resume, "history": None}
        plan = str(self.job.execution.plan_path.resolve())
        self.latest = f"{self.name}-{uuid.uuid4().hex}"
        task = MemberTask(
            self.name,
            plan,
            str(self._folder.resolve()),
            self._actor_name,
            self.latest,
            os.getpid(),
            self._nodes,
            options,
            self._units,
            self.job.planned.tail_units or 0,
            self.job.planned.tail_finished,
            self.job.planned.rollout.resume_s is not None,
        )
        task_file = self._folder / ".task.json"
        task.write(task_file)
        self._killed, failure = "", ""
        with (self._folder / "driver.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rlplan.executor.groups.member_process", str(task_file),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
                limit=LINE_BYTES,
                # A terminal's Ctrl-C is for the group's driver, which passes it on. A session would keep it away too,
                # but Linux schedules each session as one (sched_autogroup): on cores that compute, a job's process in
                # a session of its own waited for seconds, and samples were scored only when the round was over.
                process_group=0,
            )  # fmt: skip
        self._process = process
        passing = asyncio.create_task(self._pass_on())
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                reported = _reported(line)
                failure = reported.get("text", "") if reported.get("tell") == "failed" else failure
                self._watcher.reported(self.name, reported)
            code = await process.wait()
        finally:
            passing.cancel()
        ended = f"its process ended with {'signal' if code < 0 else 'exit code'} {abs(code)}"
        return code, self._killed or failure or f"{ended}; see {self._folder / 'driver.log'}"

    async def _pass_on(self) -> None:
        """Pass requests to stop on to the process; end it if it does not stop within END_S of the second request."""
        await self.stop.at_round_end.wait()
        self._signal(signal.SIGINT)
        await self.stop.immediately.wait()
        self._signal(signal.SIGINT)
        await asyncio.sleep(END_S)
        self.kill("it did not stop")

    def kill(self, reason: str = "") -> None:
        """Kill its process, if it runs; Ray ends its actors."""
        self._killed = self._killed or reason
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _reported(line: bytes) -> dict[str, Any]:
    """What a line of a job's process says; a line of another form is a note."""
    with contextlib.suppress(ValueError):
        reported = json.loads(line)
        if isinstance(reported, dict) and "tell" in reported:
            return reported
    return {"tell": "note", "text": line.decode(errors="replace").rstrip()}


PHASE_FACTOR, LEAST_PHASE_S = 10.0, 300.0  # a phase may take so many times the seconds expected, and at least so many
START_S = 3600.0  # in which a process must be ready; its engines and trainers have deadlines of their own


@dataclass
class _Running:
    """A job that runs. `latest`, `since`, `arrivals`: name of its latest process, since when that is known (seconds of
    `time.monotonic`), and how often the job had arrived before."""

    group: str
    process: JobProcess
    latest: str = ""
    since: float = 0.0
    arrivals: int = 0


class RunningJobs:
    """The processes of the jobs of all groups of one driver: started, asked to stop, killed when overdue.

    Invariants: a job has one process at a time; once all jobs are asked to stop, one that starts later is asked, too.

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
        """Start a job that is placed in a group."""
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
        """Kill processes of a group whose phase, or whose start, takes too long."""
        for job, running in self._running.items():
            if running.group != group.key or job not in group.placed:
                continue
            if (fields := state.held.get(job)) is not None:
                held = HeldPhase(**fields)
                expected_s = group.placed[job].expected_s[held.number % 2]
                most_s = max(LEAST_PHASE_S, PHASE_FACTOR * expected_s)
                if held.ran_s(state.now_s) > most_s:
                    took = f"its {held.phase} took more than {most_s:.0f} s, expected were {expected_s:.0f} s"
                    running.process.kill(took)
            self._kill_if_not_ready(running, state.arrivals.get(job, 0))

    def _kill_if_not_ready(self, running: _Running, arrivals: int) -> None:
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
    """How a job ended. Any error of its process or of its group's actor fails this job only; others go on."""
    try:
        return task.result()
    except RunFailed as error:
        return JobEnd(FAILED, str(error), 0)
    except Exception as error:  # noqa: BLE001
        return JobEnd(FAILED, f"{type(error).__name__}: {error}", 0)
