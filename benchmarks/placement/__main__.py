"""Runs the three parts; see the package."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from ..entry import run as run_command
from ..ray_nodes import RayNodes
from .demo_runs import PER_NODE, compare, connected, run, run_with_deaths, write_plan
from .sitting import sit

console = Console(stderr=True)


@click.command(help="Placement on several Ray nodes of this machine.")
@click.option("--steps", type=click.IntRange(min=9), default=12, show_default=True, help="Steps of each run.")
@click.option("--keep", type=click.Path(path_type=Path), default=None, help="Keep the runs in this new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(steps: int, keep: Path | None, as_json: bool) -> None:
    """Print what was measured; exit code 1 if an actor sits wrong or a sample is lost."""
    if keep is not None:
        keep.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (keep or Path(scratch)).resolve()
        console.print("32B example: an actor in each seat")
        seats = sit()
        single, several = write_plan(folder / "one", 1), write_plan(folder / "three", 3)
        console.print("demo on one node")
        seconds = {"one": round(run(single, folder / "runs" / "one", steps), 1)}
        with RayNodes([PER_NODE] * 3) as nodes, connected(nodes):
            console.print("demo on three nodes")
            seconds["three"] = round(run(several, folder / "runs" / "three", steps), 1)
        with RayNodes([PER_NODE] * 3) as nodes, connected(nodes):
            console.print("demo on three nodes, two of which are killed")
            deaths = run_with_deaths(several, folder / "runs" / "killed", steps, nodes)
        reference = folder / "runs" / "one"
        same, killed = compare(reference, folder / "runs" / "three"), compare(reference, folder / "runs" / "killed")
    result = {
        "nodes": 3,
        "double_booked": seats["double_booked"],
        "demo_steps": steps,
        "node_kills": deaths["node_kills"],
        "lost": killed["lost"],
        "double": killed["double"],
        "example": seats,
        "three_nodes": same,
        "killed": killed | deaths,
        "seconds": seconds,
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(json.dumps(result, indent=1))
    wrong = [seats["double_booked"], seats["split"], seats["misplaced"], same["lost"], same["double"],
             killed["lost"], killed["double"], killed["off_policy"], deaths["steps_lost_by_drain"] != 0]  # fmt: skip
    sys.exit(int(any(wrong) or seats["refused"] is None or not deaths["done"]))


if __name__ == "__main__":
    run_command(main)
