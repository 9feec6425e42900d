"""The permit machine and its rules, compiled: each function repeats the one of rounds/permits that it names, or of the
same name.

It handles groups in which no job comes or leaves and no unit is lost. Jobs are numbered in the order of arrival, all at
time 0. A set of units is a row of 64-bit words, unit u being bit u % 64 of word u // 64; nothing allocates, so a
function that makes a set writes it into an array that it is given.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..permits.permit_rules import CREDIT, PATIENCE
from .numba_options import compiled


class SeatArrays(NamedTuple):
    """Seats of the jobs of a group as arrays; (jobs, 2) is by rollout and train."""

    units: Any  # (jobs, 2, words) uint64
    expected_s: Any  # (jobs, 2)
    switch_s: Any  # (jobs, 2) expected, and true
    pace_s: Any  # (jobs,)
    keep: Any  # (jobs,) units of a consolidated tail; 0: none
    resume_s: Any  # (jobs, 2) nan: cannot be paused
    tail_share: Any  # (jobs,) of a rollout's seconds
    draws_s: Any  # (jobs, draws, 2) true seconds of a turn without its switch, used cyclically


class PermitState(NamedTuple):
    """Turns of the jobs of a group as arrays; names as in rounds/permits/permit_rules.py."""

    phase: Any
    running: Any
    tail: Any
    held: Any  # (jobs, words) uint64
    place: Any  # `PermitTurn.ready_place`
    places: Any  # (1,) places given so far
    deadline_s: Any
    rest_s: Any
    due_s: Any
    overtaken: Any
    begun: Any
    refused: Any
    waiting: Any  # at the beginning of a grant
    urgent: Any  # rank: overdue
    key_s: Any  # rank: seconds
    holder: Any  # (64 * words,) last job on a unit, -1: none
    last_unit: Any  # (1,) highest unit of the group
    free: Any  # (words,) units that a turn would start on
    scratch: Any  # (words,)
    # The clock's (permit_kernel.py):
    share: Any  # of its units that a turn has
    rate: Any
    left_s: Any  # true seconds of a turn that starts now
    ends_s: Any  # true end of a turn at today's rates; inf: waits, or starts now
    tail_at_s: Any  # when its tail is reached at today's rates; inf: has none, or is in it
    done: Any  # iterations


def empty_state(jobs: int, words: int = 1) -> PermitState:
    """Zeroed arrays for groups of up to `jobs` jobs, whose sets of units take so many words."""
    types: dict[str, Any] = {"held": np.uint64, "free": np.uint64, "scratch": np.uint64}
    types |= {"running": np.bool_, "tail": np.bool_, "refused": np.bool_, "waiting": np.bool_}
    types |= {
        name: np.int64
        for name in ("phase", "place", "places", "overtaken", "begun", "urgent", "holder", "last_unit", "done")
    }
    sizes: dict[str, Any] = {
        "holder": 64 * words,
        "last_unit": 1,
        "places": 1,
        "held": (jobs, words),
        "free": words,
        "scratch": words,
    }
    return PermitState(
        **{name: np.zeros(sizes.get(name, jobs), types.get(name, np.float64)) for name in PermitState._fields}
    )


@compiled
def seats_of_group(seats: SeatArrays, g: int, n: int) -> SeatArrays:
    """Seats of the n jobs of group g; `P` has a leading axis of groups."""
    return SeatArrays(
        seats.units[g, :n],
        seats.expected_s[g, :n],
        seats.switch_s[g, :n],
        seats.pace_s[g, :n],
        seats.keep[g, :n],
        seats.resume_s[g, :n],
        seats.tail_share[g, :n],
        seats.draws_s[g, :n],
    )


@compiled
def first_jobs(turns: PermitState, n: int) -> PermitState:
    """The part of the state of the first n jobs."""
    return PermitState(
        turns.phase[:n],
        turns.running[:n],
        turns.tail[:n],
        turns.held[:n],
        turns.place[:n],
        turns.places,
        turns.deadline_s[:n],
        turns.rest_s[:n],
        turns.due_s[:n],
        turns.overtaken[:n],
        turns.begun[:n],
        turns.refused[:n],
        turns.waiting[:n],
        turns.urgent[:n],
        turns.key_s[:n],
        turns.holder,
        turns.last_unit,
        turns.free,
        turns.scratch,
        turns.share[:n],
        turns.rate[:n],
        turns.left_s[:n],
        turns.ends_s[:n],
        turns.tail_at_s[:n],
        turns.done[:n],
    )


@compiled
def count(units: Any) -> int:
    """Units in a set."""
    bits = 0
    for word in units:
        left = word
        while left:
            left &= left - np.uint64(1)
            bits += 1
    return bits


@compiled
def meet(a: Any, b: Any) -> bool:
    """Whether two sets have a unit in common."""
    for w in range(len(a)):  # noqa: SIM110 (numba has no generators here)
        if a[w] & b[w]:
            return True
    return False


@compiled
def copy(units: Any, into: Any) -> None:
    """Write a set over another."""
    for w in range(len(into)):
        into[w] = units[w]


@compiled
def clear(units: Any) -> None:
    """Empty a set."""
    for w in range(len(units)):
        units[w] = np.uint64(0)


@compiled
def has_unit(units: Any, u: int) -> bool:
    """Whether unit u is in a set."""
    held: bool = units[u >> 6] >> np.uint64(u & 63) & np.uint64(1) != np.uint64(0)
    return held


@compiled
def kept(seats: SeatArrays, turns: PermitState, j: int, into: Any) -> None:
    """`PermitTurn.kept`, written into a set, which may be the job's own."""
    limited = turns.tail[j] and seats.keep[j] != 0
    left = seats.keep[j]
    for w in range(len(into)):
        rest = turns.held[j, w]
        while rest and left > 0 and limited:
            rest &= rest - np.uint64(1)
            left -= 1
        into[w] = turns.held[j, w] & ~rest if limited else turns.held[j, w]


