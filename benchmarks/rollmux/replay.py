"""Replay a placer over arrivals and departures: its price, and the jobs' iterations and kept bounds.

Between two events everything is constant: each job advances at its long-run slowdown in its group. Jobs stay for as
long as the file says, however slow they are; what a slow job did not do shows in USD per iteration.

A move stops the job at once: what it has done of its running iteration is lost (a share drawn by seed), then it starts
cold on its new nodes, which are paid from that moment; its old nodes are given back if nobody else uses them. Work lost
and cold start take the job's time. The first start of a job is alike under every placer and is not counted.

slo_attained: share of jobs whose mean iteration over their whole stay, moves included, was within their bound.
slo_attained_by_hours: share of job-hours in intervals during which the job alone obeyed it, moves included.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.planner.groups.choose.group_nodes import Observer, Placer, depart_in_place, resident, solo_group
from rlplan.planner.groups.choose.placers import Algorithm1, BestFit, SoloD, cycle_s, packings
from rlplan.planner.groups.inputs.group_model import (
    Group,
    GroupJob,
    GroupsState,
    Jobs,
    NodeTypes,
    Rules,
    next_id,
    node_of_units,
)
from rlplan.planner.groups.moves import moved_jobs
from rlplan.planner.groups.replanner import Replanner
from rlplan.planner.groups.simulate.slowdowns import slowdowns

from .published_jobs import (
    DIRECTIONS,
    NODE_TYPES,
    PLANNED_DRAWS,
    REAL_DRAWS,
    Arrival,
    Drift,
    arrivals,
    fluid_bound,
    read_curve,
    stays,
    with_spread,
    without_spill,
)

_ROUNDING = 1e-6


@dataclass
class Account:
    """The account of one job: its time, iterations and moves."""

    time_s: float = 0.0
    iterations: float = 0.0
    solo_s: float = 0.0
    """Seconds that these iterations take solo."""
    outage_s: float = 0.0
    """Seconds of a move that are still to come: the cold start, and the lost work that is done again."""
    redo_s: float = 0.0
    """The part of these seconds in which lost work is done again."""
    redo_solo_s: float = 0.0
    """Solo seconds of that lost work."""
    moved: int = 0
    lost_s: float = 0.0
    kept_s: float = 0.0
    """Seconds in intervals in which it obeyed its bound."""

    def move(self, lost_share: float, factor: float, job: GroupJob) -> None:
        """Stop at `lost_share` of an iteration that takes `factor` times its seconds solo, then start cold."""
        if not self.outage_s:
            self.redo_solo_s = min(lost_share, self.iterations) * job.solo_s
            self.redo_s = self.redo_solo_s * factor
            self.outage_s = self.redo_s
        self.outage_s += job.cold_s
        self.moved += 1

    def advance(self, factor: float, span_s: float, job: GroupJob) -> None:
        """`span_s` seconds in the system, the rest of a move first."""
        waits = min(self.outage_s, span_s)
        self.outage_s -= waits
        self.lost_s += waits
        self.time_s += span_s
        solo_s = (span_s - waits) / factor
        self.solo_s += solo_s
        self.iterations += solo_s / job.solo_s
        if span_s <= solo_s * job.slo * (1.0 + _ROUNDING):
            self.kept_s += span_s

    def leave(self) -> None:
        """Take lost work that was not done again off the account."""
        if self.redo_s:
            self.solo_s -= self.redo_solo_s * min(self.outage_s, self.redo_s) / self.redo_s


@dataclass(frozen=True)
class Outcome:
    """Totals of one replay."""

    usd: float
    hours: float
    accounts: Mapping[str, Account]
    jobs: Jobs
    node_hours: Mapping[str, float] = field(default_factory=dict)
    group_hours: Mapping[int, float] = field(default_factory=dict)
    """Hours of groups by number of members."""

    @property
    def usd_per_hour(self) -> float:
        return self.usd / self.hours

    def usd_per_unit(self, node_types: NodeTypes) -> float:
        """USD for the training that one USD buys under Solo-D: an iteration counts by what it costs alone."""
        units = sum(a.solo_s / 3600.0 * self.jobs[n].solo_usd_per_hour(node_types) for n, a in self.accounts.items())
        return self.usd / units

    @property
    def usd_per_plain_iteration(self) -> float:
        return self.usd / sum(account.iterations for account in self.accounts.values())

    def late(self) -> list[str]:
        """Jobs whose mean iteration over their stay was beyond their bound."""
        return [
            n for n, a in self.accounts.items() if a.time_s > a.solo_s * self.jobs[n].slo * (1.0 + _ROUNDING)
        ]  # fmt: skip

    @property
    def slo_attained(self) -> float:
        return 1.0 - len(self.late()) / len(self.accounts)

    @property
    def slo_attained_by_hours(self) -> float:
        return sum(a.kept_s for a in self.accounts.values()) / sum(a.time_s for a in self.accounts.values())

    @property
    def moved(self) -> int:
        return sum(account.moved for account in self.accounts.values())

    @property
    def moves_share_of_gpu_hours(self) -> float:
        """Share of the GPU hours that the jobs would hold alone that moves took, lost work included."""
        gpus = {name: job.rollout[0].nodes + job.train[0].nodes for name, job in self.jobs.items()}
        held = sum(a.time_s * gpus[name] for name, a in self.accounts.items())
        return sum(a.lost_s * gpus[name] for name, a in self.accounts.items()) / held


_DEPART, _ARRIVE, _LOOK = range(3)


def replay(
    arrivals: Sequence[Arrival],
    placer: Placer,
    node_types: NodeTypes,
    rules: Rules,
    real: Jobs | None = None,
    seed: int = 0,
    drift: Drift | None = None,
    look_every_h: float = 1.0,
    replan: Callable[[GroupsState, Jobs], GroupsState] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run `placer` over the arrivals; it sees their jobs; slowdowns are those of the `real` jobs of the same names.

    With `drift`, phase times change every `look_every_h` hours, and `replan` is then given the state and the jobs as
    they are now, if there is such a function; otherwise placements stay as they were planned.
    """
    rng = np.random.default_rng([seed, 77])
    jobs = {a.job.name: a.job for a in arrivals}
    now_real = dict(real or jobs)
    stays = {a.job.name: a.stay for a in arrivals}
    accounts = {name: Account() for name in jobs}
    events = [(a.stay.start_h, _ARRIVE, a.job.name) for a in arrivals]
    events += [(a.stay.end_h, _DEPART, a.job.name) for a in arrivals]
    if drift:
        last = max(a.stay.end_h for a in arrivals)
        events += [(hour, _LOOK, "") for hour in np.arange(look_every_h, last, look_every_h).tolist()]
    events.sort()
    state, factors_of = GroupsState(), dict[Group, dict[str, float]]()
    usd, now = 0.0, events[0][0]
    node_hours, group_hours = dict.fromkeys(node_types, 0.0), dict[int, float]()
    for hour, event, name in events:
        if hour > now:
            usd += state.usd_per_hour(node_types) * (hour - now)
            done_s = dict[str, float]()
            for group in state.groups.values():
                for member, factor in _factors(group, now_real, rules, factors_of).items():
                    before_s = accounts[member].solo_s
                    accounts[member].advance(factor, (hour - now) * 3600.0, now_real[member])
                    done_s[member] = accounts[member].solo_s - before_s
                for pool in group.nodes:
                    node_hours[pool] += hour - now
                group_hours[len(group.pins)] = group_hours.get(len(group.pins), 0.0) + hour - now
            if isinstance(placer, Observer):
                placer.observe((hour - now) * 3600.0, done_s, now_real)
            now = hour
        after = state
        if event == _LOOK:
            assert drift is not None
            for member in state.jobs:
                stay = stays[member]
                now_real[member] = drift.drifted(jobs[member], (hour - stay.start_h) / (stay.end_h - stay.start_h))
            factors_of.clear()
            if replan:
                after = replan(state, {member: now_real[member] for member in state.jobs})
        else:
            after = placer.arrive(state, jobs[name]) if event == _ARRIVE else placer.depart(state, name)
        for member in moved_jobs(state, after, node_types):
            factor = _factors(state.groups[state.group_of(member)], now_real, rules, factors_of)[member]
            accounts[member].move(float(rng.uniform()), factor, now_real[member])
        if event == _DEPART:
            accounts[name].leave()
        state = after
        tick()
    return Outcome(usd, now - events[0][0], accounts, jobs, node_hours, group_hours)


