"""SeatArrays: a group's jobs as the input of the permit machine, and as arrays for the compiled one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.compiled_permits import SeatArrays
from ....rounds.permits.permit_events import Seat
from ..inputs.group_model import Group, GroupJob, Jobs, Pin, Rules, slowdown_bound
from .permit_simulator import TrueTurns

PACE = 0.998
"""Share of its bound that a job is paced at if durations are known: jobs then end just inside their bounds."""

PACE_IF_SPREAD = 0.94
"""Share of its bound that a job is paced at if durations spread, so that bad stretches keep the bound too. Values from
0.92 to 0.95 admit within a tenth as many random groups (spreads of 10 and 20 %), 0.998 a third fewer."""

DRAWS = 1024
"""Iterations after which a job's draws repeat."""


def spreads(group: Group, jobs: Jobs) -> bool:
    """Whether the durations of any job of the group spread."""
    return any(jobs[pin.job].spread_at(pin.rollout) for pin in group.pins)


def pace_share(group: Group, jobs: Jobs) -> float:
    """Share of their bounds that the jobs of a group are paced at."""
    return PACE_IF_SPREAD if spreads(group, jobs) else PACE


def pace_s(group: Group, job: GroupJob, jobs: Jobs, rules: Rules) -> float:
    """Seconds within which an iteration of a member should end on average."""
    return pace_share(group, jobs) * (slowdown_bound(job, rules) * job.solo_s)


def units_kept(pin: Pin, rules: Rules) -> int:
    """Units that the job's rollout keeps in its tail; 0: tails are not consolidated."""
    if not rules.tail_keep:
        return 0
    keep = math.ceil(rules.tail_keep * len(pin.rollout_units))
    return keep if keep < len(pin.rollout_units) else 0


@lru_cache(maxsize=4096)
def _order(name: str, pairs: int) -> NDArray[np.int64]:
    """Index of the spread's pair that each iteration of a job draws, with replacement, in an order that the name seeds:
    a stretch of iterations that had every pair equally often would vary too little, and its p95 be too low."""
    seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    return np.random.default_rng([seed, pairs]).integers(pairs, size=DRAWS)


def factors(job: GroupJob, way: int = 0) -> NDArray[np.float64]:
    """Seconds of rollout (by way `way`) and training over their means, as drawn for each iteration.

    Shape (draws, 2), or (1, 2) for a job without a spread.
    """
    spread = job.spread_at(way)
    if not spread:
        return np.ones((1, 2))
    return np.array(spread, float)[_order(job.name, len(spread))]


def seats_of(groups: Sequence[Group], jobs: Jobs, rules: Rules, spread: bool = True) -> SeatArrays:
    """Seat arrays of the compiled permit machine, with a leading axis of groups.

    Jobs of a group are in the order of its pins; rows beyond them are 0.

    `spread`: draw durations from the jobs' spreads, else take their means.
    """
    most = max(len(group.pins) for group in groups)
    shape = (len(groups), most)
    at = sorted({(pin.job, pin.rollout) for group in groups for pin in group.pins})
    drawn = {(name, way): factors(jobs[name], way) for name, way in at} if spread else {}
    draws = max((len(pairs) for pairs in drawn.values()), default=1)
    rows: list[tuple[object, ...]] = []
    word_count = (
        1 + max(u for group in groups for pin in group.pins for u in (*pin.rollout_units, *pin.train_units)) // 64
    )
    blank = (_bits((), word_count), _bits((), word_count)), (0.0, 0.0), (0.0, 0.0), (math.nan, math.nan), 0.0, 0, 0.0
    limits = {name: slowdown_bound(jobs[name], rules) * jobs[name].solo_s for name, _ in at}
    for group in groups:
        share = pace_share(group, jobs) if spread else PACE
        for pin in group.pins:
            job = jobs[pin.job]
            roll, train = job.rollout[pin.rollout], job.train[pin.train]
            row = (
                (_bits(pin.rollout_units, word_count), _bits(pin.train_units, word_count)),
                (roll.mean_s, train.mean_s),
                (roll.warm_s, train.warm_s),
                tuple([math.nan if way.resume_s is None else way.resume_s for way in (roll, train)]),
                share * limits[pin.job],
                units_kept(pin, rules),
                job.tail_at(pin.rollout),
            )
            rows.append(row)
        rows += [blank] * (most - len(group.pins))
    units, expected, switch, resume, pace, keep, tail = zip(*rows, strict=True)
    seats = SeatArrays(
        units=np.array(units, np.uint64).reshape(*shape, 2, word_count),
        expected_s=np.array(expected).reshape(*shape, 2),
        switch_s=np.array(switch).reshape(*shape, 2),
        pace_s=np.array(pace).reshape(shape),
        keep=np.array(keep, np.int64).reshape(shape),
        resume_s=np.array(resume).reshape(*shape, 2),
        tail_share=np.array(tail).reshape(shape),
        draws_s=np.zeros((*shape, draws, 2)),
    )
    seats.draws_s[:] = seats.expected_s[:, :, None, :]
    if draws > 1:
        for g, group in enumerate(groups):
            for j, pin in enumerate(group.pins):
                seats.draws_s[g, j] *= drawn[pin.job, pin.rollout]
    return seats


def _bits(units: Sequence[int], word_count: int) -> list[int]:
    """A set of units as 64-bit words (rounds/compiled/compiled_permits.py)."""
    whole = sum([1 << u for u in units])
    return [whole >> 64 * w & 0xFFFF_FFFF_FFFF_FFFF for w in range(word_count)]


def machine_seats(group: Group, jobs: Jobs, rules: Rules) -> tuple[list[Seat], list[TrueTurns]]:
    """SeatArrays of the permit machine itself, and the true seconds of each job's turns for the simulator."""
    seats, truths = [], []
    for pin in group.pins:
        job = jobs[pin.job]
        ways = job.rollout[pin.rollout], job.train[pin.train]
        seats.append(
            Seat(
                job=pin.job,
                units=(pin.rollout_units, pin.train_units),
                expected_s=(ways[0].mean_s, ways[1].mean_s),
                switch_s=(ways[0].warm_s, ways[1].warm_s),
                pace_s=pace_s(group, job, jobs, rules),
                keep=units_kept(pin, rules),
                resume_s=(ways[0].resume_s, ways[1].resume_s),
            )
        )
        drawn = factors(job, pin.rollout) * np.array([[ways[0].mean_s, ways[1].mean_s]])
        truths.append(TrueTurns(tuple((float(a), float(b)) for a, b in drawn), job.tail_at(pin.rollout)))
    return seats, truths
