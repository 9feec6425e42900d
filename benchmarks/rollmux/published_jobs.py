"""The replay's jobs, nodes and prices, from published tables (RollMux, arXiv 2512.11306)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.planner.groups.inputs.group_model import GroupJob, NodeType, NodeTypes, PhaseOption
from rlplan.plans.yaml.errors import InputError

ROLLOUT, TRAIN = "H20", "H800"
NODE_TYPES = {
    ROLLOUT: NodeType(ROLLOUT, usd_per_hour=8 * 1.85, host_memory_bytes=1.5e12),
    TRAIN: NodeType(TRAIN, usd_per_hour=8 * 5.28, host_memory_bytes=1.5e12),
}
COLD_S = 82.0
"""The slowest published cold start (32B), for every job."""

WORKLOADS = (
    ("7B", 134.0, 113.0),
    ("8B", 310.0, 120.0),
    ("8B", 580.0, 241.0),
    ("14B", 238.0, 197.0),
    ("4B", 121.0, 51.0),
    ("4B", 496.0, 180.0),
    ("32B", 267.0, 271.0),
    ("8B", 888.0, 559.0),
    ("7B", 80.0, 77.0),
    ("4B", 262.0, 87.0),
)
"""(model, rollout seconds, training seconds) of the ten commonest production jobs (RollMux, arXiv 2512.11306)."""

_FOOTPRINT = {"3B": (113.4, 156.2), "7B": (275.7, 240.0), "14B": (445.4, 456.1), "32B": (490.3, 520.4)}
"""GB of host memory per 8-GPU node of a (rollout, training) actor (RollMux, arXiv 2512.11306, Table 2)."""


@dataclass(frozen=True)
class Arrival:
    """A job and when it is in the system."""

    job: GroupJob
    stay: Stay


def footprint_bytes(model: str) -> tuple[float, float]:
    """Host bytes per node of the (rollout, training) actor; sizes between the published ones are interpolated."""
    size = float(model.removesuffix("B"))
    sizes = [float(name.removesuffix("B")) for name in _FOOTPRINT]
    rollout, train = (np.interp(size, sizes, column) for column in zip(*_FOOTPRINT.values(), strict=True))
    return float(rollout) * 1e9, float(train) * 1e9


def job_of(name: str, workload: tuple[str, float, float], slo: float, nodes: int, spill: float) -> GroupJob:
    """A job of that workload on `nodes` + `nodes` nodes.

    Ways beyond the reference: a rollout on the training pool takes `spill` times its seconds. A job of one node may
    train on two without gaining anything (313 + 120 s on 8 GPUs, 285 + 115 s on 16: RollMux); a job of two
    nodes may train, and roll out, on one in twice the seconds.
    """
    model, rollout_s, train_s = workload
    rollout_bytes, train_bytes = footprint_bytes(model)
    rollout = [
        PhaseOption(ROLLOUT, nodes, 1, rollout_s, rollout_bytes),
        PhaseOption(TRAIN, nodes, 1, rollout_s * spill, rollout_bytes),
    ]
    train = [PhaseOption(TRAIN, nodes, 1, train_s, train_bytes)]
    if nodes == 1:
        train.append(PhaseOption(TRAIN, 2, 1, train_s, train_bytes))
    else:
        rollout.append(PhaseOption(ROLLOUT, 1, 1, 2.0 * rollout_s, rollout_bytes))
        train.append(PhaseOption(TRAIN, 1, 1, 2.0 * train_s, train_bytes))
    return GroupJob(name, slo, tuple(rollout), tuple(train), cold_s=COLD_S)


def arrivals(stays: list[Stay], rng: np.random.Generator, spill: float = 1.0) -> list[Arrival]:
    """One job for each stay: workload uniform over the table, SLO uniform in (1, 2)."""
    digits = len(str(len(stays)))
    return [
        Arrival(
            job_of(
                f"j{number:0{digits}d}",
                WORKLOADS[int(rng.integers(len(WORKLOADS)))],
                float(rng.uniform(1, 2)),
                stay.nodes,
                spill,
            ),
            stay,
        )
        for number, stay in enumerate(stays)
    ]


def without_spill(job: GroupJob) -> GroupJob:
    """The job without its rollout ways on the training pool."""
    return replace(job, rollout=tuple(way for way in job.rollout if way.pool != TRAIN))


# Arrivals and departures of jobs from a curve of GPUs in use.
#
# The file holds `{"series": {"H800_SoloD": [[hour, GPUs], ...], ...}}`: under Solo-D every job holds its own training
# GPUs, so each step of 8 up is a job's arrival and each step of 8 down a departure. GPU counts may be one off (they
# are read from a drawing); which arrival belongs to which departure is drawn by seed.
#
# In the published curve 208 nodes arrive and the paper counts 200 jobs: 8 jobs train on two nodes. So one job in 25
# is made of two nodes that arrive in one step and leave in one step, as far as the curve has such steps.

_SERIES = "H800_SoloD"
_GPUS = 8
_MOST_GPUS = 100_000
"""Most GPUs of a point, since each node of the curve becomes an object."""
_NODES_A_WIDE_JOB = 26
"""Nodes that arrive for each job of two nodes: 208 for 8."""


@dataclass(frozen=True)
class Stay:
    """One job's time in the system."""

    start_h: float
    end_h: float
    nodes: int
    """Training nodes that it holds under Solo-D; 1 or 2."""


