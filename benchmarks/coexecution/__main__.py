"""The command; see the docstring of benchmarks/coexecution."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import click

from rlplan.plans.yaml.errors import RunFailed

from ..entry import as_json_option, run, tell
from ..example_plans import call
from ..ray_nodes import RayNodes
from .core_speed import CoreSpeeds
from .group_runs import (
    LOADS,
    MOVING,
    compare,
    measure_moves,
    names,
    read_alone,
    under_kills,
    write_jobs,
    write_workload,
)
from .interference import core_interference

PARTS = "runs", "moves"
IDLE_S = 20.0


def run_alone(folder: Path, plans: Mapping[str, Path], steps: int) -> dict[str, Path]:
    """Run each job alone; returns its run by name."""
    runs = {}
    for name, plan in plans.items():
        click.echo(f"{name} alone, {steps} steps", err=True)
        runs[name] = folder / "alone" / name
        call(folder / "alone.log", "execute", plan, "--steps", steps, "--out", runs[name])
    return runs


def group_of(folder: Path, count: int, runs: Mapping[str, Path], interference: float) -> Path:
    """Solve the workload of a group of so many jobs; returns the plan of groups."""
    loads = LOADS[count]
    workload = write_workload(folder, loads, runs, interference)
    named = workload.rename(folder / f"workload-{count}.yaml")
    groups = folder / f"groups-{count}.yaml"
    call(folder / "solve.log", "solve", named, "-o", groups)
    return groups


@contextlib.contextmanager
def on_nodes() -> Iterator[None]:
    """Within the block RAY_ADDRESS is that of two nodes of a core each."""
    with RayNodes([1, 1], pinned=True) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address
        try:
            yield
        finally:
            del os.environ["RAY_ADDRESS"]


def measure_runs(folder: Path, counts: Sequence[int], steps: int, kills: int, moves: bool) -> dict[str, Any]:
    """Run the jobs alone, as groups, as a group whose jobs join and leave, and under kills; returns the figures."""
    plans = write_jobs(folder, names(counts) | (MOVING if moves else {}))
    groups: dict[int, dict[str, Any]] = {}
    result: dict[str, Any] = {"kills": 0, "lost": None}
    between_cores = core_interference(next(iter(plans.values())).parent / "model")
    with on_nodes(), CoreSpeeds(sorted(os.sched_getaffinity(0))[:2], folder) as speeds:
        idle_s = time.time()
        time.sleep(IDLE_S)
        background = sum(core.computed_s(idle_s, idle_s + IDLE_S) for core in speeds.read()) / IDLE_S
        runs = run_alone(folder, plans, steps)
        cores = speeds.read()
        alone = {name: read_alone(run, cores, background) for name, run in runs.items()}
        besides = mean(run.besides for run in alone.values())
        # The background takes its share of the two cores; of the rest a second of a phase takes 1 + `besides` seconds.
        interference = (1.0 + between_cores) * (1.0 + besides) / (1.0 - background / 2) - 1.0
        click.echo(
            f"jobs that run together slow each other by {interference:.1%}: cores that both compute "
            f"{between_cores:.1%}, drivers and rewards {besides:.1%}; the machine takes {background:.1%} of a core",
            err=True,
        )
        for count in counts:
            plan = group_of(folder, count, runs, interference)
            click.echo(f"{count} jobs as one, {steps} steps each", err=True)
            together = folder / f"together-{count}"
            call(folder / f"together-{count}.log", "execute", plan, "--steps", steps, "--out", together)
            of_group = {name: alone[name] for name in LOADS[count]}
            groups[count] = compare(plan, of_group, together / "g1", speeds.read(), between_cores)
        if moves:
            click.echo("jobs join and leave", err=True)
            moved = measure_moves(folder / "moved", MOVING, runs, steps, interference)
            kills = max(0, kills - len(moved["kills"]))
        if kills:
            plan = folder / "groups-2.yaml" if 2 in counts else group_of(folder, 2, runs, interference)
            click.echo(f"2 jobs as one, {kills} kills", err=True)
            try:
                result = under_kills(plan, {name: runs[name] for name in LOADS[2]}, folder / "killed", steps, kills)
            except RunFailed as failure:
                result["failed"] = str(failure)  # what was measured before is told all the same
    if moves:
        result = _with_kills(result, moved)
    if not groups:
        return result
    return {
        "throughput_ratio": min(figures["throughput_ratio"] for figures in groups.values()),
        "by_the_clock": min(figures["by_the_clock"] for figures in groups.values()),
        "slowdowns": {str(count): figures["slowdowns"] for count, figures in groups.items()},
        "bounds_kept": all(figures["bounds_kept"] for figures in groups.values()),
        "prediction_error": max(figures["prediction_error"] for figures in groups.values()),
        "plan_error": max(figures["plan_error"] for figures in groups.values()),
        "same_samples": min(figures["same_samples"] for figures in groups.values()),
        "interference": {
            "cores": round(between_cores, 4),
            "besides": round(besides, 4),
            "background": round(background, 4),
        },
        **result,
        "groups": {str(count): figures for count, figures in groups.items()},
    }


def _with_kills(result: dict[str, Any], moved: dict[str, Any]) -> dict[str, Any]:
    """The figures of kills with those of jobs that moved."""
    killed = result.get("killed", {}) | moved["kills"]
    lost = None if "failed" in result else moved["lost"] + (result["lost"] or 0)
    figures = {key: moved[key] for key in ("moves", "move_error")}
    return {**result, "kills": sum(killed.values()), "killed": killed, "lost": lost, **figures}


@click.command(help="Jobs that run as one; see the docstring of benchmarks/coexecution.")
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Which parts, with commas between.")
@click.option("--jobs", default="2,3", show_default=True, help="Numbers of jobs of the groups, with commas between.")
@click.option("--steps", type=click.IntRange(min=5), default=8, show_default=True, help="Of each job.")
@click.option("--kills", type=click.IntRange(min=0), default=30, show_default=True, help="0: none is made.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep plans and runs in this new folder.")
@as_json_option
def main(parts: str, jobs: str, steps: int, kills: int, out: Path | None, as_json: bool) -> None:
    """Measure and print."""
    counts, chosen = _counts(jobs.split(",")), parts.split(",")
    if unknown := sorted({*chosen} - {*PARTS}):
        raise click.BadParameter(f"{', '.join(unknown)}: parts are {' and '.join(PARTS)}", param_hint="--parts")
    with contextlib.ExitStack() as stack:
        folder = (out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="co")))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        counts = counts if "runs" in chosen else []
        kills = kills if "runs" in chosen else 0
        result = measure_runs(folder, counts, steps, kills, "moves" in chosen)
    tell(result, as_json, _lines(result))
    if "failed" in result:
        raise RunFailed(result["failed"])


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The figures, a line each."""
    for count, figures in result.get("groups", {}).items():
        slowest = ", ".join(f"{name} {value:.2f}x" for name, value in figures["slowdowns"].items())
        yield (
            f"{count} jobs: {figures['throughput_ratio']:.2f} times the samples of one after the other; {slowest}; "
            f"predicted within {figures['prediction_error']:.1%}"
        )
    if result.get("kills"):
        yield f"{result['kills']} kills: {result['lost']} samples lost"
    for move in result.get("moves", ()):
        if "outage_s" in move:
            yield f"{move['job']} joined: {move['outage_s']:.0f} s, {move['price_s']:.0f} s were predicted"
        else:
            yield f"{move['job']} left, at the end of its step after {move['drain_s']:.1f} s"


def _counts(texts: Iterable[str]) -> list[int]:
    if unknown := sorted({*texts} - {str(count) for count in LOADS}):
        raise click.BadParameter(f"{', '.join(unknown)}: groups are of {' or '.join(map(str, LOADS))} jobs",
                                 param_hint="--jobs")  # fmt: skip
    return sorted({int(text) for text in texts})


if __name__ == "__main__":
    run(main)
