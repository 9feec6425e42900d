"""Executes a co-execution group: leases its nodes, starts the actor that gives permits and a process for each job.

Invariants:
- jobs share nodes and nothing else: each has a process, a folder, a trace, engines and trainers of its own;
- a job whose process ends early, or whose turn takes longer than TURN_FACTOR times what it should, loses its turn at
  once, and is started again from its last checkpoint; the others go on meanwhile;
- a job that failed for good leaves the group, and the others take its turns;
- no process of a job outlives this one.
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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray

from ...plans.yaml.errors import InputError, RunFailed
from ...traces.groups.group_turns import GROUPS_COPY, TURNS
from ..actors import start_ray
from ..placement.cluster_address import cluster_address
from ..placement.live_nodes import (
    LeasedNode,
    choose,
    cluster_nodes,
    device_resource,
    lease,
    parts_of_this_machine,
)
from ..placement.seat_keeper import same_versions
from ..placement.seats import Room
from ..prepare import Options
from ..records.execution_folder import run_lock, written
from ..stopping import StopRequests, stop_requests
from ..supervision import RestartBudget
from .member_task import BAD_INPUT, DONE, FAILED, STOPPED, MemberTask
from .permit_actor import GroupState, ask, start_permits
from .prepare_group import GroupJob, PreparedGroup

LOOK_S = 1.0  # how often turns are looked at
TURN_FACTOR, LEAST_TURN_S = 10.0, 300.0  # seconds that a turn may take, over those expected, and at least
PAUSE_S = 1.0  # before a job's process is started again
END_S = 300.0  # that a process which was asked to leave its round has to end: it may write a checkpoint
LINE_BYTES = 2**24  # of what a job's process tells at once


class JobEnd(NamedTuple):
    """How a job ended: its exit code (member_task.py), why, and how often its process was started again."""

    code: int
    reason: str
    restarts: int


class GroupWatcher(Protocol):
    """What the command's screen implements; all calls come on the event loop."""

    def phase(self, text: str) -> None:
        """Something slow begins."""

    def told(self, job: str, what: dict[str, Any]) -> None:
        """What a job's process told (member_process.py)."""

    def note(self, text: str) -> None:
        """A line for the person who watches."""


def run_group(group: PreparedGroup, out: Path, options: Options, watcher: GroupWatcher) -> dict[str, JobEnd]:
    """Run all jobs of a group for `options.steps` steps each; returns how each ended.

    Raises InputError if the cluster has no nodes for the group or another process runs in `out`, RunFailed if the
    infrastructure failed for good.
    """
    cluster_address()  # refused now, and not after folders were made
    with run_lock(out):
        with written(out / GROUPS_COPY):
            (out / GROUPS_COPY).write_bytes(group.plan_path.read_bytes())
        return asyncio.run(_run(group, out, options, watcher))


async def _run(group: PreparedGroup, out: Path, options: Options, watcher: GroupWatcher) -> dict[str, JobEnd]:
    watcher.phase("starting Ray")
    own_machine = start_ray()
    nodes = await lease_nodes(group.rooms, group.kind, own_machine)
    journal = out / TURNS
    if not options.resume:
        journal.unlink(missing_ok=True)  # of a start that came to no turn's end
    name = f"permits-{group.key}-{uuid.uuid4().hex}"
    permits = start_permits(name, group.key, group.permit_rule, [job.seat for job in group.jobs], journal)
    if options.resume:
        for job in group.jobs:  # a driver that was killed said of none that it had ended
            await ask(lambda: permits, "leave", job.name, f"before {name}")
    processes = [_JobProcess(job, out, name, nodes, options, watcher, permits) for job in group.jobs]
    watcher.phase(f"starting {', '.join(job.name for job in group.jobs)}")
    try:
        with stop_requests(options.grace_s) as stop:
            runs = [asyncio.create_task(process.run(stop)) for process in processes]
            guard = asyncio.create_task(_guard(processes, permits, watcher))
            try:
                ends = await asyncio.gather(*runs)
            finally:
                for task in (*runs, guard):
                    task.cancel()
                await asyncio.gather(*runs, guard, return_exceptions=True)
    finally:
        for process in processes:
            process.kill()
        for node in nodes:
            node.release()
    return {job.name: end for job, end in zip(group.jobs, ends, strict=True)}


async def lease_nodes(rooms: Sequence[Room], kind: str, own_machine: bool) -> list[LeasedNode]:
    """The nodes of a group. Where Ray was started for this run its machine stands for all of them, as cores (a group on
    GPUs is refused before). Raises InputError."""
    if own_machine:
        return parts_of_this_machine(kind, [room.devices for room in rooms])
    resource = device_resource(kind)
    chosen, lack = choose(cluster_nodes(resource), rooms, resource)
    if lack is not None:
        raise InputError(f"{lack}; start more nodes, wait for other jobs, or solve for this cluster")
    leased: list[LeasedNode] = []
    try:
        for node, room in zip(chosen, rooms, strict=True):
            held = None if node is None else await lease(node, resource, room.devices)
            if held is None:
                raise InputError(f"a node of pool '{room.pool}' was taken by others meanwhile; try again")
            leased.append(held)
        same_versions(leased)
    except BaseException:
        for held in leased:
            held.release()
        raise
    return leased


