"""The permits of one co-execution group on the real clock: the permit machine, the running phases, and a journal.

Invariants:
- an event is on the disk before it is handled, and the machine decides by events and their times alone, so a reader of
  the journal gets the machine's state: no permit is lost, and none is given twice;
- a job's phases are numbered from its latest arrival on; even numbers are rollouts. A repeated message about a phase,
  or a message about an earlier arrival, changes nothing: a job may ask again when an answer was lost;
- a process that was reported as ended gets no further permit, even if a message of it arrives later;
- a job can join the group (`place_job`) and leave it (`remove_job`) while the others go on;
- a rollout that is paused for a more urgent phase keeps its number, and holds no units until the machine resumes it; it
  may also end while it is paused;
- a phase that gets units of a tail or of a paused rollout starts after that rollout has left them (`released`);
- time never goes back, even where two processes' clocks differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import (
    Arrive,
    Consolidate,
    Done,
    Event,
    Grow,
    Leave,
    Pause,
    PlacedJob,
    Retime,
    Start,
    TailReached,
    Wake,
    WakeAt,
)
from ...rounds.permits.permit_machine import PermitMachine
from ...traces.groups.group_journal import read_placed_job
from .journal_writer import JournalWriter, journal_header
from .member_state import HeldPhase, MemberState, executable


class LivePermits:
    """The permits of a group.

    Args:
        group: its id.
        permit_rule: of the permit machine.
        jobs: with which the group begins. Once each of them is ready or gone, those that are ready arrive at the
            machine together; jobs that join later arrive alone.
        journal: its file; an existing one is continued.
        clock: seconds, the same for all processes of a host.

    Raises RunFailed if the journal is of another group or damaged, or if the training of a job may be paused.
    """

    def __init__(
        self,
        group: str,
        permit_rule: str,
        jobs: Sequence[PlacedJob],
        journal: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.machine = PermitMachine(permit_rule)
        self.held: dict[str, HeldPhase] = {}
        self.wake_s: float | None = None
        """When to call `wake`; None: not before another event."""
        self._members = {placed.job: MemberState(executable(placed)) for placed in jobs}
        self._past: dict[str, MemberState] = {}  # jobs that left the group
        self._opened = False
        self._clock, self._last_s = clock, 0.0
        self._journal = JournalWriter(journal, journal_header(group, permit_rule, jobs), clock())
        self._journal.open(self._apply)

    # -- reports of jobs -----------------------------------------------------------------------------------------------

    def ready(self, job: str, process: str) -> int:
        """A process of a job is ready for its first rollout; phases of earlier processes are void. Returns the number
        of its arrival. Raises RunFailed if this process has ended."""
        if process in self._member(job).ended:
            raise RunFailed(f"{job}: its process {process} has ended")
        self._take("ready", job, process)
        return self._members[job].arrival

    def done(self, job: str, arrival: int, number: int) -> None:
        """A phase of a job is complete."""
        if self._runs(job, arrival, number) is not None:
            self._take("done", job)

    def tail(self, job: str, arrival: int, number: int) -> None:
        """A job's rollout has the planned share of its responses: the rest would fit on the units that it keeps."""
        member = self._runs(job, arrival, number)
        if member is None or number % 2 or not member.placed.keep or member.in_tail or not self.held[job].units:
            return
        self._take("tail", job)

    def released(self, job: str, arrival: int, number: int, since_s: float) -> None:
        """A job has left the units that were taken from its phase until `since_s` (`HeldPhase.since_s`): the phases
        that got these units may begin."""
        member = self._runs(job, arrival, number)
        if member is not None and member.to_release and since_s >= member.taken_s:
            self._take("cleared", job)

    def holding(self, job: str, arrival: int, number: int) -> HeldPhase | None:
        """A job's phase with its units of now; None: it does not run. Raises RunFailed as `granted` does."""
        granted, member = self.granted(job, arrival, number), self._runs(job, arrival, number)
        if member is None or granted or not self.held[job].units:
            return None if member is None else self.held[job]
        # It begins, or goes on, once other jobs have left its units.
        return None if member.paused_s is None else self.held[job]._replace(units=(), since_s=member.paused_s)

    def leave(self, job: str, process: str) -> None:
        """A process of a job has ended: its phase is void."""
        member = self._members.get(job)
        if member is not None and process not in member.ended:
            self._take("leave", job, process)

    def place_job(self, placed: PlacedJob) -> None:
        """A job joins the group, which waits until a process of it is ready; a job that is in it gets other seconds.
        Raises RunFailed if the job is in the group on other units; it must leave the group first."""
        member = self._members.get(executable(placed).job)
        if member is not None and member.placed.units != placed.units:
            raise RunFailed(f"{placed.job}: it has other units of the group")
        if member is None or member.placed != placed:
            self._take("seat", placed.job, seat=asdict(placed))

    def remove_job(self, job: str) -> None:
        """A job leaves the group."""
        if job in self._members:
            self._take("unseat", job)

    def wake(self) -> None:
        """`wake_s` has come."""
        if self.wake_s is not None and self.now_s() >= self.wake_s:
            self._take("wake")

    def granted(self, job: str, arrival: int, number: int) -> bool:
        """Whether a phase of a job may run. Raises RunFailed if the job arrived again after this arrival, or if it is
        in the group no more."""
        member = self._member(job)
        if arrival != member.arrival:
            raise RunFailed(f"{job}: another process has taken its place in the group")
        if not member.present or member.granted <= number:
            return False
        held = self.held.get(job)
        free = held is not None and held.units != () and self.unreleased.isdisjoint(held.units)
        return number < member.finished or free

    def must_release(self, job: str, arrival: int, number: int) -> bool:
        """Whether units were taken from the job's phase, and the job has not reported yet that it left them."""
        member = self._runs(job, arrival, number)
        return member is not None and bool(member.to_release)

    @property
    def arrivals(self) -> dict[str, int]:
        """By job: how often it arrived; the number is negative if its last process has ended."""
        return {job: -member.arrival if member.gone else member.arrival for job, member in self._members.items()}

    def now_s(self) -> float:
        """Seconds since the group began; never less than before."""
        return max(self._last_s, self._clock() - self._journal.began_s)

    # -- events --------------------------------------------------------------------------------------------------------

    def _member(self, job: str) -> MemberState:
        if job not in self._members:
            raise RunFailed(f"{job}: is in the group no more")
        return self._members[job]

    def _runs(self, job: str, arrival: int, number: int) -> MemberState | None:
        """The job, if this phase of it runs; else None."""
        member = self._members.get(job)
        if member is None or not member.present or (arrival, number) != (member.arrival, member.finished):
            return None
        return member if member.granted > number else None

    @property
    def unreleased(self) -> frozenset[int]:
        """Units that were taken from tails and paused rollouts, and that these have not left yet."""
        return frozenset().union(*(member.to_release for member in self._members.values()))

    def _take(self, event: str, job: str = "", process: str = "", seat: dict[str, Any] | None = None) -> None:
        now_s = self.now_s()
        fields = {key: value for key, value in (("job", job), ("process", process), ("seat", seat)) if value}
        self._journal.event(event, now_s, fields)
        self._apply(event, now_s, fields)

    def _apply(self, event: str, now_s: float, fields: dict[str, Any]) -> None:
        self._last_s = now_s
        job, process = fields.get("job", ""), fields.get("process", "")
        match event:
            case "wake":
                self._handle(Wake(), now_s)
            case "seat":
                self._placed(read_placed_job(fields["seat"]), now_s)
            case "unseat":
                self._void(self._members[job], now_s)
                self._past[job] = self._members.pop(job)
                self._open(now_s)
            case "cleared":
                self._released(self._members[job], now_s)
            case "tail":
                self._members[job].in_tail = True
                self._handle(TailReached(job), now_s)
            case "done":
                self._members[job].finished += 1
                self._end(self._members[job], now_s)
                self._handle(Done(job), now_s)
            case _:
                assert event in ("ready", "leave"), event
                member = self._members[job]
                self._void(member, now_s)
                if event == "ready":
                    member.arrival, member.gone = member.arrival + 1, False
                else:
                    member.gone = True
                    member.ended.add(process)
                self._arrive(member, now_s)

    def _placed(self, placed: PlacedJob, now_s: float) -> None:
        if placed.job not in self._members:  # its arrivals are counted on, so that late messages of it change nothing
            past = self._past.pop(placed.job, MemberState(placed))
            self._members[placed.job] = MemberState(placed, past.arrival, ended=past.ended)
        member = self._members[placed.job]
        member.placed = placed
        if member.present:
            self._handle(Retime(placed), now_s)

    def _arrive(self, member: MemberState, now_s: float) -> None:
        """Have a job that is ready arrive at the machine, or, before the group is open, all jobs once all are ready."""
        if not self._opened:
            self._open(now_s)
        elif not member.gone:
            self._begin([member], now_s)

    def _open(self, now_s: float) -> None:
        """Open the group once all jobs that are not gone are ready."""
        ready = [each for each in self._members.values() if not each.gone]
        if not self._opened and ready and all(each.arrival for each in ready):
            self._opened = True
            self._begin(ready, now_s)

    def _begin(self, ready: Sequence[MemberState], now_s: float) -> None:
        for each in ready:
            each.present, each.granted, each.finished = True, 0, 0
        self._handle(Arrive(tuple(each.placed for each in ready)), now_s)

    def _released(self, member: MemberState, now_s: float) -> None:
        """A job has left the units that were taken from its phase: phases that wait for them begin now."""
        for job, held in self.held.items():
            self.held[job] = held.released(member.placed.job, member.to_release, now_s)
        member.to_release = frozenset()

    def _end(self, member: MemberState, now_s: float) -> None:
        """The phase of a job has ended, if one ran."""
        self.held.pop(member.placed.job, None)
        self._released(member, now_s)
        member.in_tail, member.taken_s, member.paused_s = False, 0.0, None

    def _void(self, member: MemberState, now_s: float) -> None:
        self._end(member, now_s)
        if member.present:
            member.present = False
            self._handle(Leave(member.placed.job), now_s)

    def _handle(self, event: Event, now_s: float) -> None:
        actions = self.machine.handle(event, now_s)
        self.machine.check_invariants()
        self.wake_s = None
        begun: list[dict[str, Any]] = []
        moved: dict[str, tuple[int, ...]] = {}
        for action in actions:
            match action:
                case Start(job, phase, units, resident) if job not in self.held:
                    member = self._members[job]
                    self.held[job] = HeldPhase(job, member.granted, phase, now_s, units, resident, now_s, now_s)
                    begun.append(self.held[job].begun())
                    member.granted += 1
                case Start(job, _, units) | Consolidate(job, units) | Grow(job, units):
                    moved[job] = self._move(job, units, now_s)
                case Pause(job):
                    moved[job] = self._move(job, (), now_s)
                case WakeAt(at_s):
                    self.wake_s = at_s
        if begun or moved:
            decided = {"begun": begun, "waits_for": self.machine.waits_for}
            self._journal.decided(now_s, decided | ({"moved": moved} if moved else {}))

    def _move(self, job: str, units: tuple[int, ...], now_s: float) -> tuple[int, ...]:
        self.held[job] = self._members[job].moved(self.held[job], units, now_s)
        return units

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
