"""Deadlines that prompts earn."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.timeouts import Counts, PoolTimeouts, RewardExecution, Timeouts, TimeoutSpec

PUBLISHED = TimeoutSpec(max_s=30.0, min_s=2.0, anchor_factor=1.5)

seconds = st.floats(0, 60)
specs = st.builds(
    lambda low, more, factor: TimeoutSpec(low + more, low, factor),
    st.floats(0.1, 10),
    st.floats(0, 30),
    st.floats(1, 4),
)
executions = st.builds(
    lambda prompt, seconds, how: RewardExecution(prompt, seconds, how == "correct", how == "timeout"),
    st.sampled_from("abc"),
    seconds,
    st.sampled_from(["correct", "wrong", "timeout"]),
)
rounds = st.lists(st.lists(executions, max_size=6), max_size=5)


def right(seconds, prompt="p"):
    return RewardExecution(prompt, seconds, correct=True, timed_out=False)


def cut(seconds, prompt="p"):
    return RewardExecution(prompt, seconds, correct=False, timed_out=True)


def after(spec, done):
    timeouts = Timeouts(spec)
    for round_ in done:
        timeouts.end_round(round_)
    return timeouts


@pytest.mark.parametrize(("anchor_s", "deadline_s"), [(None, 30), (0.031, 2), (1.4, 2.1), (19, 28.5), (21, 30)])
def test_a_deadline_is_the_anchor_times_a_factor_within_bounds(anchor_s, deadline_s):
    assert PUBLISHED.deadline_s(anchor_s) == pytest.approx(deadline_s)
    timeouts = Timeouts(PUBLISHED)
    timeouts.end_round([RewardExecution("p", 9.0, correct=False, timed_out=False)])
    assert timeouts.deadline_s("p") == 30.0, "a wrong answer teaches nothing"
    if anchor_s is not None:
        timeouts.end_round([right(anchor_s)])
    assert timeouts.deadline_s("p") == pytest.approx(deadline_s) and timeouts.deadline_s("q") == 30.0


@given(spec=specs, low=seconds, more=seconds)
def test_a_deadline_never_falls_as_the_anchor_rises(spec, low, more):
    assert spec.floor_s <= spec.deadline_s(low) <= spec.deadline_s(low + more) <= spec.max_s == spec.deadline_s(None)
    # What was right in time once is in time again.
    assert spec.deadline_s(low) >= min(low, spec.max_s)


@settings(max_examples=50)
@given(spec=specs, done=rounds, data=st.data())
def test_an_anchor_is_the_slowest_correct_execution_of_earlier_rounds(spec, done, data):
    """In whichever order a round's executions ended, and whether or not the run was stopped."""
    timeouts, seen = Timeouts(spec), []
    stop = data.draw(st.integers(0, len(done)))
    for number, round_ in enumerate(done):
        if number == stop:
            resumed = Timeouts(spec)
            resumed.restore(json.loads(json.dumps(timeouts.state())))
            timeouts = resumed
        seen += round_
        timeouts.end_round(data.draw(st.permutations(round_)))
        for prompt in "abc":
            correct = [e.seconds for e in seen if e.prompt == prompt and e.correct]
            assert timeouts.anchor_s(prompt) == (max(correct) if correct and spec.adapts else None)
    assert timeouts.state() == after(spec, done).state()
    assert timeouts.counts.executions == len(seen)
    assert timeouts.counts.correct == sum(e.correct for e in seen)


@settings(max_examples=30)
@given(done=rounds)
def test_a_fixed_deadline_keeps_no_anchors_but_still_counts(done):
    timeouts = after(TimeoutSpec(5.0), done)
    assert [timeouts.deadline_s(prompt) for prompt in "abc"] == [5.0] * 3
    assert timeouts.state()["anchors"] == {} and timeouts.counts.cut == 0
    assert timeouts.counts.timeouts == sum(e.timed_out for round_ in done for e in round_)


@settings(max_examples=50)
@given(anchors=st.lists(st.floats(0.01, 40), min_size=1, max_size=5), later=st.lists(st.floats(0, 40), max_size=9))
def test_no_more_right_answers_are_lost_than_are_counted(anchors, later):
    """Every answer is correct, and would be in time under the fixed deadline; each round runs one."""
    timeouts, lost = Timeouts(PUBLISHED), 0
    for natural_s in [*anchors, *later]:
        killed = natural_s > timeouts.deadline_s("p")
        lost += killed and natural_s <= PUBLISHED.max_s
        timeouts.end_round([RewardExecution("p", min(natural_s, timeouts.deadline_s("p")), not killed, killed)])
    assert lost <= timeouts.counts.cut


