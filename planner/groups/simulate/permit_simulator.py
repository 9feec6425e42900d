"""The permit machine on a virtual clock, phase by phase: the reference of the compiled one, and source of timelines.

The clock is that of rounds/compiled/permit_kernel.py: a phase pays a switch if another job had one of its units last,
phases of several jobs slow each other by the interference, and a rollout on fewer units is slower by their share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.compiled_permits import PlacedArrays
from ....rounds.permits.permit_events import (
    PHASES,
    Arrive,
    Consolidate,
    Done,
    Event,
    Grow,
    Pause,
    PhaseName,
    PlacedJob,
    Start,
    TailReached,
    Wake,
    WakeAt,
)
from ....rounds.permits.permit_machine import PermitMachine
from ..inputs.group_model import Group, GroupJob, Jobs, Pin, Rules, slowdown_bound


@dataclass(frozen=True)
class TruePhases:
    """True seconds of a job's phases."""

    draws_s: tuple[tuple[float, float], ...]
    """(rollout, train) seconds without switches, one pair an iteration, used cyclically."""
    tail_share: float = 0.0
    """Share of a rollout's seconds after its tail is reached."""


@dataclass(frozen=True)
class SimulatedSpan:
    """A phase, or the part of one, that ran on the same units."""

    start_s: float
    end_s: float
    job: str
    phase: PhaseName
    units: tuple[int, ...]
    switched: bool
    """Whether it began with a warm switch."""
    ends_phase: bool
    """Whether the phase is complete with it; else it was paused, consolidated or grew."""


@dataclass(eq=False)
class _Clock:
    """The true times of one job."""

    placed: PlacedJob
    truth: TruePhases
    done: int = 0
    phase: int = 0
    left_s: float = 0.0
    ends_s: float = math.inf
    tail_at_s: float = math.inf
    share: float = 1.0
    rate: float = 1.0
    running: bool = False
    units: tuple[int, ...] = ()
    span_s: float = 0.0
    switched: bool = False

    def seconds(self) -> float:
        return self.truth.draws_s[self.done % len(self.truth.draws_s)][self.phase]

    def span(self, now_s: float, ends_phase: bool) -> SimulatedSpan:
        """The span since the last span of the phase."""
        span = SimulatedSpan(
            self.span_s, now_s, self.placed.job, PHASES[self.phase], self.units, self.switched, ends_phase
        )
        self.span_s, self.switched = now_s, False
        return span

    def set_rate(self, rate: float, now_s: float) -> None:
        if self.ends_s == math.inf:
            self.ends_s = now_s + self.left_s / rate
            tail_s = self.seconds() * self.truth.tail_share
            if self.phase == 0 and self.placed.keep > 0 and 0 < tail_s < self.left_s:
                self.tail_at_s = now_s + (self.left_s - tail_s) / rate
        elif rate != self.rate:
            self.ends_s = now_s + (self.ends_s - now_s) * self.rate / rate
            self.tail_at_s = now_s + (self.tail_at_s - now_s) * self.rate / rate
        self.rate = rate


def simulate_phases(
    machine: PermitMachine,
    placed: Sequence[PlacedJob],
    truths: Sequence[TruePhases],
    interference: float = 0.0,
    check: bool = False,
) -> Iterator[SimulatedSpan]:
    """Spans of phases in the order of their ends, without end; all jobs arrive at time 0.

    `check`: check the machine's invariants after each event.
    """
    clocks = {placed.job: _Clock(placed, truth) for placed, truth in zip(placed, truths, strict=True)}
    for clock in clocks.values():
        clock.left_s = clock.seconds()
    now_s = 0.0
    event: Event = Arrive(tuple(placed))
    while True:
        wake_s = math.inf
        for action in machine.handle(event, now_s):
            if isinstance(action, WakeAt):
                wake_s = action.at_s
                continue
            clock = clocks[action.job]
            if isinstance(action, Start):
                clock.running, clock.span_s, clock.switched = True, now_s, not action.resident
                clock.left_s += 0.0 if action.resident else clock.placed.switch_s[clock.phase]
            else:
                if now_s > clock.span_s:
                    yield clock.span(now_s, False)
                if isinstance(action, Pause):
                    clock.left_s = (clock.ends_s - now_s) * clock.rate + (clock.placed.resume_s[clock.phase] or 0.0)
                    clock.running, clock.ends_s, clock.tail_at_s = False, math.inf, math.inf
            if isinstance(action, Start | Grow):
                clock.share = len(action.units) / len(clock.placed.units[clock.phase])
                clock.units = action.units
            elif isinstance(action, Consolidate):
                clock.units = action.keep
        if check:
            machine.check_invariants()
        running = [clock for clock in clocks.values() if clock.running]
        base = 1.0 / (1.0 + interference) if len(running) > 1 else 1.0
        for clock in running:
            clock.set_rate(base * clock.share, now_s)
        first = min(running, key=lambda clock: min(clock.ends_s, clock.tail_at_s))
        at_s = min(first.ends_s, first.tail_at_s)
        if wake_s < at_s:
            now_s, event = wake_s, Wake()
        elif first.tail_at_s <= first.ends_s:
            now_s, event = at_s, TailReached(first.placed.job)
            first.tail_at_s = math.inf
        else:
            now_s, event = at_s, Done(first.placed.job)
            yield first.span(now_s, True)
            first.running, first.ends_s, first.tail_at_s = False, math.inf, math.inf
            first.done += first.phase
            first.phase = 1 - first.phase
            first.left_s = first.seconds()


