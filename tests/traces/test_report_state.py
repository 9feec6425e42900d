"""How a run stands, what went wrong in it, its tail and its waste: on events made by hand."""

from __future__ import annotations

import math

import pytest

from rlplan.rounds.round_shape import shape, tail_begins_s
from rlplan.traces.report_lengths import length_quantiles, tail, waste
from rlplan.traces.report_state import ago, incidents, run_state
from rlplan.traces.report_steps import quantile, series, spreads

RUN = {"event": "run", "t_s": 0.0, "steps": 40}
WRITTEN = "the trace was last written 1970-01-01 00:00:12 UTC"
RESUME = {"event": "resume", "t_s": 9.0, "step": 2, "steps": 50}


def end(**fields):
    return {"event": "end", "t_s": 8.0, "step": 3, "finished": False, **fields}


def steps(number, **changes):
    return [{"step": i + 1, "t_s": float(i + 1), "kind": "short", "total_s": 1.0 + i, **changes} for i in range(number)]


@pytest.mark.parametrize(
    ("events", "done", "state", "words"),
    [
        ([RUN, end(finished=True)], 40, "finished", "finished: 40 of 40 steps"),
        ([RUN, end()], 3, "stopped", "stopped by a signal, with a checkpoint: 3 of 40 steps"),
        ([RUN, end(reason="engine 0 is silent")], 3, "failed", "failed after 3 of 40 steps: engine 0 is silent"),
        ([RUN, end(reason="x")], 0, "failed", "failed after no step was finished of 40: x"),
        (
            [RUN],
            3,
            "open",
            "3 of 40 steps; the trace was last written 1970-01-01 00:00:12 UTC, its longest step took 3 s",
        ),
        ([RUN, end(), RESUME], 5, "open", "running or died: 5 of 50 steps"),
        ([RUN, {"event": "resume", "t_s": 4.0, "step": 1}], 2, "open", "2 of 40 steps"),
        ([RUN], 0, "open", f"no step was finished of 40; {WRITTEN}"),
        ([], 0, "open", "no step was finished; it has not begun to train"),
    ],
)
def test_a_run_is_finished_stopped_failed_or_else_nobody_can_tell(events, done, state, words):
    found = run_state(events, steps(done), 12.0, 20.0)
    assert found["state"] == state and words in found["state_text"]
    assert found["quiet_s"] == (8.0 if state == "open" else None)
    # What is written down holds no time that passes.
    assert found | {"quiet_s": 0} == run_state(events, steps(done), 12.0, 99.0) | {"quiet_s": 0}


def test_times_are_told_in_one_unit():
    assert [ago(s) for s in (0.4, 119, 120, 7200, 200_000)] == ["0 s", "119 s", "2 minutes", "2 hours", "2 days"]


def test_incidents_are_in_order_with_their_steps_and_none_is_made_of_what_went_well():
    calm = {"restarts": [], "conservation_violations": [], "on_policy_violations": 0, "timeouts": {"timeouts": 0}}
    assert incidents([RUN, end(finished=True)], steps(3, **calm)) == []
    ran = steps(4, **calm)
    ran[1] |= {"restarts": ["engine 1 died"], "timeouts": {"timeouts": 3, "cut": 1, "executions": 20}}
    ran[2] |= {"timeouts": {"timeouts": 3, "cut": 1, "executions": 30}, "conservation_violations": ["2 lost"]}
    ran[3] |= {"timeouts": {"timeouts": 5, "cut": 1, "executions": 40}, "checksum_mismatches": 1}
    events = [RUN, {"event": "restart", "t_s": 2.5, "whom": "trainer a", "reason": "killed"}, {**RESUME, "t_s": 2.6}]
    found = [(row["step"], row["kind"]) for row in incidents(events, ran)]
    assert found == [
        (2, "restart"), (2, "timeouts"), (3, "restart"), (2, "resume"), (3, "conservation"), (4, "checksum"),
        (4, "timeouts"),
    ]  # fmt: skip
    texts = [row["text"] for row in incidents(events, ran) if row["kind"] == "timeouts"]
    assert texts == ["3 of 20 rewards timed out, 1 of them by a deadline that adapts", "2 of 10 rewards timed out"]


def test_a_step_from_which_on_figures_are_no_numbers_is_an_incident_once():
    ran = steps(4, reward_mean=0.5, metrics={"loss": 1.0})
    for number in (1, 2):
        ran[number] |= {"reward_mean": math.nan, "metrics": {"loss": math.inf}}
    [found] = incidents([RUN], ran)
    assert (found["step"], found["kind"]) == (2, "not a number") and "loss, reward_mean" in found["text"]


def test_checkpoints_that_could_not_be_written_or_were_damaged_are_incidents():
    events = [
        {"event": "checkpoint_failed", "t_s": 1.2, "step": 1, "reason": "the disk has 0.00 GB free"},
        {"event": "checkpoint_damaged", "t_s": 2.5, "checkpoint": "step-000002", "reason": "state.json is missing"},
    ]
    found = [(row["kind"], row["step"], row["text"]) for row in incidents(events, steps(3))]
    assert found == [
        ("checkpoint", 1, "no checkpoint of step 1: the disk has 0.00 GB free"),
        ("checkpoint", 3, "step-000002 was set aside: state.json is missing"),
    ]