def test_a_slow_right_answer_beyond_the_factor_is_lost_for_good():
    """The bias that the module's docstring admits: it is killed, and so never raises the anchor."""
    timeouts = after(PUBLISHED, [[cut(30.0)], [right(2.0)]])
    for _ in range(3):
        assert timeouts.deadline_s("p") == 3.0 < 3.5
        timeouts.end_round([cut(3.0)])
    assert timeouts.counts == Counts(executions=5, correct=1, timeouts=4, cut=3), "the first had the longest deadline"


def test_answers_within_the_factor_raise_the_anchor_and_are_counted():
    timeouts = after(PUBLISHED, [[right(seconds)] for seconds in (2.0, 2.9, 4.2, 4.2)])
    assert timeouts.deadline_s("p") == pytest.approx(6.3)
    assert timeouts.counts.stretched == 2


@pytest.mark.parametrize(
    "bad",
    [(0.0, None, 1.0), (5.0, 6.0, 1.5), (5.0, 0.0, 1.5), (5.0, 1.0, 0.9), (math.inf, 1.0, 1.0), (5.0, 1.0, math.inf)],
)
def test_bad_timeouts_are_refused(bad):
    assert TimeoutSpec(5.0, 5.0, 1.0).floor_s == 5.0
    with pytest.raises(ValueError, match="a timeout needs"):
        TimeoutSpec(*bad)


@pytest.mark.parametrize("taken_s", [-0.1, math.inf, math.nan])
def test_an_execution_without_a_time_is_an_error(taken_s):
    with pytest.raises(AssertionError, match="no time"):
        after(PUBLISHED, [[right(taken_s)]])


@pytest.mark.parametrize(
    ("counts", "anchors"),
    [
        (Counts(executions=2, timeouts=1, cut=2), {}),
        (Counts(executions=2, correct=1, timeouts=2), {}),
        (Counts(executions=2, correct=1, stretched=2), {}),
    ],
)
def test_counts_that_contradict_each_other_are_found(counts, anchors):
    with pytest.raises(AssertionError):
        Timeouts(TimeoutSpec(1.0)).restore({"anchors": anchors, "counts": asdict(counts)})


def test_each_pool_learns_from_its_own_executions():
    specs = {"code": PUBLISHED, "shape": TimeoutSpec(1.0), "unit": PUBLISHED}
    timeouts, resumed = PoolTimeouts(specs), PoolTimeouts(specs)
    assert timeouts.deadlines_s("p") == {"code": 30.0, "shape": 1.0, "unit": 30.0}
    timeouts.end_round({"code": [right(4.0)], "shape": [cut(1.0)]})
    timeouts.end_round({"unit": [right(6.0)]})
    assert timeouts.deadlines_s("p") == {"code": 6.0, "shape": 1.0, "unit": 9.0}
    assert timeouts.counts == Counts(executions=3, correct=2, timeouts=1)
    resumed.restore(json.loads(json.dumps(timeouts.state())))
    assert resumed.state() == timeouts.state() and resumed.deadlines_s("p") == timeouts.deadlines_s("p")


def test_a_checkpoint_of_one_pool_is_that_of_the_first():
    alone = after(PUBLISHED, [[right(4.0)]])
    pools = PoolTimeouts({"code": PUBLISHED, "unit": PUBLISHED})
    pools.restore(alone.state())
    assert pools.deadlines_s("p") == {"code": 6.0, "unit": 30.0}
    only = PoolTimeouts({"code": PUBLISHED})
    only.restore(alone.state())
    assert only.state() == alone.state()
    none = PoolTimeouts({})
    assert none.deadlines_s("p") == {} and none.state() == Timeouts(PUBLISHED).state()


def test_a_plan_with_fixed_deadlines_follows_one_with_learnt_ones():
    learnt = Timeouts(TimeoutSpec(8.0, 1.0, 2.0))
    learnt.end_round([right(1.0)])
    learnt.end_round([cut(learnt.deadline_s("p"))])
    assert learnt.counts.cut == 1
    fixed = Timeouts(TimeoutSpec(8.0))
    fixed.restore(json.loads(json.dumps(learnt.state())))
    assert fixed.deadline_s("p") == 8.0 and fixed.counts == learnt.counts
    again = Timeouts(TimeoutSpec(8.0, 1.0, 2.0))
    again.restore(fixed.state())
    assert again.deadline_s("p") == 8.0, "what a prompt takes is learnt anew"
