"""The compiled long-run simulation of one group: the permit machine and a clock in one kernel.

Each job alternates rollout and training for ever. The reference is planner/groups/simulate/permit_simulator.py, which
drives the machine of rounds/permits; the kernel repeats it event by event and operation by operation, so that its
floats are the reference's, bit for bit (tests/planner/groups/simulate/test_permit_kernel.py).

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
from .compiled_permit_state import PermitState, SeatArrays, first_jobs, has_unit, seats_of_group
from .compiled_permits import arrive, done, grant, grow
from .numba_options import compiled, entry, sources_digest

EXACT = 1e-9
"""Share of the time between two equal states of a group by which they may differ; the time between is a period."""
PERIOD = 64
"""Iterations of the slowest job that a period has at most."""
NEARLY = 5e-4
NEARLY_AFTER = 40
"""For a verdict, states may differ by NEARLY of the time between after NEARLY_AFTER iterations."""
HOPELESS_PACES = 1.0
"""Paces behind its deadline at which a job is given up. Deadlines remember no more than `CREDIT` - 1 behind."""
SETTLED = 8
"""Iterations of the slowest job without a missed deadline, after which all jobs count as keeping their pace."""

BROKEN, KEPT = -1, -2
"""Verdicts in place of a period's first row."""


@compiled
def begin(P: SeatArrays, S: PermitState) -> None:
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
def _set_clocks(P: SeatArrays, S: PermitState, interference: float, now: float) -> None:
    """Set the ends of turns at the rates that hold from now on."""
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
def advance(P: SeatArrays, S: PermitState, rule: int, interference: float, now: float) -> tuple[int, float]:
    """Permits are given, then the next event happens: (job whose turn ended or -1, time)."""
    wake = grant(P, S, rule, now)
    _set_clocks(P, S, interference, now)
    j, time = -1, math.inf
    for k in range(len(S.phase)):
        if S.running[k]:
            upcoming = min(S.ends_s[k], S.tail_at_s[k])
            if upcoming < time:
                j, time = k, upcoming
    if wake < time:
        grow(P, S, wake)
        return -1, wake
    if S.tail_at_s[j] <= S.ends_s[j]:
        S.tail[j] = True
        S.tail_at_s[j] = math.inf
        grow(P, S, time)
        return -1, time
    done(P, S, j, time)
    S.ends_s[j] = math.inf
    if S.phase[j] == 0:
        S.done[j] += 1
    S.left_s[j] = P.draws_s[j, S.done[j] % P.draws_s.shape[1], S.phase[j]]
    grow(P, S, time)
    return j, time


@compiled
def _note(S: PermitState, log: Any, row: int, rule: int, now: float) -> None:
    """Log the state of each job relative to now, as far as the rule uses it: log[row, j] = phase, seconds, credit,
    done."""
    least = S.begun[0]
    for j in range(1, len(S.phase)):
        least = min(least, S.begun[j])
    for j in range(len(S.phase)):
        log[row, j, 0] = S.phase[j] + 2 * S.running[j] + 4 * S.tail[j]
        log[row, j, 1] = S.rest_s[j]
        if S.running[j]:
            log[row, j, 1] = S.ends_s[j] - now
        elif rule != MULTI_RATE:
            log[row, j, 1] = S.place[j] - S.places[0]
        log[row, j, 2] = S.deadline_s[j] - now if rule == MULTI_RATE else 0.0
        log[row, j, 3] = S.done[j]
        if rule == ROUND_ROBIN:
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
def _hopeless(P: SeatArrays, S: PermitState, now: float) -> bool:
    """Whether a job is further behind its deadline than any that keeps its pace ever is."""
    worst = math.inf
    for j in range(len(S.phase)):
        worst = min(worst, S.deadline_s[j] - (now - HOPELESS_PACES * P.pace_s[j]))
    return worst < 0.0


@compiled
def slowest_of(P: SeatArrays) -> int:
    """The job that does the fewest iterations alone."""
    slowest = 0
    for j in range(1, len(P.pace_s)):
        if P.expected_s[j, 0] + P.expected_s[j, 1] > P.expected_s[slowest, 0] + P.expected_s[slowest, 1]:
            slowest = j
    return slowest


