"""What it costs to plan only what `rlplan execute` can run: the shipped examples solved for it, and for any framework.

    python -m benchmarks.executable_price [--json]

`ratio`: seconds per trained sample of the plan for the executor over those of the plan for any framework (`rlplan solve
--for any`), both as they are predicted on rounds that nothing was chosen on. `proven_ratio`: the same of the best
schedules that the integer program proved, on the rounds that the choice was made on; it is 1 or more, but for the
noise of the rounds. `error` is the plan's own error, one standard deviation: within it of 1 the two cost the same as
far as is known. `reasons`: why the plan for any framework cannot be run here; empty if it can.

    {"examples": {"math-32b": {"ratio": …, "proven_ratio": …, "error": …, "seconds_per_sample": {"executor": …,
     "any": …}, "train": {"executor": …, "any": …}, "reasons": […], "solve_s": {…}}, "cpu-demo": {…}},
     "largest_ratio": …}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.facts.executable import not_executable
from rlplan.plans.phrases.update_text import update_text
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile

from .entry import run

EXAMPLES = Path(__file__).resolve().parents[1] / "plans" / "examples"
NAMES = ("math-32b", "cpu-demo")


def solved(name: str, for_any: bool) -> Solved:
    """A shipped example, solved anew from its files."""
    plan_path = EXAMPLES / f"{name}.yaml"
    inputs = load_plan(plan_path).inputs
    assert inputs.lengths.path is not None, "each example has a length trace of its own"
    job = load_job(EXAMPLES / inputs.job.path)
    return solve(
        load_cluster(EXAMPLES / inputs.cluster.path),
        job,
        load(EXAMPLES / inputs.profile.path, Profile),
        read_lengths(EXAMPLES / inputs.lengths.path, cap_tokens=job.rollout.max_response_tokens),
        inputs,
        SolveOptions(for_any=for_any),
    )


def price(name: str) -> dict[str, Any]:
    """The figures of one example."""
    found = {"executor": solved(name, False), "any": solved(name, True)}
    plans = {key: each.plan for key, each in found.items()}
    seconds = {key: plan.predicted.seconds_per_sample for key, plan in plans.items()}
    return {
        "ratio": seconds["executor"] / seconds["any"],
        "proven_ratio": found["executor"].solution.objective / found["any"].solution.objective,
        "error": plans["executor"].predicted.error.total,
        "seconds_per_sample": seconds,
        "train": {key: update_text(plan.job.rounds.short.train) for key, plan in plans.items()},
        "reasons": not_executable(plans["any"].job),
        "solve_s": {key: plan.volatile.solve_s for key, plan in plans.items()},
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(as_json: bool) -> None:
    """What staying executable costs on the shipped examples."""
    examples = {name: price(name) for name in NAMES}
    result = {"examples": examples, "largest_ratio": max(figures["ratio"] for figures in examples.values())}
    if as_json:
        click.echo(json.dumps(result))
        return
    for name, figures in examples.items():
        reasons = "; ".join(figures["reasons"]) or "which can be run here, too"
        click.echo(
            f"{name}: {figures['ratio']:.3f} times the seconds per sample of the plan for any framework, of which "
            f"+-{figures['error']:.0%} is error ({figures['train']['executor']}; for any: {figures['train']['any']}, "
            f"{reasons})"
        )


if __name__ == "__main__":
    run(command)
