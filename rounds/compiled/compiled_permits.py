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


class PlacedArrays(NamedTuple):
    """The placed jobs of a group as arrays (`PlacedJob`); (jobs, 2) is by rollout and train."""

    units: Any  # (jobs, 2, words) uint64
    expected_s: Any  # (jobs, 2)
    switch_s: Any  # (jobs, 2) expected, and true
    pace_s: Any  # (jobs,)
    keep: Any  # (jobs,) units of a consolidated tail; 0: none
    resume_s: Any  # (jobs, 2) nan: cannot be paused
    tail_share: Any  # (jobs,) of a rollout's seconds
    draws_s: Any  # (jobs, draws, 2) true seconds of a phase without its switch, used cyclically


class PermitState(NamedTuple):
    """Turns of the jobs of a group as arrays; names as in rounds/permits/permit_rules.py."""

    phase: Any
    running: Any
    tail: Any
    held: Any  # (jobs, words) uint64
    place: Any  # `ScheduledJob.ready_place`
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
    free: Any  # (words,) units that a phase would start on
    scratch: Any  # (words,)
    # The clock's (permit_kernel.py):
    share: Any  # of its units that a phase holds
    rate: Any
    left_s: Any  # true seconds of a phase that starts now
    ends_s: Any  # true end of a phase at the present rates; inf: it waits, or starts now
    tail_at_s: Any  # when its tail is reached at the present rates; inf: it has no tail, or is in it
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
def jobs_of_group(placed: PlacedArrays, g: int, n: int) -> PlacedArrays:
    """The n jobs of group g; `placed` has a leading axis of groups."""
    return PlacedArrays(
        placed.units[g, :n],
        placed.expected_s[g, :n],
        placed.switch_s[g, :n],
        placed.pace_s[g, :n],
        placed.keep[g, :n],
        placed.resume_s[g, :n],
        placed.tail_share[g, :n],
        placed.draws_s[g, :n],
    )


