"""`rlplan refresh`: an edited plan is predicted anew into one that holds, or refused with what it breaks."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import dump

from ..group_documents import group, groups_plan
from .command_line import rlplan
from .solved_folder import edit, listing, write_profiled


@pytest.fixture(scope="module")
def exact_once(tmp_path_factory):
    """A job of 4 x 2 with a plan of mode exact that nobody forced the rest of."""
    folder = tmp_path_factory.mktemp("exact")
    write_profiled(folder)
    solved = rlplan("solve", folder, "--mode", "exact")
    assert solved.returncode == 0, solved.stderr
    return folder


@pytest.fixture
def exact(exact_once, tmp_path):
    """A copy of it, to be edited."""
    return shutil.copytree(exact_once, tmp_path, dirs_exist_ok=True)


def without_volatile(path):
    return path.read_text().split("\nvolatile:")[0]


def checked(path):
    return json.loads(rlplan("check", path, "--json").stdout)["files"][0]


def test_a_plan_that_nobody_edited_is_refreshed_into_itself(exact):
    before = without_volatile(exact / "plan.yaml")
    result = rlplan("refresh", exact / "plan.yaml", "--json")
    assert result.returncode == 0, result.stderr
    assert without_volatile(exact / "plan.yaml") == before
    assert json.loads(result.stdout)["edited"] is False


def test_an_edited_plan_keeps_its_decisions_and_gets_predictions_digest_and_reasons_of_its_own(exact):
    plan = exact / "plan.yaml"
    old = load_plan(plan)
    cutoff = old.job.rounds.short.cutoff_tokens
    edit(plan, f"cutoff_tokens: {cutoff}", f"cutoff_tokens: {cutoff - 5}")
    assert "decisions-edited" in {finding["rule"] for finding in checked(plan)["findings"]}
    edited = load_plan(plan)
    result = rlplan("refresh", plan, "--out", exact / "new.yaml", "--json")
    assert result.returncode == 0, result.stderr
    summary, new = json.loads(result.stdout), load_plan(exact / "new.yaml")
    assert load_plan(plan) == edited, "only --out is written"
    assert new.job.model_dump(exclude={"why"}) == edited.job.model_dump(exclude={"why"})
    assert new.predicted != old.predicted and new.decisions_sha256 != old.decisions_sha256
    assert f"cutoff {cutoff - 5} tokens; alternative: " in new.job.why["rounds.short.cutoff_tokens"]
    assert new.solver.refreshed and summary["edited"] and new.solver.status == "feasible"
    assert new.solver.gap == pytest.approx((new.solver.reached - new.solver.bound) / new.solver.reached, abs=1e-6)
    report = checked(exact / "new.yaml")
    assert report["findings"] == []
    assert any("edited by hand, and predicted anew by rlplan refresh" in note for note in report["notes"])
    assert "edited by hand and refreshed" in " ".join(rlplan("show", exact / "new.yaml").stdout.split())
    # Once refreshed it stays what it is.
    before = without_volatile(exact / "new.yaml")
    assert rlplan("refresh", exact / "new.yaml").returncode == 0
    assert without_volatile(exact / "new.yaml") == before


def test_what_is_predicted_of_an_edit_is_what_simulating_it_gives(exact):
    plan = exact / "plan.yaml"
    at_once = load_plan(plan).job.rounds.short.rollout.max_num_seqs
    plan.write_text(re.sub(r"max_num_seqs: \d+", "max_num_seqs: 1", plan.read_text()))
    assert at_once > 1
    before = json.loads(rlplan("simulate", plan, "--steps", 600, "--json").stdout)
    assert rlplan("refresh", plan).returncode == 0
    new = load_plan(plan).predicted
    assert new.seconds_per_sample == pytest.approx(before["seconds_per_sample"], rel=0.06)
    assert before["predicted"]["seconds_per_sample"] != pytest.approx(before["seconds_per_sample"], rel=0.2)


def test_an_edit_of_the_predictions_alone_is_undone(exact):
    plan = exact / "plan.yaml"
    before = without_volatile(plan)
    seconds = load_plan(plan).predicted.baseline.seconds_per_sample
    edit(plan, f"    seconds_per_sample: {seconds:g}", f"    seconds_per_sample: {2 * seconds:g}")
    assert rlplan("refresh", plan).returncode == 0
    assert without_volatile(plan) == before


REFUSED = {
    "more engines than the pool holds": ("engines: 2,", "engines: 3,", "job.rounds.short.rollout.engines: 3 engines"),
    "a cutoff that no group stays below": ("cutoff_tokens: CUTOFF", "cutoff_tokens: 1", "cutoff_tokens: is 1"),
    "a lever that short rounds do not have": (
        "      hand_over: null\n    long:", "      hand_over: {engines: 1, at_finished: 0.5}\n    long:",
        "job.rounds.short.hand_over: only long rounds hand engines over",
    ),
    "another job": ("name: toy", "name: other", "job.name: the job is called 'toy'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_an_edit_that_cannot_be_is_refused_with_nothing_written(fault, exact):
    old, new, words = REFUSED[fault]
    plan = exact / "plan.yaml"
    cutoff = load_plan(plan).job.rounds.short.cutoff_tokens
    text = plan.read_text()
    assert old.replace("CUTOFF", str(cutoff)) in text
    plan.write_text(text.replace(old.replace("CUTOFF", str(cutoff)), new))
    before = listing(exact)
    result = rlplan("refresh", plan)
    assert result.returncode == 2 and listing(exact) == before, result.stdout
    lines = result.stderr.splitlines()
    assert lines and all(line.startswith(f"error: {plan}") for line in lines)
    assert words in lines[0], lines


def test_an_edit_that_breaks_the_jobs_limit_is_no_feasible_plan(exact_once, tmp_path):
    folder = shutil.copytree(exact_once, tmp_path / "slo")
    (folder / "job.yaml").write_text((folder / "job.yaml").read_text() + "slo: {step_p95_s: 30.0}\n")
    assert rlplan("solve", folder, "--mode", "exact").returncode == 0
    p95 = load_plan(folder / "plan.yaml").predicted.step_s.p95
    edit(folder / "job.yaml", "step_p95_s: 30.0", f"step_p95_s: {1.2 * p95:.4g}")
    assert rlplan("solve", folder, "--mode", "exact").returncode == 0
    plan = folder / "plan.yaml"
    plan.write_text(re.sub(r"max_num_seqs: \d+", "max_num_seqs: 1", plan.read_text()))
    before = listing(folder)
    result = rlplan("refresh", plan)
    assert result.returncode == 3 and listing(folder) == before
    assert result.stderr.startswith("no feasible plan: ") and "slo.step_p95_s" in result.stderr


def test_a_stale_plan_is_solved_again_and_not_refreshed(exact):
    edit(exact / "profile.yaml", "step_s: 0.002\n", "step_s: 0.003\n")
    result = rlplan("refresh", exact / "plan.yaml")
    assert result.returncode == 2 and "'profile.yaml' has changed since the plan was solved" in result.stderr


def test_a_plan_of_groups_is_not_refreshed_and_is_told_what_does_it(tmp_path):
    path = tmp_path / "groups.yaml"
    dump(groups_plan({"g1": group(["big", "small"])}), path)
    result = rlplan("refresh", path)
    assert result.returncode == 2 and "rlplan solve WORKLOAD --from PLAN" in result.stderr
