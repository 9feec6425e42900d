"""Seconds and memory of a solve as the job grows, and the error of simulating large rounds by cells.

`planner_speed` runs it.

    python -m benchmarks.planner_scale NODES      solve the 32B example on NODES nodes, 16 prompts a step for each

Each size is solved in a process of its own, so that its peak memory can be measured. The kernel is compiled before
(numba keeps it on disk); the seconds to load it count.

Rounds of more than 256 prompts are simulated by cells (planner/simulate/columns/cells.py). `differences` compares
them with whole rounds of the same kind: mean and p95 of a step, as a plan states them, but without the machine's noise,
which would hide a part of the difference. `noise` is the standard error of the difference of the means, which the
simulation's random draws cause.
"""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import click

from rlplan.planner.choose.candidate_search import Search
from rlplan.planner.choose.candidates.round_kinds import LongKey, ShortKey, defers
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.columns.cell_columns import long_column, short_column
from rlplan.planner.simulate.columns.step_noise import spread_of
from rlplan.planner.simulate.columns.whole_columns import Setting, expected_deferrals, long_draws
from rlplan.planner.solve import solve
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import InputFile, Inputs, LengthsInput, ProfileFile
from rlplan.plans.schema.predicted import Quantiles
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import LengthTrace, read_lengths
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.round_spec import Mode

from .entry import run

EXAMPLE = Path(__file__).resolve().parents[1] / "plans" / "examples" / "math-32b"
NODES = (8, 32, 128, 1024)
PROMPTS_PER_NODE = 16

INPUTS = Inputs(
    cluster=InputFile(path="cluster.yaml", sha256="0" * 64),
    job=InputFile(path="job.yaml", sha256="0" * 64),
    profile=ProfileFile(path="profile.yaml", sha256="0" * 64, provenance="derived"),
    lengths=LengthsInput(path="lengths.jsonl", sha256="0" * 64),
)

COMPARED_NODES = 64
"""Nodes of the job whose whole rounds are compared with cells."""


def documents(nodes: int) -> tuple[Cluster, Job, Profile, LengthTrace]:
    """The shipped 32B example on `nodes` nodes, with prompts in proportion; without its SLO, which is for 8 nodes."""
    cluster, job = load_cluster(EXAMPLE / "cluster.yaml"), load_job(EXAMPLE / "job.yaml")
    pools = {name: pool.model_copy(update={"nodes": nodes}) for name, pool in cluster.pools.items()}
    rollout = job.rollout.model_copy(update={"prompts_per_step": PROMPTS_PER_NODE * nodes})
    slo = job.slo.model_copy(update={"step_p95_s": None})
    return (
        cluster.model_copy(update={"pools": pools}),
        job.model_copy(update={"rollout": rollout, "slo": slo}),
        load(EXAMPLE / "profile.yaml", Profile),
        read_lengths(EXAMPLE / "lengths.jsonl", cap_tokens=job.rollout.max_response_tokens),
    )


