"""One replay as a task that a worker process can run: which placer, which jobs, which seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rollmux.baseline_placers import Colocated, MostIdle, Random
from rlplan.planner.groups.choose.group_nodes import Placer
from rlplan.planner.groups.choose.placers import Algorithm1, BestFit, SoloD
from rlplan.planner.groups.inputs.group_model import GroupJob, GroupsState, Jobs, Rules
from rlplan.planner.groups.replanner import Replanner

from .curve import read_curve, stays
from .durations import DIRECTIONS, PLANNED_DRAWS, REAL_DRAWS, Drift, with_spread
from .fluid import fluid_bound
from .published_jobs import NODE_TYPES, Arrival, arrivals, without_spill
from .replay import Outcome, replay

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
