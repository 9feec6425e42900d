"""Slowdowns of a group's jobs in the long run, and whether every job keeps its bound.

Slowdown is iteration seconds in the group over the job's mean seconds alone by its reference. With known durations it
is one number, the long-run mean. With spread it differs from stretch to stretch: each job draws its iterations in an
order that its name seeds, the same in every group (common random numbers), so that groups are compared on the same
draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.compiled_permits import PERMIT_RULES, PlacedArrays, empty_state
from ....rounds.compiled.permit_kernel import BROKEN, KEPT, completions, long_run_many
from ..inputs.group_model import Group, Jobs, NodeTypes, Rules, Slowdown, slowdown_bound, tail_freed
from .permit_simulator import factors, placed_arrays, spreads

_ROWS = 1200
"""Iterations of the slowest job after which a group that finds no period is averaged: of random groups under
multi_rate, 99 in 100 then have every mean within 0.2 % of that of 3,000 iterations."""

_ROWS_OF_A_VERDICT = 240
"""Iterations after which only a verdict is needed; a handful of groups in a thousand would need more."""

_WARM_UP = 4
STRETCHES = 24
"""Stretches of the slowest job that are simulated where durations spread."""

_FEW = 6
"""Stretches after which a group that is far off is given up."""

_FAR = 1.05
_TOLERANCE = 1e-6

Real = NDArray[np.float64]


def cannot_hold(group: Group, jobs: Jobs, rules: Rules) -> bool:
    """Whether no schedule keeps every bound: the options of a job take too long, or a unit has too much to do.

    The load of a unit is the sum of s_j / (bound_j * solo_j) over the phases that hold it, and must not exceed 1.
    """
    load: dict[int, float] = {}
    for pin in group.pins:
        job = jobs[pin.job]
        limit_s = slowdown_bound(job, rules) * job.solo_s
        rollout_s, train_s = job.rollout[pin.rollout].mean_s, job.train[pin.train].mean_s
        if rollout_s + train_s > limit_s * (1 + 1e-12):
            return not is_solo_reference(group)
        for unit in pin.train_units:
            load[unit] = load.get(unit, 0.0) + train_s / limit_s
        if not tail_freed(job, pin.rollout, rules):  # else it can do without some of its units for a while
            for unit in pin.rollout_units:
                load[unit] = load.get(unit, 0.0) + rollout_s / limit_s
    return max(load.values()) > 1 + 1e-12 and not is_solo_reference(group)


def is_solo_reference(group: Group) -> bool:
    """Whether the group is one job by its reference, to which slowdowns are relative."""
    return len(group.pins) == 1 and group.pins[0].rollout == group.pins[0].train == 0


def long_run_seconds(placed: PlacedArrays, counts: NDArray[np.int64], rules: Rules, verdict: bool) -> Real:
    """Mean seconds of an iteration of each job, (groups, jobs), of groups whose durations are known.

    Args:
        seats: with a leading axis of groups (permit_simulator.py).
        counts: (groups,) jobs of each group.
        verdict: end multi_rate groups as soon as it is clear whether all keep their pace: BROKEN or KEPT instead.
    """
    most = placed.pace_s.shape[1]
    out = np.zeros(placed.pace_s.shape)
    rows = _ROWS_OF_A_VERDICT if verdict else _ROWS
    log, times = np.zeros((rows, most, 4)), np.zeros(rows)
    state, rule = empty_state(most, placed.units.shape[-1]), PERMIT_RULES[rules.permit_rule]
    long_run_many(placed, state, counts, log, times, rule, rules.interference, verdict, out)
    return out


def stretch_slowdowns(group: Group, jobs: Jobs, rules: Rules, stretches: int) -> tuple[list[Real], list[float]]:
    """Slowdowns of each job over every stretch of consecutive iterations (they overlap), and over all of them.

    Over a stretch they compare with the job's mean solo seconds, its own long draws included, since that is what its
    owner sees. Over all they compare with the solo seconds of the same iterations: a long draw is no slowdown.
    """
    placed = placed_arrays([group], jobs, rules)
    n, limit = len(group.pins), _WARM_UP + rules.stretch * stretches
    placed = PlacedArrays(*(field[0] for field in placed))
    ends = np.zeros((n, 8 * limit))  # a fast job's later iterations are not looked at
    counts = np.zeros(n, np.int64)
    state, rule = empty_state(n, placed.units.shape[-1]), PERMIT_RULES[rules.permit_rule]
    completions(placed, state, rule, rules.interference, limit, ends, counts)
    by_stretch, means = [], []
    for pin, row, count in zip(group.pins, ends, counts, strict=True):
        job = jobs[pin.job]
        last = min(count, len(row))
        kept = row[_WARM_UP:last]
        drawn = factors(job, pin.rollout)
        solo_s = drawn[np.arange(_WARM_UP + 1, last) % len(drawn)] @ (job.rollout[0].mean_s, job.train[0].mean_s)
        means.append(float((kept[-1] - kept[0]) / solo_s.sum()))
        # Over the drawn mean, not the true one: draws that are long as a whole would shift every stretch alike.
        by_stretch.append((kept[rules.stretch :] - kept[: -rules.stretch]) / (rules.stretch * solo_s.mean()))
    return by_stretch, means


def slowdowns(group: Group, jobs: Jobs, rules: Rules) -> dict[str, Slowdown]:
    """Simulated slowdown of every member of `group` under `rules`."""
    if spreads(group, jobs):
        by_job = {}
        for pin, of_stretches, mean in zip(group.pins, *stretch_slowdowns(group, jobs, rules, STRETCHES), strict=True):
            p50, p95 = np.quantile(of_stretches, [0.5, 0.95])
            by_job[pin.job] = Slowdown(mean, float(p50), float(p95))
        return by_job
    means = long_run_seconds(placed_arrays([group], jobs, rules), np.array([len(group.pins)]), rules, False)[0]
    exact = [float(mean) / jobs[pin.job].solo_s for pin, mean in zip(group.pins, means, strict=False)]
    return {pin.job: Slowdown(f, f, f) for pin, f in zip(group.pins, exact, strict=True)}


def training_per_hour(slow: Mapping[str, Slowdown], jobs: Jobs, node_types: NodeTypes) -> float:
    """Training that jobs with these slowdowns do in an hour, in units of what one USD buys on their own nodes."""
    return math.fsum(jobs[name].solo_usd_per_hour(node_types) / slowdown.mean for name, slowdown in slow.items())


def feasible(group: Group, jobs: Jobs, rules: Rules) -> bool:
    """Whether every member keeps its bound; a job alone by its reference always does.

    Where durations spread, the slowdown at `rules.quantile` of stretches must keep the bound, and first the slowdown
    with mean durations.
    """
    return feasible_many([group], jobs, rules)[0]


def feasible_many(groups: Sequence[Group], jobs: Jobs, rules: Rules) -> list[bool]:
    """`feasible` of many groups, simulated in one call of the compiled permit machine."""
    verdicts = [is_solo_reference(group) for group in groups]
    open_ = [g for g, group in enumerate(groups) if not verdicts[g] and not cannot_hold(group, jobs, rules)]
    if not open_:
        return verdicts
    plain = [groups[g] for g in open_]
    counts = np.array([len(group.pins) for group in plain])
    means = long_run_seconds(placed_arrays(plain, jobs, rules, spread=False), counts, rules, True)
    for g, group, row in zip(open_, plain, means, strict=True):
        if row[0] == BROKEN:
            continue
        limits = [slowdown_bound(jobs[pin.job], rules) for pin in group.pins]
        if row[0] != KEPT and any(
            mean > limit * jobs[pin.job].solo_s for mean, limit, pin in zip(row, limits, group.pins, strict=False)
        ):
            continue
        verdicts[g] = not spreads(group, jobs) or _spread_holds(group, limits, jobs, rules)
    return verdicts


def _spread_holds(group: Group, limits: list[float], jobs: Jobs, rules: Rules) -> bool:
    for stretches, far in ((_FEW, _FAR), (STRETCHES, 1.0)):
        for of_stretches, limit in zip(stretch_slowdowns(group, jobs, rules, stretches)[0], limits, strict=True):
            if np.quantile(of_stretches, rules.quantile) > limit * far:
                return False
    return True


def bound_slowdowns(group: Group, jobs: Jobs, slow: Mapping[str, Slowdown], rules: Rules) -> dict[str, float]:
    """Slowdown of each member that its bound limits: at `rules.quantile` of stretches.

    Args:
        slow: slowdowns of the group (`slowdowns`).
    """
    if rules.quantile == 0.95 or not spreads(group, jobs):
        return {pin.job: slow[pin.job].p95 for pin in group.pins}
    by_job = stretch_slowdowns(group, jobs, rules, STRETCHES)[0]
    return {pin.job: float(np.quantile(s, rules.quantile)) for pin, s in zip(group.pins, by_job, strict=True)}


def bounds_kept(group: Group, jobs: Jobs, slow: Mapping[str, Slowdown], rules: Rules) -> dict[str, bool]:
    """Whether each member keeps its bound; a job alone by its reference always does."""
    solo = is_solo_reference(group)
    return {
        name: solo or slowdown <= slowdown_bound(jobs[name], rules) * (1 + _TOLERANCE)
        for name, slowdown in bound_slowdowns(group, jobs, slow, rules).items()
    }
