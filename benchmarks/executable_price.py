"""What it costs to plan only what `rlplan execute` can run, beside plans for any framework: two shipped examples, and
the 32B example with drafts, without and with a limit on the seconds of a step.

    python -m benchmarks.executable_price [--json]

`ratio`: seconds per trained sample of the plan for the executor over those of the plan for any framework (`rlplan solve
--for any`), both as they are predicted on rounds that nothing was chosen on. `proven_ratio`: the same of the best
schedules that the integer program proved, on the rounds that the choice was made on; it is 1 or more, but for the
noise of the rounds. `error` is the plan's own error, one standard deviation: within it of 1 the two cost the same as
far as is known. `reasons`: why the plan for any framework cannot be run here; empty if it can.

    {"cases": {"math-32b": {"ratio": …, "proven_ratio": …, "error": …, "seconds_per_sample": {"executor": …,
     "any": …}, "step_s": {…}, "train": {"executor": …, "any": …}, "reasons": […], "solve_s": {…}},
     "cpu-demo": {…}, …}, "largest_ratio": …}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.facts.executable import not_executable
from rlplan.plans.facts.model_shape import shape_of_job
from rlplan.plans.phrases.update_text import update_text
from rlplan.plans.schema.base import whole
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile

from .entry import run

EXAMPLES = Path(__file__).resolve().parents[1] / "plans" / "examples"
DRAFTS = {"drafts": {"tokens": (2, 4), "acceptance": 0.6}}
"""Keys of a job's `search`, with the values that docs/planning.md has as examples: the acceptance is assumed."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "math-32b": ("math-32b", {}),
    "cpu-demo": ("cpu-demo", {}),
    "math-32b with drafts": ("math-32b", {"search": DRAFTS}),
    "math-32b with drafts and a limit": (
        "math-32b",
        {"search": {**DRAFTS, "micro_batch_tokens": (16896,)}, "slo": {"step_p95_s": 200.0}},
    ),
}
"""By name: a shipped example, and what its job has beside or instead, by section. Without drafts only rounds
about as slow as plain synchronous ones keep the limit."""


def solved(example: str, changes: dict[str, Any], for_any: bool) -> tuple[Solved, list[str]]:
    """(a shipped example solved anew from its files, why the executor cannot run its plan)."""
    plan_path = EXAMPLES / f"{example}.yaml"
    inputs = load_plan(plan_path).inputs
    assert inputs.lengths.path is not None, "each example has a length trace of its own"
    job_path = EXAMPLES / inputs.job.path
    job = load_job(job_path)
    job = Job.model_validate({**whole(job), **{key: {**whole(getattr(job, key)), **changes[key]} for key in changes}})
    model = shape_of_job(job, job_path)
    found = solve(
        load_cluster(EXAMPLES / inputs.cluster.path),
        job,
        load(EXAMPLES / inputs.profile.path, Profile),
        read_lengths(EXAMPLES / inputs.lengths.path, cap_tokens=job.rollout.max_response_tokens),
        inputs,
        SolveOptions(for_any=for_any, model=model),
    )
    return found, not_executable(found.plan, model)


def price(example: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The figures of one case."""
    (here, _), (anywhere, reasons) = solved(example, changes, False), solved(example, changes, True)
    plans = {"executor": here.plan, "any": anywhere.plan}
    seconds = {key: plan.predicted.seconds_per_sample for key, plan in plans.items()}
    return {
        "ratio": seconds["executor"] / seconds["any"],
        "proven_ratio": here.solution.objective / anywhere.solution.objective,
        "error": here.plan.predicted.error.total,
        "seconds_per_sample": seconds,
        "step_s": {key: plan.predicted.step_s.mean for key, plan in plans.items()},
        "train": {key: update_text(plan.job.rounds.short.train) for key, plan in plans.items()},
        "reasons": reasons,
        "solve_s": {key: plan.volatile.solve_s for key, plan in plans.items()},
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(as_json: bool) -> None:
    """What staying executable costs on shipped examples, without drafts and with them."""
    cases = {name: price(*case) for name, case in CASES.items()}
    result = {"cases": cases, "largest_ratio": max(figures["ratio"] for figures in cases.values())}
    if as_json:
        click.echo(json.dumps(result))
        return
    for name, figures in cases.items():
        reasons = "; ".join(figures["reasons"]) or "which can be run here, too"
        click.echo(
            f"{name}: {figures['ratio']:.3f} times the seconds per sample of the plan for any framework, of which "
            f"+-{figures['error']:.0%} is error ({figures['train']['executor']}; for any: {figures['train']['any']}, "
            f"{reasons})"
        )


if __name__ == "__main__":
    run(command)
