"""`rlplan refresh`: an edited plan is predicted anew into one that holds, or refused with what it breaks."""

import re
import shutil

import pytest

from rlplan.plans.schema.plan import load_plan

from .command_line import data, printed, rlplan, without_volatile
from .solved_folder import edit, listing, write_profiled


@pytest.fixture(scope="module")
def exact_once(tmp_path_factory):
    """A job of 4 x 2 with a plan of mode exact that nobody forced the rest of."""
    folder = tmp_path_factory.mktemp("exact")
    write_profiled(folder)
    printed("solve", folder, "--mode", "exact")
    return folder


@pytest.fixture
def exact(exact_once, tmp_path):
    return shutil.copytree(exact_once, tmp_path, dirs_exist_ok=True)


def checked(path):
    return data("check", path, code=None)["files"][0]


def test_what_nobody_decided_anew_is_refreshed_into_itself(exact):
    plan = exact / "plan.yaml"
    before = without_volatile(plan)
    assert data("refresh", plan)["edited"] is False
    assert without_volatile(plan) == before
    seconds = load_plan(plan).predicted.baseline.seconds_per_sample
    edit(plan, f"    seconds_per_sample: {seconds:g}", f"    seconds_per_sample: {2 * seconds:g}")
    printed("refresh", plan)
    assert without_volatile(plan) == before, "edited predictions are undone"


def test_an_edited_plan_keeps_its_decisions_and_is_predicted_anew(exact):
    plan, out = exact / "plan.yaml", exact / "new.yaml"
    old = load_plan(plan)
    cutoff = old.job.rounds.short.cutoff_tokens
    edit(plan, f"cutoff_tokens: {cutoff}", f"cutoff_tokens: {cutoff - 5}")
    assert "decisions-edited" in {finding["rule"] for finding in checked(plan)["findings"]}
    edited = load_plan(plan)
    summary, new = data("refresh", plan, "--out", out), load_plan(out)
    assert load_plan(plan) == edited, "only --out is written"
    assert new.job.model_dump(exclude={"why", "loss"}) == edited.job.model_dump(exclude={"why", "loss"})
    assert new.job.loss.grad_norms.short > edited.job.loss.grad_norms.short, "fewer tokens are noisier, as means"
    assert new.predicted != old.predicted and new.decisions_sha256 != old.decisions_sha256
    assert f"cutoff {cutoff - 5} tokens; " in new.job.why["rounds.short.cutoff_tokens"]
    assert new.solver.refreshed and summary["edited"] and new.solver.status == "feasible"
    assert new.solver.gap == pytest.approx((new.solver.reached - new.solver.bound) / new.solver.reached, rel=1e-4)
    report = checked(out)
    assert report["findings"] == []
    assert any("edited by hand, and predicted anew by rlplan refresh" in note for note in report["notes"])
    assert "edited by hand and refreshed" in " ".join(printed("show", out).split())
    before = without_volatile(out)
    printed("refresh", out)
    assert without_volatile(out) == before, "once refreshed it stays what it is"
    below = exact / "below" / "plan.yaml"
    below.parent.mkdir()
    printed("refresh", out, "--out", below)
    assert load_plan(below).inputs.job.path == "../job.yaml" and checked(below)["findings"] == []


def test_an_edit_is_predicted_as_simulating_it_gives(exact):
    plan = exact / "plan.yaml"
    assert load_plan(plan).job.rounds.short.rollout.max_num_seqs > 1
    plan.write_text(re.sub(r"max_num_seqs: \d+", "max_num_seqs: 1", plan.read_text()))
    found = data("simulate", plan, "--steps", 300)
    printed("refresh", plan)
    assert load_plan(plan).predicted.seconds_per_sample == pytest.approx(found["seconds_per_sample"], rel=0.25)
    assert found["predicted"]["seconds_per_sample"] < 0.7 * found["seconds_per_sample"]


def test_an_edit_that_breaks_the_jobs_limit_is_no_feasible_plan(exact):
    plan, job = exact / "plan.yaml", exact / "job.yaml"
    limit = 1.5 * load_plan(plan).predicted.step_s.p95
    job.write_text(job.read_text() + f"slo: {{step_p95_s: {limit:.4g}}}\n")
    printed("solve", exact, "--mode", "exact")
    plan.write_text(re.sub(r"max_num_seqs: \d+", "max_num_seqs: 1", plan.read_text()))
    before = listing(exact)
    result = rlplan("refresh", plan)
    assert result.returncode == 3 and listing(exact) == before
    assert result.stderr.startswith("no feasible plan: ") and "slo.step_p95_s" in result.stderr


def test_no_simulation_is_needed_to_refuse_what_memory_does_not_hold(impossible, monkeypatch):
    monkeypatch.setattr("rlplan.planner.refresh.refresh", lambda *_, **__: pytest.fail("simulated"))
    assert rlplan("refresh", impossible / "plan.yaml").returncode == 3
