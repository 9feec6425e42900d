"""Rounds on two real engines, by count and balanced by history, side by side."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from rlplan.executor.example.write import write_example
from rlplan.planner.choose.candidates.balance_numbers import balance_of
from rlplan.planner.costs.decode_costs import layout_cost
from rlplan.planner.tune.executed_run import load_executed
from rlplan.planner.tune.refit import refit, replay_run
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import dump, load, sha256_file
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.round_shape import tail_begins_s
from rlplan.traces.run_log import TRACE, RunLog, read_run

from ..faults.example import shipped_plan
from ..faults.verdict import off_policy

PROMPTS_PER_STEP, SAMPLES_PER_PROMPT = 96, 8
AT_ONCE = 16
EPOCH_STEPS = 2
"""Steps of an epoch: the data is cut to so many rounds, so that each prompt comes again."""

RUN_S = 2400.0
NAMES = ("count", "balance")


def write_plans(folder: Path, at_once: int) -> list[Path]:
    """Write the demo's example and its two plans; returns their paths."""
    write_example(folder)
    job = load_job(folder / "job.yaml").model_dump(mode="json")
    job["rollout"] |= {"prompts_per_step": PROMPTS_PER_STEP, "samples_per_prompt": SAMPLES_PER_PROMPT}
    dump(Job.model_validate(job), folder / "job.yaml")
    data = (folder / "data.jsonl").read_text().splitlines(keepends=True)
    (folder / "data.jsonl").write_text("".join(data[: EPOCH_STEPS * PROMPTS_PER_STEP]))
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"]
    pool |= {"nodes": 1, "cores": max(2, pool["cores"])}
    pool["accelerators"]["per_node"] = 2
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")
    plan = shipped_plan(folder, "sync").model_dump(mode="json")
    cost = layout_cost(load(folder / "profile.yaml", Profile), EngineLayout(1, 2))
    assert cost is not None, "the shipped profile has two engines"
    short = plan["job"]["rounds"]["short"]
    short["rollout"] |= {"engines": 2, "tp": 1, "max_num_seqs": at_once}
    short["train"] |= {"dp": 1, "tp": 1, "sp": 1}
    plan["inputs"]["cluster"]["sha256"] = sha256_file(folder / "cluster.yaml")
    paths = []
    for name in NAMES:
        if name == "balance":
            short["rollout"]["balance"] = balance_of(cost).model_dump()
        paths.append(folder / f"{name}.yaml")
        dump(Plan.model_validate(plan), paths[-1])
    return paths


def execute(plans: list[Path], out: Path, steps: int) -> None:
    """Run plans in turns, in a process of their own. Raises RunFailed."""
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", *map(str, plans), "--steps", str(steps)]
    log = out.parent / f"{out.name}.log"
    with log.open("w") as file:
        done = subprocess.run([*command, "--out", str(out)], stdout=file, stderr=file, timeout=RUN_S, check=False)
    if done.returncode:
        end = "\n".join(log.read_text().splitlines()[-15:])
        raise RunFailed(f"rlplan execute ended with exit code {done.returncode}:\n{end}")


def measure(folder: Path, epochs: int, at_once: int = AT_ONCE) -> dict[str, Any]:
    """The figures of `epochs` epochs on real engines; the first, in which nothing is known, apart."""
    plans, out = write_plans(folder / "plans", at_once), folder / "runs"
    execute(plans, out, epochs * EPOCH_STEPS)
    logs = {name: read_run(out / name / TRACE) for name in NAMES}
    later = {
        name: _seconds(log, range(EPOCH_STEPS + 1, epochs * EPOCH_STEPS + 1), at_once) for name, log in logs.items()
    }
    first = {name: _seconds(log, range(1, EPOCH_STEPS + 1), at_once) for name, log in logs.items()}
    events = [event for event in logs["balance"].events if event["event"] == "balanced"][EPOCH_STEPS:]
    return {
        **(ratios := _ratios(later)),
        "tail_ratio": max(ratios["drain_ratio"], ratios["last_quarter_ratio"]),
        "prediction_error": round(_prediction_error(folder, out), 4),
        "first_epoch": _ratios(first),
        "known": sum(event["known"] for event in events) / sum(event["prompts"] for event in events),
        "same_samples": round(_same_samples(*logs.values()), 4),
        "off_policy": sum(off_policy(log) for log in logs.values()),
        "seconds": {name: {key: round(value, 3) for key, value in each.items()} for name, each in later.items()},
    }


def _ratios(seconds: dict[str, dict[str, float]]) -> dict[str, float]:
    count, balance = seconds["count"], seconds["balance"]
    quarter_s = count["rollout_s"] / 4
    return {
        "round_ratio": round(balance["rollout_s"] / count["rollout_s"], 3),
        "last_quarter_ratio": round(1 - (count["rollout_s"] - balance["rollout_s"]) / quarter_s, 3),
        "drain_ratio": round(balance["drain_s"] / count["drain_s"], 3),
    }


def _seconds(log: RunLog, steps: range, at_once: int) -> dict[str, float]:
    """Mean seconds of the rollouts of these steps, and of their drains."""
    taken = [step for step in log.steps if step.step in steps]
    return {
        "rollout_s": fmean(step.rollout_s for step in taken),
        "drain_s": fmean(_drain_s(log, step.step, at_once) for step in taken),
    }


def _drain_s(log: RunLog, step: int, at_once: int) -> float:
    """Seconds from when fewer samples than a quarter of what the engines decode at once have not ended to the last
    end."""
    ends = sorted(row.finished_s for row in log.samples[step])
    levels = [(0.0, min(len(ends), 2 * at_once))]
    levels += [(end, min(len(ends) - number, 2 * at_once)) for number, end in enumerate(ends, 1)]
    return float(ends[-1] - tail_begins_s(levels, ends[-1]))


def _prediction_error(folder: Path, out: Path) -> float:
    """Relative error of the predicted mean seconds of the balanced rollouts, by costs refitted from those by count."""
    profile, job = load(folder / "plans" / "profile.yaml", Profile), load_job(folder / "plans" / "job.yaml")
    count, balance = (load_executed(out / name) for name in NAMES)
    cap, dynamic = job.rollout.max_response_tokens, job.algorithm.dynamic_sampling
    tuned = refit(profile, count, replay_run(count, cap, dynamic, profile)).profile
    replays = [r for r in replay_run(balance, cap, dynamic, tuned) if r.step.step > EPOCH_STEPS]
    predicted, measured = fmean(r.times.decode_end_s for r in replays), fmean(r.step.rollout_s for r in replays)
    return abs(predicted / measured - 1)


def _same_samples(count: RunLog, balance: RunLog) -> float:
    """Share of the trained samples that have the same length and reward in both runs."""

    def lengths(log: RunLog) -> list[tuple[Any, ...]]:
        return sorted((step, row.prompt, row.tokens, row.reward) for step, rows in log.samples.items() for row in rows)

    left, right = lengths(count), lengths(balance)
    same = sum((Counter(left) & Counter(right)).values())
    return same / max(len(left), len(right))