@compiled
def need_s(seats: SeatArrays, turns: PermitState, j: int, phase: int) -> float:
    """`PermitTurn.need_s`."""
    seconds: float = (turns.rest_s[j] if phase == turns.phase[j] else seats.expected_s[j, phase]) + seats.switch_s[
        j, phase
    ]
    return seconds


@compiled
def available(seats: SeatArrays, turns: PermitState, j: int) -> bool:
    """`PermitMachine.available`, written into `S.free`; whether it holds any."""
    units = seats.units[j, turns.phase[j]]
    copy(units, turns.free)
    taken = False
    for k in range(len(turns.phase)):
        if turns.running[k] and meet(turns.held[k], units):
            if not turns.tail[k] or seats.keep[k] == 0:
                return False
            kept(seats, turns, k, turns.scratch)
            taken |= meet(turns.scratch, units)
            for w in range(len(units)):
                turns.free[w] &= ~turns.scratch[w]
    if taken and turns.phase[j] == 1:
        return False
    return meet(turns.free, turns.free)


@compiled
def resident(turns: PermitState, j: int, units: Any) -> bool:
    """`PermitMachine._resident`."""
    for u in range(turns.last_unit[0] + 1):
        if has_unit(units, u) and turns.holder[u] >= 0 and turns.holder[u] != j:
            return False
    return True


@compiled
def hold(turns: PermitState, j: int, units: Any) -> None:
    """Job j is the last holder of these units."""
    for u in range(turns.last_unit[0] + 1):
        if has_unit(units, u):
            turns.holder[u] = j


@compiled
def expected_end_s(seats: SeatArrays, turns: PermitState, j: int, units: Any, now: float) -> float:
    """`PermitMachine.expected_end_s`."""
    switch = 0.0 if resident(turns, j, units) else seats.switch_s[j, turns.phase[j]]
    end: float = now + (turns.rest_s[j] + switch) * count(seats.units[j, turns.phase[j]]) / count(units)
    return end


@compiled
def free_s(seats: SeatArrays, turns: PermitState, j: int, now: float) -> float:
    """`PermitMachine.free_s`."""
    units = seats.units[j, turns.phase[j]]
    free = now
    for k in range(len(turns.phase)):
        if turns.running[k] and meet(turns.held[k], units):
            free = max(free, turns.due_s[k])
    return free


# -- rules -------------------------------------------------------------------------------------------------------------


ROUND_ROBIN, FIRST_COME, MULTI_RATE = 0, 1, 2
PERMIT_RULES = {"round_robin": ROUND_ROBIN, "first_come": FIRST_COME, "multi_rate": MULTI_RATE}


@compiled
def latest_s(seats: SeatArrays, turns: PermitState, j: int) -> float:
    """Latest start of a waiting phase that meets its deadline (`_latest_s`)."""
    if turns.overtaken[j] >= PATIENCE:
        return -math.inf
    rollout_s = need_s(seats, turns, j, 0) if turns.phase[j] == 0 else 0.0
    return float(turns.deadline_s[j] - need_s(seats, turns, j, 1) - rollout_s)


