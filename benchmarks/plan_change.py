"""A run whose plan changes twice and whose driver is killed three times, beside the same run by one plan.

    python -m benchmarks.plan_change [--steps 24] [--json] [--keep DIR]

The demo's job runs by a plan of mode `exact` (two engines, two trainer ranks) without anything else, and once more:
`rlplan apply` gives it a plan of mode `sync` on one engine while it goes on, and `--resume` one of mode `exact` with
another cutoff and one trainer rank. Between and after these its driver is killed and started again.

- `lost`, `double`: (prompt, epoch) pairs of the epochs that are over that no step trained, or two; and prompts of open
  epochs that are neither trained, nor fresh, nor deferred.
- `off_policy`: trained samples that other weights decoded than those that they trained.
- `owed`: prompts that a plan deferred and that were trained by its rule under the next one.
- `reward_z`: the difference of the two runs' mean rewards over its standard error (samples of a group are not
  independent, so groups count), of each third of the steps and of all.

Samples have seeds, and the two runs draw other ones as soon as their rounds differ, so rewards agree within noise only.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rlplan.executor.records.checkpoints import checkpoints
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.report_state import plan_changes
from rlplan.traces.run_log import TRACE, RunLog, read_run

from .entry import as_json_option, run, tell
from .example_plans import shipped_plan, with_layout
from .faults.driver import START_DEADLINE_S, Driver, run_without_faults
from .faults.verdict import off_policy

console = Console(stderr=True)

PROMPTS = 96
"""Prompts of the data: epochs of six steps, so that some are over before the run ends."""
STEP_DEADLINE_S = 300.0


def plans_of(folder: Path) -> list[Path]:
    """Three plans of the demo's job in `folder`, which must be new: other rounds, and another layout of trainers."""
    from rlplan.executor.example.write import write_example

    write_example(folder)
    rows = (folder / "data.jsonl").read_text().splitlines()[:PROMPTS]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    exact, sync = shipped_plan(folder, "exact"), shipped_plan(folder, "sync")
    another = exact.model_dump(mode="json")
    another["job"]["rounds"]["short"]["cutoff_tokens"] = exact.job.rounds.short.cutoff_tokens * 2
    written = {"first": with_layout(exact), "second": sync, "third": Plan.model_validate(another)}
    for name, plan in written.items():
        dump(plan, folder / f"{name}.yaml")
    return [folder / f"{name}.yaml" for name in written]


