"""A plan's document alone: the state that re-planning begins from, and seats that give the planned schedule."""

import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from rlplan.executor.groups.prepare_group import seat_of
from rlplan.planner.groups.inputs.running_plan import running_state
from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, TurnSpan, machine_seats, simulate_turns
from rlplan.plans.schema.groups_plan import GroupsPlan, PlannedGroup, load_groups_plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.rounds.permits.permit_machine import PermitMachine

from ....workloads import edit, write_workload
from ..made import POLICIES, problem, solved

RULES = "rules: {policy: multi_rate, group_cap: 4}"


def plan_in(folder: Path, rules: str = RULES) -> GroupsPlan:
    """The plan of the workload under these rules; both are written into the folder."""
    path = write_workload(folder)
    edit(path, RULES, rules)
    edit(path, "        mean_s: 60.0\n", "        mean_s: 60.0\n        resume_s: 1.5\n")
    plan = solved(path)
    dump(plan, folder / "groups.yaml")
    return plan


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A folder with a plan, and the plan."""
    folder = tmp_path_factory.mktemp("planned")
    return folder, plan_in(folder)


@pytest.fixture
def folder(once, tmp_path):
    """The same folder, to be changed."""
    return Path(shutil.copytree(once[0], tmp_path / "copy"))


def state_now(folder: Path):
    path, now = folder / "groups.yaml", problem(folder / "workload.yaml")
    return running_state(load_groups_plan(path), path, now.jobs, now.node_types)


def test_an_unchanged_workload_runs_as_planned(once):
    folder, plan = once
    state = state_now(folder)
    assert set(state.groups) == set(plan.groups) and set(state.jobs) == {"big", "small"}
    for key, group in state.groups.items():
        assert group.nodes == tuple(node.pool for node in plan.groups[key].nodes)
        for pin in group.pins:
            member = plan.groups[key].jobs[pin.job]
            assert (pin.rollout, pin.rollout_units) == (member.rollout.way, member.rollout.units)
            assert (pin.train, pin.train_units) == (member.train.way, member.train.units)


def test_a_job_that_left_is_gone_with_its_own_nodes(folder):
    path = folder / "workload.yaml"
    path.write_text(path.read_text().partition("  small:")[0])
    state = state_now(folder)
    assert set(state.jobs) == {"big"}
    assert [group.nodes for group in state.groups.values()] == [("roll", "train")]


def test_a_job_stays_with_new_seconds_and_not_with_another_width(folder):
    edit(folder / "workload.yaml", "mean_s: 60.0", "mean_s: 75.0")
    assert state_now(folder).jobs["small"].rollout[0].mean_s == 75.0
    edit(folder / "workload.yaml", "rollout: {pool: roll, mean_s: 200.0", "rollout: {pool: roll, nodes: 2, mean_s: 200")
    assert set(state_now(folder).jobs) == {"small"}


@pytest.mark.parametrize("slots", [4, None])
def test_a_cluster_with_other_nodes_is_refused_at_the_plans_line(once, slots):
    path, now = once[0] / "groups.yaml", problem(once[0] / "workload.yaml")
    kinds = {**now.node_types, "roll": replace(now.node_types["roll"], slots=slots)} if slots else {}
    says = "has nodes of 4 slots, not 2" if slots else "is gone"
    with pytest.raises(InputError, match=rf"groups.yaml:\d+: .*{says}; solve without --from"):
        running_state(once[1], path, now.jobs, kinds)


def order(spans: list[TurnSpan]) -> dict[int, list[tuple[str, str, bool, bool]]]:
    """Who holds each unit, one after the other."""
    found: dict[int, list[tuple[str, str, bool, bool]]] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, span.job)):
        for unit in span.units:
            found.setdefault(unit, []).append((span.job, span.phase, span.switched, span.ends_phase))
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tail", ["", ", tail_keep: 0.5"])
def test_seats_from_the_document_give_the_simulated_schedule(tmp_path, policy, tail):
    def planned_seats(of: PlannedGroup):
        """As the executor makes them, by job name: the order in which the planner's simulation lets jobs arrive."""
        return [seat_of(name, member) for name, member in sorted(of.jobs.items())]

    def turns(seats, truths) -> list[TurnSpan]:
        return list(islice(simulate_turns(PermitMachine(policy), seats, truths), 60))

    plan = plan_in(tmp_path, f"rules: {{policy: {policy}, group_cap: 4{tail}}}")
    assert plan.rules.policy == policy
    read, now = load_groups_plan(tmp_path / "groups.yaml"), problem(tmp_path / "workload.yaml")
    state = running_state(plan, tmp_path / "groups.yaml", now.jobs, now.node_types)
    for key, group in state.groups.items():
        seats, truths = machine_seats(group, state.jobs, now.rules)
        expected = turns(seats, truths)
        assert turns(planned_seats(plan.groups[key]), truths) == expected
        # The file holds six digits: the same turns in the same order, within that.
        from_file = planned_seats(read.groups[key])
        scaled = [
            TrueTurns(
                tuple(tuple(d * s / e for d, s, e in zip(draw, seat.expected_s, exact.expected_s, strict=True))
                      for draw in truth.draws_s),
                truth.tail_share,
            )
            for truth, seat, exact in zip(truths, from_file, seats, strict=True)
        ]  # fmt: skip
        got = turns(from_file, scaled)
        assert order(got) == order(expected)
        assert [span.end_s for span in got] == pytest.approx([span.end_s for span in expected], rel=1e-4)


def test_a_member_states_its_pace_inside_its_bound_and_its_switches(once):
    folder, plan = once
    jobs = problem(folder / "workload.yaml").jobs
    for name, member in ((name, member) for group in plan.groups.values() for name, member in group.jobs.items()):
        bound_s = member.slowdown.slo * member.slowdown.alone_s
        assert 0.9 * bound_s < member.pace_s < bound_s
        assert member.rollout.switch_s == jobs[name].rollout[member.rollout.way].warm_s
        assert member.train.switch_s > 0
        assert member.rollout.resume_s == (1.5 if name == "small" else None)


def test_a_tail_that_would_free_no_unit_is_refused(once, folder):
    units = next(m.rollout.units for g in once[1].groups.values() for n, m in g.jobs.items() if n == "big")
    path = folder / "groups.yaml"
    before, mark, after = path.read_text().partition("\n      big:")
    after = after.replace("tail_from: null", "tail_from: 0.8", 1)
    path.write_text(before + mark + after.replace("tail_units: null", f"tail_units: {len(units)}", 1))
    with pytest.raises(InputError, match="frees none of them"):
        load_groups_plan(path)