def read_curve(path: Path) -> list[tuple[float, int]]:
    """(hour, nodes in use from then on) of the Solo-D training pool, hours ascending.

    Raises InputError, one line that names the file, if it is absent or is no such file.
    """
    name = str(path)
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); give the replay's JSON with --replay", name) from None
    except ValueError as error:
        raise InputError(f"is not JSON ({error})", name, getattr(error, "lineno", None)) from None
    series = document.get("series") if isinstance(document, dict) else None
    points = series.get(_SERIES) if isinstance(series, dict) else None
    if not isinstance(points, list) or not points:
        raise InputError(f'has no list of points at "series": "{_SERIES}"', name)
    curve: list[tuple[float, int]] = []
    for index, point in enumerate(points):
        hour, gpus = _point(point, index, name)
        if curve and hour < curve[-1][0]:
            raise InputError(f"{_SERIES}[{index}] is at hour {hour:g}, before the point in front of it", name)
        if gpus > _MOST_GPUS:
            raise InputError(f"{_SERIES}[{index}] has {gpus:g} GPUs; at most {_MOST_GPUS} are replayed", name)
        nodes = round(gpus / _GPUS)
        if abs(gpus - nodes * _GPUS) > 1.0:
            raise InputError(
                f"{_SERIES}[{index}] has {gpus:g} GPUs, which is no multiple of {_GPUS} (give or take 1)", name
            )
        curve.append((hour, nodes))
    if all(nodes == 0 for _, nodes in curve):
        raise InputError(f"{_SERIES} never uses a node: there is no job to replay", name)
    return curve


def _point(point: Any, index: int, name: str) -> tuple[float, float]:
    good = isinstance(point, list) and len(point) == 2 and all(type(x) in (int, float) for x in point)
    if not good or not all(np.isfinite(point)) or point[1] < -1 or point[0] < 0:
        raise InputError(f"{_SERIES}[{index}] must be [hour, GPUs], both finite and >= 0, not {point!r}", name)
    return float(point[0]), float(point[1])


def stays(curve: list[tuple[float, int]], rng: np.random.Generator) -> list[Stay]:
    """Jobs whose nodes add up to the curve at all times, in order of arrival; nodes left at its end leave there."""
    end = curve[-1][0]
    steps = [(hour, n - before) for (hour, n), before in zip(curve, [0] + [n for _, n in curve[:-1]], strict=True)]
    steps.append((end, -curve[-1][1]))
    pairs = _wide_pairs([step for _, step in steps], rng)
    jobs = [Stay(steps[a][0], steps[b][0], 2) for a, b in pairs]
    gone_up = {a for a, _ in pairs}
    gone_down = {b for _, b in pairs}
    present: list[float] = []
    for index, (hour, step) in enumerate(steps):
        if step > 0:
            present += [hour] * (step - 2 * (index in gone_up))
        for _ in range(-step - 2 * (index in gone_down)):
            start = present.pop(int(rng.integers(len(present))))
            jobs.append(Stay(start, hour, 1))
    return sorted((stay for stay in jobs if stay.end_h > stay.start_h), key=lambda s: (s.start_h, s.end_h, s.nodes))


def _wide_pairs(steps: list[int], rng: np.random.Generator) -> list[tuple[int, int]]:
    """(index of the step up, index of the later step down) of each job of two nodes; jobs of one node make up the rest.

    A departure time is drawn as if a random node left at every step down; the job ends at the possible step nearest to
    it.
    """
    present = np.cumsum(steps)
    rest = present.copy()
    ups = [index for index, step in enumerate(steps) if step > 1]
    downs = [index for index, step in enumerate(steps) if step < -1]
    wanted = round(sum(step for step in steps if step > 0) / _NODES_A_WIDE_JOB)
    pairs: list[tuple[int, int]] = []
    for a in rng.permutation(ups).tolist():
        possible = [b for b in downs if b > a and rest[a:b].min() >= 2]
        if len(pairs) == wanted or not possible:
            continue
        leaves = next(
            (b for b in range(a + 1, len(steps)) if steps[b] < 0 and rng.uniform() < -steps[b] / present[b - 1]), a
        )
        end = min(possible, key=lambda b: (abs(b - leaves), b))
        rest[a:end] -= 2
        downs.remove(end)
        pairs.append((a, end))
    return pairs


