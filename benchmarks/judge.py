"""The demo with and without a judge, side by side, and with a judge that is killed in mid-round.

A second tiny model, the demo's policy as it was before training, judges each response on the second core while the
engine decodes on the first; its verdict (yes or no) is a part of the reward. The plans differ in the judge alone.
In the last run the judge's engine core is killed (SIGKILL) twice, when half of a round's samples are with it or behind
it: `lost` counts samples that ended decoding and have no verdict, or that scoring failed on; `asked_again` those that
the killed judge had.

    python -m benchmarks.judge --json
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlplan.executor.engines.vllm_options import CORES
from rlplan.executor.example.write import write_example
from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.profiles.judge_schema import Judge
from rlplan.traces.run_log import TRACE, RunLog, read_run
from rlplan.traces.trace_events import RewardPart

from .entry import as_json_option, tell
from .entry import run as run_command
from .example_plans import change_job, shipped_plan, write_document
from .faults.campaign import START_DEADLINE_S, Driver
from .faults.verdict import off_policy

RUBRIC = (
    "keys n1 =a n2 =b ? n9 no n1 yes =a <eos> yes keys n1 =a n2 =b ? n2 yes =c <eos> no "
    "keys n3 =d n4 =e ? n7 no n3 yes =d <eos> yes keys n3 =d n4 =e ? n4 yes =a <eos> no"
)
COSTS = Judge(per_sample_s=0.004, per_token_s=2e-5, beside_factor=2.0, rollout_factor=2.0, at_once=8)
"""What the plan is solved with; only the seconds of the runs are compared."""


KILLS = (3, 5)
"""Steps in whose rollouts the judge is killed."""


def write_folder(folder: Path, judged: bool) -> Path:
    """Write a plan of the demo in `folder`, with or without the judge; returns its path.

    One engine decodes on the first core, so that the second is the judge's.
    """
    if judged:
        right = load_job(folder / "job.yaml").model_dump(mode="json")["reward"] | {"name": "right"}
        judge = {
            "kind": "judge", "model": "model", "prompt": f"{RUBRIC} {{prompt}} {{response}}",
            "verdicts": {"yes": 1.0, "no": 0.0}, "deadline_s": 60.0, "weight": 0.1,
        }  # fmt: skip
        change_job(folder, reward=[right, judge])
    document = shipped_plan(folder, "sync", COSTS if judged else None).model_dump(mode="json")
    document["job"]["rounds"]["short"]["rollout"] |= {"engines": 1, "tp": 1}
    if judged:
        document["job"]["reward"]["judge"] = {"place": "own", "instances": 1, "tp": 1, "at_once": COSTS.at_once}
    return write_document(folder, "plan", document)


def run(plan: Path, out: Path, steps: int, kill_in_steps: Sequence[int] = ()) -> RunLog:
    """The trace of a run; its judge is killed in each of `kill_in_steps`, when about half of the samples have ended.

    Raises RunFailed if the run does not reach its end without being started again, or if no judge was found to kill.
    """
    with Driver(plan, out, steps) as driver:
        for step in kill_in_steps:
            _wait(driver, step - 1)
            log = read_run(out / TRACE)
            ended_s = statistics.median(sample.finished_s for sample in log.samples[step - 1])
            time.sleep(ended_s + log.steps[-1].sync_s)
            _kill_judge(driver)
        if not driver.wait_until_done(START_DEADLINE_S) or driver.starts > 1:
            raise RunFailed(f"{out.name} failed; the end of its log:\n{driver.end_of_log()}")
    return read_run(out / TRACE)


def _wait(driver: Driver, step: int) -> None:
    """Wait for a step, looking often: what follows is to come in the middle of the next round."""
    end = time.monotonic() + START_DEADLINE_S
    while driver.step() < step:
        if time.monotonic() > end or not driver.running():
            raise RunFailed(f"no step {step}; the end of the log:\n{driver.end_of_log()}")
        time.sleep(0.01)


def _kill_judge(driver: Driver) -> None:
    """SIGKILL the core of the engine on the second core, which is the judge's."""
    core = sorted(os.sched_getaffinity(0))[1]
    mine = f"{CORES}={core}".encode()
    killed = 0
    for process in driver.processes():
        if "EngineCore" in process.command or "multiprocessing.spawn" in process.command:
            try:
                if mine in (Path("/proc") / str(process.pid) / "environ").read_bytes().split(b"\0"):
                    os.kill(process.pid, signal.SIGKILL)
                    killed += 1
            except (ProcessLookupError, OSError):
                continue
    if not killed:
        raise RunFailed("the judge's engine core was not found, so nothing was killed")


def median_step_s(log: RunLog) -> float:
    """Median seconds of a step, the first left out: it builds what the others reuse."""
    return statistics.median(step.total_s for step in log.steps[1:])


def verdicts(log: RunLog) -> list[RewardPart]:
    """The judge's part of each sample that ended decoding and was scored."""
    parts = [sample.reward_parts for samples in log.samples.values() for sample in samples]
    return [part["judge"] for part in parts if "judge" in part]


def lost(log: RunLog) -> int:
    """Samples that ended decoding and have no verdict, and those that scoring failed on."""
    ended = sum(len(samples) for samples in log.samples.values())
    given = sum(part.outcome == "ok" for part in verdicts(log))
    dropped = sum((step.reward_failures or {}).get("infra_failed", 0) for step in log.steps)
    return ended - given + dropped


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """The figures of all runs."""
    plans = {}
    for name in ("without", "with"):
        write_example(folder / name)
        plans[name] = write_folder(folder / name, name == "with")
    without = run(plans["without"], folder / "run-without", steps)
    judged = run(plans["with"], folder / "run-with", steps)
    killed = run(plans["with"], folder / "run-killed", steps, kill_in_steps=KILLS)
    parts = verdicts(judged)
    if not parts:
        raise RunFailed("no sample was judged")
    return {
        "steps": steps,
        "without_s": round(median_step_s(without), 4),
        "with_s": round(median_step_s(judged), 4),
        "ratio": round(median_step_s(judged) / median_step_s(without), 4),
        "judged": len(parts),
        "verdict_s": round(statistics.median(part.s for part in parts), 5),
        "yes_share": round(statistics.fmean(part["value"] for part in parts), 4),
        "killed": sum(event["event"] == "restart" and event["whom"] == "judge-0" for event in killed.events),
        "asked_again": sum(part.attempts > 1 for part in verdicts(killed)),
        "lost": lost(judged) + lost(killed),
        "on_policy_violations": off_policy(judged) + off_policy(killed),
        "conservation_violations": sum(len(s.conservation_violations) for s in [*judged.steps, *killed.steps]),
    }


@click.command()
@click.option("--steps", type=click.IntRange(min=KILLS[-1] + 1), default=8, show_default=True, help="Of each run.")
@as_json_option
def main(steps: int, as_json: bool) -> None:
    """Run the demo with and without a judge, and with one that is killed."""
    if len(os.sched_getaffinity(0)) < 2:
        raise InputError("needs two cores: one for the engine, one for the judge")
    with tempfile.TemporaryDirectory(prefix="rlplan-judge-") as folder:
        result = measure(Path(folder), steps)
    tell(
        result,
        as_json,
        f"a step takes {result['with_s']} s with a judge on a core of its own and {result['without_s']} s without "
        f"({result['ratio']}x); {result['judged']} samples were judged, each in {1000 * result['verdict_s']:.1f} ms\n"
        f"killed in mid-round: {result['asked_again']} samples asked again, {result['lost']} lost",
    )


if __name__ == "__main__":
    run_command(main)
