"""A workload whose jobs' seconds come from a job's own plan, and from a run of it."""

from __future__ import annotations

from statistics import fmean

import pytest

from rlplan.planner.groups.from_plans import problem_of
from rlplan.planner.groups.phases import from_plan, from_run
from rlplan.planner.measured import load_run
from rlplan.plans.workload import load_workload
from rlplan.plans.yaml_io import dump

from ...workloads import edit, write_workload
from ..synthetic_run import solved, synthesize


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A plan's file and the folder of a run of it that went as predicted."""
    folder = tmp_path_factory.mktemp("executed")
    documents = solved(mode="sync")
    dump(documents.plan, folder / "plan.yaml")
    synthesize(folder / "run", documents.plan, documents.job, documents.profile, documents.trace, noise=0.0, steps=60)
    return folder


def test_plan_and_run_give_the_same_phases_where_the_run_went_as_predicted(executed):
    run = load_run(executed / "run")
    planned, measured = from_plan(run.plan, "job"), from_run(run)
    # The plan was solved on 16 rounds of heavy-tailed lengths: its own mean is off by a standard error of 8 %.
    assert planned.rollout_s == pytest.approx(measured.rollout_s, rel=0.25)
    assert planned.train_s == pytest.approx(measured.train_s, rel=0.1)
    assert planned.rollout_s + planned.train_s == pytest.approx(run.plan.predicted.step_s.mean, rel=1e-6)
    assert measured.rollout_s + measured.train_s == pytest.approx(fmean(s.total_s for s in run.steps if s.warm))
    assert max(pair[0] for pair in planned.spread) == pytest.approx(max(pair[0] for pair in measured.spread), rel=0.5)


@pytest.mark.parametrize(("source", "read"), [("plan: plan.yaml", "plan.yaml"), ("run: run", "run/trace.jsonl")])
def test_a_workload_names_its_sources_and_what_was_read_is_an_input_of_the_plan(source, read, executed):
    path = write_workload(executed)
    edit(path, "        mean_s: 60.0\n", "")
    edit(path, "train: {pool: train, mean_s: 40.0}", "train: {pool: train}")
    edit(path, "    model: Qwen2.5-3B", f"    model: Qwen2.5-3B\n    source: {{{source}}}")
    workload, cluster = load_workload(path)
    problem = problem_of(workload, path, cluster)
    assert problem.read == {"small": executed / read}
    small = problem.jobs["small"]
    assert small.spread and small.rollout[1].mean_s == pytest.approx(1.5 * small.rollout[0].mean_s)
