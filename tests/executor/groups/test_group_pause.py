"""A job with long rollouts and one in a hurry, run by the command line: rollouts of the first are paused and go on."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.run_log import TRACE, read_run

from ...documents import expected_round
from ..test_execute import CUTOFF, JOB, N, P, plan_document, write_files
from .group_runs import APART, all_steps, executed, first_samples, first_samples_alone, one_holder_of_each_unit, solved

pytestmark = pytest.mark.engine

PATIENT, URGENT = "patient", "urgent"
STEPS, LONGEST, AT_ONCE = 5, {PATIENT: 480, URGENT: 48}, 4
PROMPTS, SAMPLES = {PATIENT: 8, URGENT: P}, {PATIENT: 4, URGENT: N}
EXPECTED_S = {PATIENT: (300.0, 0.5), URGENT: (1.0, 6.0)}  # of a rollout and a training, as their plans have them
WORKLOAD = """\
rlplan_workload: 1
cluster: cluster.yaml
jobs:
  patient:
    slo: 8.0
    source: {plan: patient/plan.yaml}
    phases:
      rollout: {pool: main, warm_s: 0.01, resident_bytes: 1000000000, resume_s: 0.0}
      train: {pool: learn, warm_s: 0.01, resident_bytes: 1000000000}
    cold_s: 30.0
  urgent:
    slo: 3.0
    source: {plan: urgent/plan.yaml}
    phases:
      rollout: {pool: main, warm_s: 0.01, resident_bytes: 1000000000}
      train: {pool: learn, warm_s: 0.01, resident_bytes: 1000000000}
    cold_s: 30.0
"""


def own_plan(folder, name):
    """A job's own plan."""
    plan = plan_document(folder).model_dump(mode="json")
    plan["job"]["name"] = name
    prompts, samples, rounds = PROMPTS[name], SAMPLES[name], plan["job"]["rounds"]
    plan["job"]["issue"] = {"prompts_per_step": prompts, "samples_per_prompt": samples}
    rounds["short"] |= {
        "issue": {"prompts": prompts + 3, "samples": samples},
        "cutoff_tokens": LONGEST[name] - 48 + CUTOFF,
    }
    rounds["long"]["issue"] = {"prompts": prompts, "samples": samples, "copies": 1}
    for kind in ("short", "long"):
        rounds[kind]["rollout"]["max_num_seqs"] = AT_ONCE
        rounds[kind]["train"]["micro_batch_tokens"] = 512
    plan["job"]["loss"] = {"samples": prompts * samples, "tokens": prompts * samples * CUTOFF // 2}
    plan["predicted"]["rounds"] = dict.fromkeys(("short", "long"), expected_round(0.5, *EXPECTED_S[name]))
    return plan


@pytest.fixture(scope="module")
def groups(tiny_model, tmp_path_factory):
    """A plan of one group, in which the rollouts of the one job may be paused for those of the other."""
    folder = tmp_path_factory.mktemp("pauses")
    for name in LONGEST:
        (folder / name).mkdir()
        job = JOB.replace("name: tiny", f"name: {name}")
        job = job.replace(
            f"prompts_per_step: {P}, samples_per_prompt: {N}",
            f"prompts_per_step: {PROMPTS[name]}, samples_per_prompt: {SAMPLES[name]}",
        )
        job = job.replace("micro_batch_tokens: [64, 256]", "micro_batch_tokens: [64, 512]")
        job = job.replace("max_response_tokens: 48}", f"max_response_tokens: {LONGEST[name]}, seed_per_sample: true}}")
        write_files(folder / name, tiny_model, job, APART)
        plan = own_plan(folder / name, name)
        plan["job"]["placement"] = {"train_pool": "learn", "streams": False}
        plan["predicted"] |= {"nodes": 2, "train_nodes": 1}
        dump(Plan.model_validate(plan), folder / name / "plan.yaml")
    (folder / "cluster.yaml").write_text(APART)
    (folder / "workload.yaml").write_text(WORKLOAD)
    return solved(folder)


def test_rollouts_are_paused_for_urgent_ones_and_go_on_and_no_sample_changes(groups, tmp_path):
    out = tmp_path / "runs"
    executed(groups, STEPS, out, "--group", "g1")
    pauses = one_holder_of_each_unit(out / TURNS)
    assert pauses > 0
    for name in LONGEST:
        log = all_steps(out / name, STEPS)
        assert not any(step["conservation_violations"] or step["restarts"] for step in log.steps)
    log = read_run(out / PATIENT / TRACE)
    assert {step["trained_samples"] for step in log.steps} == {PROMPTS[PATIENT] * SAMPLES[PATIENT]}
    told = [event for event in log.events if event["event"] == "units"]
    paused = [event for event in told if any(not names for _, names in event["changes"])]
    assert max(event["paused_s"] for event in paused) > 0 and sum(event["moved"] for event in paused) > 0
    together, alone = (
        first_samples(out / PATIENT),
        first_samples_alone(tmp_path / "alone", groups.parent / PATIENT, own_plan),
    )
    both = together.keys() & alone.keys()  # of a round with samples to spare, the first that end are trained
    assert both and {key: together[key] for key in both} == {key: alone[key] for key in both}
