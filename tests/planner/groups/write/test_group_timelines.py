"""The part of a group's steady state that a plan shows."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, PhaseWay, Pin, Rules
from rlplan.planner.groups.simulate.steady_state import steady_state
from rlplan.planner.groups.write.group_timelines import ITERATIONS, timeline_of


def job(name: str, rollout_s: float, train_s: float, nodes: int) -> GroupJob:
    return GroupJob(name, 3.0, (PhaseWay("a", nodes, 1, rollout_s, 1.0),), (PhaseWay("b", 1, 1, train_s, 1.0),))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(20, 90), st.integers(20, 90), st.integers(1, 2)), min_size=1, max_size=3),
    st.sampled_from(["round_robin", "first_come", "multi_rate"]),
)
def test_every_job_is_shown_on_all_its_units_and_nobody_holds_one_while_another_does(phases, policy):
    jobs = {f"j{i}": job(f"j{i}", float(r), float(t), n) for i, (r, t, n) in enumerate(phases)}
    pins = tuple(Pin(name, 0, tuple(range(jobs[name].rollout[0].nodes)), 0, (2,)) for name in sorted(jobs))
    state = steady_state(Group(("a", "a", "b"), pins), jobs, Rules(permit_rule=policy), {})
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
