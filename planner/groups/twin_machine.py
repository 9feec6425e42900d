"""The permit machine of rounds/permit.py, compiled: each function repeats the one of the same name there.

Jobs are numbered in the order of arrival, all at time 0; units are bits of a 64-bit number. The twin knows groups in
which nobody comes, leaves or is lost.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...rounds.permit_policies import CREDIT, PATIENCE
from ..twin.compiled import compiled

ROUND_ROBIN, FIRST_COME, MULTI_RATE = 0, 1, 2
POLICIES = {"round_robin": ROUND_ROBIN, "first_come": FIRST_COME, "multi_rate": MULTI_RATE}


class Seats(NamedTuple):
    """What is known of the jobs of a group; (jobs, 2) is by rollout and train."""

    units: Any  # (jobs, 2) uint64
    expected_s: Any  # (jobs, 2)
    switch_s: Any  # (jobs, 2) expected, and true
    pace_s: Any  # (jobs,)
    keep: Any  # (jobs,) units of a consolidated tail; 0: none
    resume_s: Any  # (jobs, 2) nan: cannot be paused
    tail_share: Any  # (jobs,) of a rollout's seconds
    draws_s: Any  # (jobs, draws, 2) true seconds of a turn without its switch, used cyclically


class State(NamedTuple):
    """Where the group stands, by job; names as in rounds/permit.py."""

    phase: Any
    running: Any
    tail: Any
    held: Any  # uint64
    place: Any  # `Turn.asked`
    places: Any  # (1,) as many were given
    deadline_s: Any
    rest_s: Any
    due_s: Any
    overtaken: Any
    begun: Any
    asked: Any
    waiting: Any  # at the beginning of a grant
    urgent: Any  # rank: overdue
    key_s: Any  # rank: seconds
    holder: Any  # (64,) last job on a unit, -1: none
    last_unit: Any  # (1,) highest unit of the group
    # The clock's (twin.py):
    share: Any  # of its units that a turn has
    rate: Any
    left_s: Any  # true seconds of a turn that starts now
    ends_s: Any  # true end of a turn at today's rates; inf: waits, or starts now
    tail_at_s: Any  # when its tail is reached at today's rates; inf: has none, or is in it
    done: Any  # iterations


def empty_state(jobs: int) -> State:
    """Arrays for groups of up to `jobs`."""
    kinds = {"held": np.uint64, "running": np.bool_, "tail": np.bool_, "asked": np.bool_, "waiting": np.bool_}
    kinds |= {
        name: np.int64
        for name in ("phase", "place", "places", "overtaken", "begun", "urgent", "holder", "last_unit", "done")
    }
    sizes = {"holder": 64, "last_unit": 1, "places": 1}
    return State(**{name: np.zeros(sizes.get(name, jobs), kinds.get(name, np.float64)) for name in State._fields})


@compiled
def count(units: np.uint64) -> int:
    """Units in a set."""
    found = 0
    while units:
        units &= units - np.uint64(1)
        found += 1
    return found


@compiled
def wanted(P: Seats, S: State, j: int) -> np.uint64:
    """`Turn.units`."""
    units: np.uint64 = P.units[j, S.phase[j]]
    return units


@compiled
def kept(P: Seats, S: State, j: int) -> np.uint64:
    """`Turn.kept`."""
    held: np.uint64 = S.held[j]
    if not S.tail[j] or P.keep[j] == 0:
        return held
    rest = held
    for _ in range(P.keep[j]):
        rest &= rest - np.uint64(1)
    return held & ~rest


@compiled
def need_s(P: Seats, S: State, j: int, phase: int) -> float:
    """`Turn.need_s`."""
    seconds: float = (S.rest_s[j] if phase == S.phase[j] else P.expected_s[j, phase]) + P.switch_s[j, phase]
    return seconds


@compiled
def available(P: Seats, S: State, j: int) -> np.uint64:
    """`PermitMachine.available`."""
    units = wanted(P, S, j)
    taken = np.uint64(0)
    for k in range(len(S.phase)):
        if S.running[k] and S.held[k] & units:
            if not S.tail[k] or P.keep[k] == 0:
                return np.uint64(0)
            taken |= kept(P, S, k) & units
    if taken and S.phase[j] == 1:
        return np.uint64(0)
    return units & ~taken


@compiled
def resident(S: State, j: int, units: np.uint64) -> bool:
    """`PermitMachine._resident`."""
    for u in range(S.last_unit[0] + 1):
        if units >> np.uint64(u) & np.uint64(1) and S.holder[u] >= 0 and S.holder[u] != j:
            return False
    return True


@compiled
def hold(S: State, j: int, units: np.uint64) -> None:
    """Job j is the last holder of these units."""
    for u in range(S.last_unit[0] + 1):
        if units >> np.uint64(u) & np.uint64(1):
            S.holder[u] = j


@compiled
def expected_end_s(P: Seats, S: State, j: int, units: np.uint64, now: float) -> float:
    """`PermitMachine.expected_end_s`."""
    switch = 0.0 if resident(S, j, units) else P.switch_s[j, S.phase[j]]
    end: float = now + (S.rest_s[j] + switch) * count(wanted(P, S, j)) / count(units)
    return end


@compiled
def free_s(P: Seats, S: State, j: int, now: float) -> float:
    """`PermitMachine.free_s`."""
    units = wanted(P, S, j)
    at = now
    for k in range(len(S.phase)):
        if S.running[k] and S.held[k] & units:
            at = max(at, S.due_s[k])
    return at


@compiled
def latest_s(P: Seats, S: State, j: int) -> float:
    """`_latest_s` of the policies."""
    if S.overtaken[j] >= PATIENCE:
        return -math.inf
    latest: float = S.deadline_s[j] - need_s(P, S, j, 1) - (need_s(P, S, j, 0) if S.phase[j] == 0 else 0.0)
    return latest


@compiled
def harms(P: Seats, S: State, j: int, end: float, now: float) -> bool:
    """`_harms` of the policies."""
    units = wanted(P, S, j)
    for k in range(len(S.phase)):
        if not S.asked[k] or not wanted(P, S, k) & units:
            continue
        if S.overtaken[k] >= PATIENCE or end > max(free_s(P, S, k, now), latest_s(P, S, k)):
            return True
    return False


@compiled
def its_turn(P: Seats, S: State, j: int) -> bool:
    """`RoundRobin.asks`."""
    units = wanted(P, S, j)
    for k in range(len(S.phase)):
        if k == j:
            continue
        for phase in range(2):
            place = S.begun[k] + (S.begun[k] - phase) % 2
            if P.units[k, phase] & units and (place < S.begun[j] or (place == S.begun[j] and k < j)):
                return False
    return True


@compiled
def multi_rate_asks(P: Seats, S: State, j: int, units: np.uint64, now: float) -> float:
    """`MultiRate.asks`: -inf if it may start, else until when it does not."""
    end = expected_end_s(P, S, j, units, now)
    if harms(P, S, j, end, now):
        return math.inf
    mine = wanted(P, S, j)
    until = -math.inf
    for k in range(len(S.phase)):
        phase = 1 - S.phase[k]
        if not S.running[k] or not mine & P.units[k, phase]:
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
def pauses(P: Seats, S: State, j: int, now: float) -> bool:
    """`MultiRate.pauses`: whether all that run on its units are paused for it."""
    units = wanted(P, S, j)
    cost = 0.0
    for k in range(len(S.phase)):
        if not S.running[k] or not S.held[k] & units:
            continue
        resume = P.resume_s[k, S.phase[k]]
        if math.isnan(resume) or S.tail[k] or S.overtaken[k] >= PATIENCE or S.deadline_s[k] <= S.deadline_s[j]:
            return False
        cost = max(cost, P.switch_s[j, S.phase[j]] + P.switch_s[k, S.phase[k]] + resume)
    if free_s(P, S, j, now) - latest_s(P, S, j) <= cost:
        return False
    return not harms(P, S, j, expected_end_s(P, S, j, units, now), now)


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
def grant(P: Seats, S: State, policy: int, now: float) -> float:
    """`PermitMachine._grant`: when to ask again if nothing happens before."""
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
            return wake
        S.waiting[j] = False
        units = available(P, S, j)
        if not units:
            if policy == MULTI_RATE and pauses(P, S, j, now):
                pause(P, S, j, now)
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
