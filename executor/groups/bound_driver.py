"""Watches the bounds of running jobs by the bound machine, and has a re-plan proposed before one breaks.

Invariants:
- each alarm, and each bound that broke or holds again, is written to the journal of moves and reported once;
- a re-plan is applied only if the planner says that the policy allows it; otherwise it is only a file for the user.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plans.phrases.numbers import count, seconds, times
from ...plans.schema.groups_plan import load_groups_plan
from ...plans.yaml.errors import Infeasible, InputError, RunFailed
from ...plans.yaml.yaml_io import sha256_file
from ...rounds.permits.bound_machine import BoundEvent, BoundMachine
from ...traces.groups.group_journal import (
    GROUP_JOURNAL,
    GROUPS_COPY,
    GroupJournal,
    TrainingEnds,
    bound_of,
    read_group_journal,
)
from ...traces.trace import TraceError
from .group_change import MoveJournal, MoveRequest, write_request

EVERY_S = 5.0  # how often the journals of groups are read
AGAIN_S = 300.0  # between two re-plans at least, solved or not
_WORDS = {"mean": "its mean", "stretch": "its last stretch", "running": "the iteration that runs"}


@dataclass(frozen=True)
class Proposed:
    """A re-plan that was written.

    Attributes:
        path: of the plan.
        moves: how many jobs it moves.
        price_s: seconds that all moves cost together.
        applies: whether the policy allows to apply it without asking the user.
        reason: why, or why not.
    """

    path: Path
    moves: int
    price_s: float
    applies: bool
    reason: str


@dataclass(frozen=True)
class ReplanInputs:
    """What a re-plan is solved from.

    Attributes:
        plan: the plan that runs; its inputs are relative to this path.
        running: the driver's copy of it.
        journals: of each group.
        ahead_s: seconds that each job is ahead of its bound.
        ended: jobs that have ended.
        hours_since: hours since the last re-plan that was applied without asking; None: there was none.
    """

    plan: Path
    running: Path
    journals: Mapping[str, GroupJournal]
    ahead_s: Mapping[str, float]
    ended: Collection[str]
    hours_since: float | None


Replanner = Callable[[ReplanInputs, Path], Proposed]
"""Writes a re-plan to a path. Raises InputError, Infeasible."""


class BoundDriver:
    """See the module.

    Args:
        out: the folder of the groups.
        plan: the plan that runs; its inputs are relative to this path.
        journal: of moves.
        note: shows a line to the user.
        replanner: None: no re-plan is proposed.
    """

    def __init__(
        self, out: Path, plan: Path, journal: MoveJournal, note: Callable[[str], None], replanner: Replanner | None
    ) -> None:
        self._out, self._plan, self._journal, self._note, self._replanner = out, plan, journal, note, replanner
        self._machine = BoundMachine({}, 0)
        self._groups: dict[str, str] = {}
        self._ends: dict[str, tuple[Path, TrainingEnds]] = {}
        self._looked = 0.0
        self._wanted = False  # whether a job was about to break its bound since the last re-plan
        self._not_before = 0.0  # second of time.monotonic before which no re-plan is tried
        self._proposing: asyncio.Task[None] | None = None

    def runs(self, plan: Path | None, folders: Mapping[str, Path]) -> None:
        """Watch the jobs of a plan from now on, at the beginning or after its moves; `folders`: of its groups; `plan`:
        None if it is the same as before."""
        self._plan = plan or self._plan
        copy = load_groups_plan(self._out / GROUPS_COPY)
        members = {
            name: (key, member) for key, group in copy.groups.items() if key in folders
            for name, member in group.jobs.items()
        }  # fmt: skip
        if not self._groups:
            self._machine = BoundMachine({}, copy.rules.stretch)
        for name in self._groups.keys() - members.keys():
            self._machine.leave(name)
        for name, (key, member) in members.items():
            if name not in self._groups:
                self._machine.join(name, bound_of(member))
                continue
            if self._groups[name] != key:
                self._machine.moved(name)
            self._machine.rebind(name, bound_of(member))
        first = not self._groups
        self._groups = {name: key for name, (key, _) in members.items()}
        for key, folder in folders.items():
            self._ends.setdefault(key, (folder, TrainingEnds(folder / GROUP_JOURNAL)))
        if first:
            self._feed()  # reported by an earlier driver already; but alarms of that time may still hold
        states = {self._machine.figures(job).state for job in self._machine.jobs}
        self._wanted = bool(states & {"alarm", "broken"})

    def look(self, ended: Collection[str], moving: bool) -> None:
        """Check the bounds; call it about every second. `moving`: moves are under way, during which no re-plan is
        proposed."""
        if time.monotonic() - self._looked < EVERY_S:
            return
        self._looked = time.monotonic()
        events = self._feed() + self._machine.look(time.time())
        for event in events:
            self._report(event)
        self._wanted |= any(event.state != "cleared" for event in events)
        idle = self._proposing is None or self._proposing.done()
        due = self._wanted and time.monotonic() >= self._not_before
        if due and idle and not moving and self._replanner is not None:
            self._wanted, self._not_before = False, time.monotonic() + AGAIN_S
            self._proposing = asyncio.create_task(self._propose(self._replanner, ended))

    def ended(self, job: str) -> None:
        """A job is done, or has failed: its bound is not watched any more."""
        self._machine.leave(job)
        self._groups.pop(job, None)

    async def close(self) -> None:
        """Wait for a re-plan that is being solved."""
        if self._proposing is not None:
            await asyncio.gather(self._proposing, return_exceptions=True)

    def _feed(self) -> list[BoundEvent]:
        """Give the machine the trainings that ended since the last call; returns its events."""
        events: list[BoundEvent] = []
        for key, (_, ends) in self._ends.items():
            try:
                for job, start, at_s in ends.new():
                    if self._groups.get(job) == key:
                        events += self._machine.ended(job, start, at_s)
            except (TraceError, OSError) as error:
                self._note(f"bounds of group {key} cannot be checked: {error}")
        return events

    def _report(self, event: BoundEvent) -> None:
        figures = event.figures
        self._write(
            "bound", job=event.job, group=self._groups[event.job], state=event.state, slowdown=figures.slowdown,
            recent=figures.recent, slo=figures.slo, breaks_in=figures.breaks_in,
        )  # fmt: skip
        slowdown = "unknown" if figures.slowdown is None else times(figures.slowdown)
        if event.reason is not None:
            text = f"{event.job} is about to break its bound: {_WORDS[event.reason]} goes above {times(figures.slo)}"
        elif event.state == "broken":
            text = f"{event.job} breaks its bound of {times(figures.slo)}"
        else:
            text = f"{event.job} keeps its bound of {times(figures.slo)} again"
        self._note(f"{text}; slowdown until now {slowdown}")

    def _write(self, event: str, /, **fields: Any) -> None:
        """Write an event into the journal; if the disk is full, the user gets a note and the jobs go on."""
        try:
            self._journal.write(event, **fields)
        except RunFailed as error:
            self._note(str(error))

    async def _propose(self, replanner: Replanner, ended: Collection[str]) -> None:
        """Write a re-plan, and request its application if the policy allows that."""
        path = self._out / f"proposed-{self._journal.proposals + 1}.yaml"
        ahead_s = {job: self._machine.figures(job).ahead_s for job in self._machine.jobs}
        try:
            journals = {key: read_group_journal(folder / GROUP_JOURNAL) for key, (folder, _) in self._ends.items()}
            hours_since = self._journal.hours_since_applied()
            inputs = ReplanInputs(self._plan, self._out / GROUPS_COPY, journals, ahead_s, set(ended), hours_since)
            proposed = await asyncio.to_thread(replanner, inputs, path)
        except (InputError, Infeasible, TraceError, OSError) as error:
            self._note(f"no re-plan is proposed: {error}")
            self._wanted = True
            return
        except Exception as error:  # noqa: BLE001 - a fault of the planner must not end the jobs
            self._note(f"no re-plan is proposed: {type(error).__name__}: {error}")
            return
        applies = proposed.applies and proposed.moves > 0
        request_id = uuid.uuid4().hex
        self._write(
            "proposed", id=request_id, plan=str(path), moves=proposed.moves, price_s=round(proposed.price_s, 3),
            applies=applies, reason=proposed.reason,
        )  # fmt: skip
        if not proposed.moves:
            self._note(f"no move would help; {path} has the seconds as measured")
            return
        cost = f"{count(proposed.moves, 'move')} of {seconds(proposed.price_s)}"
        see = f"rlplan diff {self._out / GROUPS_COPY} {path}"
        if applies:
            self._note(f"re-planned, {cost}: {proposed.reason}; see {see}")
            try:
                write_request(self._out, MoveRequest(request_id, str(path.resolve()), sha256_file(path)))
            except RunFailed as error:
                self._note(str(error))
        else:
            self._note(f"a re-plan is proposed, {cost}; not applied: {proposed.reason}; see {see}, then rlplan apply")
