"""The permit rules, compiled: each function repeats the function of rounds/permits/permit_rules.py that it names."""

from __future__ import annotations

import math
from typing import Any

from ..permits.permit_rules import PATIENCE
from .compiled_permit_state import PermitState, SeatArrays, expected_end_s, free_s, meet, need_s
from .numba_options import compiled

ROUND_ROBIN, FIRST_COME, MULTI_RATE = 0, 1, 2
PERMIT_RULES = {"round_robin": ROUND_ROBIN, "first_come": FIRST_COME, "multi_rate": MULTI_RATE}


@compiled
def latest_s(P: SeatArrays, S: PermitState, j: int) -> float:
    """Latest start of a waiting phase that meets its deadline (`_latest_s`)."""
    if S.overtaken[j] >= PATIENCE:
        return -math.inf
    latest: float = S.deadline_s[j] - need_s(P, S, j, 1) - (need_s(P, S, j, 0) if S.phase[j] == 0 else 0.0)
    return latest


@compiled
def harms(P: SeatArrays, S: PermitState, j: int, end: float, now: float) -> bool:
    """Whether a turn until `end` would delay a refused phase too long (`_harms`)."""
    units = P.units[j, S.phase[j]]
    for k in range(len(S.phase)):
        if not S.refused[k] or not meet(P.units[k, S.phase[k]], units):
            continue
        if S.overtaken[k] >= PATIENCE or end > max(free_s(P, S, k, now), latest_s(P, S, k)):
            return True
    return False


@compiled
def its_turn(P: SeatArrays, S: PermitState, j: int) -> bool:
    """Whether no other job's turn comes first (`RoundRobin.may_start`)."""
    units = P.units[j, S.phase[j]]
    for k in range(len(S.phase)):
        if k == j:
            continue
        for phase in range(2):
            place = S.begun[k] + (S.begun[k] - phase) % 2
            if meet(P.units[k, phase], units) and (place < S.begun[j] or (place == S.begun[j] and k < j)):
                return False
    return True


@compiled
def multi_rate_may_start(P: SeatArrays, S: PermitState, j: int, units: Any, now: float) -> float:
    """-inf if a phase may start on free units, else the time until which it waits (`MultiRate.may_start`)."""
    end = expected_end_s(P, S, j, units, now)
    if harms(P, S, j, end, now):
        return math.inf
    mine = P.units[j, S.phase[j]]
    until = -math.inf
    for k in range(len(S.phase)):
        phase = 1 - S.phase[k]
        if not S.running[k] or not meet(mine, P.units[k, phase]):
            continue
        deadline = S.deadline_s[k] if phase else S.deadline_s[k] + P.pace_s[k]
        latest = deadline - need_s(P, S, k, 1) - (0.0 if phase else need_s(P, S, k, 0))
        ready = max(now, S.due_s[k])
        if end <= ready or end <= latest:
            continue
        if not math.isnan(P.resume_s[j, S.phase[j]]) and S.overtaken[j] < PATIENCE and deadline < S.deadline_s[j]:
            continue
        spare = latest_s(P, S, j) - need_s(P, S, k, phase)
        if ready < spare:
            until = max(until, spare)
    return until


@compiled
def pauses(P: SeatArrays, S: PermitState, j: int, now: float) -> bool:
    """Whether all turns on a phase's units are paused for it (`MultiRate.pauses`)."""
    units = P.units[j, S.phase[j]]
    cost = 0.0
    for k in range(len(S.phase)):
        if not S.running[k] or not meet(S.held[k], units):
            continue
        resume = P.resume_s[k, S.phase[k]]
        if math.isnan(resume) or S.tail[k] or S.overtaken[k] >= PATIENCE or S.deadline_s[k] <= S.deadline_s[j]:
            return False
        cost = max(cost, P.switch_s[j, S.phase[j]] + P.switch_s[k, S.phase[k]] + resume)
    if free_s(P, S, j, now) - latest_s(P, S, j) <= cost:
        return False
    return not harms(P, S, j, expected_end_s(P, S, j, units, now), now)
