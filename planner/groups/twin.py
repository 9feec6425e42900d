"""The compiled long-run simulation of one group: the permit machine of rounds/permit.py and a clock in one kernel.

Each job alternates rollout and training for ever. `reference.py` drives the real machine and is the reference; the
kernel repeats it event by event and operation by operation, so that its floats are the reference's, bit for bit
(tests/planner/groups/test_twin.py). It knows groups in which nobody comes, leaves or is lost.

Clock: a phase that starts with another job's state on any of its units first pays its warm switch. While phases of two
or more jobs run in the group, each of them proceeds at 1 / (1 + interference); alone, at 1. Rates change only at
starts and ends, so the simulation between events is exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..twin.compiled import compiled, entry, sources_digest

ROUND_ROBIN, FIRST_COME, MULTI_RATE = 0, 1, 2
CREDIT = 2.0  # rounds/permit.py has the meaning of both
PATIENCE = 64
TOLERANCE = 5e-4
LOOK_BACK = 48


class Seats(NamedTuple):
    """What is known of the jobs of a group, by job; (jobs, 2) is by rollout and train."""

    units: Any  # (jobs, 2) uint64 bit sets
    expected_s: Any  # (jobs, 2) seconds of a turn that the machine expects
    warm_s: Any  # (jobs, 2) seconds of a warm switch
    pace_s: Any  # (jobs,)
    draws_s: Any  # (jobs, draws, 2) seconds of a turn without its switch, used cyclically


class State(NamedTuple):
    """Where the group stands, by job."""

    phase: Any  # 0 rollout, 1 train
    running: Any
    since_s: Any  # when it began to wait
    due_s: Any  # expected end of its turn
    deadline_s: Any
    overtaken: Any
    turns: Any  # turns begun
    ends_s: Any  # true end of its turn at today's rate; inf: waits, or starts now
    left_s: Any  # seconds of the turn that starts now
    done: Any  # iterations
    seen: Any
    claim_s: Any
    holder: Any  # (64,) last job on a unit, -1: none
    last_unit: Any  # (1,)


def state(jobs: int) -> State:
    """Arrays for a group of `jobs`; the kernel sets their values."""
    whole, real = (lambda: np.zeros(jobs, np.int64)), (lambda: np.zeros(jobs))
    flag = lambda: np.zeros(jobs, np.bool_)  # noqa: E731
    return State(
        phase=whole(),
        running=flag(),
        since_s=real(),
        due_s=real(),
        deadline_s=real(),
        overtaken=whole(),
        turns=whole(),
        ends_s=real(),
        left_s=real(),
        done=whole(),
        seen=flag(),
        claim_s=real(),
        holder=np.zeros(64, np.int64),
        last_unit=np.zeros(1, np.int64),
    )


@compiled
def _latest_s(P: Seats, S: State, j: int) -> float:
    """Latest start of a job's waiting phase that meets its deadline."""
    if S.overtaken[j] >= PATIENCE:
        return -math.inf
    if S.phase[j] == 0:
        return S.deadline_s[j] - P.expected_s[j, 1] - P.expected_s[j, 0]
    return S.deadline_s[j] - P.expected_s[j, 1]


@compiled
def _before(S: State, policy: int, j: int, k: int) -> bool:
    """Whether job j is asked before job k."""
    if policy == MULTI_RATE:
        a, b = S.overtaken[j] >= PATIENCE, S.overtaken[k] >= PATIENCE
        if a != b:
            return a
        if not a:
            return S.deadline_s[j] < S.deadline_s[k]
    return S.since_s[j] < S.since_s[k]


@compiled
def _its_turn(P: Seats, S: State, j: int) -> bool:
    """Round robin: nobody who shares a unit of the phase has an earlier turn on it to come."""
    units = P.units[j, S.phase[j]]
    for k in range(len(S.phase)):
        if k == j:
            continue
        for q in range(2):
            if not P.units[k, q] & units:
                continue
            # Turns are numbered rollout 0, train 0, rollout 1, ...: k's first phase q not yet begun.
            turn = S.turns[k]
            if turn % 2 != q:
                turn += 1
            if turn < S.turns[j] or (turn == S.turns[j] and k < j):
                return False
    return True


@compiled
def _free_s(P: Seats, S: State, j: int, now: float) -> float:
    """When all units of a waiting phase are expected to be free."""
    units = P.units[j, S.phase[j]]
    at = now
    for k in range(len(S.phase)):
        if S.running[k] and P.units[k, S.phase[k]] & units:
            at = max(at, S.due_s[k])
    return at


