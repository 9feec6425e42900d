"""One run has one step seconds and one speed, whichever command tells them."""

import json

import pytest

from rlplan.planner.tune.executed_run import load_run
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.length_trace import write_lengths

from ..planner.synthetic_run import solved as documents_of
from ..planner.synthetic_run import synthesize
from .command_line import rlplan
from .solved_folder import listing


@pytest.fixture(scope="module")
def owing(tmp_path_factory):
    """A folder with a plan of mode exact, its inputs, and a run of it that stops owing prompts a long round."""
    folder = tmp_path_factory.mktemp("owing")
    found = documents_of(mode="exact")
    for name in ("plan", "job", "cluster", "profile"):
        dump(getattr(found, name), folder / f"{name}.yaml")
    write_lengths(folder / "lengths.jsonl", found.trace.rows)
    for steps in range(41, 60):
        home = folder / f"run{steps}"
        synthesize(home, found.plan, found.job, found.profile, found.trace, steps=steps, plan_path="../plan.yaml")
        if load_run(home).steps[-1].deferred > 3:
            return folder, home
    raise AssertionError("no run of these steps owes anything")


def told(*arguments):
    result = rlplan(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_report_and_tune_tell_one_figure_for_a_step_its_phases_and_a_sample(owing):
    folder, home = owing
    before = set(listing(folder))
    [report] = told("report", home)["runs"].values()
    tune = told("tune", home, "--out", folder / "new.yaml")
    assert report["owed_prompts"] > 3
    plain = sum(step.total_s for step in load_run(home).steps) / report["steps"]
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


def test_the_text_of_tune_names_the_way_in_which_a_step_is_told(owing):
    folder, home = owing
    result = rlplan("tune", home, "--out", folder / "new.yaml")
    [report] = told("report", home)["runs"].values()
    [line] = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert f"{report['step_s']:.3f}" in line and "over the cycle, as in rlplan report" in line
