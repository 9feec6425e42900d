"""A workload whose jobs' seconds come from a job's own plan, and from a run of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from rlplan.planner.check.group_rules import workload_faults
from rlplan.planner.groups.inputs.phase_seconds import from_plan, from_run
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.tune.executed_run import load_run
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump

from ....cli.command_line import rlplan
from ....workloads import edit, write_workload
from ...conftest import laptop
from ...synthetic_run import solved, synthesize


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


MAIN = """\
  main:
    nodes: 3
    accelerators: {kind: cpu, name: cpu, per_node: 2, memory_bytes: 1000000000}
    cores: 2
    host_memory_bytes: 24000000000
    usd_per_node_hour: 0.36
links:
"""
"""The pool that the plan was solved for, of which its job takes one node."""


def workload_of(folder: Path, source: str, rollout: str, train: str) -> Path:
    """A workload whose job `small` has these references and this source; the plan's pool is one of the cluster's."""
    path = write_workload(folder)
    edit(folder / "cluster.yaml", "links:\n", MAIN)
    edit(path, "pool: roll\n        mean_s: 60.0\n", f"{rollout}\n        resident_bytes: 1000000000\n")
    edit(path, "train: {pool: train, mean_s: 40.0}", f"train: {{{train}, resident_bytes: 1000000000}}")
    edit(path, "    model: Qwen2.5-3B", f"    model: Qwen2.5-3B\n    source: {{{source}}}")
    return path


@pytest.mark.parametrize(("source", "read"), [("plan: plan.yaml", "plan.yaml"), ("run: run", "run/trace.jsonl")])
def test_a_workload_names_its_sources_and_what_was_read_is_an_input_of_the_plan(source, read, executed):
    path = workload_of(executed, source, "pool: main", "pool: main")
    workload, cluster = load_workload(path)
    problem = problem_of(workload, path, cluster)
    assert problem.read == {"small": executed / read}
    small = problem.jobs["small"]
    assert small.spread and small.rollout[1].mean_s == pytest.approx(1.5 * small.rollout[0].mean_s)


OTHERS = {
    "another pool": ("pool: main", "pool: train", "train.pool", ["pool 'main'", "8 x H800 a node"]),
    "more nodes": ("pool: main\n        nodes: 3", "pool: main", "rollout.nodes", ["are of 1 node, not of 3"]),
}


@pytest.mark.parametrize("source", ["plan: plan.yaml", "run: run"])
@pytest.mark.parametrize("other", OTHERS)
def test_seconds_of_a_plan_or_run_are_refused_for_other_machines_than_its_own(other, source, executed):
    rollout, train, key, words = OTHERS[other]
    path = workload_of(executed, source, rollout, train)
    mark = "nodes: 3" if key == "rollout.nodes" else "train: {pool: train, resident"
    line = 1 + next(at for at, text in enumerate(path.read_text().splitlines()) if mark in text)
    workload, cluster = load_workload(path)
    with pytest.raises(InputError) as caught:
        problem_of(workload, path, cluster)
    assert str(caught.value).startswith(f"{path}:{line}: jobs.small.phases.{key}: the seconds of '")
    for word in [*words, "under ways with"]:
        assert word in str(caught.value)
    [fault] = workload_faults(workload, str(path))
    assert fault.location == ("jobs", "small", "phases", *key.split("."))


@pytest.mark.parametrize("source", ["plan: plan.yaml", "run: run"])
def test_check_and_solve_refuse_a_workload_on_other_machines_with_the_same_lines_all_at_once(source, executed):
    path = workload_of(executed, source, "pool: main\n        nodes: 3", "pool: train")
    solved = rlplan("solve", path)
    assert solved.returncode == 2 and not (executed / "groups.yaml").exists()
    told = [line.removeprefix("error: ") for line in solved.stderr.splitlines()]
    keys = ["jobs.small.phases.rollout.nodes", "jobs.small.phases.train.pool"]
    assert [line.split(": ")[1] for line in told] == keys
    checked = rlplan("check", path)
    assert checked.returncode == 1
    found = [line for line in checked.stdout.splitlines() if "[workload-unsolvable]" in line]
    assert [line.replace("[workload-unsolvable] ", "") for line in found] == told


def test_check_of_a_plan_of_groups_finds_a_workload_that_was_moved_to_other_machines(executed, tmp_path):
    shutil.copytree(executed, tmp_path / "own", ignore=shutil.ignore_patterns("*cluster*", "workload*"))
    path = workload_of(tmp_path, "plan: own/plan.yaml", "pool: main", "pool: main")
    assert rlplan("solve", path).returncode == 0
    groups = tmp_path / "groups.yaml"
    assert rlplan("check", groups).returncode == 0
    edit(path, "train: {pool: main,", "train: {pool: train,")
    found = json.loads(rlplan("check", groups, "--json").stdout)["files"][0]["findings"]
    assert {"input-changed", "workload-unsolvable"} <= {finding["rule"] for finding in found}
    [moved] = [finding for finding in found if finding["rule"] == "workload-unsolvable"]
    assert "not of pool 'train'" in moved["message"] and moved["key"] == "inputs.workload"


def test_a_pool_of_another_name_with_the_same_accelerators_has_the_plans_seconds(executed, tmp_path):
    """The plan's own cluster file says what its pool is; without one the pools' names have to be the same."""
    shutil.copytree(executed, tmp_path / "own", ignore=shutil.ignore_patterns("*cluster*", "workload*"))
    source = "plan: own/plan.yaml"
    path = workload_of(tmp_path, source, "pool: cores", "pool: cores")
    edit(tmp_path / "cluster.yaml", "  main:\n", "  cores:\n")
    workload, cluster = load_workload(path)
    with pytest.raises(InputError, match=r"are of pool 'main', not of pool 'cores'"):
        problem_of(workload, path, cluster)
    dump(laptop(), tmp_path / "own" / "cluster.yaml")
    assert problem_of(workload, path, cluster).jobs["small"].rollout[0].pool == "cores"
    dump(laptop(accelerators={**laptop().pools["main"].accelerators.model_dump(), "name": "old"}),
         tmp_path / "own" / "cluster.yaml")  # fmt: skip
    with pytest.raises(InputError, match=r"\(2 x old a node\), not of pool 'cores' \(2 x cpu a node\)"):
        problem_of(workload, path, cluster)