@compiled
def _gives_way(P: Seats, S: State, j: int, now: float) -> float:
    """-inf if phase j may start, else until when it does not (inf: until something happens)."""
    units = P.units[j, S.phase[j]]
    end = now + P.expected_s[j, S.phase[j]]
    mine = _latest_s(P, S, j)
    until = -math.inf
    for k in range(len(S.phase)):
        if k == j:
            continue
        if not S.running[k]:
            # Who waits and was asked before: j may go ahead only if that costs k nothing.
            if S.seen[k] and P.units[k, S.phase[k]] & units and end > max(S.claim_s[k], _latest_s(P, S, k)):
                return math.inf
            continue
        q = 1 - S.phase[k]
        if not P.units[k, q] & units:
            continue
        latest = S.deadline_s[k] - P.expected_s[k, 1]
        if q == 0:
            latest = S.deadline_s[k] + P.pace_s[k] - P.expected_s[k, 1] - P.expected_s[k, 0]
        ready = max(now, S.due_s[k])
        if end <= ready or end <= latest:
            continue
        spare = mine - P.expected_s[k, q]
        if ready < spare:
            until = max(until, spare)
    return until


@compiled
def _start(P: Seats, S: State, j: int, now: float) -> None:
    phase = S.phase[j]
    units = P.units[j, phase]
    warm = False
    for u in range(S.last_unit[0] + 1):
        if units >> np.uint64(u) & np.uint64(1):
            if S.holder[u] >= 0 and S.holder[u] != j:
                warm = True
            S.holder[u] = j
    S.running[j] = True
    S.due_s[j] = now + P.expected_s[j, phase]
    S.left_s[j] = P.draws_s[j, S.done[j] % P.draws_s.shape[1], phase]
    if warm:
        S.left_s[j] += P.warm_s[j, phase]
    S.turns[j] += 1
    S.overtaken[j] = 0
    for k in range(len(S.phase)):
        if k != j and not S.running[k] and P.units[k, S.phase[k]] & units:
            S.overtaken[k] += 1


@compiled
def _grant(P: Seats, S: State, policy: int, now: float) -> float:
    """Start what may start; when to ask again if nothing happens before."""
    jobs = len(S.phase)
    busy = np.uint64(0)
    claimed = np.uint64(0)
    for j in range(jobs):
        S.seen[j] = S.running[j]
        if S.running[j]:
            busy |= P.units[j, S.phase[j]]
    wake = math.inf
    for _ in range(jobs):
        j = -1
        for k in range(jobs):
            if not S.seen[k] and (j < 0 or _before(S, policy, k, j)):
                j = k
        if j < 0:
            break
        units = P.units[j, S.phase[j]]
        may = not units & busy
        if policy == ROUND_ROBIN:
            may = may and _its_turn(P, S, j)
        elif policy == FIRST_COME:
            may = may and not units & claimed
            if not may:
                claimed |= units
        else:
            if may:
                until = _gives_way(P, S, j, now)
                may = until == -math.inf
                if not may:
                    wake = min(wake, until)
            if not may:
                S.claim_s[j] = _free_s(P, S, j, now)
        if may:
            busy |= units
            _start(P, S, j, now)
        S.seen[j] = True
    return wake


@compiled
def _finish(P: Seats, S: State, j: int, now: float) -> None:
    S.running[j] = False
    S.ends_s[j] = math.inf
    S.since_s[j] = now
    if S.phase[j] == 0:
        S.phase[j] = 1
        return
    S.phase[j] = 0
    S.done[j] += 1
    pace = P.pace_s[j]
    S.deadline_s[j] = max(min(S.deadline_s[j], now + CREDIT * pace), now - CREDIT * pace) + pace


@compiled
def _reset(P: Seats, S: State) -> None:
    every = np.uint64(0)
    for j in range(len(S.phase)):
        S.phase[j] = 0
        S.running[j] = False
        S.since_s[j] = 0.0
        S.deadline_s[j] = P.pace_s[j]
        S.overtaken[j] = 0
        S.turns[j] = 0
        S.ends_s[j] = math.inf
        S.left_s[j] = 0.0
        S.done[j] = 0
        every |= P.units[j, 0] | P.units[j, 1]
    S.last_unit[0] = 0
    for u in range(64):
        S.holder[u] = -1
        if every >> np.uint64(u) & np.uint64(1):
            S.last_unit[0] = u


