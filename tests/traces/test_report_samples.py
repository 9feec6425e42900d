"""Figures of a run's samples: lengths, the tail of its rollouts, tokens that were not trained, parts of rewards."""

import numpy as np
import pytest

from rlplan.rounds.round_shape import shape, tail_begins_s
from rlplan.traces.report_rounds import length_quantiles, reward_parts, tail, waste
from rlplan.traces.report_steps import quantile, series, spreads

from .events import log_of, step, step_of
from .events import sample as events_sample


def sample(begin, finish, tokens=10, fate="trained"):
    return {"issued_s": begin, "finished_s": finish, "tokens": tokens, "fate": fate}


def rounds(*each):
    """A log of rounds: (rows of its samples, counts by fate, and what else its step says)."""
    events = []
    for number, (rows, fates, changes) in enumerate(each, 1):
        events += [events_sample(number, **row) for row in rows] + [step(number, samples=fates, **changes)]
    return log_of(*events)


def short(rows, **fates):
    return rows, fates, {}


def test_the_tail_begins_when_fewer_than_a_quarter_run():
    rows = [sample(0.001, t) for t in (1, 2, 3, 4, 5, 6, 7, 20)]  # a quarter of 8 is 2: below it from 7 on
    found = tail(rounds(short(rows, trained=8)), "short")
    assert found["tail_s"] == pytest.approx(13.0) and found["share"] == pytest.approx(0.65)
    assert found["running"][:3] == [1.0, 1.0, 0.875] and found["running"][10] == found["running"][20] == 0.125
    # A round of which a sample is missing does not tell it; seconds of the others are added up.
    flat = [sample(0.0, 10.0)]
    long = (flat, {"trained": 1}, {"kind": "long"})
    log = rounds(short(rows, trained=8), short(rows, trained=8, deferred=1), long, short(flat, trained=1))
    found = tail(log, "short")
    assert (found["rounds"], found["of_rounds"], found["tail_s"]) == (2, 3, pytest.approx(6.5))
    assert found["share"] == pytest.approx(13 / 30) and found["running"][10] == 0.5625
    assert tail(rounds(short(rows, trained=8)), "long") is tail(rounds(([], None, {})), "short") is None


def test_what_ran_is_measured_as_the_planner_predicts_it():
    """Whatever milliseconds the requests took that began the round."""
    ends = [1.0, 2.5, 4.0, 7.0, 7.0, 20.0]
    rows = [sample(0.001 * index, end) for index, end in enumerate(ends)]
    found = tail(rounds(short(rows, trained=6)), "short")
    levels = [(0.0, 6), *((end, 5 - index) for index, end in enumerate(ends))]
    assert found["running"] == [round(share, 4) for share in shape(levels, 20.0)]
    assert found["running"][0] == 1.0 and found["running"][20] == pytest.approx(1 / 6, abs=1e-4)
    assert found["tail_s"] == 20.0 - tail_begins_s(levels, 20.0) == 13.0


@pytest.mark.parametrize(
    "odd",
    [{"finished_s": -1.0}, {"issued_s": float("nan")}, {"finished_s": 1e300}, {"issued_s": 3.0}],
)
def test_a_sample_without_times_spoils_its_rounds_tail(odd):
    rows = [sample(0.0, 1.0), {**sample(0.0, 2.0), **odd}]
    assert tail(rounds(short(rows, trained=2)), "short") is None


def test_a_round_that_took_no_time_has_no_tail():
    for time_s in (0.0, 1.0):
        found = tail(rounds(short([sample(time_s, time_s)], trained=1)), "short")
        assert (found["tail_s"], found["share"]) == (0.0, 0.0)


def test_waste_is_what_ended_untrained_and_stopped_samples_count_apart():
    rows = [sample(0, 1, 30), sample(0, 1, 10, "deferred"), sample(0, 1, 10, None)]
    found = waste(rounds(short(rows, trained=1, deferred=4), short([], trained=9), short(rows[:1])))
    assert found == {"tokens": {"deferred": 10, "trained": 60, "unknown": 10}, "share": 0.25, "aborted_samples": 11}
    assert waste(rounds(([], None, {}))) == {"tokens": {}, "share": 0.0, "aborted_samples": 0}


def test_quantiles_are_values_that_were_seen():
    assert [quantile([3, 1, 2], level) for level in (0, 0.34, 0.5, 0.95, 1)] == [1, 2, 2, 3, 3]
    assert quantile([1, 2], 0.5) == 1, "at least half of the values do not exceed it"
    assert length_quantiles(np.array([])) == [] and length_quantiles(np.arange(21)) == [0, *range(1, 20), 20]
    found = spreads([step_of(1, total_s=v, rollout_s=2 * v) for v in (1.0, 2.0, 6.0)])
    assert found["step_s"] == {"p50": 2.0, "p95": 6.0, "mean": 3.0} and "other_s" not in found
    assert found["rollout_s"] == {"p50": 4.0, "p95": 12.0, "mean": 6.0}
    assert series([step_of(1)])["other_s"] == [None]


def scored(fate, **values):
    parts = {name: {"value": value, "s": s, "outcome": outcome} for name, (value, s, outcome) in values.items()}
    return {"fate": fate, "reward_parts": parts}


def test_parts_of_rewards_have_means_of_trained_samples_and_all_outcomes():
    first = [scored("trained", code=(1, 1.0, "ok"), judge=(0.5, 2.0, "ok")), scored("trained", code=(0, 3.0, "late"))]
    second = [scored("deferred", code=(1, 5.0, "ok"), judge=(1, 4.0, "ok")), scored("surplus", late=(1, 0.5, "ok"))]
    assert reward_parts(rounds(short(first), short(second))) == {
        "code": {"mean": 0.5, "mean_s": 3.0, "outcomes": {"late": 1, "ok": 2}},
        "judge": {"mean": 0.5, "mean_s": 3.0, "outcomes": {"ok": 2}},
        "late": {"mean": None, "mean_s": 0.5, "outcomes": {"ok": 1}},
    }
    assert reward_parts(rounds(short([{"fate": "trained"}, {"fate": "trained", "reward_parts": {}}]))) == {}
