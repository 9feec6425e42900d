"""A running plan as the state that re-planning begins from."""

from __future__ import annotations

import pytest

from rlplan.planner.groups.inputs.groups_state import GroupsState
from rlplan.planner.groups.inputs.running_plan import running_state
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.groups.solve_workload import solve_workload
from rlplan.plans.schema.groups_plan import GroupsInputs, load_groups_plan
from rlplan.plans.schema.sections.origin import InputFile
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump

from ....workloads import edit, write_workload

ANY = InputFile(path="x.yaml", sha256="a" * 64)
INPUTS = GroupsInputs(workload=ANY, cluster=ANY, sources={}, previous=None)


def problem(path):
    workload, cluster = load_workload(path)
    return workload, problem_of(workload, path, cluster)


@pytest.fixture
def running(tmp_path):
    """The workload's path and its plan's."""
    path = write_workload(tmp_path)
    workload, solved = problem(path)
    dump(solve_workload(workload, solved, INPUTS), tmp_path / "groups.yaml")
    return path, tmp_path / "groups.yaml"


def state_now(running) -> GroupsState:
    path, plan_path = running
    _, now = problem(path)
    return running_state(load_groups_plan(plan_path), plan_path, now.jobs, now.node_types)


def test_an_unchanged_workload_runs_as_planned(running):
    plan = load_groups_plan(running[1])
    state = state_now(running)
    assert set(state.groups) == set(plan.groups) and set(state.jobs) == {"big", "small"}
    for key, group in state.groups.items():
        assert group.nodes == tuple(node.pool for node in plan.groups[key].nodes)
        for pin in group.pins:
            member = plan.groups[key].jobs[pin.job]
            assert (pin.rollout, pin.rollout_units) == (member.rollout.way, member.rollout.units)
            assert (pin.train, pin.train_units) == (member.train.way, member.train.units)


def test_a_job_that_left_is_gone_with_the_nodes_that_only_it_had(running):
    path, _ = running
    text = path.read_text()
    path.write_text(text[: text.index("  small:")])
    state = state_now(running)
    assert set(state.jobs) == {"big"}
    [group] = state.groups.values()
    assert group.nodes == ("roll", "train")


def test_a_job_whose_phases_drifted_stays_with_its_new_seconds(running):
    edit(running[0], "mean_s: 60.0", "mean_s: 75.0")
    state = state_now(running)
    assert state.jobs["small"].rollout[0].mean_s == 75.0


def test_a_job_that_now_needs_another_width_has_to_be_placed_anew(running):
    edit(running[0], "rollout: {pool: roll, mean_s: 200.0", "rollout: {pool: roll, nodes: 2, mean_s: 200.0")
    assert set(state_now(running).jobs) == {"small"}


def test_a_cluster_that_cuts_its_nodes_otherwise_is_refused_at_the_plans_line(running):
    path, _ = running
    edit(path.with_name("cluster.yaml"), "slots: 2", "slots: 4")
    with pytest.raises(InputError, match=r"groups.yaml:\d+: .*has nodes of 4 slots, not 2; solve without --from"):
        state_now(running)