async def _guard(processes: Sequence[_JobProcess], permits: Any, watcher: GroupWatcher) -> None:
    """End the process of a job whose turn takes too long."""
    by_name = {process.name: process for process in processes}
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            state = GroupState(*await ask(lambda: permits, "state"))
        except RunFailed as error:  # the jobs end by it themselves, unless the actor comes back
            watcher.note(f"turns are not looked at: {error}")
            continue
        for name, held in state.held.items():
            expected_s = by_name[name].job.seat.expected_s[held["turn"] % 2]
            most_s = max(LEAST_TURN_S, TURN_FACTOR * expected_s)
            if state.now_s - held["begun_s"] > most_s:
                by_name[name].kill(
                    f"its {held['phase']} took more than {most_s:.0f} s, expected were {expected_s:.0f} s"
                )


class _JobProcess:
    """The process of a job, started again when it dies."""

    def __init__(
        self,
        job: GroupJob,
        out: Path,
        actor_name: str,
        nodes: Sequence[LeasedNode],
        options: Options,
        watcher: GroupWatcher,
        permits: Any,
    ) -> None:
        self.job, self.name = job, job.name
        self._folder, self._actor_name, self._options = out / job.name, actor_name, options
        self._nodes = [(nodes[n].node_id, list(nodes[n].facts), nodes[n].part) for n in job.nodes]
        self._watcher, self._permits = watcher, permits
        self._process: asyncio.subprocess.Process | None = None
        self._budget = RestartBudget(options.restarts_per_hour)
        self._killed = ""
        self._name = ""  # of its latest process

    async def run(self, stop: StopRequests) -> JobEnd:
        """Run it to its end."""
        restarts, resume = 0, self.job.resume
        while True:
            try:
                code, reason = await self._once(resume, stop)
            except OSError as error:  # of its folder; the other jobs go on
                code, reason = FAILED, f"its process cannot be started: {error}"
            finally:
                self.kill()
            await ask(lambda: self._permits, "leave", self.name, self._name)
            if code in (DONE, BAD_INPUT, STOPPED):
                return JobEnd(code, reason, restarts)
            if stop.at_round_end.is_set():
                return JobEnd(STOPPED if code == -signal.SIGINT else FAILED, reason, restarts)
            if code == FAILED or not self._budget.take(time.monotonic()):
                self._watcher.note(f"{self.name} has failed and leaves the group: {reason}")
                return JobEnd(FAILED, reason, restarts)
            restarts += 1
            self._watcher.note(f"{self.name} is started again: {reason}")
            await asyncio.sleep(PAUSE_S)
            resume = any((self._folder / "checkpoints").glob("*step-*"))

    async def _once(self, resume: bool, stop: StopRequests) -> tuple[int, str]:
        """Start its process and wait for its end: (exit code, why)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = asdict(self._options) | {"resume": resume, "history": None}
        plan = str(self.job.execution.plan_path.resolve())
        self._name = f"{self.name}-{uuid.uuid4().hex}"
        task = MemberTask(
            self.name,
            plan,
            str(self._folder.resolve()),
            self._actor_name,
            self._name,
            os.getpid(),
            self._nodes,
            options,
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
                start_new_session=True,  # a terminal's Ctrl-C is for the group's driver, which passes it on
            )  # fmt: skip
        self._process = process
        passing = asyncio.create_task(self._pass_on(stop))
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                told = _told(line)
                failure = told.get("text", "") if told.get("tell") == "failed" else failure
                self._watcher.told(self.name, told)
            code = await process.wait()
        finally:
            passing.cancel()
        ended = f"its process ended with {'signal' if code < 0 else 'exit code'} {abs(code)}"
        return code, self._killed or failure or f"{ended}; see {self._folder / 'driver.log'}"

    async def _pass_on(self, stop: StopRequests) -> None:
        """Pass a stop on: the round's end is waited for, then the round is left, then the process ended."""
        await stop.at_round_end.wait()
        self._signal(signal.SIGINT)
        await stop.immediately.wait()
        self._signal(signal.SIGINT)
        await asyncio.sleep(END_S)
        self.kill("it did not stop")

    def kill(self, reason: str = "") -> None:
        """End its process at once, if it runs; Ray ends its actors."""
        self._killed = self._killed or reason
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _told(line: bytes) -> dict[str, Any]:
    """What a line of a job's process tells; what is none of its lines is a note."""
    with contextlib.suppress(ValueError):
        told = json.loads(line)
        if isinstance(told, dict) and "tell" in told:
            return told
    return {"tell": "note", "text": line.decode(errors="replace").rstrip()}
