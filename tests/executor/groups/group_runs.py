"""Groups that are run by the command line: pools of one core each, runs alone, and what every journal keeps."""

from __future__ import annotations

import subprocess
import sys

from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.run_log import TRACE, read_run
from rlplan.traces.trace import read_trace

from ..test_execute import CLUSTER, write_files

WAIT_S = 400
ONE_CORE = CLUSTER.replace("per_node: 2", "per_node: 1").replace("cores: 2", "cores: 1")
APART = ONE_CORE + ONE_CORE[ONE_CORE.index("  main:") :].replace("main", "learn")


def rlplan(*arguments, **options):
    command = [sys.executable, "-m", "rlplan.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd="/", check=False, **options)


def executed(plan, steps, out, *more):
    """Execute a plan to its end."""
    done = rlplan("execute", plan, *more, "--steps", steps, "--out", out, "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def solved(folder):
    """Solve the workload in a folder; returns the plan of groups."""
    done = rlplan("solve", folder / "workload.yaml", "-o", folder / "groups.yaml")
    assert done.returncode == 0, done.stderr
    return folder / "groups.yaml"


def one_holder_of_each_unit(journal):
    """Assert that no unit had two holders; returns how many pauses there were."""
    running: dict[str, set[int]] = {}
    pauses = 0
    for event in read_trace(journal):
        if event["event"] in ("done", "leave"):
            running.pop(event["job"], None)
        running |= {turn["job"]: set(turn["units"]) for turn in event.get("begun", ())}
        running |= {job: set(units) for job, units in event.get("moved", {}).items()}
        pauses += sum(not units for units in event.get("moved", {}).values())
        held = [unit for units in running.values() for unit in units]
        assert len(held) == len(set(held)), "a unit with two holders"
    return pauses


def all_steps(run, steps):
    """The log of a run that did all its steps, each on policy."""
    log = read_run(run / TRACE)
    assert [step["step"] for step in log.steps] == list(range(1, steps + 1))
    assert sum(step["on_policy_violations"] for step in log.steps) == 0
    return log


def first_samples(run):
    """Length and reward of the trained samples of a run's first step, by prompt and number: those of the weights that
    all runs begin with."""
    rows = [row for row in read_run(run / TRACE).samples[1] if row["fate"] == "trained"]
    samples = {(row["prompt"], row["sample"]): (row["tokens"], row["reward"]) for row in rows}
    assert len(samples) == len(rows), "a sample that was trained twice"
    return samples


def first_samples_alone(home, planned, own_plan):
    """`first_samples` of a job that runs alone, with its engines on one node, where its trainer takes turns with them.

    `home`: a new folder; `planned`: the job's folder in the group; `own_plan`: makes the job's plan from a folder.
    """
    home.mkdir()
    write_files(home, planned / "model", (planned / "job.yaml").read_text())
    dump(Plan.model_validate(own_plan(home, planned.name)), home / "plan.yaml")
    executed(home / "plan.yaml", 1, home / "run")
    return first_samples(home / "run")
