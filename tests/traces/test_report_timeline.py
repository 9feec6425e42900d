"""Who decoded, scored and trained when, from a trace's events."""

import pytest

from rlplan.traces.report_rounds import overlap, round_timeline

from .events import BALANCED, STREAMED, TAIL, log_of
from .events import sample as sample_event
from .events import step as step_event
from .test_report import EXAMPLE


def step(number, rows=(), **changes):
    """The events of a round: its samples, then its step."""
    seconds = {"rollout_s": 10.0, "reward_exposed_s": 0.5, "train_s": 2.0, "other_s": 0.25}
    return [sample_event(number, **row) for row in rows] + [step_event(number, kind="long", **{**seconds, **changes})]


def sample(engine, issued_s, finished_s, moves=0, reward_s=0.25):
    return {"engine": engine, "issued_s": issued_s, "finished_s": finished_s, "moves": moves, "reward_s": reward_s}


def spans(rows, events):
    timeline = round_timeline(log_of(*step(4, rows), *events))
    assert (timeline["step"], timeline["kind"], timeline["end_s"]) == (4, "long", 12.75)
    return {row["name"]: (row["what"], row["spans"]) for row in timeline["rows"]}


def test_a_moved_sample_decodes_on_the_freed_engine_until_that_is_freed():
    rows = [sample("a", 0.0, 4.0), sample("a", 3.0, 5.0), sample("b", 0.0, 2.0), sample("a", 0.0, 10.0, moves=1)]
    assert spans(rows, [STREAMED]) == {
        "a": ("decode", [[0.0, 5.0], [6.0, 10.0]]),
        "b": ("decode", [[0.0, 6.0]]),
        "scores": ("score", [[2.0, 2.25], [4.0, 4.25], [5.0, 5.25], [10.0, 10.25]]),
        "trainer, before the round's end": ("stream", [[6.0, 8.5], [9.0, 9.5]]),
        "trainer": ("train", [[10.75, 12.75]]),
    }


def test_a_sample_that_moved_is_on_the_tails_engine_afterwards():
    rows = [sample("a", 0.0, 4.0), sample("c", 0.0, 9.0, moves=1), sample("c", 0.0, 3.0, moves=1)]
    for events in ([TAIL], [{**STREAMED, "begun_s": 0.0, "freed": []}, TAIL]):
        found = spans(rows, events)
        assert found["a"] == ("decode", [[0.0, 4.0]]) and found["c"] == ("decode", [[5.5, 9.0]])


def test_the_last_round_that_streamed_is_drawn_else_the_last_with_samples():
    rows = [sample("a", 0.0, 4.0)]
    three = [event for number in (3, 4, 5) for event in step(number, rows)]
    assert round_timeline(log_of(*three, STREAMED))["step"] == 4
    assert round_timeline(log_of(*three, {**STREAMED, "groups": 0}))["step"] == 5
    assert round_timeline(log_of(*three[:4], *step(5)))["step"] == 4
    assert round_timeline(log_of(*step(4), STREAMED)) is None
    older = log_of(*step(4, [{"reward_s": 0.1}]))
    assert round_timeline(older) is None, "an older trace does not say when it decoded"


@pytest.mark.parametrize(
    ("reward", "alone_s"),
    [
        ({"workers": 4}, 3.0),
        ({"workers": 0}, 12.0),  # lengths alone
        ({"workers": 0, "judge": {"place": "own", "instances": 2, "at_once": 3}}, 2.0),
    ],
)
def test_scores_alone_are_shared_out_over_what_scores(reward, alone_s):
    scored = type(EXAMPLE.job.reward).model_validate({"deadline_s": 2.0, **reward})
    plan = EXAMPLE.model_copy(update={"job": EXAMPLE.job.model_copy(update={"reward": scored})})
    beside = overlap(plan, log_of(*step(4, [sample("a", 0.0, 4.0, reward_s=12.0)])))
    assert beside["reward"] == {"exposed_s": 0.5, "alone_s": alone_s}


def test_what_ran_beside_decoding_is_told_as_means_over_its_rounds():
    steps = [*step(4), *step(5, train_s=4.0)]
    other = {**STREAMED, "step": 5, "groups": 0}
    redone, never = {**TAIL, "step": 5, "seconds": 9.0, "moved": 9}, {**TAIL, "at_s": None, "seconds": None, "moved": 0}
    events = [
        STREAMED, other, TAIL, redone, {**redone, "seconds": 2.5, "moved": 4}, {**never, "step": 6},
        {**BALANCED, "known": 0}, BALANCED, {**BALANCED, "step": 5, "known": 2},
    ]  # fmt: skip
    found = overlap(EXAMPLE, log_of(*steps, *events))
    # 3 s of portions on one replica, of as many as the plan's short rounds have.
    hidden_s = 3.0 / EXAMPLE.job.rounds.short.train.dp
    assert found["train"] == {"exposed_s": 3.0, "alone_s": pytest.approx(3.0 + hidden_s / 2)}
    assert found["streamed"] == {"rounds": 1, "groups": 3, "moved": 1}
    assert found["balanced"] == {"rounds": 2, "known": 0.5}
    assert found["tails"] == {"rounds": 2, "seconds": 2.0, "moved": 2.5}
    found = overlap(EXAMPLE, log_of(*steps, TAIL, never))
    assert found["tails"] is None, "the step was redone, and its engines decoded on"
    assert found["streamed"] is None and found["balanced"] is None
