"""What the compiled permit machine knows of a group, and what it reads off that.

Functions repeat those of the same name in rounds/permit.py. Jobs are numbered in the order of arrival, all at time 0;
units are bits of a 64-bit number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..twin.compiled import compiled


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
