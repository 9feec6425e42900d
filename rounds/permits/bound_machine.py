"""The bound machine: watches the slowdowns of the jobs of running groups, and warns before one breaks its bound.

It reads no clock: its driver reports when a training ended, and acts on the events that it returns. Slowdown and bound
are those of the report (slowdown.py): a bound is on the mean of all measured iterations of the job.

Of each job it keeps the *mean* over all iterations, `ahead_s` (seconds that the job could still lose: iterations times
the bound on their seconds, less their seconds), and the last iterations: the *stretch*, as many as the plan's
`rules.stretch`, and the *fresh* ones, its later half. There is an alarm when the fresh iterations, less `SURE` standard
errors, are above the bound, and as many more like them would bring the mean or the stretch above it (the planner
promises the slowdown of stretches); and when the iteration that runs is so long that its end will break the bound.

Invariants (`check_invariants`):
- a job is `early` until it has half a stretch; after that it is `broken` if and only if its mean is above its bound;
- each time that a job comes into `alarm` or `broken`, one event says so;
- an alarm ends only after half a stretch of iterations after none of which twice as many more like the fresh ones would
  bring mean or stretch above the bound, standard errors aside: a job near its bound does not go in and out of alarm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Literal

from .slowdown import IterationTimer, keeps_bound

State = Literal["early", "kept", "alarm", "broken"]
Reason = Literal["mean", "stretch", "running"]


@dataclass(frozen=True, slots=True)
class SlowdownBound:
    """The bound of a job: seconds of an iteration alone, and at most how many times as long its iterations may take."""

    alone_s: float
    slo: float

    @property
    def longest_s(self) -> float:
        """Mean seconds of an iteration at the bound."""
        return self.slo * self.alone_s


@dataclass(frozen=True, slots=True)
class BoundFigures:
    """A job's slowdown compared with its bound.

    Attributes:
        state: `early`: too few iterations; `kept`; `alarm`: it will break its bound if nothing changes; `broken`.
        iterations: that were measured.
        slowdown: mean over all of them; None before the first.
        recent: mean over the stretch; None before the first.
        slo: the bound.
        ahead_s: seconds that the job could still lose before its mean is above the bound; negative if it is.
        breaks_in: iterations until the mean is above the bound if they are like the fresh ones; None: never.
    """

    state: State
    iterations: int
    slowdown: float | None
    recent: float | None
    slo: float
    ahead_s: float
    breaks_in: int | None


@dataclass(frozen=True, slots=True)
class BoundEvent:
    """A job's bound is about to break, broke, or is safe again.

    Attributes:
        state: `alarm`: the job will break its bound; `broken`: its mean is above it; `cleared`: it keeps it again.
        job: its name.
        at_s: when, in the driver's seconds.
        figures: of the job at that time.
        reason: of an alarm: what will be above the bound; `running`: the mean, once the running iteration ends.
    """

    state: Literal["alarm", "broken", "cleared"]
    job: str
    at_s: float
    figures: BoundFigures
    reason: Reason | None = None


SURE = 0.5
"""Standard errors by which the fresh iterations must be above the bound. By `bound_alarms` (docs/accuracy.md), a sixth
of the jobs that keep their bounds then have an alarm in 100 iterations, and 95 % of the jobs that break theirs had one
before. At 0 it would be half of the jobs and 98 %, at 1.0 one in 28 and 83 %."""

FEWEST = 3
"""Iterations that a mean and a standard error need."""


@dataclass(slots=True)
class _Watched:
    """A job that is watched."""

    bound: SlowdownBound
    stretch: deque[float]
    timer: IterationTimer = field(default_factory=IterationTimer)
    iterations: int = 0
    total_s: float = 0.0
    state: State = "early"
    calm: int = 0
    """Iterations since the last that threatened the bound, while in alarm."""

    @property
    def ahead_s(self) -> float:
        return self.bound.longest_s * self.iterations - self.total_s

    @property
    def kept(self) -> bool:
        return self.iterations == 0 or keeps_bound(self.total_s / self.iterations / self.bound.alone_s, self.bound.slo)


class BoundMachine:
    """See the module.

    Args:
        bounds: of each job.
        stretch: iterations of a stretch, the plan's `rules.stretch`; at least 6 are taken.
    """

    def __init__(self, bounds: Mapping[str, SlowdownBound], stretch: int) -> None:
        self.stretch = max(stretch, 2 * FEWEST)
        self.half = self.stretch // 2
        self._jobs: dict[str, _Watched] = {}
        for job, bound in bounds.items():
            self.join(job, bound)

    # -- who is watched ------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> tuple[str, ...]:
        """Jobs that are watched."""
        return tuple(self._jobs)

    def join(self, job: str, bound: SlowdownBound) -> None:
        """Watch a job from now on. Raises ValueError if it is watched already, or for a bound that is none."""
        if job in self._jobs:
            raise ValueError(f"{job} is watched already")
        _must_be_bound(job, bound)
        self._jobs[job] = _Watched(bound, deque(maxlen=self.stretch))

    def leave(self, job: str) -> None:
        """Watch a job no longer: it ended."""
        self._jobs.pop(job, None)

    def rebind(self, job: str, bound: SlowdownBound) -> None:
        """Give a job another bound, or other seconds alone, of a new plan or a measurement.

        Its seconds ahead of its old bound stay. Its stretch is forgotten, and with it an alarm: a new plan is judged by
        the iterations that follow. Raises KeyError for a job that is not watched.
        """
        watched = self._jobs[job]
        _must_be_bound(job, bound)
        ahead_s = watched.ahead_s
        watched.bound = bound
        watched.total_s = bound.longest_s * watched.iterations - ahead_s
        self._forget_stretch(watched)

    def moved(self, job: str) -> None:
        """A job starts in another group, whose journal counts its starts and seconds anew. Its seconds ahead of its
        bound stay; its stretch is forgotten, and with it an alarm. Raises KeyError for a job that is not watched."""
        watched = self._jobs[job]
        watched.timer = IterationTimer()
        self._forget_stretch(watched)

    def _forget_stretch(self, watched: _Watched) -> None:
        watched.stretch.clear()
        if watched.state != "early":
            watched.state = "kept" if watched.kept else "broken"

    # -- events --------------------------------------------------------------------------------------------------------

    def ended(self, job: str, start: int, at_s: float) -> list[BoundEvent]:
        """A training of a job ended; returns the events of that, none for a job that is not watched.

        Args:
            start: number of the start of its process that trained, as in the group's journal.
            at_s: when, in seconds; for each job it never goes back.
        """
        watched = self._jobs.get(job)
        if watched is None:
            return []
        seconds = watched.timer.ended(start, at_s)
        if seconds is None:
            return []
        watched.iterations += 1
        watched.total_s += seconds
        watched.stretch.append(seconds)
        return self._judged(job, watched, at_s)

    def look(self, now_s: float) -> list[BoundEvent]:
        """Check the iterations that run: alarms of jobs that will break their bounds when these end."""
        events: list[BoundEvent] = []
        for job, watched in self._jobs.items():
            since_s = watched.timer.open_since_s
            if watched.state != "kept" or since_s is None:
                continue
            # With its end the mean is that of one iteration more, of at least the seconds until now.
            if watched.ahead_s + watched.bound.longest_s < now_s - since_s:
                watched.state, watched.calm = "alarm", 0
                events.append(BoundEvent("alarm", job, now_s, self.figures(job), "running"))
        return events

    def figures(self, job: str) -> BoundFigures:
        """The figures of a job now. Raises KeyError for a job that is not watched."""
        watched = self._jobs[job]
        alone_s = watched.bound.alone_s
        return BoundFigures(
            state=watched.state,
            iterations=watched.iterations,
            slowdown=watched.total_s / watched.iterations / alone_s if watched.iterations else None,
            recent=fmean(watched.stretch) / alone_s if watched.stretch else None,
            slo=watched.bound.slo,
            ahead_s=watched.ahead_s,
            breaks_in=self._breaks_in(watched),
        )

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _judged(self, job: str, watched: _Watched, at_s: float) -> list[BoundEvent]:
        before = watched.state
        if watched.iterations < self.half:
            return []
        if not watched.kept:
            watched.state = "broken"
            return [] if before == "broken" else [BoundEvent("broken", job, at_s, self.figures(job))]
        if before in ("alarm", "broken"):
            threatened = self._threat(watched, 2 * self.half, 0.0) is not None
            watched.calm = 0 if threatened or before == "broken" else watched.calm + 1
            if watched.calm < self.half:
                watched.state = "alarm"  # also from broken: the mean holds again, barely
                return []
            watched.state = "kept"
            return [BoundEvent("cleared", job, at_s, self.figures(job))]
        watched.state = "kept"
        reason = self._threat(watched, self.half, SURE)
        if reason is None:
            return []
        watched.state, watched.calm = "alarm", 0
        return [BoundEvent("alarm", job, at_s, self.figures(job), reason)]

    def _threat(self, watched: _Watched, horizon: int, sure: float) -> Reason | None:
        """What would be above the bound within `horizon` iterations like the fresh ones; None: nothing."""
        longest_s = watched.bound.longest_s
        fresh = self._fresh(watched)
        if len(fresh) < self.half:
            return None
        fresh_s = fmean(fresh)
        if fresh_s - sure * stdev(fresh) / math.sqrt(len(fresh)) <= longest_s:
            return None
        if watched.ahead_s < horizon * (fresh_s - longest_s):
            return "mean"
        if len(watched.stretch) < self.stretch:
            return None
        to_come = min(horizon, self.stretch)
        stay = list(watched.stretch)[to_come:]
        return "stretch" if math.fsum(stay) + to_come * fresh_s > self.stretch * longest_s else None

    def _fresh(self, watched: _Watched) -> list[float]:
        return list(watched.stretch)[-self.half :]

    def _breaks_in(self, watched: _Watched) -> int | None:
        if watched.iterations and not watched.kept:
            return 0
        fresh = self._fresh(watched)
        loss_s = fmean(fresh) - watched.bound.longest_s if fresh else 0.0
        return math.floor(watched.ahead_s / loss_s) + 1 if loss_s > 0 else None

    # -- what holds ----------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert what the module promises of every job."""
        for job, watched in self._jobs.items():
            assert len(watched.stretch) <= min(self.stretch, watched.iterations), f"{job}: more than was measured"
            assert (watched.state == "early") == (watched.iterations < self.half), (
                f"{job}: judged too early or too late"
            )
            if watched.state != "early":
                assert (watched.state == "broken") == (not watched.kept), f"{job}: {watched.state}"
                assert watched.kept == (watched.ahead_s >= -1e-6 * watched.total_s), f"{job}: ahead {watched.ahead_s}"


def _must_be_bound(job: str, bound: SlowdownBound) -> None:
    if not (bound.alone_s > 0 and bound.slo >= 1 and math.isfinite(bound.longest_s)):
        raise ValueError(f"{job}: a bound is at least 1, of iterations that take time alone; this is {bound}")