def solve_here(nodes: int) -> dict[str, Any]:
    """Seconds, CPU seconds and peak bytes of a solve in this process, and the chosen mode with its speed-up."""
    read = documents(nodes)
    began, cpu = time.perf_counter(), time.process_time()
    plan = solve(*read, INPUTS).plan
    return {
        "solve_s": round(time.perf_counter() - began, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "mode": plan.job.bias.mode,
        "speedup_over_sync": plan.predicted.speedup,
    }


def solve_apart(nodes: int) -> dict[str, Any]:
    """The result of `solve_here` in a new process."""
    command = [sys.executable, "-m", "benchmarks.planner_scale", str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLE.parents[2])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def kinds_compared(search: Search) -> list[ShortKey]:
    """Two kinds of short round of each mode that defer unlike numbers of prompts, on the layout with most engines."""
    layout = max(search.space.decode, key=lambda key: key.engines)
    keys = []
    for mode in get_args(Mode):
        # A kind that defers one prompt a round fills no queue for long rounds.
        few = search.setting.target + 1
        mine = [k for k in search.space.short if k.mode == mode and k.layout == layout and k.prompts != few]
        # A third and two thirds through the list: kinds that defer neither fewest nor most prompts.
        keys += [mine[len(mine) // 3], mine[2 * len(mine) // 3]]
    return list(dict.fromkeys(keys))


def steps(search: Search, setting: Setting, key: ShortKey, rounds: int) -> tuple[Quantiles, float, float]:
    """Simulate short rounds of `key` and the long rounds that they need.

    Returns (seconds of a step of their cycle, standard error of the mean, CPU seconds of the simulation).
    """
    began, train = time.process_time(), search.space.train[0]
    short = short_column(setting, key)
    short.extend(rounds)
    share, long_s, long_error = 0.0, [0.0], 0.0
    if defers(key.deferral, setting.target):
        deferred_share = expected_deferrals(short, setting) / setting.target
        share = deferred_share / (1 + deferred_share)
        wanted = rounds * setting.simulated_target
        if key.mode == "exact":
            pool = long_draws(setting.draws, setting.group_size, key.cutoff_tokens, wanted)
        elif key.mode == "predict":
            pool = setting.earlier.long_prompts(key.long_share, wanted)
        else:
            pool = short.deferred_prompts
        long = long_column(setting, LongKey(key.deferral, 1, key.layout))
        long.extend(rounds, pool)
        long_s, long_error = long.log.step_s(train), long.log.step_error(train)
    short_s = short.log.step_s(train)
    mixture = [(1 - share, short_s, [0.0] * len(short_s)), (share, long_s, [0.0] * len(long_s))]
    error = math.hypot((1 - share) * short.log.step_error(train), share * long_error)
    return spread_of(mixture), error, time.process_time() - began


def differences(nodes: int = COMPARED_NODES, rounds: int = 160, seeds: int = 2) -> dict[str, dict[str, float]]:
    """By mode, the relative error of a step's mean and p95 when rounds are simulated by cells, and the CPU seconds of a
    cell over those of a whole round.

    The error is the larger one of two kinds of round, each a mean over seeds. As many cells are simulated as `rounds`
    whole rounds have, so that both sides have as many random draws.
    """
    search = prepare(*documents(nodes))
    cells_per_round = search.setting.target // search.setting.cell_prompts
    result: dict[str, dict[str, float]] = {}
    for key in kinds_compared(search):
        ratios, errors = [], []
        mine = result.setdefault(key.mode, {"mean": 0.0, "p95": 0.0, "noise": 0.0, "cpu": 0.0})
        for seed in range(seeds):
            draws = search.setting.draws
            setting = dataclasses.replace(search.setting, draws=Draws(draws.model, draws.seed + seed, draws.width))
            cells, cells_error, cells_s = steps(search, setting, key, cells_per_round * rounds)
            full, full_error, full_s = steps(search, dataclasses.replace(setting, cell_prompts=0), key, rounds)
            ratios.append((cells.mean / full.mean - 1, cells.p95 / full.p95 - 1))
            errors.append(math.hypot(cells_error, full_error) / full.mean)
            mine["cpu"] = max(mine["cpu"], round(cells_s / cells_per_round / full_s, 3))
        for name, values in zip(("mean", "p95"), zip(*ratios, strict=True), strict=True):
            value = sum(values) / seeds
            if abs(value) > abs(mine[name]):
                mine[name] = round(value, 5)
        mine["noise"] = max(mine["noise"], round(math.hypot(*errors) / seeds, 5))
    return result


def measure() -> dict[str, Any]:
    """The part of `planner_speed`'s JSON result that is about scale."""
    solved = {str(nodes): solve_apart(nodes) for nodes in NODES}
    off = differences()
    return {
        "solve_s": {nodes: result["solve_s"] for nodes, result in solved.items()},
        "solve_cpu_s": {nodes: result["cpu_s"] for nodes, result in solved.items()},
        "peak_bytes": {nodes: result["peak_bytes"] for nodes, result in solved.items()},
        "largest_difference": max(abs(mine[name]) for mine in off.values() for name in ("mean", "p95")),
        "differences": off,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The result as lines of text."""
    return [
        f"{nodes} nodes: solved in {seconds} s ({result['solve_cpu_s'][nodes]} s of CPU), at most "
        f"{result['peak_bytes'][nodes] / 1e9:.2f} GB"
        for nodes, seconds in result["solve_s"].items()
    ] + [
        f"{mode}, by cells instead of whole: mean {100 * mine['mean']:+.2f} %, p95 {100 * mine['p95']:+.2f} %, "
        f"standard error {100 * mine['noise']:.2f} %, in "
        f"{mine['cpu']:.2f} of the CPU seconds"
        for mode, mine in result["differences"].items()
    ]


@click.command()
@click.argument("nodes", type=click.IntRange(min=1))
def main(nodes: int) -> None:
    """Solve the 32B example on NODES nodes, and print seconds and peak memory as one JSON line."""
    click.echo(json.dumps(solve_here(nodes)))


if __name__ == "__main__":
    run(main)
