"""What fixed seeds train on the CPU: samples and weights of whole runs by the command line, real engines and trainers.

A trained sample is its prompt, number, epoch, tokens and reward, by step; of prompts that were not trained only the
fate is compared. With a seed for each sample a draw does not depend on what is decoded beside it: samples of modes sync
and exact (by waves and by queue), with drafts, with streaming and in a group of two are compared. Not compared is what
the clock decides: seconds; mode race, whose samples are those that end first (tests of the pure machine in tests/rounds
hold it); how far the draws of a deferred prompt came, and whether their rewards did; and the weights of the streamed
run, since the clock says in which portions its gradients are summed. Of weights each tensor's mean and norm are
compared, to four decimals: how threads share a sum may change the last digits.

What is stored was played by commit b9156048, before the house was made lighter. In it sync, drafts and streaming have
the same samples in all steps, and sync and drafts the same weights.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .outputs import Outputs

STEPS = 3
GROUP_STEPS = 2
LIMIT_S = 500
ALONE = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


def trained() -> Outputs:
    """Execute all runs; by run, its samples by step and its weights."""
    with tempfile.TemporaryDirectory(prefix="rlplan-corpus-") as home:
        folder = Path(home)
        return {**_jobs(folder / "jobs"), **_group(folder / "group")}


def _jobs(folder: Path) -> Outputs:
    """Plans of one job that take turns on the same engines."""
    from ..executor.conftest import make_tiny_model
    from ..executor.tiny_job import make_plan, write_job, write_plan

    folder.mkdir()
    write_job(folder, make_tiny_model(folder / "tiny"), prompts=4, samples=4, longest=96)
    size = {"prompts": 4, "samples": 4}
    plans: dict[str, dict[str, Any]] = {
        "sync": make_plan(folder, cutoff=None, **size),
        "exact": make_plan(folder, cutoff=40, **size),
        "queue": make_plan(folder, cutoff=40, **size),
        "drafts": make_plan(folder, cutoff=None, **size),
        "streaming": make_plan(folder, cutoff=None, engines=2, micro_batch=512, **size),
    }
    long = plans["queue"]["job"]["rounds"]["long"]
    long["issue"]["prompts"], long["queue"] = 6, {"more_copies_every": 1, "until_long_after": 3}
    drafts = {"source": "history", "tokens": 3, "up_to_sequences": 8}
    plans["drafts"]["job"]["rounds"]["short"]["rollout"]["drafts"] = drafts
    short = plans["streaming"]["job"]["rounds"]["short"]
    short["train"]["dp"], short["hand_over"] = 2, {"engines": 1, "at_finished": 0.5}
    paths = [write_plan(plan, folder / f"{name}.yaml") for name, plan in plans.items()]
    _execute(*paths, "--out", folder / "runs", "--steps", STEPS)
    return {name: _outcome(folder / "runs" / name, STEPS, name != "streaming") for name in plans}


def _group(folder: Path) -> Outputs:
    """Two jobs that run as one, each in its own process."""
    from ..executor.conftest import make_tiny_model
    from ..executor.groups.group_runs import solved, write_member, write_workload

    folder.mkdir()
    model = make_tiny_model(folder / "tiny")
    names = ("one", "two")
    for seed, name in enumerate(names):
        write_member(folder, model, name, seed=seed)
    plan = solved(write_workload(folder / "workload.yaml", {name: {"slo": 2.5} for name in names}))
    _execute(plan, "--out", folder / "runs", "--steps", GROUP_STEPS)
    return {f"group-{name}": _outcome(folder / "runs" / "g1" / name, GROUP_STEPS) for name in names}


def _execute(*arguments: object) -> None:
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", *map(str, arguments), "--json", "--no-speed-check"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd="/",
        check=False,
        env=ALONE,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _outcome(run: Path, steps: int, with_weights: bool = True) -> dict[str, str]:
    """A run's trained and deferred samples by step, and its last weights."""
    lines = (run / "trace.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    found = {}
    for step in range(1, steps + 1):
        rows = [event for event in events if event["event"] == "sample" and event["step"] == step]
        found[f"step-{step}"] = "\n".join(sorted({_sample(row) for row in rows}))
    if with_weights:
        found["weights"] = "\n".join(_weights(run))
    return found


def _sample(row: dict[str, Any]) -> str:
    trained = ("sample", "epoch", "tokens", "truncated", "reward") if row["fate"] == "trained" else ()
    return " ".join(str(row[key]) for key in ("prompt", "fate", *trained))


def _weights(run: Path) -> Iterable[str]:
    """Each tensor's name, mean and norm."""
    from benchmarks.faults.verdict import weights

    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    for name, tensor in sorted(weights(last).items()):
        values = tensor.double()
        yield f"{name} {values.mean():.4f} {values.norm():.4f}"