def _factors(group: Group, jobs: Jobs, rules: Rules, factors_of: dict[Group, dict[str, float]]) -> dict[str, float]:
    if group not in factors_of:
        factors_of[group] = {name: slow.mean for name, slow in slowdowns(group, jobs, rules).items()}
    return factors_of[group]


# The other placers that RollMux compares with (arXiv 2512.11306), behind the interface of planner/groups/place.
#
# Co-located (veRL) runs all phases on a job's training nodes. Random and Most-Idle share nodes, look at host memory
# and at the group cap, and do not check any bound on slowdown. None of them moves a job that is placed.


class Colocated(SoloD):
    """Every job on its training nodes, for which it needs a rollout way of that pool and width."""

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with a group of training nodes for `job`; ValueError if it has no such way."""
        train = job.train[0]
        for index, way in enumerate(job.rollout):
            if way.pool == train.pool and way.nodes == train.nodes:
                return state.with_job(job, next_id(state.groups), solo_group(job, self.node_types, (index, 0)))
        raise ValueError(f"job {job.name} has no rollout way on {train.nodes} nodes of pool {train.pool}")


class _Packer:
    """A placer that packs jobs within the group cap and moves none."""

    def __init__(self, node_types: NodeTypes, rules: Rules) -> None:
        self.node_types, self.rules = node_types, rules

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job; no other job moves."""
        return depart_in_place(state, name, self.node_types)


