"""Jobs that are planned together with their groups, against each job planned alone and then grouped.

    python -m benchmarks.joint [--workloads N] [--fronts FOLDER] [--json]

Eight jobs (7B to 32B, contests in mathematics, code and games, 2k to 16k tokens) are planned on several numbers of
H100 nodes as `rlplan solve WORKLOAD` does; a workload draws four to six of them, each with a bound on its slowdown of
1.2 to 2. Both sides have the same bounds, in seconds: those of the job alone, at its cheapest point.

usd_per_hour_ratio: price of all workloads with every job's front as columns, over that with each job at the point that
    is best alone and the groups then chosen by the same program; `worst_ratio` is the largest of a workload.
bounds_kept: share of the jobs whose mean slowdown in an event simulation of 400 iterations keeps its bound: the permit
    machine on a clock, turn by turn, with draws of its own; `stretches_kept` is the share of stretches that do.
jobs200_s_ratio, arrivals_s_ratio: CPU seconds of `solve_groups` for 200 jobs without fronts, and of 150 arrivals by
    best fit, over those of another checkout (`--main FOLDER`), each the least of three in turn; null without one.

    {"workloads": 20, "usd_per_hour_ratio": …, "bounds_kept": 1.0, "stretches_kept": …, "worst_ratio": …,
     "jobs200_s_ratio": …, "arrivals_s_ratio": …}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from rlplan.api.plan_points import plan_near_alone
from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, Jobs, Rules, slowdown_bound
from rlplan.planner.groups.inputs.workload_jobs import Problem, problem_of
from rlplan.planner.groups.simulate.permit_simulator import TruePhases, placed_jobs, simulate_phases
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.library import library_profile
from rlplan.rounds.permits.permit_machine import PermitMachine

from .entry import as_json_option, run, tell

ARCHETYPES = {
    "math-7b": ("Qwen2.5-7B", 64, 8, 16384, "math-16k"),
    "code-7b": ("Qwen2.5-7B", 128, 8, 16384, "code-16k"),
    "short-7b": ("Qwen2.5-7B", 256, 16, 2048, "short-math-2k"),
    "math-14b": ("Qwen2.5-14B", 128, 8, 16384, "math-16k"),
    "gym-14b": ("Qwen2.5-14B", 128, 8, 8192, "gym-8k"),
    "short-14b": ("Qwen2.5-14B", 256, 8, 2048, "short-math-2k"),
    "math-32b": ("Qwen2.5-32B", 128, 8, 16384, "math-16k"),
    "gym-32b": ("Qwen2.5-32B", 64, 8, 8192, "gym-8k"),
}
"""Model, prompts a step, samples of a prompt, longest response, table of lengths."""

RULES = "{tail_keep: 0.5}"
BOUNDS = (1.2, 1.4, 1.6, 1.8, 2.0)
ITERATIONS = 400
WARM_UP = 20
_POOL = (
    "{nodes: 6, accelerators: {kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}, cores: 112, "
    "host_memory_bytes: 2000000000000, usd_per_node_hour: 20.4}"
)
_JOB = """\
rlplan_job: 1
name: {name}
model: {{path: Qwen/{model}, dtype: bfloat16}}
data: {{prompts: 20000}}
reward: {{kind: {reward}, workers: 64, deadline_s: 30.0}}
rollout: {{prompts_per_step: {prompts}, samples_per_prompt: {samples}, max_prompt_tokens: 512,
  max_response_tokens: {cap}}}
algorithm: {{name: grpo, learning_rate: 1.0e-06}}
search: {{tp: [1, 2, 4], micro_batch_tokens: [{micro}]}}
placement: {{train_pool: train, streams: false}}
"""


def write_documents(folder: Path) -> Path:
    """The archetypes' jobs, profiles and cluster, and a workload of all of them, whose path is returned."""
    (folder / "cluster.yaml").write_text(
        f"rlplan_cluster: 1\nname: two-pools\npools:\n  roll: {_POOL}\n  train: {_POOL}\n"
    )
    jobs = []
    for name, (model, prompts, samples, cap, lengths) in ARCHETYPES.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "job.yaml").write_text(
            _JOB.format(
                name=name, model=model, prompts=prompts, samples=samples, cap=cap, micro=cap + 512,
                reward="code" if name.startswith("code") else "math",
            )
        )  # fmt: skip
        (folder / name / "profile.yaml").write_text(dump(library_profile("H100", model)))
        jobs.append(f"  {name}: {{slo: 2.0, source: {{job: {name}/job.yaml, lengths: {lengths}}}}}\n")
    path = folder / "workload.yaml"
    path.write_text(f"rlplan_workload: 1\ncluster: cluster.yaml\nrules: {RULES}\njobs:\n{''.join(jobs)}")
    return path


