"""Who decoded, scored and trained when, from a trace's events."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplan.plans.schema.plan import load_plan
from rlplan.traces.report_timeline import _tails, overlap, round_timeline

STEP = {"step": 4, "kind": "long", "rollout_s": 10.0, "reward_exposed_s": 0.5, "train_s": 2.0, "other_s": 0.0}
STREAMED = {
    "event": "streamed", "step": 4, "begun_s": 6.0, "freed": ["b"], "replicas": [1], "groups": 3, "moved": 1,
    "portions": [[6.0, 7.0, 1], [7.0, 8.5, 1], [9.0, 9.5, 1]],
}  # fmt: skip


def sample(engine, issued_s, finished_s, moves=0, reward_s=0.25):
    return {"engine": engine, "issued_s": issued_s, "finished_s": finished_s, "moves": moves, "reward_s": reward_s}


def test_spans_of_one_engine_join_and_a_moved_sample_is_on_the_freed_engine_until_it_was_freed() -> None:
    rows = [sample("a", 0.0, 4.0), sample("a", 3.0, 5.0), sample("b", 0.0, 2.0), sample("a", 0.0, 10.0, moves=1)]
    timeline = round_timeline([STEP], {4: rows}, [STREAMED])
    assert timeline is not None and (timeline["step"], timeline["kind"], timeline["end_s"]) == (4, "long", 12.5)
    spans = {row["name"]: (row["what"], row["spans"]) for row in timeline["rows"]}
    assert spans["a"] == ("decode", [[0.0, 5.0], [6.0, 10.0]])
    assert spans["b"] == ("decode", [[0.0, 6.0]])
    assert spans["scores"] == ("score", [[2.0, 2.25], [4.0, 4.25], [5.0, 5.25], [10.0, 10.25]])
    assert spans["trainer, before the round's end"] == ("stream", [[6.0, 8.5], [9.0, 9.5]])
    assert spans["trainer"] == ("train", [[10.5, 12.5]])


def test_the_last_round_that_streamed_is_drawn_and_without_one_the_last_round_with_samples() -> None:
    rows = [sample("a", 0.0, 4.0)]
    steps = [{**STEP, "step": number} for number in (3, 4, 5)]
    assert round_timeline(steps, {3: rows, 4: rows, 5: rows}, [STREAMED])["step"] == 4
    assert round_timeline(steps, {3: rows, 4: rows, 5: []}, [])["step"] == 4
    assert round_timeline(steps, {}, [STREAMED]) is None


def test_a_trace_that_does_not_say_when_samples_decoded_has_no_timeline() -> None:
    assert round_timeline([STEP], {4: [{"reward_s": 0.1}]}, []) is None


def test_a_sample_that_moved_to_the_tails_engine_is_there_from_the_change_on() -> None:
    rows = [sample("a", 0.0, 4.0), sample("c", 0.0, 9.0, moves=1)]
    tail = {"event": "tail", "step": 4, "engines": 1, "tp": 2, "at_s": 4.0, "seconds": 1.5, "moved": 1}
    never = {**tail, "at_s": None, "seconds": None, "moved": 0}
    own_devices = {**STREAMED, "begun_s": 0.0, "freed": []}
    for events in ([tail], [own_devices, tail]):
        timeline = round_timeline([STEP], {4: rows}, events)
        assert timeline is not None
        spans = {row["name"]: row["spans"] for row in timeline["rows"]}
        assert spans["a"] == [[0.0, 4.0]] and spans["c"] == [[5.5, 9.0]]
    assert _tails([tail, never]) is None, "the step was redone, and its engines decoded on"
    assert _tails([tail, {**tail, "step": 5, "seconds": 2.5, "moved": 4}, {**never, "step": 6}]) == {
        "rounds": 2, "seconds": 2.0, "moved": 2.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "alone_s"),
    [
        ({"workers": 4}, 3.0),
        ({"workers": 0}, 12.0),  # lengths alone
        ({"workers": 0, "judge": {"place": "own", "instances": 2, "at_once": 3}}, 2.0),
    ],
)
def test_scores_alone_are_shared_out_over_what_scores_be_it_no_worker(reward, alone_s) -> None:
    plan = load_plan(Path(__file__).parents[2] / "plans" / "examples" / "cpu-demo.yaml")
    scored = type(plan.job.reward).model_validate({"deadline_s": 2.0, **reward})
    plan = plan.model_copy(update={"job": plan.job.model_copy(update={"reward": scored})})
    beside = overlap(plan, [STEP], {4: [sample("a", 0.0, 4.0, reward_s=12.0)]}, [])
    assert beside["reward"] == {"exposed_s": 0.5, "alone_s": alone_s}
