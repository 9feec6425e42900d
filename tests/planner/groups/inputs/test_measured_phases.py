"""Measured seconds in the place of stated ones."""

import pytest

from rlplan.planner.groups.inputs.group_model import GroupJob, NodeType, PhaseWay, Rules
from rlplan.planner.groups.inputs.measured_phases import FEWEST, given_phases, reference_phases, with_phases
from rlplan.planner.groups.inputs.workload_jobs import Problem
from rlplan.plans.schema.groups_plan import GroupMember

from ....group_documents import member, pinned


def problem(interference: float = 0.0) -> Problem:
    """A job whose second rollout way takes 1.5 times as long as its reference."""
    ways = PhaseWay("roll", 1, 1, 60.0, 1e9), PhaseWay("roll", 2, 1, 90.0, 1e9)
    job = GroupJob("a", 1.5, ways, (PhaseWay("train", 1, 1, 30.0, 1e9),))
    return Problem({"a": job}, {"roll": NodeType("roll", 1.0, 1e12)}, Rules(interference=interference))


def measured(pairs, way=0, jobs=1, interference=0.0):
    """The measured reference of a job that ran by a way beside others, from its turns' seconds."""
    made = GroupMember.model_validate(member() | {"rollout": pinned("roll", 0) | {"way": way}})
    members = {"a": made} | {f"other-{i}": made for i in range(jobs - 1)}
    return reference_phases(problem(interference), members, {"new": [(1.0, 1.0)] * 9, "a": pairs})


def test_a_job_has_its_turns_mean_and_spread_on_its_reference():
    found = measured([(70.0, 20.0), (90.0, 40.0)] * 3)
    assert found["a"].document().model_dump() == {"rollout_s": 80.0, "train_s": 30.0, "iterations": 6}
    job = with_phases(problem(), found).jobs["a"]
    assert job.solo_s == pytest.approx(110.0) and job.rollout[1].mean_s == pytest.approx(120.0)
    assert job.spread[:2] == ((0.875, pytest.approx(2 / 3)), (1.125, pytest.approx(4 / 3)))
    again = given_phases({name: each.document() for name, each in found.items()})
    assert with_phases(problem(), again).jobs["a"].rollout[0].mean_s == pytest.approx(80.0), "as the document has it"


def test_a_job_on_another_way_has_the_seconds_of_its_reference():
    found = measured([(135.0, 30.0)] * 6, way=1)
    assert found["a"].seconds.rollout_s == pytest.approx(90.0) and found["a"].seconds.spread == ()
    assert with_phases(problem(), found).jobs["a"].rollout[1].mean_s == pytest.approx(135.0)


@pytest.mark.parametrize(("jobs", "rollout_s"), [(1, 66.0), (2, 60.0)])
def test_interference_is_taken_out_where_there_are_other_jobs(jobs, rollout_s):
    found = measured([(66.0, 33.0)] * 6, jobs=jobs, interference=0.1)
    assert found["a"].seconds.rollout_s == pytest.approx(rollout_s)


def test_few_iterations_and_unknown_jobs_change_nothing():
    assert measured([(70.0, 20.0)] * (FEWEST - 1)) == {} and set(measured([(70.0, 20.0)] * FEWEST)) == {"a"}
    assert with_phases(problem(), {}) == problem()
