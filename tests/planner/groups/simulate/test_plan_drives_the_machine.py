"""The plan document holds all that the permit machine needs: seats made from it alone give the planned schedule."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from rlplan.planner.groups.inputs.running_plan import running_state
from rlplan.planner.groups.inputs.workload_jobs import Problem, problem_of
from rlplan.planner.groups.simulate.permit_seats import machine_seats
from rlplan.planner.groups.simulate.permit_simulator import Span, TrueTurns, simulate_turns
from rlplan.planner.groups.solve_workload import solve_workload
from rlplan.plans.schema.groups_plan import GroupsInputs, GroupsPlan, load_groups_plan
from rlplan.plans.schema.sections.origin import InputFile
from rlplan.plans.schema.sections.planned_group import PlannedGroup
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.rounds.permits.permit_events import Seat
from rlplan.rounds.permits.permit_machine import PermitMachine

from ....workloads import edit, write_workload

ANY = InputFile(path="x.yaml", sha256="a" * 64)
INPUTS = GroupsInputs(workload=ANY, cluster=ANY, sources={}, previous=None)
RULES = "rules: {policy: multi_rate, group_cap: 4}"


def solved(folder: Path, rules: str) -> tuple[GroupsPlan, GroupsPlan, Problem]:
    """The plan, the same from its file, and what it was solved from."""
    path = write_workload(folder)
    edit(path, RULES, rules)
    edit(path, "        mean_s: 60.0\n", "        mean_s: 60.0\n        resume_s: 1.5\n")
    workload, cluster = load_workload(path)
    problem = problem_of(workload, path, cluster)
    plan = solve_workload(workload, problem, INPUTS)
    dump(plan, folder / "groups.yaml")
    return plan, load_groups_plan(folder / "groups.yaml"), problem


def planned_seats(group: PlannedGroup) -> list[Seat]:
    """Seats by job name, the order in which the planner's simulation lets jobs arrive, from the document alone."""
    return [
        Seat(
            job=name,
            units=(member.rollout.units, member.train.units),
            expected_s=(member.rollout.mean_s, member.train.mean_s),
            switch_s=(member.rollout.switch_s, member.train.switch_s),
            pace_s=member.pace_s,
            keep=member.tail_units or 0,
            resume_s=(member.rollout.resume_s, member.train.resume_s),
        )
        for name, member in sorted(group.jobs.items())
    ]


def order(spans: list[Span]) -> dict[int, list[tuple[str, str, bool, bool]]]:
    """Who holds each unit, one after the other."""
    found: dict[int, list[tuple[str, str, bool, bool]]] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, span.job)):
        for unit in span.units:
            found.setdefault(unit, []).append((span.job, span.phase, span.switched, span.ends_phase))
    return found


@pytest.mark.parametrize("policy", ["multi_rate", "first_come", "round_robin"])
@pytest.mark.parametrize("tail", ["", ", tail_keep: 0.5"])
def test_seats_from_the_document_alone_give_the_schedule_of_the_simulator(tmp_path, policy, tail):
    plan, read, problem = solved(tmp_path, f"rules: {{policy: {policy}, group_cap: 4{tail}}}")
    state = running_state(plan, tmp_path / "groups.yaml", problem.jobs, problem.node_types)
    for key, group in state.groups.items():
        seats, truths = machine_seats(group, state.jobs, problem.rules)
        mine = planned_seats(plan.groups[key])
        expected = list(islice(simulate_turns(PermitMachine(problem.rules.permit_rule), seats, truths), 60))
        assert list(islice(simulate_turns(PermitMachine(plan.rules.policy), mine, truths), 60)) == expected
        # The file holds six digits: the same turns in the same order, within that.
        from_file = planned_seats(read.groups[key])
        scaled = [
            TrueTurns(
                tuple(
                    (a * s.expected_s[0] / e.expected_s[0], b * s.expected_s[1] / e.expected_s[1])
                    for a, b in truth.draws_s
                ),
                truth.tail_share,
            )
            for truth, s, e in zip(truths, from_file, seats, strict=True)
        ]
        got = list(islice(simulate_turns(PermitMachine(read.rules.policy), from_file, scaled), 60))
        assert order(got) == order(expected)
        assert [span.end_s for span in got] == pytest.approx([span.end_s for span in expected], rel=1e-4)


def test_a_member_states_its_pace_just_inside_its_bound_and_what_a_switch_takes(tmp_path):
    plan, _, problem = solved(tmp_path, RULES)
    for group in plan.groups.values():
        for name, member in group.jobs.items():
            bound_s = member.slowdown.slo * member.slowdown.alone_s
            assert 0.9 * bound_s < member.pace_s < bound_s
            assert member.rollout.switch_s == problem.jobs[name].rollout[member.rollout.way].warm_s
            assert member.train.switch_s > 0
    assert {m.rollout.resume_s for g in plan.groups.values() for n, m in g.jobs.items() if n == "small"} == {1.5}


def test_a_tail_that_would_free_no_unit_is_refused(tmp_path):
    plan, _, _ = solved(tmp_path, RULES)
    path = tmp_path / "groups.yaml"
    units = next(m.rollout.units for g in plan.groups.values() for n, m in g.jobs.items() if n == "big")
    text = path.read_text()
    at = text.index("\n      big:")
    changed = text[at:].replace("tail_from: null", "tail_from: 0.8", 1)
    changed = changed.replace("tail_units: null", f"tail_units: {len(units)}", 1)
    path.write_text(text[:at] + changed)
    with pytest.raises(InputError, match="frees none of them"):
        load_groups_plan(path)
