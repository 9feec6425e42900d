"""A job whose devices are a clock, and what the permit machine decided, as the simulator and as a journal have it."""

import math
from pathlib import Path
from typing import NamedTuple

from rlplan.executor.groups.member_state import HeldTurn
from rlplan.rounds.permits.permit_events import Action, Consolidate, Event, Grow, Pause, Seat, Start
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.traces.trace import read_trace


class FakeTurn:
    """A turn that runs: when it ends, and when its tail begins, as the simulator reckons it."""

    def __init__(self, seat: Seat, seconds: float, tail_share: float, held: HeldTurn) -> None:
        self.held, self._seat, self._tail_share_s = held, seat, seconds * tail_share
        self._units = len(seat.units[held.turn % 2])
        self._left_s = seconds
        self._begin(held, held.begun_s, held.resident)

    def _begin(self, held: HeldTurn, at_s: float, resident: bool) -> None:
        self._left_s += 0.0 if resident else self._seat.switch_s[held.turn % 2]
        self._rate = len(held.units) / self._units
        self.ends_s = at_s + self._left_s / self._rate
        self.tail_s = math.inf
        if held.phase == "rollout" and self._seat.keep > 0 and 0 < self._tail_share_s < self._left_s:
            self.tail_s = at_s + (self._left_s - self._tail_share_s) / self._rate

    @property
    def due_s(self) -> float:
        """When its job has something to say."""
        return min(self.ends_s, self.tail_s)

    def move(self, held: HeldTurn) -> bool:
        """It has other units; returns whether it left some. Only those that are added change its pace."""
        left = len(held.units) < len(self.held.units)
        rate, now_s = len(held.units) / self._units, held.since_s
        if not held.units:
            self._left_s = (self.ends_s - now_s) * self._rate + (self._seat.resume_s[held.turn % 2] or 0.0)
            self.ends_s = self.tail_s = math.inf
        elif not self.held.units:
            self._begin(held, now_s, resident=False)
        elif not left and rate != self._rate:
            self.ends_s = now_s + (self.ends_s - now_s) * self._rate / rate
            self.tail_s = now_s + (self.tail_s - now_s) * self._rate / rate
            self._rate = rate
        self.held = held
        return left


class Decided(NamedTuple):
    """What was decided on one event: when, the units that turns have from then on where these changed (none: it was
    paused), and the turns that began, as (job, phase, units, resident)."""

    at_s: float
    moved: dict[str, tuple[int, ...]]
    begun: tuple[tuple[str, str, tuple[int, ...], bool], ...]


class RecordedMachine(PermitMachine):
    """A permit machine that keeps what it decided."""

    def __init__(self, permit_rule: str) -> None:
        super().__init__(permit_rule)
        self.decided: list[Decided] = []
        self._paused: set[str] = set()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As the machine does."""
        actions = super().handle(event, now_s)
        moved, begun = {}, []
        for action in actions:
            match action:
                case Start(job, phase, units, resident) if job not in self._paused:
                    begun.append((job, phase, units, resident))
                case Start(job, _, units) | Consolidate(job, units) | Grow(job, units):
                    moved[job] = units
                    self._paused.discard(job)
                case Pause(job):
                    moved[job] = ()
                    self._paused.add(job)
        if moved or begun:
            self.decided.append(Decided(now_s, moved, tuple(begun)))
        return actions


def journalled(journal: Path, until_s: float) -> list[Decided]:
    """What the actor decided before a second, as its journal has it."""
    found = []
    for event in read_trace(journal):
        if event["event"] == "turns" and event["t_s"] < until_s:
            moved = {job: tuple(units) for job, units in event.get("moved", {}).items()}
            begun = ((turn["job"], turn["phase"], tuple(turn["units"]), turn["resident"]) for turn in event["begun"])
            found.append(Decided(event["t_s"], moved, tuple(begun)))
    return found
