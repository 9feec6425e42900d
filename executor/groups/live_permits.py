"""The permits of one co-execution group on the real clock: the permit machine, whose turn is whose, and a journal.

Invariants:
- an event is on the disk before it is handled, and the machine decides by events and their times alone, so a reader of
  the journal gets the machine's state: no turn is lost, and none is given twice;
- a job's turns are numbered from its latest arrival on; even numbers are rollouts. A repeated message about a turn, or
  about an earlier arrival, changes nothing: a job may ask again when an answer was lost;
- a process that was reported as ended gets no further turn, even if a message of it arrives later;
- a job can join the group (`take_seat`) and leave it (`give_up`) while the others go on;
- a rollout that is paused for a more urgent turn keeps its turn and number, and holds no units until the machine
  resumes it; if it ends while paused, its turn has ended;
- a turn that needs units of a tail or of a paused rollout starts after these are released (`cleared`);
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
    Reseat,
    Seat,
    Start,
    TailReached,
    Wake,
    WakeAt,
)
from ...rounds.permits.permit_machine import PermitMachine
from ...traces.groups.group_turns import read_seat
from .member_state import HeldTurn, MemberState, executable
from .turn_journal import TurnJournal, journal_header


class LivePermits:
    """The permits of a group.

    Args:
        group: its id.
        permit_rule: of the permit machine.
        seats: of the jobs that the group begins with. Once each of them is ready or gone, those that are ready arrive
            at the machine together; who comes later arrives alone.
        journal: its file; if there is one, it is gone on with.
        clock: seconds, the same for all processes of a host.

    Raises RunFailed if the journal is of another group or damaged, or if a seat's training could be paused, which no
    job that is executed can.
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
        self.held: dict[str, HeldTurn] = {}
        self.wake_s: float | None = None
        """When to call `wake`; None: not before another event."""
        self._members = {seat.job: MemberState(executable(seat)) for seat in seats}
        self._past: dict[str, MemberState] = {}  # that gave their seats up
        self._opened = False
        self._clock, self._last_s = clock, 0.0
        self._journal = TurnJournal(journal, journal_header(group, permit_rule, seats), clock())
        self._journal.open(self._apply)

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
        if self._runs(job, arrival, turn) is not None:
            self._take("done", job)

    def tail(self, job: str, arrival: int, turn: int) -> None:
        """A job's rollout has the planned share of its responses: the rest would fit on the units that it keeps."""
        member = self._runs(job, arrival, turn)
        if member is not None and turn % 2 == 0 and member.seat.keep and not member.in_tail and self.held[job].units:
            self._take("tail", job)

    def cleared(self, job: str, arrival: int, turn: int, since_s: float) -> None:
        """A job has left the units that were taken from its turn until `since_s` (`HeldTurn.since_s`): the turns that
        got these units may begin."""
        member = self._runs(job, arrival, turn)
        if member is not None and member.to_clear and since_s >= member.taken_s:
            self._take("cleared", job)

    def holding(self, job: str, arrival: int, turn: int) -> HeldTurn | None:
        """A job's turn with the units that it has now; None: it does not run. Raises RunFailed as `given` does."""
        given, member = self.given(job, arrival, turn), self._runs(job, arrival, turn)
        if member is None or given or not self.held[job].units:
            return None if member is None else self.held[job]
        # It begins, or goes on, once others have left what it was given.
        return None if member.paused_s is None else self.held[job]._replace(units=(), since_s=member.paused_s)

    def leave(self, job: str, process: str) -> None:
        """A process of a job has ended: its turn is void."""
        member = self._members.get(job)
        if member is not None and process not in member.ended:
            self._take("leave", job, process)

    def take_seat(self, seat: Seat) -> None:
        """A job gets a seat in the group, and is waited for until its process is ready; one that has this seat already
        gets its seconds. Raises RunFailed if a job of this name has other units, which it must give up first."""
        member = self._members.get(executable(seat).job)
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
        if not member.there or member.given <= turn:
            return False
        held = self.held.get(job)
        return turn < member.over or (held is not None and held.units != () and self.uncleared.isdisjoint(held.units))

    def is_to_clear(self, job: str, arrival: int, turn: int) -> bool:
        """Whether units were taken from a turn of a job that it has not said to have left."""
        member = self._runs(job, arrival, turn)
        return member is not None and bool(member.to_clear)

    @property
    def arrivals(self) -> dict[str, int]:
        """By job how often it arrived; those that are gone have a negative number."""
        return {job: -member.arrival if member.gone else member.arrival for job, member in self._members.items()}

    def now_s(self) -> float:
        """Seconds since the group began; never less than before."""
        return max(self._last_s, self._clock() - self._journal.began_s)

    # -- events --------------------------------------------------------------------------------------------------------

    def _member(self, job: str) -> MemberState:
        if job not in self._members:
            raise RunFailed(f"{job}: is in the group no more")
        return self._members[job]

    def _runs(self, job: str, arrival: int, turn: int) -> MemberState | None:
        """A job, if this turn of it runs."""
        member = self._members.get(job)
        if member is None or not member.there or (arrival, turn) != (member.arrival, member.over):
            return None
        return member if member.given > turn else None

    @property
    def uncleared(self) -> frozenset[int]:
        """Units that were given away and that tails and paused rollouts are still to leave."""
        return frozenset().union(*(member.to_clear for member in self._members.values()))

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
                self._seat(read_seat(fields["seat"]), now_s)
            case "unseat":
                self._void(self._members[job], now_s)
                self._past[job] = self._members.pop(job)
                self._open(now_s)
            case "cleared":
                self._clear(self._members[job], now_s)
            case "tail":
                self._members[job].in_tail = True
                self._handle(TailReached(job), now_s)
            case "done":
                self._members[job].over += 1
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

    def _seat(self, seat: Seat, now_s: float) -> None:
        if seat.job not in self._members:  # its arrivals are numbered on, so that late words of it mean nothing
            past = self._past.pop(seat.job, None)
            self._members[seat.job] = (
                MemberState(seat) if past is None else MemberState(seat, past.arrival, ended=past.ended)
            )
        member = self._members[seat.job]
        member.seat = seat
        if member.there:
            self._handle(Reseat(seat), now_s)

    def _arrive(self, member: MemberState, now_s: float) -> None:
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

    def _begin(self, ready: Sequence[MemberState], now_s: float) -> None:
        for each in ready:
            each.there, each.given, each.over = True, 0, 0
        self._handle(Arrive(tuple(each.seat for each in ready)), now_s)

    def _clear(self, member: MemberState, now_s: float) -> None:
        """A job has left what was taken from its turn: whoever was given that begins now."""
        for job, held in self.held.items():
            self.held[job] = held.cleared(member.seat.job, member.to_clear, now_s)
        member.to_clear = frozenset()

    def _end(self, member: MemberState, now_s: float) -> None:
        """A turn of a job has ended, if one ran."""
        self.held.pop(member.seat.job, None)
        self._clear(member, now_s)
        member.in_tail, member.taken_s, member.paused_s = False, 0.0, None

    def _void(self, member: MemberState, now_s: float) -> None:
        self._end(member, now_s)
        if member.there:
            member.there = False
            self._handle(Leave(member.seat.job), now_s)

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
                    self.held[job] = HeldTurn(job, member.given, phase, now_s, units, resident, now_s, now_s)
                    begun.append(self.held[job].begun())
                    member.given += 1
                case Start(job, _, units) | Consolidate(job, units) | Grow(job, units):
                    moved[job] = self._move(job, units, now_s)
                case Pause(job):
                    moved[job] = self._move(job, (), now_s)
                case WakeAt(at_s):
                    self.wake_s = at_s
        if begun or moved:
            decided = {"begun": begun, "waits_for": self.machine.waits_for}
            self._journal.turns(now_s, decided | ({"moved": moved} if moved else {}))

    def _move(self, job: str, units: tuple[int, ...], now_s: float) -> tuple[int, ...]:
        self.held[job] = self._members[job].moved(self.held[job], units, now_s)
        return units

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
