"""Jobs of a tiny model that run as one by the command line, and what every journal of theirs keeps."""

import subprocess
import sys

from rlplan.traces.run_log import TRACE, read_run
from rlplan.traces.trace import read_trace

from ..tiny_job import ALONE, APART, check_steps, make_plan, train_apart, write_job, write_plan

WAIT_S = 400
COLD_S = 30.0
PHASES = ("rollout", "train")


def rlplan(*arguments):
    command = [sys.executable, "-m", "rlplan.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd="/", check=False, env=ALONE)


def executed(plan, steps, out, *more):
    """Execute a plan of groups to its end."""
    done = rlplan("execute", plan, *more, "--steps", steps, "--out", out, "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def write_member(folder, model, name, cluster=APART, nodes=2, change=lambda plan: None, seed=3, **sizes):
    """A job in `folder/NAME` whose trainer has a pool of its own, and its plan.

    `sizes`: of job and plan, as `make_plan` has them, and `longest`; `nodes`: that its plan takes, the trainer's too.
    """
    home, longest = folder / name, sizes.pop("longest", 48)
    home.mkdir()
    own = {key: sizes[key] for key in ("prompts", "samples") if key in sizes}
    write_job(home, model, name, cluster=cluster, longest=longest, seed=seed, **own)
    plan = train_apart(make_plan(home, name, **sizes))
    plan["predicted"]["nodes"] = nodes
    change(plan)
    return write_plan(plan, home / "plan.yaml")


def write_workload(path, members, rules="", cluster=APART):
    """A workload of jobs beside it. `members`: by name of the job, {"slo": ...} with what else it says, and under
    "rollout" what is added to its rollout phase."""
    (path.parent / "cluster.yaml").write_text(cluster)
    lines = ["rlplan_workload: 1", "cluster: cluster.yaml", *([f"rules: {rules}"] if rules else []), "jobs:"]
    warm = "warm_s: 0.05, resident_bytes: 1000000000"
    for name, says in members.items():
        says = dict(says)
        rollout = says.pop("rollout", "")
        lines += [f"  {name}:", *(f"    {key}: {value}" for key, value in says.items()), f"    cold_s: {COLD_S}"]
        lines += [f"    source: {{plan: {name}/plan.yaml}}", "    phases:"]
        lines += [f"      rollout: {{pool: main, {warm}{rollout}}}", f"      train: {{pool: learn, {warm}}}"]
    path.write_text("\n".join(lines) + "\n")
    return path


def solved(workload, *options):
    """Solve a workload; returns the plan of groups."""
    plan = workload.with_name("groups.yaml")
    done = rlplan("solve", workload, *options, "-o", plan)
    assert done.returncode == 0, done.stderr
    return plan


def check_turns(journal):
    """Assert that no unit had two holders, and that jobs took their turns in order; returns how many were paused."""
    running: dict[str, set[int]] = {}
    turns: dict[str, int] = {}
    pauses = 0
    for event in read_trace(journal):
        if event["event"] in ("done", "leave"):
            running.pop(event["job"], None)
        for turn in event.get("begun", ()):
            running[turn["job"]] = set(turn["units"])
            assert turn["turn"] == turns.get(turn["job"], 0) and turn["phase"] == PHASES[turn["turn"] % 2]
            turns[turn["job"]] = turn["turn"] + 1
        running |= {job: set(units) for job, units in event.get("moved", {}).items()}
        pauses += sum(not units for units in event.get("moved", {}).values())
        held = [unit for units in running.values() for unit in units]
        assert len(held) == len(set(held)), "a unit with two holders"
    return pauses


def all_steps(run, steps):
    """The log of a run that did all its steps in the turns of its group, each on policy."""
    log = read_run(run / TRACE)
    check_steps(log.steps, steps)
    assert sum(step.on_policy_violations for step in log.steps) == 0
    assert not any(step.conservation_violations or step.restarts for step in log.steps)
    assert {event["phase"] for event in log.events if event["event"] == "permit"} == set(PHASES)
    return log


def trained(run, steps=1):
    """Length and reward of the trained samples of a run's first steps, by step, prompt and number."""
    log = read_run(run / TRACE)
    rows = [(step, row) for step in range(1, steps + 1) for row in log.samples[step] if row.fate == "trained"]
    samples = {(step, row.prompt, row.sample): (row.tokens, row.reward) for step, row in rows}
    assert len(samples) == len(rows), "a sample that was trained twice"
    return samples
