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
from .compiled_permits import (
    MULTI_RATE,
    ROUND_ROBIN,
    PermitState,
    SeatArrays,
    arrive,
    done,
    first_jobs,
    grant,
    grow,
    has_unit,
    seats_of_group,
)
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
def begin(seats: SeatArrays, turns: PermitState) -> None:
    """All jobs arrive at time 0."""
    turns.places[0] = len(turns.phase)
    for j in range(len(turns.phase)):
        arrive(seats, turns, j)
        turns.share[j] = 1.0
        turns.rate[j] = 1.0
        turns.left_s[j] = seats.draws_s[j, 0, 0]
        turns.ends_s[j] = math.inf
        turns.tail_at_s[j] = math.inf
        turns.done[j] = 0
    for u in range(len(turns.holder)):
        turns.holder[u] = -1
        for j in range(len(turns.phase)):
            if has_unit(seats.units[j, 0], u) or has_unit(seats.units[j, 1], u):
                turns.last_unit[0] = u


@compiled
def _set_clocks(seats: SeatArrays, turns: PermitState, interference: float, now: float) -> None:
    """Set the ends of turns at the rates that hold from now on."""
    running = 0
    for j in range(len(turns.phase)):
        running += turns.running[j]
    base = 1.0 / (1.0 + interference) if running > 1 else 1.0
    for j in range(len(turns.phase)):
        if not turns.running[j]:
            continue
        rate = base * turns.share[j]
        if turns.ends_s[j] == math.inf:
            turns.ends_s[j] = now + turns.left_s[j] / rate
            if turns.phase[j] == 0 and seats.keep[j] > 0:
                tail_s = seats.draws_s[j, turns.done[j] % seats.draws_s.shape[1], 0] * seats.tail_share[j]
                if tail_s > 0 and tail_s < turns.left_s[j]:
                    turns.tail_at_s[j] = now + (turns.left_s[j] - tail_s) / rate
        elif rate != turns.rate[j]:
            turns.ends_s[j] = now + (turns.ends_s[j] - now) * turns.rate[j] / rate
            turns.tail_at_s[j] = now + (turns.tail_at_s[j] - now) * turns.rate[j] / rate
        turns.rate[j] = rate


@compiled
def advance(seats: SeatArrays, turns: PermitState, rule: int, interference: float, now: float) -> tuple[int, float]:
    """Permits are given, then the next event happens: (job whose turn ended or -1, time)."""
    wake = grant(seats, turns, rule, now)
    _set_clocks(seats, turns, interference, now)
    j, time = -1, math.inf
    for k in range(len(turns.phase)):
        if turns.running[k]:
            upcoming = min(turns.ends_s[k], turns.tail_at_s[k])
            if upcoming < time:
                j, time = k, upcoming
    if wake < time:
        grow(seats, turns, wake)
        return -1, wake
    if turns.tail_at_s[j] <= turns.ends_s[j]:
        turns.tail[j] = True
        turns.tail_at_s[j] = math.inf
        grow(seats, turns, time)
        return -1, time
    done(seats, turns, j, time)
    turns.ends_s[j] = math.inf
    if turns.phase[j] == 0:
        turns.done[j] += 1
    turns.left_s[j] = seats.draws_s[j, turns.done[j] % seats.draws_s.shape[1], turns.phase[j]]
    grow(seats, turns, time)
    return j, time


@compiled
def _note(turns: PermitState, log: Any, row: int, rule: int, now: float) -> None:
    """Log the state of each job relative to now, as far as the rule uses it: log[row, j] = phase, seconds, credit,
    done."""
    least = turns.begun[0]
    for j in range(1, len(turns.phase)):
        least = min(least, turns.begun[j])
    for j in range(len(turns.phase)):
        log[row, j, 0] = turns.phase[j] + 2 * turns.running[j] + 4 * turns.tail[j]
        log[row, j, 1] = turns.rest_s[j]
        if turns.running[j]:
            log[row, j, 1] = turns.ends_s[j] - now
        elif rule != MULTI_RATE:
            log[row, j, 1] = turns.place[j] - turns.places[0]
        log[row, j, 2] = turns.deadline_s[j] - now if rule == MULTI_RATE else 0.0
        log[row, j, 3] = turns.done[j]
        if rule == ROUND_ROBIN:
            log[row, j, 0] += 8 * (turns.begun[j] - least)


