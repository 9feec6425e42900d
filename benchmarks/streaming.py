"""Training that begins while the tail of a round decodes, against training after it, side by side.

    python -m benchmarks.streaming [--setting both|shared|apart] [--steps 10] [--json]

All parts are real: vLLM engines, Ray actors, FSDP trainers, the demo's model, whose answers have a heavy tail. Two
settings of plain synchronous rounds, each run by two plans that take their steps in turns, on the same draws
(`seed_per_sample`), and that differ in nothing but the streaming. Trainers recompute activations, so that training is
about a third of a step:

- `apart`: an engine on core 0, a trainer on core 1, which trains groups as they become complete;
- `shared`: two engines and two trainer ranks on both cores; at 85 % of the samples one engine gives its core to the
  trainer, and its samples go on on the other engine.

Figures of a setting, over the steps after the first: `step_ratio`: seconds of a step without streaming over those with;
`train_share`: of training in a step without; `exposed_train_ratio`: seconds between the end of the round and that of
the update, with over without; `weights_max_diff`: largest difference of a trained weight at the end, beside
`weights_moved`, the mean distance of the last step; `same_samples`: share of the trained samples that have the same
length and reward in both; `off_policy`: trained samples of other weights, of both. `prediction_error`: of the seconds
of a step with streaming, as a replay of its own lengths predicts them, by costs that are refitted from the run without
(as `rlplan tune` does); the profile is that of the shipped example. That gradients are those of
the whole step is tested (tests/executor/trainer/test_streamed_steps.py).

    {"step_ratio": …, "exposed_train_ratio": …, "prediction_error": …, "settings": {…}}

The first three are those of the setting that is worse in it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import click

from rlplan.executor.example.write import write_example
from rlplan.planner.tune.executed_run import ExecutedRun, load_executed
from rlplan.planner.tune.refit import refit, replay_run
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.yaml.yaml_io import dump, load
from rlplan.profiles.profile_schema import Profile
from rlplan.traces.run_log import TRACE, read_run

from .entry import as_json_option, run, tell
from .example_plans import call, change_job, change_pool, cores_of, shipped_plan, write_document
from .faults.verdict import off_policy, weights_difference, weights_moved
from .ray_nodes import RayNodes

SETTINGS = ("apart", "shared")
PROMPTS, SAMPLES_PER_PROMPT = 40, 8
MICRO_BATCH_TOKENS = {"apart": 4096, "shared": 16384}
"""Beside a replica that trains, the other one runs an empty micro-batch each time, on a core that decodes."""

PROFILED_TOKENS = 8192
"""Tokens of the micro-batch of the shipped profile's update that stands for those, until a refit corrects it."""

AT_FINISHED = 0.85


