"""`python -m benchmarks.rollmux`"""

from __future__ import annotations

import json
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
from .curve import read_curve, stays
from .replay_report import result_of, text_of
from .tasks import DURATIONS, PARTS, Task, run, tasks_of


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
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
    click.echo(json.dumps(result) if as_json else text_of(result))


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