def fronts(folder: Path) -> Problem:
    """The archetypes with their fronts; plans that are in the folder are taken from it."""
    path = write_documents(folder)
    workload, cluster = load_workload(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan_near_alone(path, workload, cluster, lambda text: click.echo(text, err=True))
        return problem_of(workload, path, cluster)


def draw(problem: Problem, number: int) -> list[GroupJob]:
    """The jobs of a workload."""
    rng = np.random.default_rng([36, number])
    names = rng.choice(sorted(problem.jobs), int(rng.integers(4, 7)))
    return [
        replace(problem.jobs[name], name=f"{index}-{name}", slo=float(rng.choice(BOUNDS)))
        for index, name in enumerate(names)
    ]


@dataclass(frozen=True)
class Kept:
    """Jobs and stretches of an event simulation, and how many kept their bounds."""

    jobs: int
    jobs_kept: int
    stretches: int
    stretches_kept: int


def simulated(group: Group, jobs: Jobs, rules: Rules, seed: int) -> Kept:
    """A group turn by turn, with (rollout, train) seconds drawn anew from each job's spread."""
    rng = np.random.default_rng([seed, len(group.pins)])
    seats, known = placed_jobs(group, jobs, rules)
    truths = []
    for pin, truth in zip(group.pins, known, strict=True):
        pairs = np.array(jobs[pin.job].spread_at(pin.rollout) or ((1.0, 1.0),))
        means = np.array([jobs[pin.job].rollout[pin.rollout].mean_s, jobs[pin.job].train[pin.train].mean_s])
        drawn = pairs[rng.integers(len(pairs), size=4096)]
        # As many long ones as the plan expects: chance of the draws is no slowdown.
        truths.append(TruePhases(tuple(map(tuple, drawn / drawn.mean(axis=0) * means)), truth.tail_share))
    ends: dict[str, list[float]] = {pin.job: [] for pin in group.pins}
    for span in simulate_phases(PermitMachine(rules.permit_rule), seats, truths, rules.interference, check=True):
        if span.phase == "train" and span.ends_phase:
            ends[span.job].append(span.end_s)
            if min(map(len, ends.values())) > WARM_UP + ITERATIONS:
                break
    kept = stretches = good = 0
    for name, each in ends.items():
        job = jobs[name]
        limit_s, times = slowdown_bound(job, rules) * job.solo_s * (1 + 1e-6), np.array(each[WARM_UP:])
        of_stretches = (times[rules.stretch :] - times[: -rules.stretch]) / rules.stretch
        solo = len(group.pins) == 1 and group.pins[0].rollout == 0
        kept += solo or (times[-1] - times[0]) / (len(times) - 1) <= limit_s
        stretches += len(of_stretches)
        good += len(of_stretches) if solo else int((of_stretches <= limit_s).sum())
    return Kept(len(ends), kept, stretches, good)


def compared(problem: Problem, number: int) -> dict[str, Any]:
    """A workload both ways, and its jobs in an event simulation."""
    rules, kinds = problem.rules, {p: replace(kind, limit=None) for p, kind in problem.node_types.items()}
    jobs = draw(problem, number)
    alone = solve_groups([job.at_reference() for job in jobs], kinds, rules)
    joint = solve_groups(jobs, kinds, rules, previous=alone.groups)  # which it begins with in any case
    by_name = {job.name: job for job in jobs}
    kept = [simulated(group, by_name, rules, number) for group in joint.groups]
    return {
        "workload": number,
        "jobs": {pin.job: by_name[pin.job].points[pin.rollout].name for g in joint.groups for pin in g.pins},
        "alone_usd_per_hour": alone.usd_per_hour,
        "joint_usd_per_hour": joint.usd_per_hour,
        "ratio": joint.usd_per_hour / alone.usd_per_hour,
        "jobs_kept": sum(k.jobs_kept for k in kept) / sum(k.jobs for k in kept),
        "stretches_kept": sum(k.stretches_kept for k in kept) / sum(k.stretches for k in kept),
    }


SPEEDS = """
import json, time
import numpy as np
from benchmarks.rollmux_workloads import MIXED, NODE_TYPES, draw_jobs
from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.inputs.group_model import Rules
from rlplan.planner.groups.inputs.groups_state import GroupsState
from rlplan.planner.groups.place.best_fit import BestFit
jobs = draw_jobs(MIXED, 200, None, np.random.default_rng(5))
solve_groups(jobs[:4], NODE_TYPES, Rules())  # compiles the kernels before the clock runs
begun = time.process_time()
solve_groups(jobs, NODE_TYPES, Rules(group_cap=3))
solved = time.process_time()
place, state = BestFit(NODE_TYPES, Rules()), GroupsState()
for job in jobs[:150]:
    state = place.arrive(state, job)
print(json.dumps({"jobs200_s": solved - begun, "arrivals_s": time.process_time() - solved}))
"""
"""CPU seconds of a plan of 200 jobs without fronts and of 150 arrivals, by the checkout on the path."""


def beside(main: Path | None) -> dict[str, float | None]:
    """Our seconds over those of the checkout at `main`, each the least of three runs that take turns."""
    if main is None:
        return {"jobs200_s_ratio": None, "arrivals_s_ratio": None}
    found: tuple[list[dict[str, float]], list[dict[str, float]]] = [], []
    for _ in range(3):
        for root, seconds in zip((Path(__file__).resolve().parents[1], main.resolve()), found, strict=True):
            environment = {**os.environ, "PYTHONPATH": f"{root.parent}{os.pathsep}{root}"}
            done = subprocess.run(
                [sys.executable, "-c", SPEEDS], cwd=root, env=environment, capture_output=True, text=True, check=True
            )
            seconds.append(json.loads(done.stdout))
    ours, theirs = ({key: min(row[key] for row in rows) for key in rows[0]} for rows in found)
    return {key + "_ratio": ours[key] / theirs[key] for key in ours}


def measure(workloads: int, folder: Path, main: Path | None) -> dict[str, Any]:
    """The JSON result (see the module's docstring)."""
    problem = fronts(folder)
    rows = [compared(problem, number) for number in range(workloads)]
    for row in rows:
        click.echo(json.dumps(row), err=True)
    return {
        "workloads": workloads,
        "usd_per_hour_ratio": sum(r["joint_usd_per_hour"] for r in rows) / sum(r["alone_usd_per_hour"] for r in rows),
        "worst_ratio": max(row["ratio"] for row in rows),
        "bounds_kept": float(np.mean([row["jobs_kept"] for row in rows])),
        "stretches_kept": float(np.mean([row["stretches_kept"] for row in rows])),
        **beside(main),
        "points": {name: [point.name for point in job.points] for name, job in sorted(problem.jobs.items())},
    }


def text_of(result: dict[str, Any]) -> str:
    """The result in a few lines."""
    return (
        f"{result['workloads']} workloads: {result['usd_per_hour_ratio']:.3f} of the price of jobs planned alone and "
        f"then grouped (worst {result['worst_ratio']:.3f}); bounds kept by {result['bounds_kept']:.1%} of the jobs and "
        f"in {result['stretches_kept']:.1%} of the stretches\nseconds beside the other checkout: 200 jobs "
        f"{result['jobs200_s_ratio']}, arrivals {result['arrivals_s_ratio']}"
    )


@click.command()
@click.option("--workloads", default=20, show_default=True, type=click.IntRange(1), help="Workloads drawn.")
@click.option("--fronts", "folder", type=click.Path(path_type=Path), help="Keeps plans of the jobs, for the next run.")
@click.option("--main", type=click.Path(path_type=Path), help="Another checkout, whose seconds ours are compared with.")
@as_json_option
def command(workloads: int, folder: Path | None, main: Path | None, as_json: bool) -> None:
    """Jobs planned together with their groups, against each planned alone and then grouped."""
    with tempfile.TemporaryDirectory() as temporary:
        kept = folder or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        result = measure(workloads, kept, main)
    tell(result, as_json, text_of)


if __name__ == "__main__":
    run(command)
