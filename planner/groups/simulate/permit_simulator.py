"""The permit machine on a virtual clock, turn by turn: the reference of the compiled one, and the source of timelines.

The clock is that of rounds/compiled/permit_kernel.py: a switch is paid where another job had a unit last, turns of
several jobs slow each other by the interference, and a rollout on a part of its units proceeds at that part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....rounds.permits.permit_events import (
    PHASES,
    Arrive,
    Consolidate,
    Done,
    Event,
    Grow,
    Pause,
    PhaseName,
    Seat,
    Start,
    Tail,
    Wake,
    WakeAt,
)
from ....rounds.permits.permit_machine import PermitMachine


@dataclass(frozen=True)
class TrueTurns:
    """True seconds of a job's turns."""

    draws_s: tuple[tuple[float, float], ...]
    """(rollout, train) seconds without switches, one pair an iteration, used cyclically."""
    tail_share: float = 0.0
    """Share of a rollout's seconds after its tail is reached."""


@dataclass(frozen=True)
class Span:
    """A stretch of a turn on the same units."""

    start_s: float
    end_s: float
    job: str
    phase: PhaseName
    units: tuple[int, ...]
    switched: bool
    """Whether it began with a warm switch."""
    ends_phase: bool
    """Whether the phase is complete with it; else it was paused, consolidated or grew."""


@dataclass(eq=False)
class _Clock:
    """The true times of one job."""

    seat: Seat
    truth: TrueTurns
    done: int = 0
    phase: int = 0
    left_s: float = 0.0
    ends_s: float = math.inf
    tail_at_s: float = math.inf
    share: float = 1.0
    rate: float = 1.0
    running: bool = False
    units: tuple[int, ...] = ()
    span_s: float = 0.0
    switched: bool = False

    def seconds(self) -> float:
        return self.truth.draws_s[self.done % len(self.truth.draws_s)][self.phase]

    def span(self, now_s: float, ends_phase: bool) -> Span:
        """The span since the last span of the turn."""
        span = Span(self.span_s, now_s, self.seat.job, PHASES[self.phase], self.units, self.switched, ends_phase)
        self.span_s, self.switched = now_s, False
        return span

    def set_rate(self, rate: float, now_s: float) -> None:
        if self.ends_s == math.inf:
            self.ends_s = now_s + self.left_s / rate
            tail_s = self.seconds() * self.truth.tail_share
            if self.phase == 0 and self.seat.keep > 0 and 0 < tail_s < self.left_s:
                self.tail_at_s = now_s + (self.left_s - tail_s) / rate
        elif rate != self.rate:
            self.ends_s = now_s + (self.ends_s - now_s) * self.rate / rate
            self.tail_at_s = now_s + (self.tail_at_s - now_s) * self.rate / rate
        self.rate = rate


def simulate_turns(
    machine: PermitMachine,
    seats: Sequence[Seat],
    truths: Sequence[TrueTurns],
    interference: float = 0.0,
    check: bool = False,
) -> Iterator[Span]:
    """Spans of turns in the order of their ends, for ever; all jobs arrive at time 0.

    `check`: check the machine's invariants after each event.
    """
    clocks = {seat.job: _Clock(seat, truth) for seat, truth in zip(seats, truths, strict=True)}
    for clock in clocks.values():
        clock.left_s = clock.seconds()
    now_s = 0.0
    event: Event = Arrive(tuple(seats))
    while True:
        wake_s = math.inf
        for action in machine.handle(event, now_s):
            if isinstance(action, WakeAt):
                wake_s = action.at_s
                continue
            clock = clocks[action.job]
            if isinstance(action, Start):
                clock.running, clock.span_s, clock.switched = True, now_s, not action.resident
                clock.left_s += 0.0 if action.resident else clock.seat.switch_s[clock.phase]
            else:
                if now_s > clock.span_s:
                    yield clock.span(now_s, False)
                if isinstance(action, Pause):
                    clock.left_s = (clock.ends_s - now_s) * clock.rate + (clock.seat.resume_s[clock.phase] or 0.0)
                    clock.running, clock.ends_s, clock.tail_at_s = False, math.inf, math.inf
            if isinstance(action, Start | Grow):
                clock.share = len(action.units) / len(clock.seat.units[clock.phase])
                clock.units = action.units
            elif isinstance(action, Consolidate):
                clock.units = action.keep
        if check:
            machine.check_invariants()
        running = [clock for clock in clocks.values() if clock.running]
        base = 1.0 / (1.0 + interference) if len(running) > 1 else 1.0
        for clock in running:
            clock.set_rate(base * clock.share, now_s)
        first = min(running, key=lambda clock: min(clock.ends_s, clock.tail_at_s))
        at_s = min(first.ends_s, first.tail_at_s)
        if wake_s < at_s:
            now_s, event = wake_s, Wake()
        elif first.tail_at_s <= first.ends_s:
            now_s, event = at_s, Tail(first.seat.job)
            first.tail_at_s = math.inf
        else:
            now_s, event = at_s, Done(first.seat.job)
            yield first.span(now_s, True)
            first.running, first.ends_s, first.tail_at_s = False, math.inf, math.inf
            first.done += first.phase
            first.phase = 1 - first.phase
            first.left_s = first.seconds()
