"""`rlplan tune` as a user meets it, on runs that were simulated and written as the executor writes one."""

import re
from pathlib import Path

import pytest

from rlplan.planner.choose.candidates import candidate_rounds as short_rounds
from rlplan.planner.lengths.table_lengths import named_lengths
from rlplan.planner.simulate.columns import column_setting, whole_columns
from rlplan.planner.tune.executed_run import load_executed
from rlplan.plans.phrases.numbers import percent
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import dump, load
from rlplan.profiles.length_trace import read_lengths, write_lengths
from rlplan.profiles.profile_schema import Profile

from ..planner.synthetic_run import solved as documents_of
from ..planner.synthetic_run import synthesize
from .command_line import data, printed, without_volatile
from .few_candidates import few_candidates
from .run_folders import run_plan
from .solved_folder import listing, sha
from .test_diff import git


@pytest.fixture(scope="module", autouse=True)
def little_is_simulated():
    """Few candidates, but enough to tell a better plan from the one in force."""
    with few_candidates(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_rounds, "ROW_DEVIATIONS", (0.5, 1.5, 2.5))
        for module in (column_setting, whole_columns):
            patch.setattr(module, "FEED", 768)
        yield


def test_a_better_plan_is_written_once_and_then_kept(tuned):
    result = data("tune", tuned / "run")
    assert result["decision"] == "change" and result["gain"] > result["error"] > 0
    new = tuned / "plan.tuned.yaml"
    assert Path("/", result["plan"]) == new and Path("/", result["in_force"]) == tuned / "plan.yaml"
    assert set(result["phases"]) == {"rollout", "reward_exposed", "train", "sync"}
    assert all(p["measured"] >= 0 and p["predicted"] >= 0 and p["why"] for p in result["phases"].values())
    printed("execute", new, "--dry-run")
    printed("check", new, tuned / "plan.tuned.profile.yaml")
    own = load(tuned / "plan.tuned.profile.yaml", Profile).lengths
    assert (own.path, own.sha256) == ("plan.tuned.lengths.jsonl", sha(tuned / "plan.tuned.lengths.jsonl"))
    # What was proposed is what solving from the files gives.
    printed("solve", tuned, "--profile", tuned / "plan.tuned.profile.yaml", "-o", tuned / "again.yaml")
    assert without_volatile(tuned / "again.yaml") == without_volatile(new)
    before = listing(tuned)
    second = data("tune", tuned / "run")
    assert second["decision"] == "keep" and second["plan"] is None and Path("/", second["in_force"]) == new
    assert listing(tuned) == before


def test_a_diff_of_a_tuned_plan_says_what_tune_said(tuned):
    result = data("tune", tuned / "run")
    old, new = tuned / "plan.yaml", tuned / "plan.tuned.yaml"
    diff = data("diff", old, new)
    by_decisions, by_inputs = (diff["effects"][f"by_{cause}.seconds_per_sample"] for cause in ("decisions", "inputs"))
    assert by_decisions["relative"] == pytest.approx(-result["gain"], rel=1e-6)
    assert not by_decisions["within_error"] and not diff["comparable"]
    assert by_inputs["old"] == load_plan(old).predicted.seconds_per_sample
    assert by_inputs["new"] == by_decisions["old"], "the old decisions with the new inputs"
    gain = f"{100 * result['gain']:.1f}% fewer seconds per sample"
    assert diff["verdict"].startswith(f"by the decisions, faster: {gain}") and "by the inputs, " in diff["verdict"]
    assert f"takes {percent(result['gain'])} less time" in printed(
        "tune", tuned / "run", "--plan", old, "-o", tuned / "a.yaml"
    )
    # Both in git, as in a pull request: each plan is read with its inputs.
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "tuned")):
        git(tuned, *arguments)
    in_git = data("diff", "HEAD:./plan.yaml", "HEAD:./plan.tuned.yaml", folder=tuned)
    assert in_git["effects"] == diff["effects"]
    # The old decisions refreshed beside the new inputs tell the same, by the paired error alone.
    dump(load_plan(old).model_copy(update={"inputs": load_plan(new).inputs}), tuned / "before.yaml")
    printed("refresh", tuned / "before.yaml")
    again = data("diff", tuned / "before.yaml", new)
    assert again["comparable"] and again["error"]["costs"] == "paired"
    refreshed = again["effects"]["seconds_per_sample"]
    assert refreshed["relative"] == pytest.approx(-result["gain"], abs=refreshed["relative_sigma"])
    # Without the new plan's inputs nothing is said to be faster.
    (tuned / "plan.tuned.lengths.jsonl").unlink()
    refused = data("diff", old, new)
    assert refused["verdict"].startswith("not known to be faster or slower") and refused["not_repriced"]
    assert "lengths is not at hand" in refused["not_repriced"] and "rlplan refresh" in refused["not_repriced"]