@compiled
def _set_clocks(S: State, old: float, interference: float, now: float) -> float:
    """Ends of turns at the rate that now holds; the rate."""
    count = 0
    for j in range(len(S.phase)):
        count += S.running[j]
    rate = 1.0 / (1.0 + interference) if count > 1 else 1.0
    for j in range(len(S.phase)):
        if not S.running[j]:
            continue
        if S.ends_s[j] == math.inf:
            S.ends_s[j] = now + S.left_s[j] / rate
        elif rate != old:
            S.ends_s[j] = now + (S.ends_s[j] - now) * old / rate
    return rate


@compiled
def _advance(P: Seats, S: State, policy: int, interference: float, now: float, rate: float) -> tuple[int, float, float]:
    """One event: permits are given, then the next turn ends. (job or -1 for a wake-up, time, rate)."""
    wake = _grant(P, S, policy, now)
    rate = _set_clocks(S, rate, interference, now)
    j = 0
    for k in range(1, len(S.phase)):
        if S.ends_s[k] < S.ends_s[j]:
            j = k
    if wake < S.ends_s[j]:
        return -1, wake, rate
    now = S.ends_s[j]
    _finish(P, S, j, now)
    return j, now, rate


@compiled
def _note(S: State, log: Any, row: int, now: float) -> None:
    """Where each job stands relative to now, as a row of (jobs, 4)."""
    for j in range(len(S.phase)):
        log[row, j, 0] = S.phase[j] + 2 * S.running[j]
        log[row, j, 1] = (S.ends_s[j] if S.running[j] else S.since_s[j]) - now
        log[row, j, 2] = S.deadline_s[j] - now
        log[row, j, 3] = S.done[j]


@compiled
def _alike(log: Any, a: int, b: int, slack_s: float) -> bool:
    for j in range(log.shape[1]):
        if log[a, j, 0] != log[b, j, 0] or log[a, j, 3] == log[b, j, 3]:
            return False
        if abs(log[a, j, 1] - log[b, j, 1]) > slack_s or abs(log[a, j, 2] - log[b, j, 2]) > slack_s:
            return False
    return True


@compiled
def _long_run(P: Seats, S: State, log: Any, times: Any, policy: int, interference: float, out: Any) -> int:
    """Mean seconds of an iteration of each job for durations that repeat; the rows looked at.

    The group is looked at whenever its slowest job ends an iteration. Where it stands (nearly) as it stood before, what
    lay between is (nearly) a period: a difference of `TOLERANCE` of the window moves no mean by more than that share.
    """
    jobs = len(P.pace_s)
    slowest = 0
    for j in range(1, jobs):
        if P.draws_s[j, 0, 0] + P.draws_s[j, 0, 1] > P.draws_s[slowest, 0, 0] + P.draws_s[slowest, 0, 1]:
            slowest = j
    _reset(P, S)
    now, rate, row = 0.0, 1.0, 0
    while True:
        who, now, rate = _advance(P, S, policy, interference, now, rate)
        if who != slowest or S.phase[who] != 0:
            continue
        _note(S, log, row, now)
        times[row] = now
        since = -1
        if row + 1 == len(times):
            since = row // 4
            for j in range(jobs):
                if log[row, j, 3] == log[since, j, 3]:
                    since = 0
        else:
            for before in range(row - 1, max(-1, row - 1 - LOOK_BACK), -1):
                if _alike(log, row, before, TOLERANCE * (now - times[before])):
                    since = before
                    break
        if since >= 0:
            for j in range(jobs):
                out[j] = (now - times[since]) / (log[row, j, 3] - log[since, j, 3])
            return row
        row += 1


def _make_entry(digest: str) -> Any:
    def long_run_many(units, expected_s, warm_s, pace_s, draws_s, counts, S, log, times, policy, interference, out):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        for g in range(len(counts)):
            n = counts[g]
            P = Seats(units[g, :n], expected_s[g, :n], warm_s[g, :n], pace_s[g, :n], draws_s[g, :n])
            T = State(
                S.phase[:n],
                S.running[:n],
                S.since_s[:n],
                S.due_s[:n],
                S.deadline_s[:n],
                S.overtaken[:n],
                S.turns[:n],
                S.ends_s[:n],
                S.left_s[:n],
                S.done[:n],
                S.seen[:n],
                S.claim_s[:n],
                S.holder,
                S.last_unit,
            )
            _long_run(P, T, log[:, :n], times, policy, interference, out[g, :n])

    return entry(long_run_many)


long_run_many = _make_entry(sources_digest())
