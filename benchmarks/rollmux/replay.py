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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlplan.planner.groups.choose.group_nodes import Observer, Placer
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, GroupsState, Jobs, NodeTypes, Rules
from rlplan.planner.groups.moves import moved_jobs
from rlplan.planner.groups.simulate.slowdowns import slowdowns

from .durations import Drift
from .published_jobs import Arrival

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