# Random durations and drift of phases, from published distributions, since no trace of the jobs is public.
#
# Lengths of responses: the quantiles of 1.38 million production requests to a reasoning model (output p50 792, p90
# 3432, p99 12607 tokens; Alibaba ServeGen's DeepSeek-R1 trace), cut at 16k tokens, near the replay's mean cap of
# 12.1k. An iteration has 32 prompts of 8 samples; samples of one prompt agree with a normal copula of 0.8, the
# dependence measured on math prompts (ICC 0.79). Rollout seconds follow the longest response, and one part in
# `_BATCH` sequences of the tokens' sum (a decode step costs a part per step and a part per sequence); training
# seconds follow the sum. So long responses lengthen both, training more evenly than rollout.

_QUANTILES = ((0.0, 792.0), (1.2816, 3432.0), (2.3263, 12607.0))
"""(normal score, tokens); straight lines in log tokens, the outer ones prolonged."""
_CAP_TOKENS = 16384.0
_PROMPTS, _SAMPLES = 32, 8
_COPULA = 0.8
_BATCH = 128.0
_NODE_ENGINES = 8
PLANNED_DRAWS, REAL_DRAWS = 64, 512


def response_tokens(score: np.ndarray) -> np.ndarray:
    """Tokens of a response whose place in the distribution has this normal score; any shape."""
    (z0, t0), (z1, t1), (z2, t2) = _QUANTILES
    low, high = np.log(t1 / t0) / (z1 - z0), np.log(t2 / t1) / (z2 - z1)
    log = np.log(t1) + np.where(score < z1, low, high) * (score - z1)
    return np.clip(np.exp(log), 1.0, _CAP_TOKENS)


def spread(draws: int, rng: np.random.Generator) -> tuple[tuple[float, float], ...]:
    """`draws` random (rollout, training) seconds of an iteration, each divided by its mean over the draws."""
    prompt = rng.standard_normal((draws, _PROMPTS, 1))
    sample = rng.standard_normal((draws, _PROMPTS, _SAMPLES))
    tokens = response_tokens(np.sqrt(_COPULA) * prompt + np.sqrt(1.0 - _COPULA) * sample).reshape(draws, -1)
    rollout = tokens.max(axis=1) + tokens.sum(axis=1) / _NODE_ENGINES / _BATCH
    train = tokens.sum(axis=1)
    return tuple(zip((rollout / rollout.mean()).tolist(), (train / train.mean()).tolist(), strict=True))


def with_spread(job: GroupJob, draws: int, rng: np.random.Generator) -> GroupJob:
    """The job with random phases around its means."""
    return replace(job, spread=spread(draws, rng))


DIRECTIONS = ("up", "down", "mixed")


class Drift:
    """Drift of phase seconds: linear over each job's stay, from the seconds at arrival, by a share of up to `most`.

    Each phase of each job ends at its own share, uniform up to `most`; slower for `up`, faster for `down`, either for
    `mixed`, drawn by job. A bound on slowdown is a share of the job's seconds alone as they are at the time.
    """

    def __init__(self, direction: str, most: float, rng: np.random.Generator) -> None:
        if direction not in DIRECTIONS:
            raise ValueError(f"no such direction: {direction}")
        self._direction = direction
        self._most = most
        self._rng = rng
        self._ends: dict[str, tuple[float, float]] = {}

    def drifted(self, job: GroupJob, share: float) -> GroupJob:
        """The job with its phase seconds after this share of its stay; `job`: as it arrived."""
        if job.name not in self._ends:
            signs = {"up": 1.0, "down": -1.0, "mixed": float(self._rng.choice((-1.0, 1.0)))}
            sign = signs[self._direction]
            self._ends[job.name] = (sign * self._most * self._rng.uniform(), sign * self._most * self._rng.uniform())
        rollout, train = self._ends[job.name]
        return replace(
            job, rollout=_slower(job.rollout, 1.0 + rollout * share), train=_slower(job.train, 1.0 + train * share)
        )


def _slower(ways: tuple[PhaseOption, ...], factor: float) -> tuple[PhaseOption, ...]:
    return tuple(replace(way, mean_s=way.mean_s * factor) for way in ways)


# The fluid bound: a price below which no placer can be, with fractional nodes and each job exactly at its bound.
#
# At any time a job in the system must finish an iteration within its bound times its solo seconds, on average, so it
# holds node-seconds at that rate at least. With fractional nodes, and no phase waiting for another job, each phase
# takes its cheapest way: one minimum for each phase of each job.


def job_usd_per_hour(job: GroupJob, node_types: NodeTypes) -> float:
    """Least price of one job under its bound."""

    def least(ways: tuple[PhaseOption, ...]) -> float:
        return min(
            way.mean_s * way.nodes * way.slots / node_types[way.pool].slots * node_types[way.pool].usd_per_hour
            for way in ways
        )

    return (least(job.rollout) + least(job.train)) / (job.slo * job.solo_s)


def fluid_bound(arrivals: Sequence[Arrival], node_types: NodeTypes) -> float:
    """USD per hour, averaged from the first arrival to the last departure."""
    hours = max(a.stay.end_h for a in arrivals) - min(a.stay.start_h for a in arrivals)
    usd = sum(job_usd_per_hour(a.job, node_types) * (a.stay.end_h - a.stay.start_h) for a in arrivals)
    return usd / hours
