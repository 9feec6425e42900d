"""Deadlines that prompts earn."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.timeouts import Execution, PoolTimeouts, Timeouts, TimeoutSpec

PUBLISHED = TimeoutSpec(max_s=30.0, min_s=2.0, anchor_factor=1.5)

seconds = st.floats(0, 60)
specs = st.builds(
    lambda low, more, factor: TimeoutSpec(low + more, low, factor),
    st.floats(0.1, 10),
    st.floats(0, 30),
    st.floats(1, 4),
)


@st.composite
def executions(draw) -> Execution:
    how = draw(st.sampled_from(["correct", "wrong", "timeout"]))
    return Execution(draw(st.sampled_from("abc")), draw(seconds), how == "correct", how == "timeout")


rounds = st.lists(st.lists(executions(), max_size=8), max_size=6)


def after(spec: TimeoutSpec, done: list[list[Execution]]) -> Timeouts:
    timeouts = Timeouts(spec)
    for round_ in done:
        timeouts.end_round(round_)
    return timeouts


def test_a_prompt_has_the_longest_deadline_until_it_was_answered_right() -> None:
    timeouts = Timeouts(PUBLISHED)
    assert timeouts.deadline_s("p") == 30.0
    timeouts.end_round([Execution("p", 9.0, correct=False, timed_out=False)])
    assert timeouts.deadline_s("p") == 30.0
    timeouts.end_round([Execution("p", 4.0, correct=True, timed_out=False)])
    assert timeouts.deadline_s("p") == 6.0
    assert timeouts.deadline_s("q") == 30.0


@pytest.mark.parametrize(("anchor_s", "deadline_s"), [(None, 30), (0.031, 2), (1.4, 2.1), (19, 28.5), (21, 30)])
def test_the_published_rule(anchor_s, deadline_s) -> None:
    assert PUBLISHED.deadline_s(anchor_s) == pytest.approx(deadline_s)


@given(spec=specs, low=seconds, more=seconds)
def test_a_deadline_is_within_its_bounds_and_never_falls_as_the_anchor_rises(spec, low, more) -> None:
    assert spec.floor_s <= spec.deadline_s(low) <= spec.deadline_s(low + more) <= spec.max_s == spec.deadline_s(None)
    # What was right in time once is in time again.
    assert spec.deadline_s(low) >= min(low, spec.max_s)


@given(spec=specs, done=rounds)
def test_an_anchor_is_the_slowest_correct_execution_of_earlier_rounds(spec, done) -> None:
    timeouts, seen = Timeouts(spec), []
    for round_ in done:
        seen += round_
        timeouts.end_round(round_)
        for prompt in "abc":
            correct = [e.seconds for e in seen if e.prompt == prompt and e.correct]
            assert timeouts.anchor_s(prompt) == (max(correct) if correct and spec.adapts else None)


@given(spec=specs, done=rounds, data=st.data())
def test_it_does_not_matter_in_which_order_a_rounds_executions_ended(spec, done, data) -> None:
    shuffled = [data.draw(st.permutations(round_)) for round_ in done]
    assert after(spec, shuffled).state() == after(spec, done).state()


@given(spec=specs, done=rounds, data=st.data())
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(spec, done, data) -> None:
    stop = data.draw(st.integers(0, len(done)))
    resumed = Timeouts(spec)
    resumed.restore(json.loads(json.dumps(after(spec, done[:stop]).state())))
    for round_ in done[stop:]:
        resumed.end_round(round_)
    assert resumed.state() == after(spec, done).state()


@given(done=rounds)
def test_a_fixed_deadline_keeps_no_anchors_and_cuts_nothing_but_still_counts(done) -> None:
    timeouts = after(TimeoutSpec(5.0), done)
    assert [timeouts.deadline_s(prompt) for prompt in "abc"] == [5.0] * 3
    assert timeouts.state()["anchors"] == {} and timeouts.counts.cut == 0
    assert timeouts.counts.timeouts == sum(e.timed_out for round_ in done for e in round_)


@given(anchors=st.lists(st.floats(0.01, 40), min_size=1, max_size=5), later=st.lists(st.floats(0, 40), max_size=9))
def test_no_more_correct_answers_are_judged_wrong_than_are_counted_as_cut(anchors, later) -> None:
    """Every answer is correct, and would be in time under the fixed deadline; each round runs one."""
    timeouts, lost = Timeouts(PUBLISHED), 0
    for natural_s in [*anchors, *later]:
        killed = natural_s > timeouts.deadline_s("p")
        lost += killed and natural_s <= PUBLISHED.max_s
        timeouts.end_round([Execution("p", min(natural_s, timeouts.deadline_s("p")), not killed, killed)])
    assert lost <= timeouts.counts.cut


def test_a_slow_correct_answer_beyond_the_factor_is_lost_for_good() -> None:
    """The bias that the module's docstring admits: it is killed, and so never raises the anchor."""
    timeouts = Timeouts(PUBLISHED)
    timeouts.end_round([Execution("p", 2.0, correct=True, timed_out=False)])
    for _ in range(3):
        assert timeouts.deadline_s("p") == 3.0 < 3.5
        timeouts.end_round([Execution("p", 3.0, correct=False, timed_out=True)])
    assert (timeouts.counts.cut, timeouts.counts.executions) == (3, 4)


def test_answers_within_the_factor_raise_the_anchor_and_are_counted() -> None:
    timeouts = Timeouts(PUBLISHED)
    for slower in (2.0, 2.9, 4.2):
        timeouts.end_round([Execution("p", slower, correct=True, timed_out=False)])
    assert timeouts.deadline_s("p") == pytest.approx(6.3)
    assert timeouts.counts.stretched == 2


@pytest.mark.parametrize(
    "bad",
    [(0.0, None, 1.0), (5.0, 6.0, 1.5), (5.0, 0.0, 1.5), (5.0, 1.0, 0.9), (math.inf, 1.0, 1.0), (5.0, 1.0, math.inf)],
)
def test_bad_timeouts_are_refused(bad) -> None:
    with pytest.raises(ValueError, match="a timeout needs"):
        TimeoutSpec(*bad)


def test_each_pool_learns_from_its_own_executions_and_goes_on_where_it_stopped() -> None:
    specs = {"code": PUBLISHED, "shape": TimeoutSpec(1.0)}
    timeouts = PoolTimeouts(specs)
    assert timeouts.deadlines_s("p") == {"code": PUBLISHED.max_s, "shape": 1.0}
    timeouts.end_round(
        {
            "code": [Execution("p", 4.0, correct=True, timed_out=False)],
            "shape": [Execution("p", 1.0, correct=False, timed_out=True)],
        }
    )
    assert timeouts.deadlines_s("p") == {"code": PUBLISHED.deadline_s(4.0), "shape": 1.0}
    assert (timeouts.counts.executions, timeouts.counts.correct, timeouts.counts.timeouts) == (2, 1, 1)
    resumed = PoolTimeouts(specs)
    resumed.restore(timeouts.state())
    assert resumed.state() == timeouts.state() and resumed.deadlines_s("p") == timeouts.deadlines_s("p")


def test_a_checkpoint_of_one_pool_is_what_it_always_was() -> None:
    alone = Timeouts(PUBLISHED)
    alone.end_round([Execution("p", 4.0, correct=True, timed_out=False)])
    pools = PoolTimeouts({"code": PUBLISHED})
    pools.restore(alone.state())
    assert pools.state() == alone.state()
    assert PoolTimeouts({}).deadlines_s("p") == {}
