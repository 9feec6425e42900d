"""Seconds of turns: complete iterations, without waits and without planned switches."""

import pytest

from rlplan.plans.schema.groups_plan import GroupMember
from rlplan.traces.groups.group_journal import GroupJournal, PhaseSpan, iteration_seconds

from ...group_documents import group, groups_plan, member
from ...group_journals import journal_of

MEMBER = GroupMember.model_validate(member())  # a switch takes 1 s


def turns(*taken):
    """(phase, begun, end, arrival, switched, ended) of job a."""
    made = GroupJournal("g1", "multi_rate", (0, 1), arrivals={"a": 1})
    for phase, begun_s, end_s, arrival, switched, ended in taken:
        made.spans.append(PhaseSpan("a", phase, begun_s, end_s, (0,), switched, ended, 0.0, arrival))
    return made


def iteration(at_s, rollout_s, train_s, arrival=1, switched=False):
    """A rollout and a training, with a wait before each."""
    return (
        ("rollout", at_s, at_s + rollout_s, arrival, switched, True),
        ("train", at_s + rollout_s + 50, at_s + rollout_s + 50 + train_s, arrival, switched, True),
    )


def test_waits_and_the_first_iterations_of_a_start_do_not_count():
    made = turns(
        *iteration(0, 9, 9), *iteration(200, 8, 8), *iteration(400, 6, 3), *iteration(600, 7, 4),
        *iteration(800, 9, 9, 2), *iteration(1000, 8, 8, 2), *iteration(1200, 5, 2, 2),
    )  # fmt: skip
    assert iteration_seconds(made, {"a": MEMBER}) == {"a": [(6, 3), (7, 4), (5, 2)]}


def test_a_switch_takes_at_most_half_of_its_turn():
    made = turns(*iteration(0, 9, 9), *iteration(200, 8, 8), *iteration(400, 6, 1.5, switched=True))
    assert iteration_seconds(made, {"a": MEMBER})["a"] == [(5, 0.75)]
    trains = member() | {"train": member()["train"] | {"switch_s": 0.25}}
    assert iteration_seconds(made, {"a": GroupMember.model_validate(trains)})["a"] == [(5, 1.25)]


def test_a_turn_that_a_death_ended_belongs_to_no_iteration():
    made = turns(
        *iteration(0, 9, 9), *iteration(200, 8, 8),
        ("rollout", 400, 404, 1, False, False), *iteration(500, 9, 9, 2), *iteration(700, 8, 8, 2),
        ("rollout", 900, 905, 2, False, True), ("train", 950, 951, 2, False, False), *iteration(1100, 6, 3, 2),
    )  # fmt: skip
    assert iteration_seconds(made, {"a": MEMBER})["a"] == [(6, 3)]


def test_a_job_that_did_not_run_has_no_seconds():
    assert iteration_seconds(turns(*iteration(0, 9, 9)), {"b": MEMBER}) == {"b": []}


def test_the_seconds_of_a_simulated_group_are_found_again():
    planned = groups_plan({"g1": group(["a", "b"])}).groups["g1"]
    made = journal_of("g1", planned, "first_come", {"a": (1.25, 1.0), "b": (1.0, 2.0)}, 60)
    found = iteration_seconds(made, planned.jobs)
    assert len(found["a"]) > 5 and len(found["b"]) > 5
    assert all(pair == (pytest.approx(75.0), pytest.approx(30.0)) for pair in found["a"])
    assert all(pair == (pytest.approx(60.0), pytest.approx(60.0)) for pair in found["b"])


def test_parts_of_a_turn_are_added_up_without_its_pauses():
    made = turns(*iteration(0, 9, 9), *iteration(200, 8, 8))
    parts = ((400, 404, (0, 1), False, False), (450, 455, (0, 1), True, False), (455, 457, (0, 1), False, True))
    for number, (begun_s, end_s, units, switched, ended) in enumerate(parts):
        made.spans.append(PhaseSpan("a", "rollout", begun_s, end_s, units, switched, ended, 0.0, 1, number == 0))
    made.spans.append(PhaseSpan("a", "train", 500, 503, (2,), False, True, 0.0, 1))
    assert iteration_seconds(made, {"a": MEMBER})["a"] == [(10, 3)]
