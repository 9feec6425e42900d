"""Two jobs with two engines each run as one, by the command line: the tail of one moves together, the other begins."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("vllm")

from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.trace import read_trace

from ..test_execute import JOB, plan_document, write_files
from .group_runs import (
    ONE_CORE,
    all_steps,
    executed,
    first_samples,
    first_samples_alone,
    one_holder_of_each_unit,
    solved,
)
from .test_group_run import JOBS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]  # six engines start, minutes each on a slow machine

# Two samples at once on each engine: while a quarter of a round ends on one engine, the other job decodes three
# quarters of its own on the other, three times as long. So it is given the first engine while it can still use it.
STEPS, LONGEST, AT_ONCE = 3, 240, 2
PROMPTS, SAMPLES = 8, 4
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
    tail_finished: 0.75
    cold_s: 30.0
"""


def own_plan(folder, name, engines=2):
    """A job's own plan."""
    plan = plan_document(folder).model_dump(mode="json")
    planned = plan["job"]
    planned["name"], planned["bias"]["mode"] = name, "sync"
    planned["issue"] = {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES}
    planned["loss"] = {"samples": PROMPTS * SAMPLES, "tokens": 60 * PROMPTS * SAMPLES}
    planned["rounds"]["long"] = plan["predicted"]["rounds"]["long"] = None
    short = planned["rounds"]["short"]
    short |= {"issue": {"prompts": PROMPTS, "samples": SAMPLES}, "cutoff_tokens": None}
    short["rollout"] |= {"engines": engines, "max_num_seqs": AT_ONCE}
    return plan


@pytest.fixture(scope="module")
def groups(tiny_model, tmp_path_factory):
    """A plan of one group of two jobs on the same two nodes, whose tails keep one of them."""
    folder = tmp_path_factory.mktemp("tails")
    for seed, name in enumerate(JOBS):
        (folder / name).mkdir()
        job = JOB.replace("name: tiny", f"name: {name}").replace("seed: 3", f"seed: {seed}")
        job = job.replace("4, samples_per_prompt: 2", f"{PROMPTS}, samples_per_prompt: {SAMPLES}")
        job = job.replace("max_response_tokens: 48}", f"max_response_tokens: {LONGEST}, seed_per_sample: true}}")
        write_files(folder / name, tiny_model, job, APART)
        plan = own_plan(folder / name, name)
        plan["job"]["placement"] = {"train_pool": "learn", "streams": False}
        plan["predicted"] |= {"nodes": 3, "train_nodes": 1}
        dump(Plan.model_validate(plan), folder / name / "plan.yaml")
    (folder / "cluster.yaml").write_text(APART)
    (folder / "workload.yaml").write_text(WORKLOAD + "".join(MEMBER.format(name=name) for name in JOBS))
    return solved(folder)


def test_tails_move_to_one_node_while_the_other_job_begins_on_the_rest_and_no_sample_changes(groups, tmp_path):
    out = tmp_path / "runs"
    executed(groups, STEPS, out, "--group", "g1")
    words = [event["event"] for event in read_trace(out / TURNS)]
    assert words.count("tail") >= 2 and words.count("cleared") >= 1
    one_holder_of_each_unit(out / TURNS)
    moved = grown = 0
    for name in JOBS:
        log = all_steps(out / name, STEPS)
        for event in (event for event in log.events if event["event"] == "units"):
            moved += event["moved"]
            grown += any(len(names) == 2 for _, names in event["changes"])
    assert moved > 0 and grown > 0
    for name in JOBS:
        alone = first_samples_alone(tmp_path / f"{name} alone", groups.parent / name, partial(own_plan, engines=1))
        assert first_samples(out / name) == alone