def test_the_text_says_decision_phases_and_error(tuned):
    text = printed("tune", tuned / "run", "--plan", tuned / "plan.yaml", "--out", tuned / "mine.yaml")
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[:6]] == [
        "phase, seconds", "rollout", "waiting for rewards", "training", "weight transfer", "step",
    ]  # fmt: skip
    factors = data("tune", tuned / "run", "--plan", tuned / "plan.yaml", "--out", tuned / "mine.yaml")["factors"]
    told = lines[6].removeprefix("refitted, as a multiple of the profile: ").split(", ")
    assert (f"lengths {factors['lengths']:.2f}x" in told) == (abs(factors["lengths"] - 1) >= 0.01)
    assert all(not each.endswith(" 1.00x") for each in told), "a factor of 1 is not told"
    [decided] = [line for line in lines if line.startswith("change: the best plan now takes ")]
    assert re.search(
        r"takes [\d.]+% less time than \S*plan\.yaml; the error of that is [\d.]+% \(.*\) -> \S*mine\.yaml$", decided
    )
    assert load_plan(tuned / "mine.yaml").inputs.profile.path == "mine.profile.yaml"
    kept = printed("tune", tuned / "run", "--plan", tuned / "mine.yaml").splitlines()[-1]
    assert kept.startswith("keep: ") and " -> " not in kept


def test_a_plan_of_assumed_lengths_keeps_what_a_run_did_not_measure(tuned):
    words = "p50=4,p85=6,p87=60,max=64,icc=0.7"
    printed("solve", tuned, "--mode", "sync", "--lengths", words)
    run_plan(tuned, "short", named_lengths(f"{words},scale=1.3")[0], steps=15)
    result = data("tune", tuned / "short")
    assert result["decision"] == "change", result
    new = load_plan(tuned / "plan.tuned.yaml")
    lengths = new.inputs.lengths
    assert (lengths.assumed, lengths.path) == (words, None)
    assert lengths.scale == pytest.approx(result["factors"]["lengths"], rel=1e-3) and 1.05 < lengths.scale < 1.6
    assert new.predicted.error.assumed_lengths > 0 and ", as stated; " in new.job.why["lengths"]
    own = load(tuned / "plan.tuned.profile.yaml", Profile).lengths
    assert read_lengths(tuned / own.path).rows == read_lengths(tuned / "lengths.jsonl").rows
    assert f"all lengths times {lengths.scale:g}" in printed("check", tuned / "plan.tuned.yaml")
    # The words of its lengths are those of --lengths, and solving from what it names gives it again.
    again = ("--profile", tuned / "plan.tuned.profile.yaml", "--lengths", lengths.name)
    printed("solve", tuned, *again, "-o", tuned / "again.yaml")
    assert without_volatile(tuned / "again.yaml") == without_volatile(tuned / "plan.tuned.yaml")


# -- one run has one step's seconds, whichever command tells them ------------------------------------------------------


@pytest.fixture(scope="module")
def owing(tmp_path_factory):
    """A run of a plan of mode exact that stops owing prompts a long round."""
    folder = tmp_path_factory.mktemp("owing")
    found = documents_of(mode="exact")
    for name in ("plan", "job", "cluster", "profile"):
        dump(getattr(found, name), folder / f"{name}.yaml")
    write_lengths(folder / "lengths.jsonl", found.trace.rows)
    for steps in range(41, 60):
        home = folder / f"run{steps}"
        synthesize(home, found.plan, found.job, found.profile, found.trace, steps=steps, plan_path="../plan.yaml")
        if load_executed(home).steps[-1].deferred > 3:
            return home
    raise AssertionError("no run of these steps owes anything")


def test_report_and_tune_tell_one_figure_for_a_step(owing):
    folder = owing.parent
    before = set(listing(folder))
    [report] = data("report", owing)["runs"].values()
    tune = data("tune", owing, "--out", folder / "new.yaml")
    assert report["owed_prompts"] > 3
    plain = sum(step.total_s for step in load_executed(owing).steps) / report["steps"]
    assert report["step_s"] != pytest.approx(plain, rel=0.01), "the debt makes no difference here"
    assert tune["step_s"]["measured"] == pytest.approx(report["step_s"], rel=1e-12)
    assert tune["seconds_per_sample"]["measured"] == pytest.approx(report["seconds_per_sample"], rel=1e-12)
    assert tune["step_s"]["predicted"] == report["step_s_predicted"]
    for phase, value in report["phases_s"].items():
        assert tune["phases"][phase]["measured"] == pytest.approx(value["measured"], rel=1e-12), phase
    assert sum(p["measured"] for p in tune["phases"].values()) == pytest.approx(report["step_s"], rel=1e-6)
    for phase in tune["phases"].values():
        assert sum(phase["parts_s"].values()) == pytest.approx(phase["measured"] - phase["predicted"], abs=1e-9)
    assert before <= set(listing(folder))
    text = printed("tune", owing, "--out", folder / "new.yaml")
    [line] = [line for line in text.splitlines() if line.startswith("step ")]
    assert f"{report['step_s']:.3f}" in line and "mean of the cycle" in line
