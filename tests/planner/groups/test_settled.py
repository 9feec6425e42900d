"""Timelines of settled groups and the cycle that sets their pace."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.critical import critical_cycle
from rlplan.planner.groups.model import Group, GroupJob, Pin, Rules, Way
from rlplan.planner.groups.rates import slowdowns
from rlplan.planner.groups.settled import settle, timeline_of


def job(name: str, rollout_s: float, train_s: float, slo: float = 2.0) -> GroupJob:
    return GroupJob(name, slo, (Way("a", 1, 1, rollout_s, 1.0),), (Way("b", 1, 1, train_s, 1.0),))


def shared(*jobs: GroupJob) -> tuple[Group, dict[str, GroupJob]]:
    """All jobs on one rollout node and one training node."""
    pins = tuple(Pin(j.name, 0, (0,), 0, (1,)) for j in sorted(jobs, key=lambda j: j.name))
    return Group(("a", "b"), pins), {j.name: j for j in jobs}


def test_a_lone_job_goes_round_in_the_time_it_takes_alone():
    group, jobs = shared(job("x", 30.0, 10.0))
    settled = settle(group, jobs, Rules())
    timeline = timeline_of(settled)
    assert timeline.span_s == pytest.approx(40.0)
    assert [(s.phase, s.begin_s, s.end_s) for s in timeline.spans] == [
        ("rollout", pytest.approx(0.0), pytest.approx(30.0)),
        ("train", pytest.approx(30.0), pytest.approx(40.0)),
    ]


def test_the_critical_cycle_of_jobs_that_fill_a_node_is_their_turns_on_it():
    group, jobs = shared(job("x", 60.0, 10.0), job("y", 50.0, 10.0))
    cycle = critical_cycle(settle(group, jobs, Rules()).spans)
    assert {(span.job, span.phase) for span in cycle} == {("x", "rollout"), ("y", "rollout")}
    assert sum(span.end_s - span.start_s for span in cycle) == pytest.approx(110.0)


def test_the_critical_cycle_of_a_job_that_waits_for_nobody_is_its_own():
    group, jobs = shared(job("x", 60.0, 40.0), job("y", 10.0, 20.0))
    cycle = critical_cycle(settle(group, jobs, Rules(policy="round_robin")).spans)
    assert {span.job for span in cycle} == {"x"}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(20, 90), st.integers(20, 90)), min_size=1, max_size=3),
    st.sampled_from(["round_robin", "first_come", "multi_rate"]),
)
def test_nobody_holds_a_unit_while_another_does_and_every_member_is_shown_at_the_pace_of_its_slowdown(phases, policy):
    group, jobs = shared(*(job(f"j{i}", float(r), float(t)) for i, (r, t) in enumerate(phases)))
    rules = Rules(policy=policy)
    timeline = timeline_of(settle(group, jobs, rules))
    for unit in (0, 1):
        held = sorted((s.begin_s, s.end_s) for s in timeline.spans if unit in s.units)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(held))
    assert max(s.end_s for s in timeline.spans) <= timeline.span_s + 1e-9
    if policy == "round_robin":
        longest = max(jobs.values(), key=lambda j: (j.solo_s, j.name))
        slow = slowdowns(group, jobs, rules)[longest.name].mean
        assert timeline.span_s == pytest.approx(slow * longest.solo_s, rel=1e-3)
