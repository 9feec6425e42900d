"""Applies a new plan of groups: makes the moves that the move machine orders, and writes them to a journal.

Invariants:
- the journal of moves has each action, and the acceptance of a plan before its first move: a driver that was killed and
  is started again by `execute --resume` makes the remaining moves;
- every wait ends: a job that does not stop, or start, within its deadline is killed, and continues from its last
  checkpoint; a job that finds no nodes within `node_patience_s`, or fails for good during its move, gives the move up,
  and the other moves go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...plans.phrases.numbers import count
from ...plans.yaml.errors import InputError, RunFailed
from ...plans.yaml.yaml_io import atomic_write, sha256_file
from ...rounds.permits.move_machine import Drain, Enter, JobMove, MoveMachine
from ...traces.groups.group_journal import GROUPS_COPY
from ...traces.groups.groups_folder import SETTLED, job_folder
from ..records.execution_folder import written
from .group_change import GroupChange, MoveJournal, MoveRequest, planned_change, take_request
from .job_process import JobEnd, RunningJobs
from .live_group import LiveGroup
from .member_task import BAD_INPUT, DONE, FAILED
from .prepare_group import PreparedGroup


class RunningGroups(Protocol):
    """What a move needs from the groups and jobs that run (group_run.py)."""

    groups: dict[str, LiveGroup]
    jobs: RunningJobs

    async def start_job(self, planned: PreparedGroup, job: str) -> int:
        """Start a job in a group of the plan, its run in the group's folder; returns how often it has arrived there
        before. Raises InputError if the nodes or their memory do not suffice, RunFailed."""

    async def settle(self, plan: Path | None, groups: dict[str, PreparedGroup]) -> None:
        """All moves to a plan are made: the jobs' seconds and bounds are those of the plan, empty groups end, spare
        nodes go back. `plan`: None if it is the one that the driver was started with."""

    def keep_nodes(self) -> None:
        """Moves begin: keep nodes that are given back, which another group may need."""

    def note(self, text: str) -> None:
        """Show a line to the user."""


DRAIN_FACTOR, LEAST_DRAIN_S = 10.0, 300.0  # seconds that a job may take to stop, over an iteration's, and at least
AGAIN_S = 10.0  # between two searches for nodes


@dataclass
class _UnderWay:
    """A plan whose moves are being made. Times are seconds of `time.monotonic`."""

    id: str
    plan: Path | None
    """The new plan; None: the driver was started with it."""
    groups: dict[str, PreparedGroup]
    machine: MoveMachine
    began: float = field(default_factory=time.monotonic)
    drains: dict[str, float] = field(default_factory=dict)
    """By job: when it was asked to stop."""
    asked_at_once: set[str] = field(default_factory=set)
    """Jobs that were asked to stop in mid-step."""
    out: dict[str, float] = field(default_factory=dict)
    """By job: when it had stopped."""
    short: dict[str, float] = field(default_factory=dict)
    """By job: since when it lacks nodes."""
    enters: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By job: since when it starts in its new group, and how often it had arrived there before."""
    looked: float = 0.0


def bring_job(out: Path, job: str, group: str) -> None:
    """Move the folder of a job's run into the folder of this group. Raises RunFailed if it cannot be moved."""
    old, new = job_folder(out, job), out / group / job
    if old is None or old == new:
        return
    with written(new):
        new.parent.mkdir(parents=True, exist_ok=True)
        old.rename(new)


