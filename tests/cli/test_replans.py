"""The re-plan that a driver of groups proposes is written, and allowed only as far as the policy goes."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("ray")

from rlplan.cli.many_jobs.replans import write_replan
from rlplan.executor.groups.moves.bound_driver import ReplanInputs
from rlplan.plans.schema.groups_plan import load_groups_plan

from ..replanned import Running

POLICY = """\
rlplan_policy: 1
auto_apply: {most_moves: 5, most_price_s: 9000.0, most_usd_per_hour_more: 500.0, least_hours_between: 1.0}
"""
SLOWER = {"b": (1.6, 1.6)}


@pytest.fixture
def running(tmp_path):
    made = Running(tmp_path)
    (tmp_path / "runs").mkdir()
    shutil.copy(made.plan_path, tmp_path / "runs" / "groups.yaml")
    return made


def proposed(running, factors=SLOWER, ended=frozenset(), hours_since=None):
    out = running.plan_path.parent / "runs"
    given = ReplanInputs(running.plan_path, out / "groups.yaml", running.journals(factors), {}, ended, hours_since)
    return write_replan(given, out / "proposed-1.yaml")


def test_nothing_is_applied_without_a_policy_and_the_new_plan_is_written_for_a_person(running):
    made = proposed(running)
    assert made.moves >= 1 and made.price_s > 0 and not made.applies
    assert made.reason == "no rlplan.policy.yaml allows it"
    new = load_groups_plan(made.path)
    assert len(new.moves) == made.moves and new.inputs.measured


def test_the_policy_beside_the_plan_allows_it_within_its_limits(running):
    policy = running.plan_path.with_name("rlplan.policy.yaml")
    policy.write_text(POLICY)
    assert proposed(running).applies
    soon = proposed(running, hours_since=0.5)
    assert not soon.applies and "least_hours_between: 1" in soon.reason
    policy.write_text(POLICY.replace("most_price_s: 9000.0", "most_price_s: 1.0"))
    dear = proposed(running)
    assert not dear.applies and "rlplan.policy.yaml:2 has most_price_s: 1" in dear.reason


def test_what_a_person_changed_in_the_workload_is_not_applied_with_it(running):
    running.plan_path.with_name("rlplan.policy.yaml").write_text(POLICY)
    running.workload.write_text(running.workload.read_text().replace("slo: 1.15", "slo: 1.14"))
    made = proposed(running)
    assert not made.applies and "its workload was edited since the running plan was solved" in made.reason


def test_jobs_that_have_ended_do_not_stand_in_the_way(running):
    running.plan_path.with_name("rlplan.policy.yaml").write_text(POLICY)
    assert "go with it" not in proposed(running, ended=frozenset({"b"})).reason
