"""A workload whose jobs' seconds come from a job's own plan, and from a run of it."""

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from rlplan.planner.check.group_rules import workload_faults
from rlplan.planner.groups.inputs.phase_seconds import from_plan, from_run
from rlplan.planner.tune.executed_run import load_executed
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump

from ....cli.command_line import rlplan
from ....workloads import edit, write_workload
from ...conftest import laptop
from ...synthetic_run import solved, synthesize
from ..made import problem

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

SOURCES = {"plan: plan.yaml": "plan.yaml", "run: run": "run/trace.jsonl"}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A plan's file and the folder of a run of it that went as predicted."""
    folder = tmp_path_factory.mktemp("executed")
    documents = solved(mode="sync")
    dump(documents.plan, folder / "plan.yaml")
    synthesize(folder / "run", documents.plan, documents.job, documents.profile, documents.trace, noise=0.0, steps=60)
    return folder


@pytest.fixture
def home(executed, tmp_path):
    """The same files, to be changed."""
    return Path(shutil.copytree(executed, tmp_path / "home"))


def workload_of(folder: Path, source: str, rollout: str = "pool: main", train: str = "pool: main") -> Path:
    """A workload whose job `small` has these references and this source; the plan's pool is one of the cluster's."""
    path = write_workload(folder)
    edit(folder / "cluster.yaml", "links:\n", MAIN)
    edit(path, "pool: roll\n        mean_s: 60.0\n", f"{rollout}\n        resident_bytes: 1000000000\n")
    edit(path, "train: {pool: train, mean_s: 40.0}", f"train: {{{train}, resident_bytes: 1000000000}}")
    edit(path, "    model: Qwen2.5-3B", f"    model: Qwen2.5-3B\n    source: {{{source}}}")
    return path


def test_a_plan_gives_the_phases_of_a_run_that_went_as_predicted(executed):
    run = load_executed(executed / "run")
    planned, measured = from_plan(run.plan, "job"), from_run(run)
    # The plan was solved on 16 rounds of heavy-tailed lengths: its own mean is off by a standard error of 8 %.
    assert planned.rollout_s == pytest.approx(measured.rollout_s, rel=0.25)
    assert planned.train_s == pytest.approx(measured.train_s, rel=0.1)
    assert planned.rollout_s + planned.train_s == pytest.approx(run.plan.predicted.step_s.mean, rel=1e-6)
    assert measured.rollout_s + measured.train_s == pytest.approx(fmean(s.total_s for s in run.steps if s.warm))
    assert max(pair[0] for pair in planned.spread) == pytest.approx(max(pair[0] for pair in measured.spread), rel=0.5)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_was_read_is_an_input_of_the_plan(source, home):
    found = problem(workload_of(home, source))
    small = found.jobs["small"]
    assert found.read == {"small": home / SOURCES[source]}
    assert small.spread and small.rollout[1].mean_s == pytest.approx(1.5 * small.rollout[0].mean_s)


OTHER_POOL = "train.pool", "train: {pool: train, resident", "pool 'main'", "8 x H800 a node"
MORE_NODES = "rollout.nodes", "nodes: 3", "are of 1 node, not of 3", ""
THREE = "pool: main\n        nodes: 3"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("rollout", "train", "faults"),
    [
        ("pool: main", "pool: train", [OTHER_POOL]),
        (THREE, "pool: main", [MORE_NODES]),
        (THREE, "pool: train", [MORE_NODES, OTHER_POOL]),
    ],
)
def test_seconds_of_a_source_are_refused_for_other_machines(source, home, rollout, train, faults):
    path = workload_of(home, source, rollout, train)
    with pytest.raises(InputError) as caught:
        problem(path)
    lines, errors = path.read_text().splitlines(), [str(each) for each in caught.value.each()]
    for (key, mark, *words), text in zip(faults, errors, strict=True):
        line = 1 + next(at for at, text in enumerate(lines) if mark in text)
        assert text.startswith(f"{path}:{line}: jobs.small.phases.{key}: the seconds of '")
        assert all(word in text for word in [*words, "under ways with"])
    found = [fault.location for fault in workload_faults(load_workload(path)[0], str(path))]
    assert found == [("jobs", "small", "phases", *key.split(".")) for key, *_ in faults]


def test_check_of_a_plan_finds_a_workload_moved_to_other_machines(home):
    path, groups = workload_of(home, "plan: plan.yaml"), home / "groups.yaml"
    assert rlplan("solve", path).returncode == 0
    assert rlplan("check", groups).returncode == 0
    edit(path, "train: {pool: main,", "train: {pool: train,")
    found = json.loads(rlplan("check", groups, "--json").stdout)["files"][0]["findings"]
    assert {"input-changed", "workload-unsolvable"} <= {finding["rule"] for finding in found}
    [moved] = [finding for finding in found if finding["rule"] == "workload-unsolvable"]
    assert "not of pool 'train'" in moved["message"] and moved["key"] == "inputs.workload"


def test_a_pool_of_the_same_accelerators_has_the_plans_seconds(home):
    """The plan's own cluster file says what its pool is; without one the pools' names have to be the same."""
    (home / "own").mkdir()
    shutil.move(home / "plan.yaml", home / "own")
    path = workload_of(home, "plan: own/plan.yaml", "pool: cores", "pool: cores")
    edit(home / "cluster.yaml", "  main:\n", "  cores:\n")
    with pytest.raises(InputError, match=r"are of pool 'main', not of pool 'cores'"):
        problem(path)
    dump(laptop(), home / "own" / "cluster.yaml")
    assert problem(path).jobs["small"].rollout[0].pool == "cores"
    accelerators = {**laptop().pools["main"].accelerators.model_dump(), "name": "old"}
    dump(laptop(accelerators=accelerators), home / "own" / "cluster.yaml")
    with pytest.raises(InputError, match=r"\(2 x old a node\), not of pool 'cores' \(2 x cpu a node\)"):
        problem(path)