# The jobs of a group for the permit machine, and as arrays for the compiled one.

PACE = 0.998
"""Share of its bound that is a job's pace if durations are known: jobs then end just inside their bounds."""

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


def factors(job: GroupJob, option: int = 0) -> NDArray[np.float64]:
    """Seconds of rollout (by its option `option`) and training over their means, as drawn for each iteration.

    Shape (draws, 2), or (1, 2) for a job without a spread.
    """
    spread = job.spread_at(option)
    if not spread:
        return np.ones((1, 2))
    return np.array(spread, float)[_order(job.name, len(spread))]


def placed_arrays(groups: Sequence[Group], jobs: Jobs, rules: Rules, spread: bool = True) -> PlacedArrays:
    """The jobs of groups for the compiled permit machine, with a leading axis of groups.

    Jobs of a group are in the order of its pins; rows beyond them are 0.

    `spread`: draw durations from the jobs' spreads, else take their means.
    """
    most = max(len(group.pins) for group in groups)
    shape = (len(groups), most)
    at = sorted({(pin.job, pin.rollout) for group in groups for pin in group.pins})
    drawn = {(name, option): factors(jobs[name], option) for name, option in at} if spread else {}
    draws = max((len(pairs) for pairs in drawn.values()), default=1)
    rows: list[tuple[object, ...]] = []
    most_units = max(u for group in groups for pin in group.pins for u in (*pin.rollout_units, *pin.train_units))
    words = 1 + most_units // 64
    blank = (_bits((), words), _bits((), words)), (0.0, 0.0), (0.0, 0.0), (math.nan, math.nan), 0.0, 0, 0.0
    for group in groups:
        share = pace_share(group, jobs) if spread else PACE
        for pin in group.pins:
            job = jobs[pin.job]
            placed = _placed(pin, job, rules, share)
            bits = tuple([_bits(units, words) for units in placed.units])
            resume = tuple([math.nan if seconds is None else seconds for seconds in placed.resume_s])
            tail_share = job.tail_at(pin.rollout)
            rows.append((bits, placed.expected_s, placed.switch_s, resume, placed.pace_s, placed.keep, tail_share))
        rows += [blank] * (most - len(group.pins))
    units_bits, expected, switch, resume_s, pace, keep, tail = zip(*rows, strict=True)
    arrays = PlacedArrays(
        units=np.array(units_bits, np.uint64).reshape(*shape, 2, words),
        expected_s=np.array(expected).reshape(*shape, 2),
        switch_s=np.array(switch).reshape(*shape, 2),
        pace_s=np.array(pace).reshape(shape),
        keep=np.array(keep, np.int64).reshape(shape),
        resume_s=np.array(resume_s).reshape(*shape, 2),
        tail_share=np.array(tail).reshape(shape),
        draws_s=np.zeros((*shape, draws, 2)),
    )
    arrays.draws_s[:] = arrays.expected_s[:, :, None, :]
    if draws > 1:
        for g, group in enumerate(groups):
            for j, pin in enumerate(group.pins):
                arrays.draws_s[g, j] *= drawn[pin.job, pin.rollout]
    return arrays


def _bits(units: Sequence[int], word_count: int) -> list[int]:
    """A set of units as 64-bit words (rounds/compiled/compiled_permits.py)."""
    whole = sum([1 << u for u in units])
    return [whole >> 64 * w & 0xFFFF_FFFF_FFFF_FFFF for w in range(word_count)]


def placed_jobs(group: Group, jobs: Jobs, rules: Rules) -> tuple[list[PlacedJob], list[TruePhases]]:
    """The jobs of a group for the permit machine itself, and the true seconds of their phases for the simulator."""
    placed, truths = [], []
    for pin in group.pins:
        job = jobs[pin.job]
        placed.append(_placed(pin, job, rules, pace_share(group, jobs)))
        drawn = factors(job, pin.rollout) * np.array([placed[-1].expected_s])
        truths.append(TruePhases(tuple((float(a), float(b)) for a, b in drawn), job.tail_at(pin.rollout)))
    return placed, truths


def _placed(pin: Pin, job: GroupJob, rules: Rules, share: float) -> PlacedJob:
    """A pinned job for the permit machine; `share`: of its bound that it is paced at."""
    phases = job.rollout[pin.rollout], job.train[pin.train]
    return PlacedJob(
        pin.job,
        units=(pin.rollout_units, pin.train_units),
        expected_s=(phases[0].mean_s, phases[1].mean_s),
        switch_s=(phases[0].warm_s, phases[1].warm_s),
        pace_s=share * (slowdown_bound(job, rules) * job.solo_s),
        keep=units_kept(pin, rules),
        resume_s=(phases[0].resume_s, phases[1].resume_s),
    )