def _to_make(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The moves of a plan (`moves_of`) that are not settled."""
    return [move for move in plan["moves"] if move["state"] not in SETTLED]


class MoveDriver:
    """See the module.

    Args:
        out: the folder of the groups.
        journal: of moves, in that folder.
        running: the groups.
        node_patience_s: seconds that a job waits for nodes in its new group.
    """

    def __init__(self, out: Path, journal: MoveJournal, running: RunningGroups, node_patience_s: float) -> None:
        self._out, self._journal, self._running, self._patience_s = out, journal, running, node_patience_s
        self._now: _UnderWay | None = None

    @property
    def under_way(self) -> bool:
        """Whether there are moves to make."""
        return self._now is not None

    def pending(self) -> set[str]:
        """Jobs that have not arrived in their new group by a plan that an earlier driver accepted."""
        left = self._left()
        return set() if left is None else {move["job"] for move in _to_make(left) if move["to_group"]}

    async def go_on(self, groups: dict[str, PreparedGroup]) -> None:
        """Make the moves that an earlier driver did not finish; no job that moves runs. Raises RunFailed."""
        left = self._left()
        if left is None:
            return
        for move in _to_make(left):
            if move["to_group"] is None:  # it was killed with the driver
                self._journal.write("out", id=left["id"], job=move["job"], drain_s=None)
        moves = [JobMove(move["job"], None, move["to_group"]) for move in _to_make(left) if move["to_group"]]
        self._now = _UnderWay(left["id"], None, groups, MoveMachine(moves))
        self._journal.write("resumed", id=left["id"], left=[move.job for move in moves])
        self._running.keep_nodes()
        await self._do(self._now.machine.begin())

    def _left(self) -> dict[str, Any] | None:
        """The plan whose moves are not finished; void if the driver was killed before the plan was the running one."""
        left = self._journal.unfinished
        if left is not None and left["sha256"] != sha256_file(self._out / GROUPS_COPY):
            self._journal.write("refused", id=left["id"], reason="the driver ended before it had taken the plan over")
            left = self._journal.unfinished = None
        return left

    async def look(self) -> None:
        """Take a request, or continue the moves under way; call it about every second. Raises RunFailed."""
        if (request := take_request(self._out)) is not None:
            await self._consider(request)
        if self._now is None:
            return
        now = time.monotonic()
        self._look_at_drains(self._now, now)
        await self._look_at_starts(self._now, now)
        await self._look_for_nodes(self._now, now)
        await self._finish_if_done()

    async def job_ended(self, job: str, end: JobEnd) -> bool:
        """The process of a job has ended; returns whether the job starts again in another group. Raises RunFailed."""
        now = self._now
        if now is None or now.machine.states.get(job, "done") == "done":
            return False
        moves = now.machine.states[job] == "drains" and end.code not in (DONE, BAD_INPUT)
        drained_s = time.monotonic() - now.drains.pop(job, time.monotonic())
        now.enters.pop(job, None)
        if moves:
            self._journal.write("out", id=now.id, job=job, drain_s=round(drained_s, 3))
            now.out[job] = time.monotonic()
            await self._do(now.machine.out(job))
        else:
            if end.code == DONE:
                self._journal.write("ended", id=now.id, job=job)
            else:
                self._journal.write("failed", id=now.id, job=job, reason=end.reason)
            await self._do(now.machine.ended(job))
        await self._finish_if_done()
        return moves and now.machine.moves[job].to_group is not None

    def stopped(self) -> list[str]:
        """The driver ends; the next one makes the remaining moves. Returns jobs that have yet to start in a group."""
        if self._now is None:
            return []
        self._journal.write("stopped", id=self._now.id)
        machine = self._now.machine
        return [job for job, move in machine.moves.items() if move.to_group and machine.states[job] != "done"]

    # -- a request -----------------------------------------------------------------------------------------------------

    async def _consider(self, request: MoveRequest) -> None:
        if self._now is not None:
            if self._now.id != request.id:
                self._refuse(request, f"the moves of request {self._now.id} are under way; apply again after them")
            return
        try:
            change = await asyncio.to_thread(
                planned_change, self._out, Path(request.plan), set(self._running.jobs.ends)
            )
            plan = await asyncio.to_thread(change.path.read_bytes)
            if request.sha256 != change.sha256 or request.sha256 != hashlib.sha256(plan).hexdigest():
                raise InputError("changed after it was applied; apply it again", request.plan)
            self._take_over(request.id, change, plan)
        except (InputError, RunFailed, OSError) as error:
            self._refuse(request, str(error))
            return
        self._now = _UnderWay(request.id, change.path, change.groups, MoveMachine(change.moves))
        self._running.note(f"{change.path} is accepted: {count(len(change.moves), 'move')} to make")
        self._running.keep_nodes()
        await self._do(self._now.machine.begin())
        await self._finish_if_done()

    def _refuse(self, request: MoveRequest, reason: str) -> None:
        self._journal.write("refused", id=request.id, reason=reason)
        self._running.note(f"{request.plan} is not applied: {reason}")

    def _take_over(self, request_id: str, change: GroupChange, plan: bytes) -> None:
        """Make the new plan the running one. The next driver reads the copy in `out`: until that is written, the
        journal's acceptance of the plan is void. Raises RunFailed if it cannot be written."""
        self._journal.write("wanted", id=request_id, plan=str(change.path), sha256=change.sha256, moves=change.rows())
        for folder in (*(group.folder for group in self._running.groups.values()), self._out):
            try:
                atomic_write(folder / GROUPS_COPY, plan.decode("utf-8"))
            except InputError as error:  # of a full disk
                raise RunFailed(str(error)) from None

    # -- moves ---------------------------------------------------------------------------------------------------------

    async def _do(self, actions: list[Drain | Enter]) -> None:
        assert self._now is not None
        for action in actions:
            if isinstance(action, Drain):
                await self._drain(self._now, action.job)
            else:
                await self._enter(self._now, action)

    async def _drain(self, now: _UnderWay, job: str) -> None:
        self._journal.write("drain", id=now.id, job=job)
        now.drains[job] = time.monotonic()
        if self._running.jobs.group_of(job) is None:  # it has ended meanwhile
            self._journal.write("ended", id=now.id, job=job)
            await self._do(now.machine.ended(job))
            return
        self._running.jobs.stop(job, at_once=False)

    async def _enter(self, now: _UnderWay, action: Enter) -> None:
        job, group = action.job, action.group
        self._journal.write("enter", id=now.id, job=job, group=group)
        began = time.monotonic()
        try:
            before = await self._running.start_job(now.groups[group], job)
        except InputError as error:
            self._journal.write("short", id=now.id, job=job, reason=str(error))
            self._running.note(f"{job} waits for nodes: {error}")
            now.short.setdefault(job, time.monotonic())
            now.looked = time.monotonic()
            await self._do(now.machine.short(job))
        except RunFailed as error:  # of its group, its nodes or its folder; the others go on
            await self._give_up(now, job, str(error))
        else:
            now.short.pop(job, None)
            now.enters[job] = (began, before)

    async def _give_up(self, now: _UnderWay, job: str, reason: str) -> None:
        self._journal.write("failed", id=now.id, job=job, reason=reason)
        self._running.jobs.ends[job] = JobEnd(FAILED, reason, 0)
        self._running.note(f"{job} is given up: {reason}")
        await self._do(now.machine.ended(job))

    # -- waits ---------------------------------------------------------------------------------------------------------

    def _look_at_drains(self, now: _UnderWay, time_s: float) -> None:
        for job, since in now.drains.items():
            group = self._running.groups.get(self._running.jobs.group_of(job) or "")
            pace_s = 0.0 if group is None else group.placed[job].pace_s
            if job not in now.asked_at_once and time_s - since > max(LEAST_DRAIN_S, DRAIN_FACTOR * pace_s):
                now.asked_at_once.add(job)
                self._running.note(f"{job} did not stop at the end of its step; its step is left")
                self._running.jobs.stop(job, at_once=True)

    async def _look_at_starts(self, now: _UnderWay, time_s: float) -> None:
        for job, (since, before) in list(now.enters.items()):
            group = self._running.groups.get(now.machine.moves[job].to_group or "")
            arrived = 0 if group is None or group.state is None else group.state.arrivals.get(job, 0)
            if arrived > before:
                now.enters.pop(job)
                outage_s = time_s - now.out.get(job, since)
                self._journal.write(
                    "in", id=now.id, job=job, start_s=round(time_s - since, 3), outage_s=round(outage_s, 3)
                )
                await self._do(now.machine.entered(job))

    async def _look_for_nodes(self, now: _UnderWay, time_s: float) -> None:
        if not now.machine.lacking() or time_s - now.looked < AGAIN_S:
            return
        for job in now.machine.lacking():
            if time_s - now.short[job] > self._patience_s:
                await self._give_up(now, job, f"no nodes for it were found in {self._patience_s:.0f} s")
            else:
                await self._do(now.machine.again(job))

    async def _finish_if_done(self) -> None:
        now = self._now
        if now is None or not now.machine.done:
            return
        self._now = None
        await self._running.settle(now.plan, now.groups)
        seconds = round(time.monotonic() - now.began, 3)
        self._journal.write("applied", id=now.id, seconds=seconds)
        self._running.note(f"all moves are made, in {seconds:.1f} s")