@compiled
def first_jobs(state: PermitState, n: int) -> PermitState:
    """The part of the state of the first n jobs."""
    return PermitState(
        state.phase[:n],
        state.running[:n],
        state.tail[:n],
        state.held[:n],
        state.place[:n],
        state.places,
        state.deadline_s[:n],
        state.rest_s[:n],
        state.due_s[:n],
        state.overtaken[:n],
        state.begun[:n],
        state.refused[:n],
        state.waiting[:n],
        state.urgent[:n],
        state.key_s[:n],
        state.holder,
        state.last_unit,
        state.free,
        state.scratch,
        state.share[:n],
        state.rate[:n],
        state.left_s[:n],
        state.ends_s[:n],
        state.tail_at_s[:n],
        state.done[:n],
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
def kept(placed: PlacedArrays, state: PermitState, j: int, into: Any) -> None:
    """`ScheduledJob.kept`, written into a set, which may be the job's own."""
    limited = state.tail[j] and placed.keep[j] != 0
    left = placed.keep[j]
    for w in range(len(into)):
        rest = state.held[j, w]
        while rest and left > 0 and limited:
            rest &= rest - np.uint64(1)
            left -= 1
        into[w] = state.held[j, w] & ~rest if limited else state.held[j, w]


@compiled
def need_s(placed: PlacedArrays, state: PermitState, j: int, phase: int) -> float:
    """`ScheduledJob.need_s`."""
    seconds: float = (state.rest_s[j] if phase == state.phase[j] else placed.expected_s[j, phase]) + placed.switch_s[
        j, phase
    ]
    return seconds


@compiled
def available(placed: PlacedArrays, state: PermitState, j: int) -> bool:
    """`PermitMachine.available`, written into `state.free`; whether it holds any."""
    units = placed.units[j, state.phase[j]]
    copy(units, state.free)
    taken = False
    for k in range(len(state.phase)):
        if state.running[k] and meet(state.held[k], units):
            if not state.tail[k] or placed.keep[k] == 0:
                return False
            kept(placed, state, k, state.scratch)
            taken |= meet(state.scratch, units)
            for w in range(len(units)):
                state.free[w] &= ~state.scratch[w]
    if taken and state.phase[j] == 1:
        return False
    return meet(state.free, state.free)


@compiled
def resident(state: PermitState, j: int, units: Any) -> bool:
    """`PermitMachine._resident`."""
    for u in range(state.last_unit[0] + 1):
        if has_unit(units, u) and state.holder[u] >= 0 and state.holder[u] != j:
            return False
    return True


@compiled
def hold(state: PermitState, j: int, units: Any) -> None:
    """Job j is the last holder of these units."""
    for u in range(state.last_unit[0] + 1):
        if has_unit(units, u):
            state.holder[u] = j


@compiled
def expected_end_s(placed: PlacedArrays, state: PermitState, j: int, units: Any, now: float) -> float:
    """`PermitMachine.expected_end_s`."""
    switch = 0.0 if resident(state, j, units) else placed.switch_s[j, state.phase[j]]
    end: float = now + (state.rest_s[j] + switch) * count(placed.units[j, state.phase[j]]) / count(units)
    return end


@compiled
def free_s(placed: PlacedArrays, state: PermitState, j: int, now: float) -> float:
    """`PermitMachine.free_s`."""
    units = placed.units[j, state.phase[j]]
    free = now
    for k in range(len(state.phase)):
        if state.running[k] and meet(state.held[k], units):
            free = max(free, state.due_s[k])
    return free


# -- rules -------------------------------------------------------------------------------------------------------------


ROUND_ROBIN, FIRST_COME, MULTI_RATE = 0, 1, 2
PERMIT_RULES = {"round_robin": ROUND_ROBIN, "first_come": FIRST_COME, "multi_rate": MULTI_RATE}


@compiled
def latest_s(placed: PlacedArrays, state: PermitState, j: int) -> float:
    """Latest start of a waiting phase that meets its deadline (`_latest_s`)."""
    if state.overtaken[j] >= PATIENCE:
        return -math.inf
    rollout_s = need_s(placed, state, j, 0) if state.phase[j] == 0 else 0.0
    return float(state.deadline_s[j] - need_s(placed, state, j, 1) - rollout_s)


@compiled
def harms(placed: PlacedArrays, state: PermitState, j: int, end: float, now: float) -> bool:
    """Whether job j, if it ran until `end`, would make a refused job start too late (`_harms`)."""
    units = placed.units[j, state.phase[j]]
    for k in range(len(state.phase)):
        if not state.refused[k] or not meet(placed.units[k, state.phase[k]], units):
            continue
        if state.overtaken[k] >= PATIENCE or end > max(free_s(placed, state, k, now), latest_s(placed, state, k)):
            return True
    return False


@compiled
def comes_first(placed: PlacedArrays, state: PermitState, j: int) -> bool:
    """Whether job j comes before all others on its units (`RoundRobin.may_start`)."""
    units = placed.units[j, state.phase[j]]
    for k in range(len(state.phase)):
        if k == j:
            continue
        for phase in range(2):
            place = state.begun[k] + (state.begun[k] - phase) % 2
            if meet(placed.units[k, phase], units) and (place < state.begun[j] or (place == state.begun[j] and k < j)):
                return False
    return True


@compiled
def multi_rate_may_start(placed: PlacedArrays, state: PermitState, j: int, units: Any, now: float) -> float:
    """-inf if a phase may start on free units, else the time until which it waits (`MultiRate.may_start`)."""
    end = expected_end_s(placed, state, j, units, now)
    if harms(placed, state, j, end, now):
        return math.inf
    mine = placed.units[j, state.phase[j]]
    until = -math.inf
    for k in range(len(state.phase)):
        phase = 1 - state.phase[k]
        if not state.running[k] or not meet(mine, placed.units[k, phase]):
            continue
        deadline = state.deadline_s[k] if phase else state.deadline_s[k] + placed.pace_s[k]
        latest = deadline - need_s(placed, state, k, 1) - (0.0 if phase else need_s(placed, state, k, 0))
        ready = max(now, state.due_s[k])
        if end <= ready or end <= latest:
            continue
        if (
            not math.isnan(placed.resume_s[j, state.phase[j]])
            and state.overtaken[j] < PATIENCE
            and deadline < state.deadline_s[j]
        ):
            continue
        spare = latest_s(placed, state, j) - need_s(placed, state, k, phase)
        if ready < spare:
            until = max(until, spare)
    return until


@compiled
def pauses(placed: PlacedArrays, state: PermitState, j: int, now: float) -> bool:
    """Whether all jobs on the units of job j are paused for it (`MultiRate.pauses`)."""
    units = placed.units[j, state.phase[j]]
    cost = 0.0
    for k in range(len(state.phase)):
        if not state.running[k] or not meet(state.held[k], units):
            continue
        resume = placed.resume_s[k, state.phase[k]]
        if (
            math.isnan(resume)
            or state.tail[k]
            or state.overtaken[k] >= PATIENCE
            or state.deadline_s[k] <= state.deadline_s[j]
        ):
            return False
        cost = max(cost, placed.switch_s[j, state.phase[j]] + placed.switch_s[k, state.phase[k]] + resume)
    if free_s(placed, state, j, now) - latest_s(placed, state, j) <= cost:
        return False
    return not harms(placed, state, j, expected_end_s(placed, state, j, units, now), now)


@compiled
def stop(state: PermitState, j: int) -> None:
    """`PermitMachine._stop`."""
    state.running[j] = False
    state.tail[j] = False
    clear(state.held[j])
    state.places[0] += 1
    state.place[j] = state.places[0]
    state.tail_at_s[j] = math.inf


@compiled
def pause(placed: PlacedArrays, state: PermitState, j: int, now: float) -> None:
    """`PermitMachine._pause`."""
    units = placed.units[j, state.phase[j]]
    for k in range(len(state.phase)):
        if state.running[k] and meet(state.held[k], units):
            state.rest_s[k] = max(0.0, state.due_s[k] - now) + placed.resume_s[k, state.phase[k]]
            state.begun[k] -= 1
            state.left_s[k] = (state.ends_s[k] - now) * state.rate[k] + placed.resume_s[k, state.phase[k]]
            state.ends_s[k] = math.inf
            stop(state, k)


@compiled
def start(placed: PlacedArrays, state: PermitState, j: int, now: float) -> None:
    """`PermitMachine._start`, on the units in `state.free`."""
    units = state.free
    mine = placed.units[j, state.phase[j]]
    for k in range(len(state.phase)):
        if state.running[k] and meet(state.held[k], units):
            kept(placed, state, k, state.held[k])
    state.due_s[j] = expected_end_s(placed, state, j, units, now)
    if not resident(state, j, units):
        state.left_s[j] += placed.switch_s[j, state.phase[j]]
    hold(state, j, units)
    state.running[j] = True
    copy(units, state.held[j])
    state.share[j] = count(units) / count(mine)
    state.begun[j] += 1
    for k in range(len(state.phase)):
        if not state.running[k] and meet(placed.units[k, state.phase[k]], units):
            state.overtaken[k] += 1


@compiled
def grow(placed: PlacedArrays, state: PermitState, now: float) -> None:
    """`PermitMachine._grow`."""
    jobs = len(state.phase)
    for j in range(jobs):
        if not state.running[j] or state.tail[j]:
            continue
        units, more = placed.units[j, state.phase[j]], state.scratch
        for w in range(len(units)):
            busy = state.held[j, w]
            for k in range(jobs):
                busy |= state.held[k, w]
            more[w] = units[w] & ~busy
        if meet(more, more):
            before = count(state.held[j])
            after = before + count(more)
            state.due_s[j] = now + (state.due_s[j] - now) * before / after
            for w in range(len(units)):
                state.held[j, w] |= more[w]
            state.share[j] = after / count(units)
            hold(state, j, more)


@compiled
def consider_all(placed: PlacedArrays, state: PermitState, rule: int, now: float) -> tuple[float, bool]:
    """`PermitMachine._consider_all`: the same, and whether anybody was paused."""
    paused = False
    jobs = len(state.phase)
    for j in range(jobs):
        state.refused[j] = False
        state.waiting[j] = not state.running[j]
        if rule == ROUND_ROBIN:
            state.key_s[j] = state.begun[j]
        elif rule == FIRST_COME:
            state.key_s[j] = state.place[j]
        else:
            state.urgent[j] = 0 if state.overtaken[j] >= PATIENCE else 1
            state.key_s[j] = state.deadline_s[j] if state.urgent[j] else state.place[j]
    wake = math.inf
    while True:
        j = -1
        for k in range(jobs):
            if state.waiting[k] and (
                j < 0
                or state.urgent[k] < state.urgent[j]
                or (state.urgent[k] == state.urgent[j] and state.key_s[k] < state.key_s[j])
            ):
                j = k
        if j < 0:
            return wake, paused
        state.waiting[j] = False
        may = available(placed, state, j)
        if not may:
            if rule == MULTI_RATE and pauses(placed, state, j, now):
                pause(placed, state, j, now)
                paused = True
                may = True
                copy(placed.units[j, state.phase[j]], state.free)
        elif rule == ROUND_ROBIN:
            may = comes_first(placed, state, j)
        elif rule == FIRST_COME:
            for k in range(jobs):
                if state.refused[k] and meet(placed.units[k, state.phase[k]], placed.units[j, state.phase[j]]):
                    may = False
        else:
            until = multi_rate_may_start(placed, state, j, state.free, now)
            if until > -math.inf:
                wake = min(wake, until)
                may = False
        if may:
            start(placed, state, j, now)
        else:
            state.refused[j] = True


@compiled
def grant(placed: PlacedArrays, state: PermitState, rule: int, now: float) -> float:
    """`PermitMachine._grant`: when to ask again if nothing happens before."""
    while True:
        wake, paused = consider_all(placed, state, rule, now)
        if not paused:
            return wake


@compiled
def done(placed: PlacedArrays, state: PermitState, j: int, now: float) -> None:
    """`PermitMachine._done`."""
    stop(state, j)
    state.overtaken[j] = 0
    state.phase[j] = 1 - state.phase[j]
    state.rest_s[j] = placed.expected_s[j, state.phase[j]]
    if state.phase[j] == 0:
        credit = CREDIT * placed.pace_s[j]
        state.deadline_s[j] = max(min(state.deadline_s[j], now + credit), now - credit) + placed.pace_s[j]


@compiled
def arrive(placed: PlacedArrays, state: PermitState, j: int) -> None:
    """`PermitMachine._arrive` at time 0."""
    state.phase[j] = 0
    state.running[j] = False
    state.tail[j] = False
    clear(state.held[j])
    state.place[j] = j
    state.deadline_s[j] = placed.pace_s[j]
    state.rest_s[j] = placed.expected_s[j, 0]
    state.due_s[j] = 0.0
    state.overtaken[j] = 0
    state.begun[j] = 0
    state.urgent[j] = 0
