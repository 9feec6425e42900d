"""What a plan says about its groups, and the part of their steady state that it shows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.group_why import explain
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, GroupsState, Pin, Rules
from rlplan.planner.groups.simulate.slowdowns import slowdowns
from rlplan.planner.groups.simulate.steady_state import steady_state
from rlplan.planner.groups.write_groups import ITERATIONS, timeline_of

from ..made import POLICIES, group, job, named, node_types

NODE_TYPES = node_types(10.0, 40.0)


def why(groups: list[Group], *jobs: GroupJob) -> dict[str, str]:
    """Of the first of these groups."""
    state = GroupsState(named(*jobs), {f"g{at}": each for at, each in enumerate(groups, 1)})
    steady, got = (of(groups[0], state.jobs, Rules(), *more) for of, more in ((steady_state, [{}]), (slowdowns, [])))
    return explain("g1", state, got, steady, NODE_TYPES, Rules())


def beside(long_slo: float, short_slo: float) -> dict[str, str]:
    """RollMux, arXiv 2512.11306: two rollout nodes, one training node, 400+100 s and 50+50 s."""
    pair = group(("long", "short"), (0, 1))
    return why([pair], job("long", 400, 100, long_slo), job("short", 50, 50, short_slo))


def test_the_plan_says_what_other_policies_and_nodes_would_do():
    text = beside(1.5, 1.5)
    assert text["policy"].startswith("multi_rate, as the workload says; round_robin would slow short to 5.00x")
    assert text["cost"].startswith("long and short share nodes for 60.00 USD an hour; on nodes of their own they cost")
    assert text["cost"].endswith(" 100.00 USD, 1.67 times as much")
    assert text["next_best"] == "long on nodes of its own: 40.00 USD an hour more"
    assert text["pace"].startswith("bottleneck: rollout of long on roll 0, then training of long on train 2; ")


def test_a_bottleneck_of_many_jobs_is_named_by_their_node():
    """Three jobs that decode on nodes of their own, and train on one: its turns, however many, are one bottleneck."""
    jobs = [job(name, 100, 90 + at, 4.0) for at, name in enumerate("abc")]
    text = why([group(tuple("abc"), (0, 1, 2))], *jobs)["pace"]
    assert "training of a, b and c on train 3" in text and "turns" not in text


def test_a_policy_that_would_do_as_well_is_named():
    assert beside(1.02, 1.3)["policy"].endswith("; first_come would keep all bounds, too, with the same slowdowns")


def test_a_job_alone_says_whom_it_would_slow_elsewhere():
    text = why([group("x", (0,)), group("y", (0,))], job("x", 20, 200, 1.1), job("y", 20, 200, 1.1))
    assert "has these nodes to itself: 50.00 USD" in text["cost"]
    assert text["next_best"].startswith("x in g2: 0.00 USD an hour instead of 50.00, but it slows ")
    assert "to 1.82x, and its limit is 1.10x" in text["next_best"]
    assert "policy" not in text and "pace" not in text


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(20, 90), st.integers(20, 90), st.integers(1, 2)), min_size=1, max_size=3))
def test_a_timeline_shows_every_job_on_its_units_one_at_a_time(policy, phases):
    jobs = named(*(job(f"j{i}", r, t, 3.0, nodes=(n, 1)) for i, (r, t, n) in enumerate(phases)))
    pins = tuple(Pin(name, 0, tuple(range(jobs[name].rollout[0].nodes)), 0, (2,)) for name in sorted(jobs))
    state = steady_state(Group(("roll", "roll", "train"), pins), jobs, Rules(permit_rule=policy), {})
    timeline = timeline_of(state)
    assert timeline.span_s <= timeline.period_s
    assert timeline.span_s >= timeline.period_s * min(1.0, ITERATIONS / min(state.iterations.values())) * (1 - 1e-9)
    for unit in (0, 1, 2):
        held = sorted((s.begin_s, s.end_s) for s in timeline.spans if unit in s.units)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(held))
    assert all(0 <= s.begin_s < s.end_s <= timeline.span_s + 1e-9 for s in timeline.spans)
    for pin in pins:
        assert {s.units for s in timeline.spans if s.job == pin.job and s.phase == "rollout"} == {pin.rollout_units}
        assert {s.phase for s in timeline.spans if s.job == pin.job} == {"rollout", "train"}
