"""The time that a run has left: against runs whose every second is known, and against a schedule that is played."""

import random

import pytest

from rlplan.plans.schema.plan import Plan
from rlplan.rounds.schedule import Schedule
from rlplan.traces.time_left import kinds_left, time_left_s

from ..plans.conftest import PLAN_TEXT, plain, with_values
from ..rounds.driver import prompt_ids
from ..rounds.driver import steps as rounds_of
from .events import step_of

EVALUATION = {"prompts": 8, "samples": 1, "seconds": 7.0, "every_steps": 4}


def plan_with(**values):
    return Plan.model_validate(with_values(plain(PLAN_TEXT), values))


PLAN = plan_with()  # P = 16; a short round 5.2 s, a long one 10.2 s, a fifth of the rounds
STEPS = [("short", 4), ("short", 8), ("short", 12), ("short", 16), ("long", 0)] * 4
SYNC = plan_with(
    **{"job.bias.mode": "sync", "job.rounds.long": None, "predicted.rounds.long": None,
       "job.rounds.short.cutoff_tokens": None, "job.rounds.short.issue.prompts": 16}
)  # fmt: skip


def run(count, factor=2.0):
    """The first steps of a run that takes `factor` times what is predicted and defers four prompts a short round."""
    kinds = STEPS[:count]
    seconds = {"short": 5.2 * factor, "long": 10.2 * factor}
    return [step_of(i, kind=k, deferred=d, total_s=seconds[k]) for i, (k, d) in enumerate(kinds, 1)]


@pytest.mark.parametrize("done", [0, 1, 4, 5, 9, 13, 20])
def test_rounds_that_are_left_follow_the_queue(done):
    left = [kind for kind, _ in STEPS[done:]]
    assert kinds_left(PLAN, run(done), 20) == left
    factor = 2.0 if done else 1.0
    assert time_left_s(PLAN, run(done), 20) == pytest.approx(
        factor * (5.2 * left.count("short") + 10.2 * left.count("long"))
    )


def test_what_waits_at_the_end_is_trained_if_the_run_drains():
    assert kinds_left(PLAN, run(5), 7) == ["short", "short", "long"]
    assert kinds_left(PLAN, run(5), 7, drains=False) == ["short", "short"]
    assert kinds_left(PLAN, run(8), 8) == ["long"] and kinds_left(PLAN, run(5), 5) == []
    assert time_left_s(PLAN, run(5), 5) == 0.0 and time_left_s(PLAN, run(5), 3) == 0.0


def test_a_queue_fills_further_before_it_makes_a_long_round():
    queued = plan_with(**{"job.rounds.long.queue": {}, "job.rounds.long.issue.prompts": 24,
                          "job.rounds.long.issue.copies": 1})  # fmt: skip
    # 24 wait after six short rounds; 8 of them after the long one.
    assert kinds_left(queued, [], 12, drains=False) == ["short"] * 6 + ["long"] + ["short"] * 4 + ["long"]


def test_short_rounds_that_defer_less_than_planned_make_fewer_long_ones():
    steps = [step_of(i, kind="short", deferred=i, total_s=5.2) for i in range(1, 6)]
    assert kinds_left(PLAN, steps, 20, drains=False) == ["short"] * 11 + ["long"] + ["short"] * 3
    few = steps[:3]  # too few to say so
    assert kinds_left(PLAN, few, 9, drains=False) == ["short"] * 4 + ["long", "short"]


def test_few_long_rounds_count_beside_what_is_predicted():
    steps = run(5, 1.0)
    steps[-1].total_s = 13.2
    over = (3 * 5.2 + 13.2) / (3 * 5.2 + 10.2)  # the first step was cold
    left_s = time_left_s(PLAN, steps, 10)
    assert left_s == pytest.approx(4 * (2 * 5.2 * over + 3 * 5.2) / 5 + (2 * 10.2 * over + 13.2) / 3)


def test_plain_rounds_have_no_pattern():
    steps = [step_of(i, total_s=3.0) for i in range(1, 41)]
    assert kinds_left(SYNC, steps, 100) == ["short"] * 60
    assert time_left_s(SYNC, steps, 100) == pytest.approx(60 * (2 * 3.0 + 32 * 3.0) / 34)


def test_time_between_steps_and_evaluations_are_added_as_measured():
    plan = plan_with(**{"predicted.evaluation": EVALUATION})
    rounds_s = time_left_s(PLAN, run(10), 20)
    # Due before the steps 13, 17 and at the end.
    assert time_left_s(plan, run(10), 20) == pytest.approx(rounds_s + 3 * 7.0)
    now_s = 100.0
    ended_s = [now_s]
    for step in run(10):
        now_s += 0.5 + (3.0 if (step.step - 1) % 4 == 0 else 0.0) + step.total_s
        ended_s.append(now_s)
    expected_s = rounds_s + 10 * 0.5 + 3 * 3.0
    assert time_left_s(plan, run(10), 20, ended_s) == pytest.approx(expected_s)
    assert time_left_s(plan, run(10), 20, ended_s[-6:]) == pytest.approx(expected_s), "since the last start alone"
    assert time_left_s(plan, run(20), 20, []) == 0.0
    # What comes before a run's first step is not between two steps.
    assert time_left_s(PLAN, run(1), 20, [0.0, 1000.0]) == time_left_s(PLAN, run(1), 20)


def test_as_many_long_rounds_are_foretold_as_a_schedule_makes():
    """Of groups of which one in five has a long response, drawn anew each time."""

    def tokens(sample):
        long = random.Random(f"{sample.round_number}/{sample.prompt}/{sample.redraw}").random() < 0.2
        return 300 if long and sample.sample == 0 else 20

    schedule = Schedule(PLAN.job.round_spec(1024), prompt_ids(3000), 1)
    rounds = rounds_of(schedule, tokens, lambda _: 1.0, checked=False)
    done = []
    for number, ended in zip(range(1, 101), rounds, strict=False):
        kind = ended.run.machine.kind
        done.append(step_of(number, kind=kind, deferred=len(schedule.deferred), total_s=1.0))
    for first in (20, 40, 60):
        foretold = kinds_left(PLAN, done[:first], 100, drains=False).count("long")
        made = sum(step.kind == "long" for step in done[first:])
        assert made >= 6 and abs(foretold - made) <= 0.2 * made
