"""Milliseconds to place one arriving job among running jobs (RollMux: 5.6 ms at 5 jobs, 591 at 2,000).

    python -m benchmarks.placement_latency [--jobs 5,13,…] [--arrivals N] [--json]

The running jobs are those of the synthetic Mixed workload with bounds uniform in (1, 2), in groups of at most five
(rollmux_workloads.py), placed by our placer. Then `--arrivals` further jobs are placed, each into the same state; the
median and the slowest are reported. `cold_ms` is measured on a new placer, which has simulated no group yet.

    {"ms": {"5": …, "2000": …}, "slowest_ms": {…}, "cold_ms": {…}, "algorithm_1_ms": {…}, "published_ms": {…}}
"""

from __future__ import annotations

import json
import time

import click
import numpy as np

from rlplan.planner.groups.choose.group_nodes import Placer
from rlplan.planner.groups.choose.placers import Algorithm1, BestFit
from rlplan.planner.groups.inputs.group_model import GroupJob, GroupsState, Rules

from .rollmux_workloads import MIXED, NODE_TYPES, draw_jobs

PUBLISHED_MS = {5: 5.6, 9: 6.5, 13: 7.6, 100: 41.9, 500: 198.0, 1000: 318.0, 2000: 591.0}


def milliseconds(placer: Placer, state: GroupsState, arrivals: list[GroupJob]) -> list[float]:
    """Milliseconds to place each of `arrivals` into the same state."""
    times = []
    for job in arrivals:
        begun = time.perf_counter()
        placer.arrive(state, job)
        times.append(1e3 * (time.perf_counter() - begun))
    return times


def measure(counts: list[int], arrivals: int) -> dict[str, dict[str, float]]:
    """The JSON result. One state is grown from each number of running jobs to the next."""
    rules = Rules()
    jobs = draw_jobs(MIXED, max(counts), None, np.random.default_rng(0))
    extra = [
        GroupJob(f"x{index:03d}", job.slo, job.rollout, job.train)
        for index, job in enumerate(draw_jobs(MIXED, arrivals + 1, None, np.random.default_rng(1)))
    ]
    ours, greedy = BestFit(NODE_TYPES, rules), Algorithm1(NODE_TYPES, Rules(permit_rule="first_come"))
    state = ours.arrive(GroupsState(), jobs[0])  # compiles the kernels before the clock runs
    result: dict[str, dict[str, float]] = {"ms": {}, "slowest_ms": {}, "cold_ms": {}, "algorithm_1_ms": {}}
    index = 1
    for count in sorted(counts):
        for job in jobs[index:count]:
            state = ours.arrive(state, job)
        index = max(index, count)
        times = milliseconds(ours, state, extra[1:])
        result["ms"][str(count)] = float(np.median(times))
        result["slowest_ms"][str(count)] = max(times)
        result["cold_ms"][str(count)] = milliseconds(BestFit(NODE_TYPES, rules), state, extra[:1])[0]
        result["algorithm_1_ms"][str(count)] = float(np.median(milliseconds(greedy, state, extra[1:])))
    result["published_ms"] = {str(k): ms for k, ms in PUBLISHED_MS.items() if k in counts}
    return result


@click.command()
@click.option("--jobs", default="5,13,100,500,1000,2000", show_default=True, help="Jobs that run, comma-separated.")
@click.option("--arrivals", default=20, show_default=True, type=click.IntRange(1), help="Placed at each count.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(jobs: str, arrivals: int, as_json: bool) -> None:
    """Milliseconds to place one arrival among running jobs."""
    try:
        counts = [int(part) for part in jobs.split(",")]
    except ValueError as error:
        raise click.BadParameter("numbers of jobs, comma-separated", param_hint="--jobs") from error
    if min(counts) < 1:
        raise click.BadParameter("at least one job runs", param_hint="--jobs")
    result = measure(counts, arrivals)
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo("jobs   median    slowest   started now   Algorithm 1   published (ms)")
    for count in sorted(counts):
        row = [
            result[key].get(str(count), float("nan"))
            for key in ("ms", "slowest_ms", "cold_ms", "algorithm_1_ms", "published_ms")
        ]
        click.echo(f"{count:4d} " + " ".join(f"{ms:10.1f}" for ms in row))


if __name__ == "__main__":
    command()
