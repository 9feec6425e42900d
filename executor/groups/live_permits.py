"""The permits of one co-execution group on the real clock: the permit machine, whose turn is whose, and a journal.

Invariants:
- an event is on the disk before it is handled, and the machine decides by events and their times alone: whoever reads
  the journal stands where it was written, so that no turn is lost and none is given twice;
- a job's turns are numbered from its latest arrival on, even ones are rollouts. What is said twice of a turn, or of an
  arrival that another one followed, changes nothing: a job may ask again where an answer was lost;
- time never goes back, whatever the clock does between two processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import Action, Arrive, Done, Event, Leave, Seat, Start, Wake, WakeAt
from ...rounds.permits.permit_machine import PermitMachine
from ...traces.trace import TraceError, TraceWriter, read_trace


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
        self._opened = False
        self._clock = clock
        header = {"group": group, "rule": permit_rule, "seats": [asdict(seat) for seat in seats]}
        self._last_s = 0.0
        self._began_s = clock()
        self._writer: TraceWriter | None = None  # none while the journal is read
        restored = self._restore(journal, json.loads(json.dumps(header)))
        self._writer = TraceWriter(journal)
        if not restored:
            self._write("group", 0.0, {"began_s": self._began_s, **header})

    # -- what jobs say -------------------------------------------------------------------------------------------------

    def ready(self, job: str) -> int:
        """A job is ready for its first rollout; what it had before is void. Returns the number of its arrival."""
        self._take("ready", job)
        return self._members[job].arrival

    def done(self, job: str, arrival: int, turn: int) -> None:
        """A turn of a job is over."""
        member = self._members[job]
        if (arrival, turn) == (member.arrival, member.over) and member.given > turn:
            self._take("done", job)

    def leave(self, job: str) -> None:
        """A job has ended, or its driver died: its turn is void."""
        member = self._members[job]
        if member.there or not member.gone:
            self._take("leave", job)

    def wake(self) -> None:
        """`wake_s` has come."""
        if self.wake_s is not None and self.now_s() >= self.wake_s:
            self._take("wake")

    def given(self, job: str, arrival: int, turn: int) -> bool:
        """Whether a turn of a job may run. Raises RunFailed if another arrival of the job followed this one."""
        member = self._members[job]
        if arrival != member.arrival:
            raise RunFailed(f"{job}: another process has taken its place in the group")
        return member.given > turn

    def now_s(self) -> float:
        """Seconds since the group began; never less than before."""
        return max(self._last_s, self._clock() - self._began_s)

    # -- events --------------------------------------------------------------------------------------------------------

    def _take(self, event: str, job: str = "") -> None:
        now_s = round(self.now_s(), 6)
        self._write(event, now_s, {"job": job} if job else {})
        self._apply(event, job, now_s)

    def _apply(self, event: str, job: str, now_s: float) -> None:
        self._last_s = now_s
        if event == "wake":
            self._handle(Wake(), now_s)
            return
        member = self._members[job]
        if event == "done":
            member.over += 1
            self.held.pop(job)
            self._handle(Done(job), now_s)
            return
        assert event in ("ready", "leave"), event
        self._void(member, now_s)
        member.arrival += event == "ready"
        member.gone = event == "leave"
        self._arrive(member, now_s)

    def _arrive(self, member: _Member, now_s: float) -> None:
        """Have a job arrive at the machine that is ready; before the group is open, all once nobody is missing."""
        ready = [] if member.gone else [member]
        if not self._opened:
            ready = [each for each in self._members.values() if not each.gone]
            self._opened = bool(ready) and all(each.arrival for each in ready)
        if not self._opened or not ready:
            return
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
        if {key: events[0].get(key) for key in header} != header:
            raise RunFailed(f"{journal}: is of another group, or of other seats; choose another --out")
        self._began_s = float(events[0]["began_s"])
        for event in events[1:]:
            if event["event"] != "turns":  # these follow from the others
                self._apply(event["event"], event.get("job", ""), float(event["t_s"]))
        return True

    def close(self) -> None:
        """Close the journal."""
        if self._writer is not None:
            self._writer.close()
