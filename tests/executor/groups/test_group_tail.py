"""Two jobs with two engines each run as one, by the command line: the tail of one moves together, the other begins."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.run_log import TRACE, read_run
from rlplan.traces.trace import read_trace

from ..test_execute import CUTOFF, JOB, plan_document, write_files
from .test_group_run import JOBS, ONE_CORE, rlplan

pytestmark = pytest.mark.engine

STEPS, LONGEST = 3, 240
TWO_NODES = ONE_CORE.replace("nodes: 1", "nodes: 2")
APART = TWO_NODES + ONE_CORE[ONE_CORE.index("  main:") :].replace("main", "learn")
WORKLOAD = """\
rlplan_workload: 1
cluster: cluster.yaml
rules: {tail_keep: 0.5}
jobs:
"""
MEMBER = """\
  {name}:
    slo: 2.5
    source: {{plan: {name}/plan.yaml}}
    phases:
      rollout: {{pool: main, nodes: 2, warm_s: 0.1, resident_bytes: 1000000000}}
      train: {{pool: learn, warm_s: 0.1, resident_bytes: 1000000000}}
    tail_share: 0.5
    tail_finished: 0.25
    cold_s: 30.0
"""


def own_plan(folder, name):
    """A job's own plan, with two engines."""
    plan = plan_document(folder).model_dump(mode="json")
    plan["job"]["name"] = name
    for kind in ("short", "long"):
        plan["job"]["rounds"][kind]["rollout"]["engines"] = 2
    plan["job"]["rounds"]["short"]["cutoff_tokens"] = LONGEST - CUTOFF
    return plan


@pytest.fixture(scope="module")
def groups(tiny_model, tmp_path_factory):
    """A plan of one group of two jobs on the same two nodes, whose tails keep one of them."""
    folder = tmp_path_factory.mktemp("tails")
    for seed, name in enumerate(JOBS):
        (folder / name).mkdir()
        job = JOB.replace("name: tiny", f"name: {name}").replace("seed: 3", f"seed: {seed}")
        job = job.replace("max_response_tokens: 48}", f"max_response_tokens: {LONGEST}, seed_per_sample: true}}")
        write_files(folder / name, tiny_model, job, APART)
        plan = own_plan(folder / name, name)
        plan["job"]["placement"] = {"train_pool": "learn", "streams": False}
        plan["predicted"] |= {"nodes": 3, "train_nodes": 1}
        dump(Plan.model_validate(plan), folder / name / "plan.yaml")
    (folder / "cluster.yaml").write_text(APART)
    (folder / "workload.yaml").write_text(WORKLOAD + "".join(MEMBER.format(name=name) for name in JOBS))
    done = rlplan("solve", folder / "workload.yaml", "-o", folder / "groups.yaml")
    assert done.returncode == 0, done.stderr
    return folder / "groups.yaml"


def test_tails_move_to_one_node_while_the_other_job_begins_on_the_rest_and_no_sample_changes(groups, tmp_path):
    out = tmp_path / "runs"
    done = rlplan("execute", groups, "--group", "g1", "--steps", STEPS, "--out", out, "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    journal = list(read_trace(out / TURNS))
    words = [event["event"] for event in journal]
    assert words.count("tail") >= 2 and words.count("cleared") >= 1
    running: dict[str, set[int]] = {}
    for event in journal:
        if event["event"] in ("done", "leave"):
            running.pop(event["job"], None)
        running |= {job: set(units) for job, units in event.get("moved", {}).items()}
        running |= {turn["job"]: set(turn["units"]) for turn in event.get("begun", ())}
        held = [unit for units in running.values() for unit in units]
        assert len(held) == len(set(held)), "a unit with two holders"
    moved = grown = 0
    for name in JOBS:
        log = read_run(out / name / TRACE)
        assert [step["step"] for step in log.steps] == list(range(1, STEPS + 1))
        assert sum(step["on_policy_violations"] for step in log.steps) == 0
        for event in (event for event in log.events if event["event"] == "units"):
            moved += event["moved"]
            grown += any(len(names) == 2 for _, names in event["changes"])
    assert moved > 0 and grown > 0
    assert {name: first_samples(out / name) for name in JOBS} == first_samples_alone(tmp_path, groups.parent)


def first_samples(folder):
    """Trained samples of a run's first step, with length and reward: those of the weights that all runs begin with."""
    rows = read_run(folder / TRACE).samples[1]
    return sorted(
        (row["prompt"], row["sample"], row["tokens"], row["reward"]) for row in rows if row["fate"] == "trained"
    )


def first_samples_alone(folder, planned):
    """The same of each job alone, with its engines on one node, where its trainer takes turns with them."""
    found = {}
    for name in JOBS:
        home = folder / f"{name} alone"
        home.mkdir()
        write_files(home, planned / name / "model", (planned / name / "job.yaml").read_text())
        plan = own_plan(home, name)
        dump(Plan.model_validate(plan), home / "plan.yaml")
        done = rlplan("execute", home / "plan.yaml", "--steps", 1, "--out", home / "run", "--json")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        found[name] = first_samples(home / "run")
    return found
