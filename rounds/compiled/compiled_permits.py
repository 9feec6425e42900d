"""The permit machine, compiled: each function repeats the function of rounds/permits/permit_machine.py that it names.

It handles groups in which no job comes or leaves and no unit is lost.
"""

from __future__ import annotations

import math

from ..permits.permit_rules import CREDIT, PATIENCE
from .compiled_permit_rules import FIRST_COME, MULTI_RATE, ROUND_ROBIN, its_turn, multi_rate_may_start, pauses
from .compiled_permit_state import (
    PermitState,
    SeatArrays,
    available,
    clear,
    copy,
    count,
    expected_end_s,
    hold,
    kept,
    meet,
    resident,
)
from .numba_options import compiled


@compiled
def stop(S: PermitState, j: int) -> None:
    """`PermitMachine._stop`."""
    S.running[j] = False
    S.tail[j] = False
    clear(S.held[j])
    S.places[0] += 1
    S.place[j] = S.places[0]
    S.tail_at_s[j] = math.inf


@compiled
def pause(P: SeatArrays, S: PermitState, j: int, now: float) -> None:
    """`PermitMachine._pause`."""
    units = P.units[j, S.phase[j]]
    for k in range(len(S.phase)):
        if S.running[k] and meet(S.held[k], units):
            S.rest_s[k] = max(0.0, S.due_s[k] - now) + P.resume_s[k, S.phase[k]]
            S.begun[k] -= 1
            S.left_s[k] = (S.ends_s[k] - now) * S.rate[k] + P.resume_s[k, S.phase[k]]
            S.ends_s[k] = math.inf
            stop(S, k)


@compiled
def start(P: SeatArrays, S: PermitState, j: int, now: float) -> None:
    """`PermitMachine._start`, on the units in `S.free`."""
    units = S.free
    mine = P.units[j, S.phase[j]]
    for k in range(len(S.phase)):
        if S.running[k] and meet(S.held[k], units):
            kept(P, S, k, S.held[k])
    S.due_s[j] = expected_end_s(P, S, j, units, now)
    if not resident(S, j, units):
        S.left_s[j] += P.switch_s[j, S.phase[j]]
    hold(S, j, units)
    S.running[j] = True
    copy(units, S.held[j])
    S.share[j] = count(units) / count(mine)
    S.begun[j] += 1
    for k in range(len(S.phase)):
        if not S.running[k] and meet(P.units[k, S.phase[k]], units):
            S.overtaken[k] += 1


@compiled
def grow(P: SeatArrays, S: PermitState, now: float) -> None:
    """`PermitMachine._grow`."""
    jobs = len(S.phase)
    for j in range(jobs):
        if not S.running[j] or S.tail[j]:
            continue
        units, more = P.units[j, S.phase[j]], S.scratch
        for w in range(len(units)):
            busy = S.held[j, w]
            for k in range(jobs):
                busy |= S.held[k, w]
            more[w] = units[w] & ~busy
        if meet(more, more):
            before = count(S.held[j])
            after = before + count(more)
            S.due_s[j] = now + (S.due_s[j] - now) * before / after
            for w in range(len(units)):
                S.held[j, w] |= more[w]
            S.share[j] = after / count(units)
            hold(S, j, more)


@compiled
def consider_all(P: SeatArrays, S: PermitState, rule: int, now: float) -> tuple[float, bool]:
    """`PermitMachine._consider_all`: the same, and whether anybody was paused."""
    paused = False
    jobs = len(S.phase)
    for j in range(jobs):
        S.refused[j] = False
        S.waiting[j] = not S.running[j]
        if rule == ROUND_ROBIN:
            S.key_s[j] = S.begun[j]
        elif rule == FIRST_COME:
            S.key_s[j] = S.place[j]
        else:
            S.urgent[j] = 0 if S.overtaken[j] >= PATIENCE else 1
            S.key_s[j] = S.deadline_s[j] if S.urgent[j] else S.place[j]
    wake = math.inf
    while True:
        j = -1
        for k in range(jobs):
            if S.waiting[k] and (
                j < 0 or S.urgent[k] < S.urgent[j] or (S.urgent[k] == S.urgent[j] and S.key_s[k] < S.key_s[j])
            ):
                j = k
        if j < 0:
            return wake, paused
        S.waiting[j] = False
        may = available(P, S, j)
        if not may:
            if rule == MULTI_RATE and pauses(P, S, j, now):
                pause(P, S, j, now)
                paused = True
                may = True
                copy(P.units[j, S.phase[j]], S.free)
        elif rule == ROUND_ROBIN:
            may = its_turn(P, S, j)
        elif rule == FIRST_COME:
            for k in range(jobs):
                if S.refused[k] and meet(P.units[k, S.phase[k]], P.units[j, S.phase[j]]):
                    may = False
        else:
            until = multi_rate_may_start(P, S, j, S.free, now)
            if until > -math.inf:
                wake = min(wake, until)
                may = False
        if may:
            start(P, S, j, now)
        else:
            S.refused[j] = True


@compiled
def grant(P: SeatArrays, S: PermitState, rule: int, now: float) -> float:
    """`PermitMachine._grant`: when to ask again if nothing happens before."""
    while True:
        wake, paused = consider_all(P, S, rule, now)
        if not paused:
            return wake


@compiled
def done(P: SeatArrays, S: PermitState, j: int, now: float) -> None:
    """`PermitMachine._done`."""
    stop(S, j)
    S.overtaken[j] = 0
    S.phase[j] = 1 - S.phase[j]
    S.rest_s[j] = P.expected_s[j, S.phase[j]]
    if S.phase[j] == 0:
        credit = CREDIT * P.pace_s[j]
        S.deadline_s[j] = max(min(S.deadline_s[j], now + credit), now - credit) + P.pace_s[j]


@compiled
def arrive(P: SeatArrays, S: PermitState, j: int) -> None:
    """`PermitMachine._arrive` at time 0."""
    S.phase[j] = 0
    S.running[j] = False
    S.tail[j] = False
    clear(S.held[j])
    S.place[j] = j
    S.deadline_s[j] = P.pace_s[j]
    S.rest_s[j] = P.expected_s[j, 0]
    S.due_s[j] = 0.0
    S.overtaken[j] = 0
    S.begun[j] = 0
    S.urgent[j] = 0
