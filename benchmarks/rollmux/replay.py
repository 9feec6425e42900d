"""A policy replayed over arrivals and departures, and what it cost and kept.

Between two events everything is constant: each job advances at its long-run slowdown in its group. Jobs stay for as
long as the file says, however slow they are; what a slow job did not do shows in USD per iteration.

A move stops the job at once: what it has done of its running iteration is lost (a share drawn by seed), then it starts
cold on its new nodes, which are paid from that moment; its old nodes are given back if nobody else uses them. Work lost
and cold start take the job's time. The first start of a job is alike under every policy and is not counted.

slo_attained: share of jobs whose mean iteration over their whole stay, moves included, was within their bound.
slo_attained_by_hours: share of job-hours in intervals during which the job alone obeyed it, moves included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlplan.planner.groups.model import Group, GroupJob, NodeKind, Rules
from rlplan.planner.groups.policy import Placer, State, moves
from rlplan.planner.groups.rates import slowdowns

from .jobs import Arrival

_ROUNDING = 1e-6


@dataclass
class Account:
    """What one job got."""

    time_s: float = 0.0
    iterations: float = 0.0
    outage_s: float = 0.0
    """Seconds of a move that it has still to sit out: cold start, and doing again what was lost."""
    redo_s: float = 0.0
    """Of these, what was lost."""
    moved: int = 0
    lost_s: float = 0.0
    kept_s: float = 0.0
    """Seconds in intervals in which it obeyed its bound."""


@dataclass(frozen=True)
class Outcome:
    """Totals of one replay."""

    usd: float
    hours: float
    accounts: Mapping[str, Account]
    jobs: Mapping[str, GroupJob]
    node_hours: Mapping[str, float]
    groups_of: Mapping[int, float]
    """Hours of groups by number of members."""

    @property
    def usd_per_hour(self) -> float:
        return self.usd / self.hours

    def usd_per_unit(self, kinds: Mapping[str, NodeKind]) -> float:
        """USD for the training that one USD buys under Solo-D: an iteration counts by what it costs alone."""
        units = sum(
            account.iterations * self.jobs[name].solo_s / 3600.0 * self.jobs[name].solo_usd_per_hour(kinds)
            for name, account in self.accounts.items()
        )
        return self.usd / units

    @property
    def usd_per_plain_iteration(self) -> float:
        return self.usd / sum(account.iterations for account in self.accounts.values())

    def late(self) -> list[str]:
        """Jobs whose mean iteration over their stay was beyond their bound."""
        return [n for n, a in self.accounts.items() if not _kept(a.time_s, a.iterations, self.jobs[n])]

    @property
    def slo_attained(self) -> float:
        return 1.0 - len(self.late()) / len(self.accounts)

    @property
    def slo_attained_by_hours(self) -> float:
        return sum(a.kept_s for a in self.accounts.values()) / sum(a.time_s for a in self.accounts.values())

    @property
    def moved(self) -> int:
        return sum(account.moved for account in self.accounts.values())

    def moves_share(self) -> float:
        """Share of the GPU hours of all jobs (what they hold alone) that moves took, lost work included."""
        gpus = {name: job.rollout[0].nodes + job.train[0].nodes for name, job in self.jobs.items()}
        held = sum(a.time_s * gpus[name] for name, a in self.accounts.items())
        return sum(a.lost_s * gpus[name] for name, a in self.accounts.items()) / held


def _kept(time_s: float, iterations: float, job: GroupJob) -> bool:
    return time_s <= iterations * job.slo * job.solo_s * (1.0 + _ROUNDING)


def replay(
    arrivals: Sequence[Arrival],
    placer: Placer,
    kinds: Mapping[str, NodeKind],
    rules: Rules,
    real: Mapping[str, GroupJob],
    seed: int = 0,
    iterations: int = 30,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run `placer` over the arrivals. It sees the arrivals' jobs; slowdowns are those of the `real` jobs."""
    rng = np.random.default_rng([seed, 77])
    events = sorted(
        [(a.stay.start_h, 1, at) for at, a in enumerate(arrivals)]
        + [(a.stay.end_h, 0, at) for at, a in enumerate(arrivals)]
    )
    state = State()
    accounts = {a.job.name: Account() for a in arrivals}
    known: dict[Group, dict[str, float]] = {}
    usd, now = 0.0, events[0][0]
    node_hours = dict.fromkeys(kinds, 0.0)
    sizes: dict[int, float] = {}
    for hour, is_arrival, at in events:
        span_s = (hour - now) * 3600.0
        if span_s > 0:
            usd += state.usd_per_hour(kinds) * (hour - now)
            for group in state.groups.values():
                if group not in known:
                    found = slowdowns(group, real, rules, iterations)
                    known[group] = {name: value.mean for name, value in found.items()}
                for name, factor in known[group].items():
                    _advance(accounts[name], real[name], factor, span_s)
                for pool in group.nodes:
                    node_hours[pool] += hour - now
                sizes[len(group.pins)] = sizes.get(len(group.pins), 0.0) + hour - now
            now = hour
        job = arrivals[at].job
        after = placer.arrive(state, job) if is_arrival else placer.depart(state, job.name)
        for name in moves(state, after, kinds):
            account = accounts[name]
            solo_s = real[name].solo_s
            factor = known.get(state.groups[state.group_of(name)], {}).get(name, 1.0)
            if not account.outage_s:
                account.redo_s = min(float(rng.uniform()), account.iterations) * factor * solo_s
                account.outage_s = account.redo_s
            account.outage_s += real[name].cold_s
            account.moved += 1
        if not is_arrival:
            account = accounts[job.name]
            account.iterations -= min(account.outage_s, account.redo_s) / real[job.name].solo_s
        state = after
        tick()
    return Outcome(usd, now - events[0][0], accounts, dict(real), node_hours, sizes)


def _advance(account: Account, job: GroupJob, factor: float, span_s: float) -> None:
    """`span_s` seconds in the system, the rest of a cold start first."""
    waits = min(account.outage_s, span_s)
    account.outage_s -= waits
    account.lost_s += waits
    account.time_s += span_s
    done = (span_s - waits) / (factor * job.solo_s)
    account.iterations += done
    if _kept(span_s, done, job):
        account.kept_s += span_s
