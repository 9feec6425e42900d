"""The compiled long-run simulation of one group: the permit machine and a clock in one kernel.

Each job alternates rollout and training for ever. `permit_simulator.py` drives the real machine of
rounds/permits/permit_machine.py and is the reference; the kernel repeats it event by event and operation by operation,
so that its floats are the reference's, bit for bit (tests/planner/groups/simulate/test_twin.py).

Clock: a turn that starts with another job's state on any of its units first pays its warm switch. While turns of two or
more jobs run in the group, each proceeds at 1 / (1 + interference), alone at 1; a rollout on a part of its units at
that part. Rates change only where turns start, grow and end, so what happens in between is exact.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..permits import permit_rules
from .compiled_permit_rules import MULTI_RATE, ROUND_ROBIN
from .compiled_permit_state import Seats, State, has_unit
from .compiled_permits import arrive, done, grant, grow
from .numba_options import compiled, entry, sources_digest

EXACT = 1e-9
"""Where a group stands again as before within this share of the time between, that time is a period."""
PERIOD = 64
"""Iterations of the slowest job that a period has at most."""
NEARLY = 5e-4
NEARLY_AFTER = 40
"""For a verdict, after so many iterations it is enough to stand as before within this share of the time between."""
HOPELESS_PACES = 1.0
"""Paces behind its deadline at which a job is given up. Deadlines remember no more than `CREDIT` - 1 behind."""
SETTLED = 8
"""Iterations of the slowest job in which nobody missed a deadline, after which all are taken to keep their pace."""

BROKEN, KEPT = -1, -2
"""Verdicts in place of a period's first row."""


@compiled
def begin(P: Seats, S: State) -> None:
    """All jobs arrive at time 0."""
    S.places[0] = len(S.phase)
    for j in range(len(S.phase)):
        arrive(P, S, j)
        S.share[j] = 1.0
        S.rate[j] = 1.0
        S.left_s[j] = P.draws_s[j, 0, 0]
        S.ends_s[j] = math.inf
        S.tail_at_s[j] = math.inf
        S.done[j] = 0
    for u in range(len(S.holder)):
        S.holder[u] = -1
        for j in range(len(S.phase)):
            if has_unit(P.units[j, 0], u) or has_unit(P.units[j, 1], u):
                S.last_unit[0] = u


@compiled
def _set_clocks(P: Seats, S: State, interference: float, now: float) -> None:
    """Ends of turns at the rates that hold from now on."""
    running = 0
    for j in range(len(S.phase)):
        running += S.running[j]
    base = 1.0 / (1.0 + interference) if running > 1 else 1.0
    for j in range(len(S.phase)):
        if not S.running[j]:
            continue
        rate = base * S.share[j]
        if S.ends_s[j] == math.inf:
            S.ends_s[j] = now + S.left_s[j] / rate
            if S.phase[j] == 0 and P.keep[j] > 0:
                tail_s = P.draws_s[j, S.done[j] % P.draws_s.shape[1], 0] * P.tail_share[j]
                if tail_s > 0 and tail_s < S.left_s[j]:
                    S.tail_at_s[j] = now + (S.left_s[j] - tail_s) / rate
        elif rate != S.rate[j]:
            S.ends_s[j] = now + (S.ends_s[j] - now) * S.rate[j] / rate
            S.tail_at_s[j] = now + (S.tail_at_s[j] - now) * S.rate[j] / rate
        S.rate[j] = rate


@compiled
def advance(P: Seats, S: State, policy: int, interference: float, now: float) -> tuple[int, float]:
    """Permits are given, then the next event happens: (job whose turn ended or -1, time)."""
    wake = grant(P, S, policy, now)
    _set_clocks(P, S, interference, now)
    j, at = -1, math.inf
    for k in range(len(S.phase)):
        if S.running[k]:
            upcoming = min(S.ends_s[k], S.tail_at_s[k])
            if upcoming < at:
                j, at = k, upcoming
    if wake < at:
        grow(P, S, wake)
        return -1, wake
    if S.tail_at_s[j] <= S.ends_s[j]:
        S.tail[j] = True
        S.tail_at_s[j] = math.inf
        grow(P, S, at)
        return -1, at
    done(P, S, j, at)
    S.ends_s[j] = math.inf
    if S.phase[j] == 0:
        S.done[j] += 1
    S.left_s[j] = P.draws_s[j, S.done[j] % P.draws_s.shape[1], S.phase[j]]
    grow(P, S, at)
    return j, at


@compiled
def _note(S: State, log: Any, row: int, policy: int, now: float) -> None:
    """Where each job stands relative to now, as far as the policy looks: log[row, j] = kind, seconds, credit, done."""
    least = S.begun[0]
    for j in range(1, len(S.phase)):
        least = min(least, S.begun[j])
    for j in range(len(S.phase)):
        log[row, j, 0] = S.phase[j] + 2 * S.running[j] + 4 * S.tail[j]
        log[row, j, 1] = S.rest_s[j]
        if S.running[j]:
            log[row, j, 1] = S.ends_s[j] - now
        elif policy != MULTI_RATE:
            log[row, j, 1] = S.place[j] - S.places[0]
        log[row, j, 2] = S.deadline_s[j] - now if policy == MULTI_RATE else 0.0
        log[row, j, 3] = S.done[j]
        if policy == ROUND_ROBIN:
            log[row, j, 0] += 8 * (S.begun[j] - least)


@compiled
def _alike(log: Any, a: int, b: int, slack_s: float) -> bool:
    for j in range(log.shape[1]):
        if log[a, j, 0] != log[b, j, 0] or log[a, j, 3] == log[b, j, 3]:
            return False
        if abs(log[a, j, 1] - log[b, j, 1]) > slack_s or abs(log[a, j, 2] - log[b, j, 2]) > slack_s:
            return False
    return True