@compiled
def harms(seats: SeatArrays, turns: PermitState, j: int, end: float, now: float) -> bool:
    """Whether a turn until `end` would delay a refused phase too long (`_harms`)."""
    units = seats.units[j, turns.phase[j]]
    for k in range(len(turns.phase)):
        if not turns.refused[k] or not meet(seats.units[k, turns.phase[k]], units):
            continue
        if turns.overtaken[k] >= PATIENCE or end > max(free_s(seats, turns, k, now), latest_s(seats, turns, k)):
            return True
    return False


@compiled
def its_turn(seats: SeatArrays, turns: PermitState, j: int) -> bool:
    """Whether no other job's turn comes first (`RoundRobin.may_start`)."""
    units = seats.units[j, turns.phase[j]]
    for k in range(len(turns.phase)):
        if k == j:
            continue
        for phase in range(2):
            place = turns.begun[k] + (turns.begun[k] - phase) % 2
            if meet(seats.units[k, phase], units) and (place < turns.begun[j] or (place == turns.begun[j] and k < j)):
                return False
    return True


@compiled
def multi_rate_may_start(seats: SeatArrays, turns: PermitState, j: int, units: Any, now: float) -> float:
    """-inf if a phase may start on free units, else the time until which it waits (`MultiRate.may_start`)."""
    end = expected_end_s(seats, turns, j, units, now)
    if harms(seats, turns, j, end, now):
        return math.inf
    mine = seats.units[j, turns.phase[j]]
    until = -math.inf
    for k in range(len(turns.phase)):
        phase = 1 - turns.phase[k]
        if not turns.running[k] or not meet(mine, seats.units[k, phase]):
            continue
        deadline = turns.deadline_s[k] if phase else turns.deadline_s[k] + seats.pace_s[k]
        latest = deadline - need_s(seats, turns, k, 1) - (0.0 if phase else need_s(seats, turns, k, 0))
        ready = max(now, turns.due_s[k])
        if end <= ready or end <= latest:
            continue
        if (
            not math.isnan(seats.resume_s[j, turns.phase[j]])
            and turns.overtaken[j] < PATIENCE
            and deadline < turns.deadline_s[j]
        ):
            continue
        spare = latest_s(seats, turns, j) - need_s(seats, turns, k, phase)
        if ready < spare:
            until = max(until, spare)
    return until


@compiled
def pauses(seats: SeatArrays, turns: PermitState, j: int, now: float) -> bool:
    """Whether all turns on a phase's units are paused for it (`MultiRate.pauses`)."""
    units = seats.units[j, turns.phase[j]]
    cost = 0.0
    for k in range(len(turns.phase)):
        if not turns.running[k] or not meet(turns.held[k], units):
            continue
        resume = seats.resume_s[k, turns.phase[k]]
        if (
            math.isnan(resume)
            or turns.tail[k]
            or turns.overtaken[k] >= PATIENCE
            or turns.deadline_s[k] <= turns.deadline_s[j]
        ):
            return False
        cost = max(cost, seats.switch_s[j, turns.phase[j]] + seats.switch_s[k, turns.phase[k]] + resume)
    if free_s(seats, turns, j, now) - latest_s(seats, turns, j) <= cost:
        return False
    return not harms(seats, turns, j, expected_end_s(seats, turns, j, units, now), now)


@compiled
def stop(turns: PermitState, j: int) -> None:
    """`PermitMachine._stop`."""
    turns.running[j] = False
    turns.tail[j] = False
    clear(turns.held[j])
    turns.places[0] += 1
    turns.place[j] = turns.places[0]
    turns.tail_at_s[j] = math.inf


@compiled
def pause(seats: SeatArrays, turns: PermitState, j: int, now: float) -> None:
    """`PermitMachine._pause`."""
    units = seats.units[j, turns.phase[j]]
    for k in range(len(turns.phase)):
        if turns.running[k] and meet(turns.held[k], units):
            turns.rest_s[k] = max(0.0, turns.due_s[k] - now) + seats.resume_s[k, turns.phase[k]]
            turns.begun[k] -= 1
            turns.left_s[k] = (turns.ends_s[k] - now) * turns.rate[k] + seats.resume_s[k, turns.phase[k]]
            turns.ends_s[k] = math.inf
            stop(turns, k)