def write_plans(folder: Path, setting: str) -> list[Path]:
    """Write the example and two plans of a setting, `off` and `on`; returns their paths."""
    write_example(folder)
    change_job(folder, rollout={"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES_PER_PROMPT})
    change_pool(folder, cores_of(folder), 2)
    plan = shipped_plan(folder, "sync").model_dump(mode="json")
    if setting == "apart":
        change_pool(folder, 1, 1, train_pool=True)
    short = plan["job"]["rounds"]["short"]
    size = 1 if setting == "apart" else 2
    dump(
        _with_ranks(load(folder / "profile.yaml", Profile), size, MICRO_BATCH_TOKENS[setting]), folder / "profile.yaml"
    )
    short["rollout"] |= {"engines": size, "tp": 1, "max_num_seqs": PROMPTS * SAMPLES_PER_PROMPT}
    short["train"] |= {
        "dp": size,
        "tp": 1,
        "sp": 1,
        "micro_batch_tokens": MICRO_BATCH_TOKENS[setting],
        "recompute": "full",
        "offload": False,
    }
    paths = []
    for name in ("off", "on"):
        if setting == "apart":
            plan["job"]["placement"] = {"train_pool": "train", "streams": name == "on"}
        elif name == "on":
            short["hand_over"] = {"engines": 1, "at_finished": AT_FINISHED}
        paths.append(write_document(folder, name, plan))
    return paths


def _with_ranks(profile: Profile, ranks: int, micro_batch_tokens: int) -> Profile:
    """The profile with an update of so many ranks that recompute, taken for as many times as fast as one; a refit
    corrects it."""
    single = next(
        entry for entry in profile.train if (entry.layout.dp, entry.micro_batch_tokens) == (1, PROFILED_TOKENS)
    )
    # Recomputation is another forward: four thirds of forward and backward.
    seconds = single.step_s_per_token * 4 / 3 / ranks
    changes = {"dp": ranks, "recompute": "full", "step_s_per_token": seconds, "micro_batch_tokens": micro_batch_tokens}
    return profile.model_copy(update={"train": (*profile.train, single.model_copy(update=changes))})


@contextlib.contextmanager
def nodes_of(setting: str) -> Iterator[None]:
    """Within the block processes connect to the nodes of a setting."""
    if setting == "shared":
        yield
        return
    with RayNodes([1, 1], pinned=True) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address
        try:
            yield
        finally:
            del os.environ["RAY_ADDRESS"]


def measure(setting: str, steps: int, folder: Path) -> dict[str, Any]:
    """The figures of one setting."""
    plans = write_plans(folder / setting, setting)
    out = folder / f"{setting}-runs"
    with nodes_of(setting):
        call(folder / f"{setting}-runs.log", "execute", *plans, "--steps", steps, "--out", out)
    off, on = (load_executed(out / plan.stem) for plan in plans)
    profile, job = load(folder / setting / "profile.yaml", Profile), load_job(folder / setting / "job.yaml")
    seconds = {name: _means(each) for name, each in (("off", off), ("on", on))}
    logs = {plan.stem: read_run(out / plan.stem / TRACE) for plan in plans}
    streamed = [event for event in logs["on"].events if event["event"] == "streamed"]
    return {
        "step_ratio": round(seconds["off"]["total_s"] / seconds["on"]["total_s"], 3),
        "train_share": round(seconds["off"]["train_s"] / seconds["off"]["total_s"], 3),
        "exposed_train_ratio": round(seconds["on"]["train_s"] / seconds["off"]["train_s"], 3),
        "prediction_error": round(prediction_error(off, on, profile, job), 4),
        "weights_max_diff": weights_difference(out / "off", out / "on"),
        "weights_moved": weights_moved(out / "off"),
        "same_samples": round(same_samples(off, on), 4),
        "off_policy": sum(off_policy(log) for log in logs.values()),
        "groups_streamed": round(mean([event["groups"] for event in streamed]), 2),
        "samples_moved": round(mean([event["moved"] for event in streamed]), 2),
        "seconds": {name: {key: round(value, 3) for key, value in means.items()} for name, means in seconds.items()},
    }


def _means(executed: ExecutedRun) -> dict[str, float]:
    """Mean seconds of the phases of the steps after the first."""
    steps = executed.steps[1:]
    keys = ("total_s", "rollout_s", "reward_exposed_s", "train_s", "sync_s")
    return {key: mean([getattr(step, key) for step in steps]) for key in keys}


def prediction_error(off: ExecutedRun, on: ExecutedRun, profile: Profile, job: Job) -> float:
    """Relative error of the predicted seconds of the steps of `on`, by costs that are refitted from `off`."""
    cap, dynamic = job.rollout.max_response_tokens, job.algorithm.dynamic_sampling
    tuned = refit(profile, off, replay_run(off, cap, dynamic, profile)).profile
    steps = [(item.total_s, item.step.total_s) for item in replay_run(on, cap, dynamic, tuned)][1:]
    return abs(sum(predicted for predicted, _ in steps) / sum(measured for _, measured in steps) - 1)


def same_samples(off: ExecutedRun, on: ExecutedRun) -> float:
    """Share of the trained samples of `off` that have their length and reward in `on`, too."""
    found = [
        Counter((step.step, row.prompt, row.sample, row.tokens, row.reward) for row in step.rows)
        for each in (off, on)
        for step in each.steps
    ]
    first, second = (sum(found[at : at + len(off.steps)], Counter()) for at in (0, len(off.steps)))
    return (first & second).total() / first.total()


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--setting", type=click.Choice(["both", *SETTINGS]), default="both", show_default=True)
@click.option("--steps", type=click.IntRange(min=3), default=10, show_default=True, help="Of each plan.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep plans and runs in this new folder.")
@as_json_option
def main(setting: str, steps: int, out: Path | None, as_json: bool) -> None:
    """Measure and print."""
    chosen = SETTINGS if setting == "both" else (setting,)
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st")))
        folder.mkdir(parents=True, exist_ok=True)
        measured = {}
        for each in chosen:
            click.echo(f"{each}: 2 plans of {steps} steps", err=True)
            measured[each] = measure(each, steps, folder)
    result = {
        "step_ratio": min(figures["step_ratio"] for figures in measured.values()),
        "exposed_train_ratio": max(figures["exposed_train_ratio"] for figures in measured.values()),
        "prediction_error": max(figures["prediction_error"] for figures in measured.values()),
        "settings": measured,
    }
    lines = [
        f"{name}: step {figures['step_ratio']:.2f}x faster; training is {figures['train_share']:.0%} of a step "
        f"without, {figures['exposed_train_ratio']:.0%} of it exposed; predicted within "
        f"{figures['prediction_error']:.1%}; weights differ by {figures['weights_max_diff']:.1e}"
        for name, figures in measured.items()
    ]
    tell(result, as_json, lines)


if __name__ == "__main__":
    run(main)
