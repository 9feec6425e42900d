"""The permit machine of rounds/permit.py, compiled: each function repeats the one of the same name there.

The twin knows groups in which nobody comes, leaves or is lost.
"""

from __future__ import annotations

import math

import numpy as np

from ...rounds.permit_policies import CREDIT, PATIENCE
from ..twin.compiled import compiled
from .twin_policies import FIRST_COME, MULTI_RATE, ROUND_ROBIN, its_turn, multi_rate_asks, pauses
from .twin_state import Seats, State, available, count, expected_end_s, hold, kept, resident, wanted


@compiled
def stop(S: State, j: int) -> None:
    """`PermitMachine._stop`."""
    S.running[j] = False
    S.tail[j] = False
    S.held[j] = np.uint64(0)
    S.places[0] += 1
    S.place[j] = S.places[0]
    S.tail_at_s[j] = math.inf


@compiled
def pause(P: Seats, S: State, j: int, now: float) -> None:
    """`PermitMachine._pause`."""
    units = wanted(P, S, j)
    for k in range(len(S.phase)):
        if S.running[k] and S.held[k] & units:
            S.rest_s[k] = max(0.0, S.due_s[k] - now) + P.resume_s[k, S.phase[k]]
            S.begun[k] -= 1
            S.left_s[k] = (S.ends_s[k] - now) * S.rate[k] + P.resume_s[k, S.phase[k]]
            S.ends_s[k] = math.inf
            stop(S, k)


@compiled
def start(P: Seats, S: State, j: int, units: np.uint64, now: float) -> None:
    """`PermitMachine._start`."""
    mine = wanted(P, S, j)
    for k in range(len(S.phase)):
        if S.running[k] and S.held[k] & units:
            S.held[k] = kept(P, S, k)
    S.due_s[j] = expected_end_s(P, S, j, units, now)
    if not resident(S, j, units):
        S.left_s[j] += P.switch_s[j, S.phase[j]]
    hold(S, j, units)
    S.running[j] = True
    S.held[j] = units
    S.share[j] = count(units) / count(mine)
    S.begun[j] += 1
    for k in range(len(S.phase)):
        if not S.running[k] and wanted(P, S, k) & units:
            S.overtaken[k] += 1


@compiled
def grow(P: Seats, S: State, now: float) -> None:
    """`PermitMachine._grow`."""
    jobs = len(S.phase)
    for j in range(jobs):
        if not S.running[j] or S.tail[j] or S.held[j] == wanted(P, S, j):
            continue
        busy = np.uint64(0)
        for k in range(jobs):
            if k != j:
                busy |= S.held[k]
        more = wanted(P, S, j) & ~S.held[j] & ~busy
        if more:
            before, after = count(S.held[j]), count(S.held[j] | more)
            S.due_s[j] = now + (S.due_s[j] - now) * before / after
            S.held[j] |= more
            S.share[j] = after / count(wanted(P, S, j))
            hold(S, j, more)


@compiled
def ask_all(P: Seats, S: State, policy: int, now: float) -> tuple[float, bool]:
    """`PermitMachine._ask_all`: the same, and whether anybody was paused."""
    paused = False
    jobs = len(S.phase)
    for j in range(jobs):
        S.asked[j] = False
        S.waiting[j] = not S.running[j]
        if policy == ROUND_ROBIN:
            S.key_s[j] = S.begun[j]
        elif policy == FIRST_COME:
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
        units = available(P, S, j)
        if not units:
            if policy == MULTI_RATE and pauses(P, S, j, now):
                pause(P, S, j, now)
                paused = True
                units = wanted(P, S, j)
        elif policy == ROUND_ROBIN:
            if not its_turn(P, S, j):
                units = np.uint64(0)
        elif policy == FIRST_COME:
            for k in range(jobs):
                if S.asked[k] and wanted(P, S, k) & wanted(P, S, j):
                    units = np.uint64(0)
        else:
            until = multi_rate_asks(P, S, j, units, now)
            if until > -math.inf:
                wake = min(wake, until)
                units = np.uint64(0)
        if units:
            start(P, S, j, units, now)
        else:
            S.asked[j] = True


@compiled
def grant(P: Seats, S: State, policy: int, now: float) -> float:
    """`PermitMachine._grant`: when to ask again if nothing happens before."""
    while True:
        wake, paused = ask_all(P, S, policy, now)
        if not paused:
            return wake


@compiled
def done(P: Seats, S: State, j: int, now: float) -> None:
    """`PermitMachine._done`."""
    stop(S, j)
    S.overtaken[j] = 0
    S.phase[j] = 1 - S.phase[j]
    S.rest_s[j] = P.expected_s[j, S.phase[j]]
    if S.phase[j] == 0:
        credit = CREDIT * P.pace_s[j]
        S.deadline_s[j] = max(min(S.deadline_s[j], now + credit), now - credit) + P.pace_s[j]


@compiled
def arrive(P: Seats, S: State, j: int) -> None:
    """`PermitMachine._arrive` at time 0."""
    S.phase[j] = 0
    S.running[j] = False
    S.tail[j] = False
    S.held[j] = np.uint64(0)
    S.place[j] = j
    S.deadline_s[j] = P.pace_s[j]
    S.rest_s[j] = P.expected_s[j, 0]
    S.due_s[j] = 0.0
    S.overtaken[j] = 0
    S.begun[j] = 0
    S.urgent[j] = 0