@compiled
def start(seats: SeatArrays, turns: PermitState, j: int, now: float) -> None:
    """`PermitMachine._start`, on the units in `S.free`."""
    units = turns.free
    mine = seats.units[j, turns.phase[j]]
    for k in range(len(turns.phase)):
        if turns.running[k] and meet(turns.held[k], units):
            kept(seats, turns, k, turns.held[k])
    turns.due_s[j] = expected_end_s(seats, turns, j, units, now)
    if not resident(turns, j, units):
        turns.left_s[j] += seats.switch_s[j, turns.phase[j]]
    hold(turns, j, units)
    turns.running[j] = True
    copy(units, turns.held[j])
    turns.share[j] = count(units) / count(mine)
    turns.begun[j] += 1
    for k in range(len(turns.phase)):
        if not turns.running[k] and meet(seats.units[k, turns.phase[k]], units):
            turns.overtaken[k] += 1


@compiled
def grow(seats: SeatArrays, turns: PermitState, now: float) -> None:
    """`PermitMachine._grow`."""
    jobs = len(turns.phase)
    for j in range(jobs):
        if not turns.running[j] or turns.tail[j]:
            continue
        units, more = seats.units[j, turns.phase[j]], turns.scratch
        for w in range(len(units)):
            busy = turns.held[j, w]
            for k in range(jobs):
                busy |= turns.held[k, w]
            more[w] = units[w] & ~busy
        if meet(more, more):
            before = count(turns.held[j])
            after = before + count(more)
            turns.due_s[j] = now + (turns.due_s[j] - now) * before / after
            for w in range(len(units)):
                turns.held[j, w] |= more[w]
            turns.share[j] = after / count(units)
            hold(turns, j, more)


@compiled
def consider_all(seats: SeatArrays, turns: PermitState, rule: int, now: float) -> tuple[float, bool]:
    """`PermitMachine._consider_all`: the same, and whether anybody was paused."""
    paused = False
    jobs = len(turns.phase)
    for j in range(jobs):
        turns.refused[j] = False
        turns.waiting[j] = not turns.running[j]
        if rule == ROUND_ROBIN:
            turns.key_s[j] = turns.begun[j]
        elif rule == FIRST_COME:
            turns.key_s[j] = turns.place[j]
        else:
            turns.urgent[j] = 0 if turns.overtaken[j] >= PATIENCE else 1
            turns.key_s[j] = turns.deadline_s[j] if turns.urgent[j] else turns.place[j]
    wake = math.inf
    while True:
        j = -1
        for k in range(jobs):
            if turns.waiting[k] and (
                j < 0
                or turns.urgent[k] < turns.urgent[j]
                or (turns.urgent[k] == turns.urgent[j] and turns.key_s[k] < turns.key_s[j])
            ):
                j = k
        if j < 0:
            return wake, paused
        turns.waiting[j] = False
        may = available(seats, turns, j)
        if not may:
            if rule == MULTI_RATE and pauses(seats, turns, j, now):
                pause(seats, turns, j, now)
                paused = True
                may = True
                copy(seats.units[j, turns.phase[j]], turns.free)
        elif rule == ROUND_ROBIN:
            may = its_turn(seats, turns, j)
        elif rule == FIRST_COME:
            for k in range(jobs):
                if turns.refused[k] and meet(seats.units[k, turns.phase[k]], seats.units[j, turns.phase[j]]):
                    may = False
        else:
            until = multi_rate_may_start(seats, turns, j, turns.free, now)
            if until > -math.inf:
                wake = min(wake, until)
                may = False
        if may:
            start(seats, turns, j, now)
        else:
            turns.refused[j] = True


@compiled
def grant(seats: SeatArrays, turns: PermitState, rule: int, now: float) -> float:
    """`PermitMachine._grant`: when to ask again if nothing happens before."""
    while True:
        wake, paused = consider_all(seats, turns, rule, now)
        if not paused:
            return wake


@compiled
def done(seats: SeatArrays, turns: PermitState, j: int, now: float) -> None:
    """`PermitMachine._done`."""
    stop(turns, j)
    turns.overtaken[j] = 0
    turns.phase[j] = 1 - turns.phase[j]
    turns.rest_s[j] = seats.expected_s[j, turns.phase[j]]
    if turns.phase[j] == 0:
        credit = CREDIT * seats.pace_s[j]
        turns.deadline_s[j] = max(min(turns.deadline_s[j], now + credit), now - credit) + seats.pace_s[j]


@compiled
def arrive(seats: SeatArrays, turns: PermitState, j: int) -> None:
    """`PermitMachine._arrive` at time 0."""
    turns.phase[j] = 0
    turns.running[j] = False
    turns.tail[j] = False
    clear(turns.held[j])
    turns.place[j] = j
    turns.deadline_s[j] = seats.pace_s[j]
    turns.rest_s[j] = seats.expected_s[j, 0]
    turns.due_s[j] = 0.0
    turns.overtaken[j] = 0
    turns.begun[j] = 0
    turns.urgent[j] = 0