def changed_run(plans: Sequence[Path], out: Path, steps: int) -> dict[str, Any]:
    """Run by three plans after each other, with kills; returns counts. Raises RunFailed if a change is not made."""
    first, second, third = plans
    kills = 0
    with Driver(first, out, steps) as driver:

        def until(step: int) -> None:
            if not driver.wait_for_step(step, START_DEADLINE_S + STEP_DEADLINE_S):
                raise RunFailed(f"no step {step} in time; the end of its log:\n{driver.end_of_log()}")

        def kill() -> None:
            nonlocal kills
            driver.kill()
            kills += 1

        until(steps // 6)
        kill()
        until(steps // 3 - 1)
        command = [sys.executable, "-m", "rlplan.cli.main", "apply", str(second), "--out", str(out), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_DEADLINE_S, check=False)
        if done.returncode:
            raise RunFailed(f"rlplan apply ended with exit code {done.returncode}: {done.stderr[-800:]}")
        console.print(f"by {second.name} from step {json.loads(done.stdout)['from_step']} on, while it goes on")
        driver.plan = second
        until(2 * steps // 3)
        kill()
        driver.plan = third  # the driver starts again by it
        until(5 * steps // 6)
        kill()
        if not driver.wait_until_done(STEP_DEADLINE_S):
            raise RunFailed(f"the run did not end; the end of its log:\n{driver.end_of_log()}")
        return {"kills": kills, "driver_starts": driver.starts}


def conservation(log: RunLog, out: Path, prompts: int) -> tuple[int, int]:
    """(lost, double) of a run, by its trace and the schedule of its last checkpoint."""
    settled: Counter[tuple[int, str]] = Counter()
    for step in log.steps:
        rows = log.samples.get(step.step, [])
        settled.update({(row.epoch, row.prompt) for row in rows if row.fate in ("trained", "filtered", "failed")})
    state = json.loads((checkpoints(out)[-1] / "state.json").read_text())["schedule"]
    begun = {epoch["epoch"]: set(epoch["settled"]) for epoch in state["epochs"]}
    lost = 0
    for epoch in range(state["next_epoch"]):
        trained = {prompt for number, prompt in settled if number == epoch}
        lost += len(begun[epoch] ^ trained) if epoch in begun else prompts - len(trained)
    return lost, sum(times - 1 for times in settled.values())


def group_rewards(log: RunLog, steps: range) -> list[float]:
    """The mean reward of each trained group of these steps."""
    means = []
    for number in steps:
        groups: dict[str, list[float]] = {}
        for row in log.samples.get(number, []):
            if row.fate == "trained":
                groups.setdefault(row.prompt, []).append(float(row.reward or 0.0))
        means += [statistics.fmean(rewards) for rewards in groups.values()]
    return means


def difference_z(first: Sequence[float], second: Sequence[float]) -> float:
    """Difference of two means over its standard error."""
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (first, second)))
    return (statistics.fmean(first) - statistics.fmean(second)) / error


def compared(alone: Path, changed: Path, prompts: int, steps: int) -> dict[str, Any]:
    """What the benchmark measures of both runs."""
    plain, log = read_run(alone / TRACE), read_run(changed / TRACE)
    lost, double = conservation(log, changed, prompts)
    thirds = [range(1 + third * steps // 3, 1 + (third + 1) * steps // 3) for third in range(3)]
    z = [difference_z(group_rewards(log, part), group_rewards(plain, part)) for part in (*thirds, range(1, steps + 1))]
    trained = [
        (sum(step.trained_tokens for step in each.steps), sum(step.trained_samples for step in each.steps))
        for each in (log, plain)
    ]
    return {
        "steps": len(log.steps),
        "plan_changes": [
            {key: row[key] for key in ("from_step", "plan", "owed", "step_s_before", "step_s_after")}
            for row in plan_changes(log)
        ],
        "owed": sum(row["owed"] or 0 for row in plan_changes(log)),
        "lost": lost,
        "double": double,
        "off_policy": off_policy(log),
        "conservation_violations": sum(len(step.conservation_violations) for step in log.steps),
        "checksum_mismatches": sum(step.checksum_mismatches for step in log.steps),
        "reward_z": [round(each, 2) for each in z],
        "reward": [round(statistics.fmean(group_rewards(each, range(1, steps + 1))), 4) for each in (log, plain)],
        "trained_tokens_per_sample": [round(tokens / samples, 1) for tokens, samples in trained],
    }


def wrong(verdict: dict[str, Any]) -> list[str]:
    """Texts on what a run by several plans must not do; [] if it did nothing of that."""
    zeros = ("lost", "double", "off_policy", "conservation_violations", "checksum_mismatches")
    faults = [f"{name} is {verdict[name]} and not 0" for name in zeros if verdict[name]]
    if len(verdict["plan_changes"]) != 2 or verdict["kills"] != 3:
        faults.append("the plan did not change twice, or three kills did not strike")
    if max(map(abs, verdict["reward_z"])) > 3:
        faults.append(f"rewards differ by {verdict['reward_z']} standard errors")
    return faults


@click.command()
@click.option("--steps", type=click.IntRange(min=12), default=24, show_default=True, help="Steps of each run.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the runs in this folder, which must be new.")
@as_json_option
def main(steps: int, keep: Path | None, as_json: bool) -> None:
    """Change a run's plan twice and kill it three times; exit code 1 if it trains anything twice, never, or otherwise
    than by its weights."""
    with ExitStack() as stack:
        home = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlplan-plans-")))
        console.print("writing the demo's example and three plans")
        plans = plans_of(home / "example")
        console.print(f"a run of {steps} steps by {plans[0].name}")
        alone_s = run_without_faults(plans[0], home / "alone", steps)
        console.print("the same by three plans, killed three times")
        counts = changed_run(plans, home / "changed", steps)
        modes = [load_plan(plan).job.bias.mode for plan in plans]
        verdict = {"modes": modes, **counts, **compared(home / "alone", home / "changed", PROMPTS, steps)}
    tell(verdict | {"seconds_alone": round(alone_s, 1)}, as_json)
    if faults := wrong(verdict):
        console.print("; ".join(faults))
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
