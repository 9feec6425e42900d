"""The permits of one co-execution group on the real clock: the permit machine, whose turn is whose, and a journal.

Invariants:
- an event is on the disk before it is handled, and the machine decides by events and their times alone: whoever reads
  the journal stands where it was written, so that no turn is lost and none is given twice;
- a job's turns are numbered from its latest arrival on, even ones are rollouts. What is said twice of a turn, or of an
  arrival that another one followed, changes nothing: a job may ask again where an answer was lost;
- a process of a job that was said to have ended gets no turn any more, whatever of it is heard later;
- jobs take seats and give them up while the others go on (`take_seat`, `give_up`);
- time never goes back, whatever the clock does between two processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import Action, Arrive, Done, Event, Leave, Reseat, Seat, Start, Wake, WakeAt
from ...rounds.permits.permit_machine import PermitMachine
from ...traces.trace import TraceError, TraceWriter, read_trace
from .turn_journal import OTHER_GROUP, is_of, journal_header, read_seat


class Held(NamedTuple):
    """A turn that runs: its job, number and phase, the second in which it began, its units, and whether the job had all
    of them last."""

    job: str
    turn: int
    phase: str
    begun_s: float
    units: tuple[int, ...]
    resident: bool


@dataclass(slots=True)
class _Member:
    """A job: how often it arrived, and of its latest arrival the turns that were given and are over."""

    seat: Seat
    arrival: int = 0
    given: int = 0
    over: int = 0
    there: bool = False
    gone: bool = False
    ended: set[str] = field(default_factory=set)
    """Names of its processes that have ended."""


class LivePermits:
    """The permits of a group.

    Args:
        group: its id.
        permit_rule: of the permit machine.
        seats: of the jobs that the group begins with. Once each of them is ready or gone, those that are ready arrive
            at the machine together; who comes later arrives alone.
        journal: its file; if there is one, it is gone on with.
        clock: seconds, the same for all processes of a host.

    Raises RunFailed if the journal is of another group or damaged.
    """

    def __init__(
        self,
        group: str,
        permit_rule: str,
        seats: Sequence[Seat],
        journal: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.machine = PermitMachine(permit_rule)
        self.held: dict[str, Held] = {}
        self.wake_s: float | None = None
        """When to call `wake`; None: not before another event."""
        self._members = {seat.job: _Member(seat) for seat in seats}
        self._past: dict[str, _Member] = {}  # that gave their seats up
        self._opened = False
        self._clock = clock
        header = journal_header(group, permit_rule, seats)
        self._last_s = 0.0
        self._began_s = clock()
        self._writer: TraceWriter | None = None  # none while the journal is read
        restored = self._restore(journal, header)
        self._writer = TraceWriter(journal)
        if not restored:
            self._write("group", 0.0, {"began_s": self._began_s, **header})

    # -- what jobs say -------------------------------------------------------------------------------------------------

    def ready(self, job: str, process: str) -> int:
        """A process of a job is ready for its first rollout; what the job had before is void. Returns the number of its
        arrival. Raises RunFailed if this process has ended."""
        if process in self._member(job).ended:
            raise RunFailed(f"{job}: its process {process} has ended")
        self._take("ready", job, process)
        return self._members[job].arrival

    def done(self, job: str, arrival: int, turn: int) -> None:
        """A turn of a job is over."""
        member = self._members.get(job)
        if member is None or not member.there or (arrival, turn) != (member.arrival, member.over):
            return
        if member.given > turn:
            self._take("done", job)

    def leave(self, job: str, process: str) -> None:
        """A process of a job has ended: its turn is void."""
        member = self._members.get(job)
        if member is not None and process not in member.ended:
            self._take("leave", job, process)

    def take_seat(self, seat: Seat) -> None:
        """A job gets a seat in the group, and is waited for until its process is ready; one that has this seat already
        gets its seconds. Raises RunFailed if a job of this name has other units, which it must give up first."""
        member = self._members.get(seat.job)
        if member is not None and member.seat.units != seat.units:
            raise RunFailed(f"{seat.job}: it has other units of the group")
        if member is None or member.seat != seat:
            self._take("seat", seat.job, seat=asdict(seat))

    def give_up(self, job: str) -> None:
        """A job gives its seat up: it is in the group no more."""
        if job in self._members:
            self._take("unseat", job)

    def wake(self) -> None:
        """`wake_s` has come."""
        if self.wake_s is not None and self.now_s() >= self.wake_s:
            self._take("wake")

    def given(self, job: str, arrival: int, turn: int) -> bool:
        """Whether a turn of a job may run. Raises RunFailed if another arrival of the job followed this one, or if the
        job is in the group no more."""
        member = self._member(job)
        if arrival != member.arrival:
            raise RunFailed(f"{job}: another process has taken its place in the group")
        return member.there and member.given > turn

    @property
    def arrivals(self) -> dict[str, int]:
        """By job how often it arrived; those that are gone have a negative number."""
        return {job: -member.arrival if member.gone else member.arrival for job, member in self._members.items()}

    def now_s(self) -> float:
        """Seconds since the group began; never less than before."""
        return max(self._last_s, self._clock() - self._began_s)

    # -- events --------------------------------------------------------------------------------------------------------

    def _member(self, job: str) -> _Member:
        if job not in self._members:
            raise RunFailed(f"{job}: is in the group no more")
        return self._members[job]

    def _take(self, event: str, job: str = "", process: str = "", seat: dict[str, Any] | None = None) -> None:
        now_s = round(self.now_s(), 6)
        told = {"job": job, "process": process, "seat": seat}
        fields = {key: value for key, value in told.items() if value}
        self._write(event, now_s, fields)
        self._apply(event, now_s, fields)

    def _apply(self, event: str, now_s: float, fields: dict[str, Any]) -> None:
        self._last_s = now_s
        if event == "wake":
            self._handle(Wake(), now_s)
            return
        job, process = fields["job"], fields.get("process", "")
        if event == "seat":
            self._seat(read_seat(fields["seat"]), now_s)
            return
        member = self._members[job]
        if event == "unseat":
            self._void(member, now_s)
            self._past[job] = self._members.pop(job)
            self._open(now_s)
            return
        if event == "done":
            member.over += 1
            self.held.pop(job)
            self._handle(Done(job), now_s)
            return
        assert event in ("ready", "leave"), event
        self._void(member, now_s)
        if event == "ready":
            member.arrival, member.gone = member.arrival + 1, False
        else:
            member.gone = True
            member.ended.add(process)
        self._arrive(member, now_s)

    def _seat(self, seat: Seat, now_s: float) -> None:
        if seat.job not in self._members:  # its arrivals are numbered on, so that late words of it mean nothing
            past = self._past.pop(seat.job, None)
            self._members[seat.job] = _Member(seat) if past is None else _Member(seat, past.arrival, ended=past.ended)
        member = self._members[seat.job]
        member.seat = seat
        if member.there:
            self._handle(Reseat(seat), now_s)

    def _arrive(self, member: _Member, now_s: float) -> None:
        """Have a job arrive at the machine that is ready; before the group is open, all once nobody is missing."""
        if not self._opened:
            self._open(now_s)
        elif not member.gone:
            self._begin([member], now_s)

    def _open(self, now_s: float) -> None:
        """Open the group once nobody of it is missing."""
        ready = [each for each in self._members.values() if not each.gone]
        if not self._opened and ready and all(each.arrival for each in ready):
            self._opened = True
            self._begin(ready, now_s)

    def _begin(self, ready: Sequence[_Member], now_s: float) -> None:
        for each in ready:
            each.there, each.given, each.over = True, 0, 0
        self._handle(Arrive(tuple(each.seat for each in ready)), now_s)

    def _void(self, member: _Member, now_s: float) -> None:
        self.held.pop(member.seat.job, None)
        if member.there:
            member.there = False
            self._handle(Leave(member.seat.job), now_s)

    def _handle(self, event: Event, now_s: float) -> None:
        actions = self.machine.handle(event, now_s)
        self.machine.check_invariants()
        self.wake_s = None
        for action in actions:
            self._carry_out(action, now_s)
        begun = [self.held[action.job]._asdict() for action in actions if isinstance(action, Start)]
        if begun and self._writer is not None:
            self._write("turns", now_s, {"begun": begun, "waits_for": self.machine.waits_for})

    def _carry_out(self, action: Action, now_s: float) -> None:
        match action:
            case Start(job, phase, units, resident):
                member = self._members[job]
                self.held[job] = Held(job, member.given, phase, now_s, units, resident)
                member.given += 1
            case WakeAt(at_s):
                self.wake_s = at_s
            case _:
                raise AssertionError(f"seats of jobs that are executed allow no {type(action).__name__}")

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _write(self, event: str, now_s: float, fields: dict[str, Any]) -> None:
        assert self._writer is not None
        try:
            self._writer.write(event, now_s, **fields)
            self._writer.flush()
        except OSError as error:
            raise RunFailed(f"the journal of turns cannot be written ({error.strerror}); make room") from error

    def _restore(self, journal: Path, header: dict[str, Any]) -> bool:
        """Take all events of a journal; returns whether there were any."""
        try:
            events = list(read_trace(journal)) if journal.is_file() else []
        except TraceError as error:
            raise RunFailed(f"{error}; choose another --out") from None
        if not events:
            return False
        if not is_of(events[0], header):
            raise RunFailed(f"{journal}: {OTHER_GROUP}")
        self._began_s = float(events[0]["began_s"])
        for event in events[1:]:
            if event["event"] != "turns":  # these follow from the others
                self._apply(event["event"], float(event["t_s"]), event)
        return True

    def close(self) -> None:
        """Close the journal."""
        if self._writer is not None:
            self._writer.close()
