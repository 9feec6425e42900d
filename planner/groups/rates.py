"""What a group gives its jobs: slowdown of each member in the long run, and whether all keep their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .model import Group, GroupJob, Rules, Slowdown
from .twin import long_run_many
from .twin_machine import POLICIES, Seats, empty_state

PACE = 0.998
"""Share of its bound that a job is paced at, so that what the machine regulates ends just inside the bound."""

_ROWS = 240
"""Iterations of the slowest job after which a group that finds no period is averaged."""


def bound(job: GroupJob, rules: Rules) -> float:
    """The slowdown that a job must stay below."""
    return job.slo - rules.margin * (job.slo - 1.0)


def seats_of(groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules) -> Seats:
    """What the twin takes, with a leading axis of groups; jobs of a group in the order of its pins."""
    most = max(len(group.pins) for group in groups)
    shape = (len(groups), most)
    seats = Seats(
        units=np.zeros((*shape, 2), np.uint64),
        expected_s=np.zeros((*shape, 2)),
        switch_s=np.zeros((*shape, 2)),
        pace_s=np.zeros(shape),
        keep=np.zeros(shape, np.int64),
        resume_s=np.full((*shape, 2), math.nan),
        tail_share=np.zeros(shape),
        draws_s=np.zeros((*shape, 1, 2)),
    )
    for g, group in enumerate(groups):
        for j, pin in enumerate(group.pins):
            job = jobs[pin.job]
            ways = job.rollout[pin.rollout], job.train[pin.train]
            for phase, (way, held) in enumerate(zip(ways, (pin.rollout_units, pin.train_units), strict=True)):
                bits = 0
                for unit in held:
                    bits |= 1 << unit
                seats.units[g, j, phase] = bits
                seats.expected_s[g, j, phase] = way.mean_s
                seats.switch_s[g, j, phase] = way.warm_s
                if way.resume_s is not None:
                    seats.resume_s[g, j, phase] = way.resume_s
            seats.pace_s[g, j] = PACE * bound(job, rules) * job.solo_s
            seats.tail_share[g, j] = job.tail_share
            keep = math.ceil(rules.tail_keep * len(pin.rollout_units))
            seats.keep[g, j] = keep if 0 < keep < len(pin.rollout_units) else 0
    seats.draws_s[:, :, 0] = seats.expected_s
    return seats


def _factors(
    groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules, verdict: bool
) -> list[list[float]]:
    seats = seats_of(groups, jobs, rules)
    most = seats.pace_s.shape[1]
    out = np.zeros(seats.pace_s.shape)
    counts = np.array([len(group.pins) for group in groups])
    log, times = np.zeros((_ROWS, most, 4)), np.zeros(_ROWS)
    long_run_many(
        seats, empty_state(most), counts, log, times, POLICIES[rules.policy], rules.interference, verdict, out
    )
    return [
        [float(out[g, j]) / jobs[pin.job].solo_s for j, pin in enumerate(group.pins)] for g, group in enumerate(groups)
    ]


def slowdowns(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> dict[str, Slowdown]:
    """Simulated slowdown of every member of `group` under `rules`."""
    factors = _factors([group], jobs, rules, False)[0]
    return {pin.job: Slowdown(f, f, f) for pin, f in zip(group.pins, factors, strict=True)}


def feasible(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> bool:
    """Whether every member keeps its bound; a lone job on its reference ways always does."""
    return feasible_many([group], jobs, rules)[0]


def feasible_many(groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules) -> list[bool]:
    """`feasible` of many groups in one call of the compiled twin."""
    if not groups:
        return []
    found = []
    for group, factors in zip(groups, _factors(groups, jobs, rules, True), strict=True):
        alone = len(group.pins) == 1 and group.pins[0].rollout == group.pins[0].train == 0
        held = zip(group.pins, factors, strict=True)
        found.append(alone or all(0 <= factor <= bound(jobs[pin.job], rules) for pin, factor in held))
    return found
