"""Errors of the decode law on published measurements that it was not fitted to.

    python -m benchmarks.decode_fit --data FILE.csv [--json]

For each (GPU, model, precision) with at least 12 points that are not flagged, each value of the batch, of TP and of the
lengths (isl, osl) is left out in turn, the law is fitted to the others, and the left-out points are predicted: mean
absolute relative error of time per output token. A value can be left out only if another stays. The headline is the
median over those groups; the worst group and its error are printed beside it. `calibration` is the share of left-out
points inside the predicted 90 % band, so that the stated uncertainty is checked too.

The points were served under continuous arrivals; tools/served_fit.py has that term, which no plan's
prediction contains. `law_alone` is the same headline without the correction by neighbouring points
(tools/served_fit.py). `other_model`: how far the law of one model alone is off on another's points on the same
GPU, by kind of model, of mixtures of experts in one precision (profiles/library/scaled_profile.py scales by such a
law).
Columns: tools/served_fit.py. Nothing is specific to a model; models and GPUs beyond the tables are guessed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.hardware import gpu_of
from rlplan.profiles.laws.decode_law import DecodeLaw
from rlplan.tools.served_fit import Group, Served, ServedFit, fit_served, read_served, seconds_per_token, sheet_of

from .entry import tell

LEAST_POINTS = 12
AXES = ("batch", "tp", "context")
BAND_SDS = 1.645  # a normal band of 90 %

Array = NDArray[np.float64]


class LeftOut(NamedTuple):
    """For each left-out point: its relative error, that of the law without correction, whether the band holds it."""

    errors: Array
    law_errors: Array
    inside: NDArray[np.bool_]


def axis_values(points: Served, axis: str) -> Array:
    """The value of an axis at each point, as a number; equal numbers are left out together."""
    if axis == "batch":
        return points.batch
    if axis == "tp":
        return points.tp
    _, names = np.unique(np.stack([points.isl, points.osl]), axis=1, return_inverse=True)
    return np.asarray(names, dtype=float).reshape(-1)


def left_out(group: Group, points: Served, axis: str) -> LeftOut | None:
    """Errors of each point when predicted from the points with other values; None if there is one value only."""
    values = axis_values(points, axis)
    if len(np.unique(values)) < 2:
        return None
    errors, law_errors, inside = np.empty(len(points)), np.empty(len(points)), np.empty(len(points), dtype=bool)
    for value in np.unique(values):
        out = values == value
        rest, held_out = points.take(~out), points.take(out)
        fit = fit_served(group, rest)
        predicted = fit.predict(held_out)
        errors[out] = predicted / held_out.seconds - 1
        law_errors[out] = seconds_per_token(fit.law, held_out) / held_out.seconds - 1
        band = BAND_SDS * fit.relative_sd(held_out)
        inside[out] = np.abs(np.log(held_out.seconds / predicted)) <= band
    return LeftOut(errors, law_errors, inside)


def other_model(data: dict[Group, Served], fits: dict[Group, ServedFit]) -> dict[str, dict[str, float]]:
    """Errors of the law of one model on another's points, by kind: how many pairs, median, worst."""
    errors: dict[str, list[float]] = {}
    for group, other in itertools.permutations(fits, 2):
        shape, others = architecture_of(group.model), architecture_of(other.model)
        if shape is None or others is None or shape.guessed or others.guessed or shape == others:
            continue
        kind = "experts" if shape.experts else "dense"
        if bool(shape.experts) != bool(others.experts) or gpu_of(group.system) != gpu_of(other.system):
            continue
        if kind == "experts" and group.precision != other.precision:
            continue
        predicted = seconds_per_token(DecodeLaw(sheet_of(group), fits[other].law.logs), data[group])
        errors.setdefault(kind, []).append(float(np.mean(np.abs(predicted / data[group].seconds - 1))))
    return {
        kind: {"pairs": len(each), "median": float(np.median(each)), "worst": max(each)}
        for kind, each in sorted(errors.items())
    }


def report(data: dict[Group, Served]) -> dict[str, Any]:
    """The JSON document. Raises InputError when no group has enough points."""
    by_model: dict[str, dict[str, Any]] = {}
    inside: list[bool] = []
    fits: dict[Group, ServedFit] = {}
    law_errors: dict[str, list[float]] = {axis: [] for axis in AXES}
    for group in sorted(data):
        points = data[group]
        if len(points) < LEAST_POINTS:
            continue
        fit = fits[group] = fit_served(group, points)
        entry: dict[str, Any] = {
            "points": len(points),
            "fit": float(np.mean(np.abs(fit.predict(points) / points.seconds - 1))),
        }
        for axis in AXES:
            left = left_out(group, points, axis)
            if left is not None:
                entry[axis] = float(np.mean(np.abs(left.errors)))
                law_errors[axis].append(float(np.mean(np.abs(left.law_errors))))
                inside += left.inside.tolist()
        by_model[str(group)] = entry
    if not by_model:
        raise InputError(f"no (system, model, precision) has {LEAST_POINTS} points that are not flagged")
    mape, worst = {}, {}
    for axis in AXES:
        by_axis = {name: entry[axis] for name, entry in by_model.items() if axis in entry}
        if by_axis:
            mape[axis] = float(np.median(list(by_axis.values())))
            name = max(by_axis, key=lambda key: by_axis[key])
            worst[axis] = {"group": name, "mape": by_axis[name]}
    return {
        "mape": mape,
        "worst": worst,
        "groups": len(by_model),
        "law_alone": {axis: float(np.median(errors)) for axis, errors in law_errors.items() if errors},
        "other_model": other_model(data, fits),
        "calibration": float(np.mean(inside)) if inside else None,
        "by_model": by_model,
    }


def text(result: dict[str, Any]) -> str:
    """The report for people."""
    lines = ["mean absolute relative error of time per output token, on values left out", ""]
    lines.append(f"{'':54}{'points':>7}{'fit':>8}" + "".join(f"{axis:>9}" for axis in AXES))
    for name, entry in result["by_model"].items():
        cells = "".join(f"{entry[axis]:9.1%}" if axis in entry else f"{'-':>9}" for axis in AXES)
        lines.append(f"{name[:53]:54}{entry['points']:7}{entry['fit']:8.1%}{cells}")
    lines.append(
        f"{'median of ' + str(result['groups']):69}" + "".join(f"{result['mape'].get(a, 0):9.1%}" for a in AXES)
    )
    lines.append(f"{'the law alone':69}" + "".join(f"{result['law_alone'].get(a, 0):9.1%}" for a in AXES))
    lines += [f"worst, {axis}: {w['group']}, {w['mape']:.1%}" for axis, w in result["worst"].items()]
    lines += [
        f"the law of another {'mixture of experts' if kind == 'experts' else 'dense model'} on that GPU, "
        f"{of['pairs']} pairs: median {of['median']:.1%}, worst {of['worst']:.1%}"
        for kind, of in result["other_model"].items()
    ]
    if result["calibration"] is not None:
        lines.append(f"left-out points inside the predicted 90 % band: {result['calibration']:.1%}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0, or 2 with one line when the file is absent or wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_fit")
    parser.add_argument("--data", type=Path, required=True, help="CSV of measured points")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args(arguments)
    try:
        result = report(read_served(options.data))
    except InputError as error:
        print(f"decode_fit: {error}", file=sys.stderr)
        return 2
    tell(result, options.json, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