@compiled
def settle(
    P: SeatArrays, S: PermitState, log: Any, times: Any, rule: int, interference: float, verdict: bool
) -> tuple[int, int]:
    """(rows of `log` and `times` at the beginning and end of a period); simulates until there is one.

    A row is logged whenever the slowest job ends an iteration. With `verdict`, simulation of a multi_rate group ends as
    soon as it is clear whether all jobs keep their paces: (BROKEN or KEPT, row).
    """
    slowest = slowest_of(P)
    begin(P, S)
    now, row, missed = 0.0, 0, 0
    verdict = verdict and rule == MULTI_RATE
    while True:
        j, now = advance(P, S, rule, interference, now)
        if j < 0 or S.phase[j] != 0:
            continue
        # The new deadline is a pace after the last one, which was met if that is no less than a pace from now.
        if S.deadline_s[j] < now + P.pace_s[j] * (1.0 - EXACT):
            missed = row
        if j != slowest:
            continue
        if verdict and row > 3 and _hopeless(P, S, now):
            return BROKEN, row
        if verdict and row - missed >= SETTLED:
            return KEPT, row
        _note(S, log, row, rule, now)
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
    def trace(P, S, rule, interference, jobs, phases, times):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(P, S)
        now, row = 0.0, 0
        while row < len(times):
            j, now = advance(P, S, rule, interference, now)
            if j >= 0:
                jobs[row], phases[row], times[row] = j, 1 - S.phase[j], now
                row += 1

    return entry(trace)


def _make_period(digest: str) -> Any:
    def period(P, S, log, times, rule, interference):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        return settle(P, S, log, times, rule, interference, False)

    return entry(period)


def _make_completions(digest: str) -> Any:
    def completions(P, S, rule, interference, limit, ends, counts):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(P, S)
        now, short = 0.0, len(counts)
        counts[:] = 0
        while short:
            j, now = advance(P, S, rule, interference, now)
            if j >= 0 and S.phase[j] == 0:
                if counts[j] < ends.shape[1]:
                    ends[j, counts[j]] = now
                counts[j] += 1
                short -= counts[j] == limit

    return entry(completions)


def _make_entry(digest: str) -> Any:
    def long_run_many(P, S, counts, log, times, rule, interference, verdict, out):  # type: ignore[no-untyped-def]
        # The digest is part of the key under which numba keeps the machine code (numba_options.py).
        assert len(digest) > 0
        for g in range(len(counts)):
            n = counts[g]
            seats, state = seats_of_group(P, g, n), first_jobs(S, n)
            rows = log[:, :n]
            a, b = settle(seats, state, rows, times, rule, interference, verdict)
            for j in range(n):
                out[g, j] = a if a < 0 else (times[b] - times[a]) / (rows[b, j, 3] - rows[a, j, 3])

    return entry(long_run_many)


_SOURCES = sources_digest(Path(str(permit_rules.__file__)))

trace = _make_trace(_SOURCES)
"""(SeatArrays, PermitState, rule, interference, jobs (n,), phases (n,), times (n,)) -> None; the first n phases that
end: job, 0 for rollout or 1 for train, seconds."""

period = _make_period(_SOURCES)
"""(SeatArrays, PermitState, log (rows, jobs, 4), times (rows,), rule, interference) -> rows at its beginning and
end."""

completions = _make_completions(_SOURCES)
"""(SeatArrays, PermitState, rule, interference, limit, ends (jobs, most), counts (jobs,)) -> None; when each job ended
its iterations, the first `most` of them, until all have ended `limit`; `counts` says how many."""

long_run_many = _make_entry(_SOURCES)
"""(SeatArrays with a leading axis of groups, PermitState, jobs by group (groups,), log (rows, jobs, 4), times (rows,),
rule, interference, verdict, out (groups, jobs)) -> None; `out` gets mean seconds of an iteration, or BROKEN or KEPT."""