class Random(_Packer):
    """Places a job at random among all placements that host memory and group cap allow, a new group included."""

    def __init__(self, node_types: NodeTypes, rules: Rules, seed: int) -> None:
        super().__init__(node_types, rules)
        self.seed = seed

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` placed at random; the draw depends only on the seed and the job's name."""
        jobs = {**state.jobs, job.name: job}
        candidates = [(next_id(state.groups), solo_group(job, self.node_types))]
        candidates += [
            (key, candidate)
            for key, group in state.groups.items()
            if len(group.pins) < self.rules.group_cap
            for _, candidate in packings(group, job, self.node_types)
            if resident(candidate, jobs, self.node_types)
        ]
        rng = np.random.default_rng([self.seed, zlib.crc32(job.name.encode())])
        return state.with_job(job, *candidates[int(rng.integers(len(candidates)))])


class MostIdle(_Packer):
    """Places a job in the group, and there on the nodes, that are idle for the largest share of the cycle."""

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` on existing nodes if any group holds it, else in a group of its own."""
        jobs = {**state.jobs, job.name: job}
        busy = {key: self._busy(group, jobs) for key, group in state.groups.items()}
        for key in sorted(state.groups, key=lambda k: (float(np.mean(busy[k])), k)):
            group = state.groups[key]
            if len(group.pins) >= self.rules.group_cap:
                continue
            fits = []
            for added, candidate in packings(group, job, self.node_types):
                if added > 0.0:
                    break
                if resident(candidate, jobs, self.node_types):
                    fits.append(candidate)
            if fits:
                return state.with_job(job, key, min(fits, key=lambda g: self._load(g, job.name, busy[key])))
        return state.with_job(job, next_id(state.groups), solo_group(job, self.node_types))

    def _busy(self, group: Group, jobs: Jobs) -> list[float]:
        """For each node, the share of the cycle in which it is held if each member does one iteration."""
        node_of = node_of_units(group, self.node_types)
        held = [0.0] * len(group.nodes)
        for pin in group.pins:
            job = jobs[pin.job]
            for node in {node_of[unit] for unit in pin.rollout_units}:
                held[node] += job.rollout[pin.rollout].mean_s
            for node in {node_of[unit] for unit in pin.train_units}:
                held[node] += job.train[pin.train].mean_s
        cycle = cycle_s(group, jobs)
        return [seconds / cycle for seconds in held]

    def _load(self, group: Group, name: str, busy: list[float]) -> float:
        pin = next(pin for pin in group.pins if pin.job == name)
        node_of = node_of_units(group, self.node_types)
        return sum(busy[node] for node in {node_of[unit] for unit in pin.rollout_units})


# One replay as a task that a worker process can run: which placer, which jobs, which seed.

BASELINES = ("solo_d", "colocated", "random", "most_idle", "algorithm_1")
OURS = ("ours_no_moves", "ours")
DURATIONS = ("exact", "random")
PARTS = (*DURATIONS, "levers", "drift")
LEVERS = ("no_spill", "first_come")
SLOW_SPILL = 1.19
"""Rollout seconds on H800 over H20 if memory bounds all decoding: 4.0 over 3.35 TB/s (RollMux, arXiv 2512.11306)."""
DRIFT_MOST = 0.3
LOOK_S = 3600.0
"""Seconds between two re-plans of drifting jobs."""
DRIFT_MARGIN = 0.1
"""Share of every job's slack that no plan uses where phases drift, since they are looked at every hour only."""


@dataclass(frozen=True)
class Task:
    """One replay."""

    file: Path
    placer: str
    durations: str
    """`exact`: phases take their mean; `random`: they are drawn."""
    seed: int
    spill: float = 1.0
    """Seconds of a rollout on training nodes over those on rollout nodes."""
    lever: str = ""
    """The lever that our placer does without: `no_spill`, `first_come` or `slow_spill`; empty: it has all levers."""
    drift: str = ""
    """Direction of drift; none if empty."""
    replan: bool = False


