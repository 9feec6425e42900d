"""A job with long rollouts and one in a hurry, run by the command line: rollouts of the first are paused and go on."""

import pytest

from rlplan.traces.groups.group_turns import TURNS

from ...documents import expected_round
from ..tiny_job import make_plan, write_job, write_plan
from .group_runs import all_steps, check_turns, executed, solved, trained, write_member, write_workload

pytestmark = pytest.mark.engine

STEPS = 5
ROUNDS = {"at_once": 4, "micro_batch": 512}
PATIENT = {"prompts": 8, "samples": 4}
LONGEST = 480


def expecting(rollout_s, train_s):
    """A change of a plan: what its rollouts and trainings are predicted to take."""

    def change(plan):
        plan["predicted"]["rounds"] = dict.fromkeys(("short", "long"), expected_round(0.5, rollout_s, train_s))

    return change


@pytest.fixture
def groups(tiny_model, tmp_path):
    """A plan of one group, in which the rollouts of the one job may be paused for those of the other."""
    sizes = {**ROUNDS, **PATIENT, "longest": LONGEST, "cutoff": LONGEST - 18}
    write_member(tmp_path, tiny_model, "patient", change=expecting(300.0, 0.5), **sizes)
    write_member(tmp_path, tiny_model, "urgent", change=expecting(1.0, 6.0), **ROUNDS)
    members = {"patient": {"slo": 8.0, "rollout": ", resume_s: 0.0"}, "urgent": {"slo": 3.0}}
    return solved(write_workload(tmp_path / "workload.yaml", members))


def test_urgent_rollouts_pause_others_which_lose_nothing(groups, tiny_model, tmp_path, execute):
    out = tmp_path / "runs"
    executed(groups, STEPS, out, "--group", "g1")
    assert check_turns(out / TURNS) > 0
    log = [all_steps(out / name, STEPS) for name in ("urgent", "patient")][1]
    assert {step.trained_samples for step in log.steps[:STEPS]} == {PATIENT["prompts"] * PATIENT["samples"]}
    told = [event for event in log.events if event["event"] == "units"]
    paused = [event for event in told if any(not names for _, names in event["changes"])]
    assert max(event["paused_s"] for event in paused) > 0 and sum(event["moved"] for event in paused) > 0
    home = tmp_path / "alone"
    home.mkdir()
    write_job(home, tiny_model, "patient", longest=LONGEST, **PATIENT)
    plan = make_plan(home, "patient", cutoff=LONGEST - 18, **PATIENT, **ROUNDS)
    assert execute(write_plan(plan, home / "plan.yaml"), "--out", home / "run", "--steps", 1) == 0
    together, alone = trained(out / "patient"), trained(home / "run")
    both = together.keys() & alone.keys()  # of a round with samples to spare, the first that end are trained
    assert both and {key: together[key] for key in both} == {key: alone[key] for key in both}
