"""Arrivals and departures of jobs from a curve of GPUs in use.

The file holds `{"series": {"H800_SoloD": [[hour, GPUs], ...], ...}}`: under Solo-D every job holds its own training
GPUs, so each step of 8 up is a job's arrival and each step of 8 down a departure. GPU counts may be one off (they
are read from a drawing); which arrival belongs to which departure is drawn by seed.

In the published curve 208 nodes arrive and the paper counts 200 jobs: 8 jobs train on two nodes. So one job in 25 is
made of two nodes that arrive in one step and leave in one step, as far as the curve has such steps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.plans.yaml.errors import InputError

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
