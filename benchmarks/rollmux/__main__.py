"""`python -m benchmarks.rollmux`"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rlplan.plans.yaml.errors import InputError

from .. import entry
from .published_jobs import DIRECTIONS, read_curve, stays
from .replay import BASELINES, DURATIONS, OURS, PARTS, Task, run, tasks_of

# The benchmark's JSON result and its text, from the figures of all replays.

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


@click.command()
@click.option("--replay", "file", required=True, type=click.Path(path_type=Path), help="Curve of GPUs in use, JSON.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Draws of jobs to average over.")
@click.option(
    "--parts",
    default=",".join(DURATIONS),
    show_default=True,
    help=f"What to replay, of {','.join(PARTS)}, comma-separated.",
)
@click.option(
    "--spill", default=1.0, show_default=True, type=click.FloatRange(min=0.01), help="Rollout seconds on H800 over H20."
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Processes.")
@entry.as_json_option
def command(file: Path, seeds: int, parts: str, spill: float, workers: int, as_json: bool) -> None:
    """RollMux's production replay under the published placers and ours; see the docstring of benchmarks/rollmux."""
    chosen = [part.strip() for part in parts.split(",")]
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise click.BadParameter(f"no such part: {unknown[0]}; there are {', '.join(PARTS)}", param_hint="--parts")
    if not stays(read_curve(file), np.random.default_rng(0)):
        raise InputError("no job stays for any time: there is nothing to replay", str(file))
    tasks = tasks_of(file, range(seeds), chosen, spill)
    result = result_of(tasks, _run_all(tasks, workers))
    entry.tell(result, as_json, text_of)


def _run_all(tasks: Sequence[Task], workers: int) -> list[dict[str, Any]]:
    """The figures of each task, in order."""
    figures: dict[int, dict[str, Any]] = {}
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    with bar, ProcessPoolExecutor(min(workers, len(tasks))) as pool:
        line = bar.add_task("replays", total=len(tasks))
        futures = {pool.submit(run, task): index for index, task in enumerate(tasks)}
        for future in as_completed(futures):
            figures[futures[future]] = future.result()
            bar.advance(line)
    return [figures[index] for index in range(len(tasks))]


if __name__ == "__main__":
    entry.run(command)
