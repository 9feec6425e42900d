"""Which tails of a plan of groups the executor moves."""

from __future__ import annotations

import pytest

from rlplan.plans.facts.executable_groups import unsupported_in_groups

from ...group_documents import group, groups_plan, member, pinned


def findings(slots=1, **tail):
    """What is found of the tail of a job whose rollout has all units of its nodes; one node of two slots, or two."""
    fields = member() | {"tail_from": 0.7, "tail_units": 1, "tail_finished": 0.8} | tail
    fields["rollout"] = pinned("roll", 0) | {"units": [0, 1]}
    planned = group({"a": fields}, roll_nodes=2 // slots)
    planned["nodes"][0]["slots"] = slots
    planned["jobs"]["a"]["train"]["units"] = [2]
    plan = groups_plan({"g1": planned})
    return [text for location, text, _ in unsupported_in_groups(plan) if location[-1] == "tail_units"]


def test_a_tail_that_keeps_whole_nodes_can_be_moved():
    assert findings() == []


@pytest.mark.parametrize(
    ("case", "why"), [({"slots": 2}, "a part of one"), ({"tail_finished": None}, "older than tail_finished")]
)
def test_a_tail_on_a_part_of_a_node_or_of_an_older_plan_is_refused(case, why):
    (found,) = findings(**case)
    assert why in found


def test_rollouts_may_be_paused_and_training_may_not():
    planned = group({"a": member()})
    for phase in ("rollout", "train"):
        planned["jobs"]["a"][phase]["resume_s"] = 2.0
    found = [(where[-2], why) for where, why, _ in unsupported_in_groups(groups_plan({"g1": planned}))]
    assert [why for phase, why in found if phase == "train"] == ["the executor pauses rollouts, and no training"]
    assert not [why for phase, why in found if phase == "rollout"]