@compiled
def _hopeless(P: Seats, S: State, now: float) -> bool:
    """Whether a job is further behind its deadline than any that keeps its pace ever is."""
    worst = math.inf
    for j in range(len(S.phase)):
        worst = min(worst, S.deadline_s[j] - (now - HOPELESS_PACES * P.pace_s[j]))
    return worst < 0.0


@compiled
def slowest_of(P: Seats) -> int:
    """The job that does the fewest iterations alone."""
    slowest = 0
    for j in range(1, len(P.pace_s)):
        if P.expected_s[j, 0] + P.expected_s[j, 1] > P.expected_s[slowest, 0] + P.expected_s[slowest, 1]:
            slowest = j
    return slowest


@compiled
def settle(
    P: Seats, S: State, log: Any, times: Any, policy: int, interference: float, verdict: bool
) -> tuple[int, int]:
    """Simulate until a period is found: rows of `log` and `times` at its beginning and end.

    The group is looked at whenever its slowest job ends an iteration. With `verdict`, multi_rate groups of which it is
    clear before whether all keep their paces end early: (BROKEN or KEPT, row).
    """
    slowest = slowest_of(P)
    begin(P, S)
    now, row, missed = 0.0, 0, 0
    verdict = verdict and policy == MULTI_RATE
    while True:
        who, now = advance(P, S, policy, interference, now)
        if who < 0 or S.phase[who] != 0:
            continue
        # The new deadline is a pace after the last one, which was met if that is no less than a pace from now.
        if S.deadline_s[who] < now + P.pace_s[who] * (1.0 - EXACT):
            missed = row
        if who != slowest:
            continue
        if verdict and row > 3 and _hopeless(P, S, now):
            return BROKEN, row
        if verdict and row - missed >= SETTLED:
            return KEPT, row
        _note(S, log, row, policy, now)
        times[row] = now
        for before in range(row - 1, max(-1, row - 1 - PERIOD), -1):
            slack = NEARLY if verdict and row - before >= NEARLY_AFTER else EXACT
            if _alike(log, row, before, slack * (now - times[before])):
                return before, row
        if row + 1 == len(times):
            break
        row += 1
    since = row // 4
    for j in range(len(P.pace_s)):
        if log[row, j, 3] == log[since, j, 3]:
            since = 0
    return since, row


def _make_trace(digest: str) -> Any:
    def trace(P, S, policy, interference, who, what, when):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(P, S)
        now, row = 0.0, 0
        while row < len(when):
            j, now = advance(P, S, policy, interference, now)
            if j >= 0:
                who[row], what[row], when[row] = j, 1 - S.phase[j], now
                row += 1

    return entry(trace)


def _make_period(digest: str) -> Any:
    def period(P, S, log, times, policy, interference):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        return settle(P, S, log, times, policy, interference, False)

    return entry(period)


def _make_completions(digest: str) -> Any:
    def completions(P, S, policy, interference, limit, ends, counts):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(P, S)
        now, short = 0.0, len(counts)
        counts[:] = 0
        while short:
            j, now = advance(P, S, policy, interference, now)
            if j >= 0 and S.phase[j] == 0:
                if counts[j] < ends.shape[1]:
                    ends[j, counts[j]] = now
                counts[j] += 1
                short -= counts[j] == limit

    return entry(completions)


def _make_entry(digest: str) -> Any:
    def long_run_many(P, S, counts, log, times, policy, interference, verdict, out):  # type: ignore[no-untyped-def]
        # The digest is part of the key under which numba keeps the machine code (numba_options.py).
        assert len(digest) > 0
        for g in range(len(counts)):
            n = counts[g]
            one = Seats(
                P.units[g, :n],
                P.expected_s[g, :n],
                P.switch_s[g, :n],
                P.pace_s[g, :n],
                P.keep[g, :n],
                P.resume_s[g, :n],
                P.tail_share[g, :n],
                P.draws_s[g, :n],
            )
            state = State(
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
                S.asked[:n],
                S.waiting[:n],
                S.urgent[:n],
                S.key_s[:n],
                S.holder,
                S.last_unit,
                S.free,
                S.some,
                S.share[:n],
                S.rate[:n],
                S.left_s[:n],
                S.ends_s[:n],
                S.tail_at_s[:n],
                S.done[:n],
            )
            rows = log[:, :n]
            a, b = settle(one, state, rows, times, policy, interference, verdict)
            for j in range(n):
                out[g, j] = a if a < 0 else (times[b] - times[a]) / (rows[b, j, 3] - rows[a, j, 3])

    return entry(long_run_many)


_SOURCES = sources_digest(Path(str(permit_rules.__file__)))

trace = _make_trace(_SOURCES)
"""(Seats, State, policy, interference, who (n,), what (n,), when (n,)) -> None; the first n phases that end: job, 0 for
rollout or 1 for train, seconds."""

period = _make_period(_SOURCES)
"""(Seats, State, log (rows, jobs, 4), times (rows,), policy, interference) -> rows at its beginning and end."""

completions = _make_completions(_SOURCES)
"""(Seats, State, policy, interference, limit, ends (jobs, most), counts (jobs,)) -> None; when each job ended its
iterations, the first `most` of them, until all have ended `limit`; `counts` says how many."""

long_run_many = _make_entry(_SOURCES)
"""(Seats with a leading axis of groups, State, jobs by group (groups,), log (rows, jobs, 4), times (rows,), policy,
interference, verdict, out (groups, jobs)) -> None; `out` gets mean seconds of an iteration, or BROKEN or KEPT."""