def tasks_of(file: Path, seeds: Iterable[int], parts: Sequence[str], spill: float) -> list[Task]:
    """All replays of these parts, the slow ones first so that two workers end together."""
    tasks = []
    seeds = list(seeds)
    for seed in seeds:
        for durations in DURATIONS:
            if durations in parts:
                tasks += [Task(file, placer, durations, seed, spill) for placer in OURS + BASELINES]
        if seed != seeds[0]:
            continue  # levers and drift: one seed
        if "levers" in parts:
            tasks += [Task(file, "ours", "exact", seed, spill, lever=lever) for lever in LEVERS]
            tasks.append(Task(file, "ours", "exact", seed, SLOW_SPILL, lever="slow_spill"))
        if "drift" in parts:
            tasks += [
                Task(file, "ours", "exact", seed, spill, drift=direction, replan=replan)
                for direction in DIRECTIONS
                for replan in (False, True)
            ]
    return sorted(tasks, key=lambda t: (t.placer not in OURS, t.seed))


def case(file: Path, seed: int, durations: str, spill: float) -> tuple[list[Arrival], dict[str, GroupJob]]:
    """(arrivals with the durations that placers know, jobs by name with their true durations)."""
    rng = np.random.default_rng(seed)
    planned = arrivals(stays(read_curve(file), rng), rng, spill)
    real = {a.job.name: a.job for a in planned}
    if durations == "random":
        planned = [Arrival(with_spread(a.job, PLANNED_DRAWS, rng), a.stay) for a in planned]
        real = {name: with_spread(job, REAL_DRAWS, rng) for name, job in real.items()}
    return planned, real


def rules_of(placer: str, lever: str = "", margin: float = 0.0) -> Rules:
    """The rules of a placer: the published placers have the paper's permit rule; margin and quantile are the same."""
    permits = "first_come" if placer in BASELINES or lever == "first_come" else "multi_rate"
    return Rules(permit_rule=permits, margin=margin)


def placer_of(placer: str, rules: Rules, seed: int) -> Placer:
    """The placer by its name in the result."""
    if placer == "ours":
        return Replanner(NODE_TYPES, rules)
    if placer == "ours_no_moves":
        return BestFit(NODE_TYPES, rules)
    if placer == "solo_d":
        return SoloD(NODE_TYPES)
    if placer == "colocated":
        return Colocated(NODE_TYPES)
    if placer == "random":
        return Random(NODE_TYPES, rules, seed)
    if placer == "most_idle":
        return MostIdle(NODE_TYPES, rules)
    assert placer == "algorithm_1", placer
    return Algorithm1(NODE_TYPES, rules)


def run(task: Task) -> dict[str, Any]:
    """Figures of one replay, JSON-ready."""
    planned, real = case(task.file, task.seed, task.durations, task.spill)
    if task.lever == "no_spill":
        planned = [replace(a, job=without_spill(a.job)) for a in planned]
        real = {name: without_spill(job) for name, job in real.items()}
    rules = rules_of(task.placer, task.lever, DRIFT_MARGIN if task.drift else 0.0)
    placer = placer_of(task.placer, rules, task.seed)
    drift = Drift(task.drift, DRIFT_MOST, np.random.default_rng([task.seed, 5])) if task.drift else None
    replan = partial(_repaired, placer) if task.replan and isinstance(placer, Replanner) else None
    outcome = replay(planned, placer, NODE_TYPES, rules, real, task.seed, drift, replan=replan)
    return {**figures(outcome), "fluid_bound": fluid_bound(planned, NODE_TYPES)}


def _repaired(placer: Replanner, state: GroupsState, now: Jobs) -> GroupsState:
    """The state, re-planned with today's durations of the jobs in groups with a bound at risk; unchanged if none is."""
    broken = {pin.job: now[pin.job] for key in placer.at_risk(state, now, LOOK_S) for pin in state.groups[key].pins}
    return placer.drifted(state, broken) if broken else state


def figures(outcome: Outcome) -> dict[str, Any]:
    """The reported figures of a replay, by name."""
    return {
        "usd_per_hour": outcome.usd_per_hour,
        "usd_per_iteration": outcome.usd_per_unit(NODE_TYPES),
        "usd_per_plain_iteration": outcome.usd_per_plain_iteration,
        "slo_attained": outcome.slo_attained,
        "slo_attained_by_hours": outcome.slo_attained_by_hours,
        "moves": outcome.moved,
        "moves_share_of_gpu_hours": outcome.moves_share_of_gpu_hours,
        "nodes": {pool: hours / outcome.hours for pool, hours in outcome.node_hours.items()},
        "jobs": len(outcome.accounts),
    }