@compiled
def _alike(log: Any, a: int, b: int, slack_s: float) -> bool:
    for j in range(log.shape[1]):
        if log[a, j, 0] != log[b, j, 0] or log[a, j, 3] == log[b, j, 3]:
            return False
        if abs(log[a, j, 1] - log[b, j, 1]) > slack_s or abs(log[a, j, 2] - log[b, j, 2]) > slack_s:
            return False
    return True


@compiled
def _hopeless(seats: SeatArrays, turns: PermitState, now: float) -> bool:
    """Whether a job is further behind its deadline than any that keeps its pace ever is."""
    worst = math.inf
    for j in range(len(turns.phase)):
        worst = min(worst, turns.deadline_s[j] - (now - HOPELESS_PACES * seats.pace_s[j]))
    return worst < 0.0


@compiled
def slowest_of(seats: SeatArrays) -> int:
    """The job that does the fewest iterations alone."""
    slowest = 0
    for j in range(1, len(seats.pace_s)):
        if (
            seats.expected_s[j, 0] + seats.expected_s[j, 1]
            > seats.expected_s[slowest, 0] + seats.expected_s[slowest, 1]
        ):
            slowest = j
    return slowest


@compiled
def settle(
    seats: SeatArrays, turns: PermitState, log: Any, times: Any, rule: int, interference: float, verdict: bool
) -> tuple[int, int]:
    """(rows of `log` and `times` at the beginning and end of a period); simulates until there is one.

    A row is logged whenever the slowest job ends an iteration. With `verdict`, simulation of a multi_rate group ends as
    soon as it is clear whether all jobs keep their paces: (BROKEN or KEPT, row).
    """
    slowest = slowest_of(seats)
    begin(seats, turns)
    now, row, missed = 0.0, 0, 0
    verdict = verdict and rule == MULTI_RATE
    while True:
        j, now = advance(seats, turns, rule, interference, now)
        if j < 0 or turns.phase[j] != 0:
            continue
        # The new deadline is a pace after the last one, which was met if that is no less than a pace from now.
        if turns.deadline_s[j] < now + seats.pace_s[j] * (1.0 - EXACT):
            missed = row
        if j != slowest:
            continue
        if verdict and row > 3 and _hopeless(seats, turns, now):
            return BROKEN, row
        if verdict and row - missed >= SETTLED:
            return KEPT, row
        _note(turns, log, row, rule, now)
        times[row] = now
        for before in range(row - 1, max(-1, row - 1 - PERIOD), -1):
            slack = NEARLY if verdict and row - before >= NEARLY_AFTER else EXACT
            if _alike(log, row, before, slack * (now - times[before])):
                return before, row
        if row + 1 == len(times):
            break
        row += 1
    since = row // 4
    for j in range(len(seats.pace_s)):
        if log[row, j, 3] == log[since, j, 3]:
            since = 0
    return since, row


def _make_trace(digest: str) -> Any:
    def trace(seats, turns, rule, interference, jobs, phases, times):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(seats, turns)
        now, row = 0.0, 0
        while row < len(times):
            j, now = advance(seats, turns, rule, interference, now)
            if j >= 0:
                jobs[row], phases[row], times[row] = j, 1 - turns.phase[j], now
                row += 1

    return entry(trace)


def _make_period(digest: str) -> Any:
    def period(seats, turns, log, times, rule, interference):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        return settle(seats, turns, log, times, rule, interference, False)

    return entry(period)


def _make_completions(digest: str) -> Any:
    def completions(seats, turns, rule, interference, limit, ends, counts):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(seats, turns)
        now, short = 0.0, len(counts)
        counts[:] = 0
        while short:
            j, now = advance(seats, turns, rule, interference, now)
            if j >= 0 and turns.phase[j] == 0:
                if counts[j] < ends.shape[1]:
                    ends[j, counts[j]] = now
                counts[j] += 1
                short -= counts[j] == limit

    return entry(completions)


def _make_entry(digest: str) -> Any:
    def long_run_many(seats, turns, counts, log, times, rule, interference, verdict, out):  # type: ignore[no-untyped-def]
        # The digest is part of the key under which numba keeps the machine code (numba_options.py).
        assert len(digest) > 0
        for g in range(len(counts)):
            n = counts[g]
            of_group, state = seats_of_group(seats, g, n), first_jobs(turns, n)
            rows = log[:, :n]
            a, b = settle(of_group, state, rows, times, rule, interference, verdict)
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
