"""The benchmark's JSON result and its text, from the figures of all replays."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .durations import DIRECTIONS
from .tasks import BASELINES, DURATIONS, OURS, Task

_FIGURES = (
    "usd_per_hour",
    "usd_per_iteration",
    "usd_per_plain_iteration",
    "slo_attained",
    "slo_attained_by_hours",
    "moves",
    "moves_share_of_gpu_hours",
)


def result_of(tasks: Sequence[Task], figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds by durations, figure and placer, in the shape that the package documents."""
    runs = list(zip(tasks, figures, strict=True))

    def mean(figure: str, **like: Any) -> float | None:
        values = [f[figure] for t, f in runs if all(getattr(t, key) == value for key, value in like.items())]
        return statistics.fmean(values) if values else None

    plain = {"lever": "", "drift": ""}
    result: dict[str, Any] = {}
    for durations in DURATIONS:
        if not any(t.durations == durations and not t.lever and not t.drift for t in tasks):
            continue
        by_figure: dict[str, Any] = {
            figure: {p: mean(figure, placer=p, durations=durations, **plain) for p in BASELINES + OURS}
            for figure in _FIGURES
        }
        usd = by_figure["usd_per_hour"]
        bound = mean("fluid_bound", durations=durations, **plain)
        assert bound is not None
        by_figure["over_algorithm_1"] = {p: usd[p] / usd["algorithm_1"] for p in BASELINES + OURS}
        by_figure["over_fluid_bound"] = {p: usd[p] / bound for p in BASELINES + OURS}
        usd["fluid_bound"] = bound
        result[durations] = by_figure
        result.setdefault("moves", by_figure["moves"]["ours"])
        result.setdefault("moves_share_of_gpu_hours", by_figure["moves_share_of_gpu_hours"]["ours"])
    levers = sorted({t.lever for t in tasks if t.lever})
    if levers:
        result["levers"] = {
            lever: {figure: mean(figure, placer="ours", lever=lever) for figure in _FIGURES} for lever in levers
        }
    if any(t.drift for t in tasks):
        result["drift"] = {
            direction: {
                name: {figure: mean(figure, drift=direction, replan=replan) for figure in _FIGURES}
                for name, replan in (("static", False), ("replanned", True))
            }
            for direction in DIRECTIONS
        }
    return result


def text_of(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = []
    for durations in DURATIONS:
        if durations not in result:
            continue
        table = result[durations]
        lines.append(f"{durations} durations; fluid bound {table['usd_per_hour']['fluid_bound']:.0f} USD/h")
        lines.append(f"  {'placer':14} USD/h  of Alg. 1  of fluid  USD/unit  SLO kept  by hours   moves  of GPU hours")
        for placer in BASELINES + OURS:
            row = {figure: table[figure][placer] for figure in table}
            lines.append(
                f"  {placer:14} {row['usd_per_hour']:5.0f}  {row['over_algorithm_1']:8.3f}"
                f"  {row['over_fluid_bound']:8.2f}  {row['usd_per_iteration']:8.3f}  {row['slo_attained']:8.2%}"
                f"  {row['slo_attained_by_hours']:8.2%}  {row['moves']:6.0f}  {row['moves_share_of_gpu_hours']:12.3%}"
            )
    for lever, row in result.get("levers", {}).items():
        lines.append(f"ours, {lever}: {row['usd_per_hour']:.0f} USD/h, SLO kept {row['slo_attained']:.2%}")
    for direction, by_name in result.get("drift", {}).items():
        for name, row in by_name.items():
            lines.append(
                f"drift {direction}, {name}: {row['usd_per_hour']:.0f} USD/h, SLO kept {row['slo_attained']:.2%} "
                f"({row['slo_attained_by_hours']:.2%} by hours), moves "
                f"{row['moves_share_of_gpu_hours']:.3%} of GPU hours"
            )
    return "\n".join(lines)
