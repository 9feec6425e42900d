"""A re-plan is proposed from what the jobs of running groups were measured at."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rlplan.planner.check.check_options import CheckOptions
from rlplan.planner.check.group_rules import groups_faults
from rlplan.planner.groups.propose_replan import propose_replan
from rlplan.plans.diff.groups_diff import diff_groups
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, sha256_file

from ...replanned import Running


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    made = Running(tmp_path_factory.mktemp("running"))
    assert len(made.plan.groups) == 1, "both jobs share their nodes"
    return made


def test_jobs_that_are_as_planned_stay(running):
    proposal = running.propose({})
    assert proposal.moves == () and all(job.keeps for job in proposal.staying.values())
    assert proposal.measured["a"].rollout_s == pytest.approx(100.0, rel=0.01)
    assert proposal.measured["a"].iterations > 10


def test_a_job_that_grew_breaks_the_others_bound_and_is_given_nodes_of_its_own(running):
    proposal = running.propose({"b": (1.6, 1.6)})
    assert not proposal.staying["a"].keeps and proposal.staying["a"].slowdown.mean > 1.15
    assert proposal.measured["b"].train_s > 1.5 * 90
    assert len(proposal.moves) == 1
    move = proposal.moves[0]
    assert move.needed and move.price_s > 0 and move.price_usd > 0
    assert all(member.slowdown.keeps for group in proposal.plan.groups.values() for member in group.jobs.values())
    diff = diff_groups(proposal.running, proposal.plan, old_sha256=sha256_file(running.plan_path))
    assert diff.moves_from_old and diff.count("moved") == 1 and diff.effect("bounds_broken").new == 0


def test_the_plan_says_what_was_measured_and_passes_the_checks(running):
    proposal = running.propose({"b": (1.6, 1.6)})
    dump(proposal.plan, running.out, 6)
    plan = load_groups_plan(running.out)
    assert set(plan.inputs.measured) == {"a", "b"}
    faults, _ = groups_faults(plan, str(running.out), CheckOptions(datetime.now(UTC), None, None))
    assert [fault.rule for fault in faults] == []
    blank = plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"measured": {}})})
    faults, _ = groups_faults(blank, str(running.out), CheckOptions(datetime.now(UTC), None, None))
    assert {fault.rule for fault in faults} == {"way-changed"}, "without them its seconds are not the workload's"


def test_a_plan_without_measurements_has_no_such_key(running):
    assert "measured" not in running.plan_path.read_text()


def test_jobs_that_ended_are_left_out(running):
    proposal = running.propose({"b": (1.6, 1.6)}, ended=["b"])
    assert set(proposal.staying) == {"a"} and [*proposal.plan.groups] == [*proposal.running.groups]
    assert [name for group in proposal.plan.groups.values() for name in group.jobs] == ["a"]
    with pytest.raises(InputError, match="none of its jobs runs"):
        running.propose({}, ended=["a", "b"])


def test_without_journals_the_workloads_seconds_hold(running):
    proposal = propose_replan(running.workload, running.plan_path, running.out, {}, {})
    assert proposal.measured == {} and proposal.moves == ()


def test_a_job_that_is_behind_its_bound_still_moves_where_a_bound_needs_it(running):
    proposal = running.propose({"b": (1.6, 1.6)}, ahead_s={"a": -50.0, "b": 0.0})
    assert len(proposal.moves) == 1 and proposal.moves[0].needed
