"""What a group gives its jobs: slowdown of each member in the long run, and whether all keep their bounds.

Slowdown is iteration seconds in the group over the job's mean alone on its reference ways. With durations that are
known it is one number, the long-run mean. With spread it differs from stretch to stretch: each job draws its own
iterations in an order that its name seeds, the same in every group (common random numbers), so that groups are compared
on the same luck.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.compiled_permit_rules import POLICIES
from ....rounds.compiled.compiled_permit_state import Seats, empty_state
from ....rounds.compiled.permit_kernel import BROKEN, KEPT, completions, long_run_many
from ..inputs.group_model import Group, GroupJob, NodeKind, Rules, Slowdown
from .permit_seats import bound, factors, seats_of

_ROWS = 1200
"""Iterations of the slowest job after which a group that finds no period is averaged: of random groups under
multi_rate, 99 in 100 then have every mean within 0.2 % of that of 3,000 iterations."""

_ROWS_OF_A_VERDICT = 240
"""The same where only the verdict counts, which a handful of groups in a thousand need more for."""

_WARM_UP = 4
STRETCHES = 24
"""Stretches of the slowest job that are simulated where durations spread."""

_FEW = 6
"""Stretches after which a group that is far off is given up."""

_FAR = 1.05

Real = NDArray[np.float64]


def cannot_hold(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> bool:
    """Whether no schedule at all keeps every bound: some job's ways, or what some unit has to do, take too long.

    A unit is asked for the sum of s_j / (bound_j * solo_j) over the phases that hold it, which must not exceed 1.
    """
    asked: dict[int, float] = {}
    for pin in group.pins:
        job = jobs[pin.job]
        limit_s = bound(job, rules) * job.solo_s
        rollout_s, train_s = job.rollout[pin.rollout].mean_s, job.train[pin.train].mean_s
        if rollout_s + train_s > limit_s * (1 + 1e-12):
            return not is_alone(group)
        for unit in pin.train_units:
            asked[unit] = asked.get(unit, 0.0) + train_s / limit_s
        if rules.tail_keep == 0:  # else a rollout can do without some of its units for a while
            for unit in pin.rollout_units:
                asked[unit] = asked.get(unit, 0.0) + rollout_s / limit_s
    return max(asked.values()) > 1 + 1e-12 and not is_alone(group)


def is_alone(group: Group) -> bool:
    """One job on its reference ways: what its slowdown is measured against."""
    return len(group.pins) == 1 and group.pins[0].rollout == group.pins[0].train == 0


def judge(seats: Seats, counts: NDArray[np.int64], rules: Rules, verdict: bool) -> Real:
    """Mean seconds of an iteration of each job, (groups, jobs), of groups whose durations are known.

    Args:
        seats: with a leading axis of groups (permit_seats.py).
        counts: (groups,) jobs of each group.
        verdict: end multi_rate groups as soon as it is clear whether all keep their pace: BROKEN or KEPT instead.
    """
    most = seats.pace_s.shape[1]
    out = np.zeros(seats.pace_s.shape)
    rows = _ROWS_OF_A_VERDICT if verdict else _ROWS
    log, times = np.zeros((rows, most, 4)), np.zeros(rows)
    policy = POLICIES[rules.policy]
    long_run_many(
        seats, empty_state(most, seats.units.shape[-1]), counts, log, times, policy, rules.interference, verdict, out
    )
    return out


def stretches_of(
    group: Group, jobs: Mapping[str, GroupJob], rules: Rules, stretches: int
) -> tuple[list[Real], list[float]]:
    """Slowdowns of each job over every stretch of consecutive iterations (they overlap), and over all of them.

    Over a stretch they are against the job's mean alone, its own bad luck included, since that is what its owner sees.
    Over all they are against what the same iterations take alone: luck that the simulation happened to draw is no
    slowdown.
    """
    seats = seats_of([group], jobs, rules)
    n, limit = len(group.pins), _WARM_UP + rules.stretch * stretches
    one = Seats(*(part[0] for part in seats))
    ends = np.zeros((n, 8 * limit))  # a fast job's later iterations are not looked at
    counts = np.zeros(n, np.int64)
    completions(
        one, empty_state(n, one.units.shape[-1]), POLICIES[rules.policy], rules.interference, limit, ends, counts
    )
    found, means = [], []
    for pin, row, count in zip(group.pins, ends, counts, strict=True):
        job = jobs[pin.job]
        last = min(count, len(row))
        kept = row[_WARM_UP:last]
        found.append((kept[rules.stretch :] - kept[: -rules.stretch]) / (rules.stretch * job.solo_s))
        luck = factors(job)
        alone_s = luck[np.arange(_WARM_UP + 1, last) % len(luck)] @ (job.rollout[0].mean_s, job.train[0].mean_s)
        means.append(float((kept[-1] - kept[0]) / alone_s.sum()))
    return found, means


def slowdowns(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> dict[str, Slowdown]:
    """Simulated slowdown of every member of `group` under `rules`."""
    if any(jobs[pin.job].spread for pin in group.pins):
        found = {}
        for pin, some, mean in zip(group.pins, *stretches_of(group, jobs, rules, STRETCHES), strict=True):
            p50, p95 = np.quantile(some, [0.5, 0.95])
            found[pin.job] = Slowdown(mean, float(p50), float(p95))
        return found
    means = judge(seats_of([group], jobs, rules), np.array([len(group.pins)]), rules, False)[0]
    known = [float(mean) / jobs[pin.job].solo_s for pin, mean in zip(group.pins, means, strict=False)]
    return {pin.job: Slowdown(f, f, f) for pin, f in zip(group.pins, known, strict=True)}


def units_per_hour(slow: Mapping[str, Slowdown], jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> float:
    """Units of training that jobs of these slowdowns do in an hour; a unit is what one USD buys on their own nodes."""
    return math.fsum(jobs[name].solo_usd_per_hour(kinds) / got.mean for name, got in slow.items())


def feasible(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> bool:
    """Whether every member keeps its bound; a lone job on its reference ways always does.

    Where durations spread, the slowdown at `rules.quantile` of stretches must keep the bound, and first the mean one
    with mean durations.
    """
    return feasible_many([group], jobs, rules)[0]


def feasible_many(groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules) -> list[bool]:
    """`feasible` of many groups in one call of the compiled twin."""
    found = [is_alone(group) for group in groups]
    open_ = [g for g, group in enumerate(groups) if not found[g] and not cannot_hold(group, jobs, rules)]
    if not open_:
        return found
    plain = [groups[g] for g in open_]
    means = judge(seats_of(plain, jobs, rules, spread=False), np.array([len(g.pins) for g in plain]), rules, True)
    for g, group, row in zip(open_, plain, means, strict=True):
        if row[0] == BROKEN:
            continue
        limits = [bound(jobs[pin.job], rules) for pin in group.pins]
        if row[0] != KEPT and any(
            mean > limit * jobs[pin.job].solo_s for mean, limit, pin in zip(row, limits, group.pins, strict=False)
        ):
            continue
        found[g] = not any(jobs[pin.job].spread for pin in group.pins) or _spread_holds(group, limits, jobs, rules)
    return found


def _spread_holds(group: Group, limits: list[float], jobs: Mapping[str, GroupJob], rules: Rules) -> bool:
    for stretches, far in ((_FEW, _FAR), (STRETCHES, 1.0)):
        for some, limit in zip(stretches_of(group, jobs, rules, stretches)[0], limits, strict=True):
            if np.quantile(some, rules.quantile) > limit * far:
                return False
    return True
