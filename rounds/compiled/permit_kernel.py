"""The compiled long-run simulation of one group: the permit machine and a clock in one kernel.

Each job alternates rollout and training for ever. The reference is planner/groups/simulate/permit_simulator.py, which
drives the machine of rounds/permits; the kernel repeats it event by event and operation by operation, so that its
floats are the reference's, bit for bit (tests/planner/groups/simulate/test_permit_kernel.py).

Clock: a phase that starts with another job's state on any of its units first pays its warm switch. While phases of two
or more jobs run in the group, each proceeds at the rate 1 / (1 + interference), alone at 1; a rollout on a part of its
units at that share of the rate. Rates change only where phases start, grow and end, so what happens in between is
exact.
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
    PlacedArrays,
    arrive,
    done,
    first_jobs,
    grant,
    grow,
    has_unit,
    jobs_of_group,
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
def begin(placed: PlacedArrays, state: PermitState) -> None:
    """All jobs arrive at time 0."""
    state.places[0] = len(state.phase)
    for j in range(len(state.phase)):
        arrive(placed, state, j)
        state.share[j] = 1.0
        state.rate[j] = 1.0
        state.left_s[j] = placed.draws_s[j, 0, 0]
        state.ends_s[j] = math.inf
        state.tail_at_s[j] = math.inf
        state.done[j] = 0
    for u in range(len(state.holder)):
        state.holder[u] = -1
        for j in range(len(state.phase)):
            if has_unit(placed.units[j, 0], u) or has_unit(placed.units[j, 1], u):
                state.last_unit[0] = u


@compiled
def _set_clocks(placed: PlacedArrays, state: PermitState, interference: float, now: float) -> None:
    """Set the ends of phases at the rates that hold from now on."""
    running = 0
    for j in range(len(state.phase)):
        running += state.running[j]
    base = 1.0 / (1.0 + interference) if running > 1 else 1.0
    for j in range(len(state.phase)):
        if not state.running[j]:
            continue
        rate = base * state.share[j]
        if state.ends_s[j] == math.inf:
            state.ends_s[j] = now + state.left_s[j] / rate
            if state.phase[j] == 0 and placed.keep[j] > 0:
                tail_s = placed.draws_s[j, state.done[j] % placed.draws_s.shape[1], 0] * placed.tail_share[j]
                if tail_s > 0 and tail_s < state.left_s[j]:
                    state.tail_at_s[j] = now + (state.left_s[j] - tail_s) / rate
        elif rate != state.rate[j]:
            state.ends_s[j] = now + (state.ends_s[j] - now) * state.rate[j] / rate
            state.tail_at_s[j] = now + (state.tail_at_s[j] - now) * state.rate[j] / rate
        state.rate[j] = rate


@compiled
def advance(placed: PlacedArrays, state: PermitState, rule: int, interference: float, now: float) -> tuple[int, float]:
    """Permits are given, then the next event happens: (job whose phase ended or -1, time)."""
    wake = grant(placed, state, rule, now)
    _set_clocks(placed, state, interference, now)
    j, time = -1, math.inf
    for k in range(len(state.phase)):
        if state.running[k]:
            upcoming = min(state.ends_s[k], state.tail_at_s[k])
            if upcoming < time:
                j, time = k, upcoming
    if wake < time:
        grow(placed, state, wake)
        return -1, wake
    if state.tail_at_s[j] <= state.ends_s[j]:
        state.tail[j] = True
        state.tail_at_s[j] = math.inf
        grow(placed, state, time)
        return -1, time
    done(placed, state, j, time)
    state.ends_s[j] = math.inf
    if state.phase[j] == 0:
        state.done[j] += 1
    state.left_s[j] = placed.draws_s[j, state.done[j] % placed.draws_s.shape[1], state.phase[j]]
    grow(placed, state, time)
    return j, time


@compiled
def _note(state: PermitState, log: Any, row: int, rule: int, now: float) -> None:
    """Log the state of each job relative to now, as far as the rule uses it: log[row, j] = phase, seconds, credit,
    done."""
    least = state.begun[0]
    for j in range(1, len(state.phase)):
        least = min(least, state.begun[j])
    for j in range(len(state.phase)):
        log[row, j, 0] = state.phase[j] + 2 * state.running[j] + 4 * state.tail[j]
        log[row, j, 1] = state.rest_s[j]
        if state.running[j]:
            log[row, j, 1] = state.ends_s[j] - now
        elif rule != MULTI_RATE:
            log[row, j, 1] = state.place[j] - state.places[0]
        log[row, j, 2] = state.deadline_s[j] - now if rule == MULTI_RATE else 0.0
        log[row, j, 3] = state.done[j]
        if rule == ROUND_ROBIN:
            log[row, j, 0] += 8 * (state.begun[j] - least)


@compiled
def _alike(log: Any, a: int, b: int, slack_s: float) -> bool:
    for j in range(log.shape[1]):
        if log[a, j, 0] != log[b, j, 0] or log[a, j, 3] == log[b, j, 3]:
            return False
        if abs(log[a, j, 1] - log[b, j, 1]) > slack_s or abs(log[a, j, 2] - log[b, j, 2]) > slack_s:
            return False
    return True


@compiled
def _hopeless(placed: PlacedArrays, state: PermitState, now: float) -> bool:
    """Whether a job is further behind its deadline than any that keeps its pace ever is."""
    worst = math.inf
    for j in range(len(state.phase)):
        worst = min(worst, state.deadline_s[j] - (now - HOPELESS_PACES * placed.pace_s[j]))
    return worst < 0.0


@compiled
def slowest_of(placed: PlacedArrays) -> int:
    """The job that does the fewest iterations alone."""
    slowest = 0
    for j in range(1, len(placed.pace_s)):
        if (
            placed.expected_s[j, 0] + placed.expected_s[j, 1]
            > placed.expected_s[slowest, 0] + placed.expected_s[slowest, 1]
        ):
            slowest = j
    return slowest


@compiled
def settle(
    placed: PlacedArrays, state: PermitState, log: Any, times: Any, rule: int, interference: float, verdict: bool
) -> tuple[int, int]:
    """(rows of `log` and `times` at the beginning and end of a period); simulates until there is one.

    A row is logged whenever the slowest job ends an iteration. With `verdict`, simulation of a multi_rate group ends as
    soon as it is clear whether all jobs keep their paces: (BROKEN or KEPT, row).
    """
    slowest = slowest_of(placed)
    begin(placed, state)
    now, row, missed = 0.0, 0, 0
    verdict = verdict and rule == MULTI_RATE
    while True:
        j, now = advance(placed, state, rule, interference, now)
        if j < 0 or state.phase[j] != 0:
            continue
        # The new deadline is a pace after the last one, which was met if that is no less than a pace from now.
        if state.deadline_s[j] < now + placed.pace_s[j] * (1.0 - EXACT):
            missed = row
        if j != slowest:
            continue
        if verdict and row > 3 and _hopeless(placed, state, now):
            return BROKEN, row
        if verdict and row - missed >= SETTLED:
            return KEPT, row
        _note(state, log, row, rule, now)
        times[row] = now
        for before in range(row - 1, max(-1, row - 1 - PERIOD), -1):
            slack = NEARLY if verdict and row - before >= NEARLY_AFTER else EXACT
            if _alike(log, row, before, slack * (now - times[before])):
                return before, row
        if row + 1 == len(times):
            break
        row += 1
    since = row // 4
    for j in range(len(placed.pace_s)):
        if log[row, j, 3] == log[since, j, 3]:
            since = 0
    return since, row


def _make_trace(digest: str) -> Any:
    def trace(placed, state, rule, interference, jobs, phases, times):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(placed, state)
        now, row = 0.0, 0
        while row < len(times):
            j, now = advance(placed, state, rule, interference, now)
            if j >= 0:
                jobs[row], phases[row], times[row] = j, 1 - state.phase[j], now
                row += 1

    return entry(trace)


def _make_period(digest: str) -> Any:
    def period(placed, state, log, times, rule, interference):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        return settle(placed, state, log, times, rule, interference, False)

    return entry(period)


def _make_completions(digest: str) -> Any:
    def completions(placed, state, rule, interference, limit, ends, counts):  # type: ignore[no-untyped-def]
        assert len(digest) > 0
        begin(placed, state)
        now, short = 0.0, len(counts)
        counts[:] = 0
        while short:
            j, now = advance(placed, state, rule, interference, now)
            if j >= 0 and state.phase[j] == 0:
                if counts[j] < ends.shape[1]:
                    ends[j, counts[j]] = now
                counts[j] += 1
                short -= counts[j] == limit

    return entry(completions)


def _make_entry(digest: str) -> Any:
    def long_run_many(placed, state, counts, log, times, rule, interference, verdict, out):  # type: ignore[no-untyped-def]
        # The digest is part of the key under which numba keeps the machine code (numba_options.py).
        assert len(digest) > 0
        for g in range(len(counts)):
            n = counts[g]
            of_group, part = jobs_of_group(placed, g, n), first_jobs(state, n)
            rows = log[:, :n]
            a, b = settle(of_group, part, rows, times, rule, interference, verdict)
            for j in range(n):
                out[g, j] = a if a < 0 else (times[b] - times[a]) / (rows[b, j, 3] - rows[a, j, 3])

    return entry(long_run_many)


_SOURCES = sources_digest(Path(str(permit_rules.__file__)))

trace = _make_trace(_SOURCES)
"""(PlacedArrays, PermitState, rule, interference, jobs (n,), phases (n,), times (n,)) -> None; the first n phases that
end: job, 0 for rollout or 1 for train, seconds."""

period = _make_period(_SOURCES)
"""(PlacedArrays, PermitState, log (rows, jobs, 4), times (rows,), rule, interference) -> rows at its beginning and
end."""

completions = _make_completions(_SOURCES)
"""(PlacedArrays, PermitState, rule, interference, limit, ends (jobs, most), counts (jobs,)) -> None; when each job
ended its iterations, the first `most` of them, until all have ended `limit`; `counts` says how many."""

long_run_many = _make_entry(_SOURCES)
"""(PlacedArrays with a leading axis of groups, PermitState, jobs by group (groups,), log (rows, jobs, 4), times
(rows,), rule, interference, verdict, out (groups, jobs)) -> None; `out` gets mean seconds of an iteration, or BROKEN or
KEPT."""
