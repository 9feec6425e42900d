"""State of the compiled permit machine: arrays of a group's seats and turns, and the functions that read them.

Functions repeat those of the same name in rounds/permits/permit_machine.py. Jobs are numbered in the order of arrival,
all at time 0. A set of units is a row of 64-bit words, unit u being bit u % 64 of word u // 64; nothing allocates, so
a function that makes a set writes it into an array that it is given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
    """Turns of the jobs of a group as arrays; names as in rounds/permits/permit_turn.py."""

    phase: Any
    running: Any
    tail: Any
    held: Any  # (jobs, words) uint64
    place: Any  # `Turn.ready_place`
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
def seats_of_group(P: SeatArrays, g: int, n: int) -> SeatArrays:
    """Seats of the n jobs of group g; `P` has a leading axis of groups."""
    return SeatArrays(
        P.units[g, :n],
        P.expected_s[g, :n],
        P.switch_s[g, :n],
        P.pace_s[g, :n],
        P.keep[g, :n],
        P.resume_s[g, :n],
        P.tail_share[g, :n],
        P.draws_s[g, :n],
    )


@compiled
def first_jobs(S: PermitState, n: int) -> PermitState:
    """The part of the state of the first n jobs."""
    return PermitState(
        S.phase[:n],
        S.running[:n],
        S.tail[:n],
        S.held[:n],
        S.place[:n],
        S.places,
        S.deadline_s[:n],
        S.rest_s[:n],
        S.due_s[:n],
        S.overtaken[:n],
        S.begun[:n],
        S.refused[:n],
        S.waiting[:n],
        S.urgent[:n],
        S.key_s[:n],
        S.holder,
        S.last_unit,
        S.free,
        S.scratch,
        S.share[:n],
        S.rate[:n],
        S.left_s[:n],
        S.ends_s[:n],
        S.tail_at_s[:n],
        S.done[:n],
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
def kept(P: SeatArrays, S: PermitState, j: int, into: Any) -> None:
    """`Turn.kept`, written into a set, which may be the job's own."""
    limited = S.tail[j] and P.keep[j] != 0
    left = P.keep[j]
    for w in range(len(into)):
        rest = S.held[j, w]
        while rest and left > 0 and limited:
            rest &= rest - np.uint64(1)
            left -= 1
        into[w] = S.held[j, w] & ~rest if limited else S.held[j, w]


@compiled
def need_s(P: SeatArrays, S: PermitState, j: int, phase: int) -> float:
    """`Turn.need_s`."""
    seconds: float = (S.rest_s[j] if phase == S.phase[j] else P.expected_s[j, phase]) + P.switch_s[j, phase]
    return seconds


@compiled
def available(P: SeatArrays, S: PermitState, j: int) -> bool:
    """`PermitMachine.available`, written into `S.free`; whether it holds any."""
    units = P.units[j, S.phase[j]]
    copy(units, S.free)
    taken = False
    for k in range(len(S.phase)):
        if S.running[k] and meet(S.held[k], units):
            if not S.tail[k] or P.keep[k] == 0:
                return False
            kept(P, S, k, S.scratch)
            taken |= meet(S.scratch, units)
            for w in range(len(units)):
                S.free[w] &= ~S.scratch[w]
    if taken and S.phase[j] == 1:
        return False
    return meet(S.free, S.free)


@compiled
def resident(S: PermitState, j: int, units: Any) -> bool:
    """`PermitMachine._resident`."""
    for u in range(S.last_unit[0] + 1):  # noqa: SIM110
        if has_unit(units, u) and S.holder[u] >= 0 and S.holder[u] != j:
            return False
    return True


@compiled
def hold(S: PermitState, j: int, units: Any) -> None:
    """Job j is the last holder of these units."""
    for u in range(S.last_unit[0] + 1):
        if has_unit(units, u):
            S.holder[u] = j


@compiled
def expected_end_s(P: SeatArrays, S: PermitState, j: int, units: Any, now: float) -> float:
    """`PermitMachine.expected_end_s`."""
    switch = 0.0 if resident(S, j, units) else P.switch_s[j, S.phase[j]]
    end: float = now + (S.rest_s[j] + switch) * count(P.units[j, S.phase[j]]) / count(units)
    return end


@compiled
def free_s(P: SeatArrays, S: PermitState, j: int, now: float) -> float:
    """`PermitMachine.free_s`."""
    units = P.units[j, S.phase[j]]
    free = now
    for k in range(len(S.phase)):
        if S.running[k] and meet(S.held[k], units):
            free = max(free, S.due_s[k])
    return free