def test_what_a_host_lacks_of_the_sandbox_is_an_incident():
    event = {"event": "sandbox_lacks", "t_s": 0.1, "reason": "sandbox: system calls are not filtered (left out)"}
    [found] = incidents([RUN, event], steps(3))
    assert (found["kind"], found["text"]) == ("sandbox", "system calls are not filtered (left out)")


@pytest.mark.parametrize("step", [None, "x", 10**400, -1, 1.5])
def test_an_event_whose_step_is_none_is_of_the_step_that_was_being_made(step):
    [found] = incidents([{"event": "failed", "t_s": 1.5, "step": step, "prompt": "a", "reason": "b"}], steps(3))
    assert found["step"] == 2


def sample(begin, finish, tokens=10, fate="trained"):
    return {"issued_s": begin, "finished_s": finish, "tokens": tokens, "fate": fate}


def test_the_tail_begins_when_fewer_than_a_quarter_run_and_only_whole_rounds_tell_it():
    rows = [sample(0.001, t) for t in (1, 2, 3, 4, 5, 6, 7, 20)]  # a quarter of 8 is 2: below it from 7 on
    step = {"step": 1, "kind": "short", "samples": {"trained": 8}}
    found = tail([step], {1: rows}, "short")
    assert found["tail_s"] == pytest.approx(13.0) and found["share"] == pytest.approx(0.65)
    assert (found["rounds"], found["of_rounds"]) == (1, 1)
    assert found["running"][:3] == [1.0, 1.0, 0.875] and found["running"][10] == found["running"][20] == 0.125
    assert tail([{**step, "samples": {"trained": 8, "deferred": 1}}], {1: rows}, "short") is None
    assert tail([step], {1: rows}, "long") is None and tail([{"step": 1, "kind": "short"}], {1: rows}, "short") is None


def test_what_ran_is_measured_as_the_planner_predicts_it_whatever_milliseconds_the_requests_took():
    ends = [1.0, 2.5, 4.0, 7.0, 7.0, 20.0]
    rows = [sample(0.001 * index, end) for index, end in enumerate(ends)]
    found = tail([{"step": 1, "kind": "long", "samples": {"trained": 6}}], {1: rows}, "long")
    levels = [(0.0, 6), *((end, 5 - index) for index, end in enumerate(ends))]
    assert found["running"] == [round(share, 4) for share in shape(levels, 20.0)]
    assert found["running"][0] == 1.0 and found["running"][20] == pytest.approx(1 / 6, abs=1e-4)
    assert found["tail_s"] == 20.0 - tail_begins_s(levels, 20.0) == 13.0


@pytest.mark.parametrize(
    "odd", [{"finished_s": -1.0}, {"issued_s": float("nan")}, {"finished_s": 1e300}, {"issued_s": "x"}]
)
def test_a_round_with_a_sample_whose_times_are_none_does_not_tell_the_tail(odd):
    rows = [sample(0.0, 1.0), {**sample(0.0, 2.0), **odd}]
    assert tail([{"step": 1, "kind": "short", "samples": {"trained": 2}}], {1: rows}, "short") is None


def test_a_round_that_took_no_time_has_no_tail():
    found = tail([{"step": 1, "kind": "short", "samples": {"trained": 1}}], {1: [sample(1.0, 1.0)]}, "short")
    assert (found["tail_s"], found["share"]) == (0.0, 0.0)


def test_waste_is_what_ended_and_was_not_trained_and_what_was_stopped_is_counted_apart():
    rows = [sample(0, 1, 30), sample(0, 1, 10, "deferred"), sample(0, 1, 10, None)]
    found = waste([{"step": 1, "samples": {"trained": 1, "deferred": 4}}], {1: rows})
    assert found == {"tokens": {"deferred": 10, "trained": 30, "unknown": 10}, "share": 0.4, "aborted_samples": 2}
    assert waste([{"step": 1}], {}) == {"tokens": {}, "share": 0.0, "aborted_samples": 0}


def test_quantiles_are_values_that_were_seen():
    assert [quantile([3, 1, 2], level) for level in (0, 0.34, 0.5, 0.95, 1)] == [1, 2, 2, 3, 3]
    assert length_quantiles([]) == [] and length_quantiles([5, 7])[0] == 5 and length_quantiles([5, 7])[20] == 7
    found = spreads([{"total_s": v, "rollout_s": 2 * v} for v in (1.0, 2.0, 6.0)])
    assert found == {
        "step_s": {"p50": 2.0, "p95": 6.0, "mean": 3.0}, "rollout_s": {"p50": 4.0, "p95": 12.0, "mean": 6.0},
    }  # fmt: skip
    assert series([{"step": 1}])["train_s"] == [None]
