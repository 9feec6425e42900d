"""Timelines: whole Chrome trace events, spans inside their step, counters that count what ran."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.run_timeline import ENGINES, REWARDS, SCHEDULE, SYNC, TRAINERS, Timeline
from rlplan.planner.simulate.whole_run import simulate_run
from rlplan.rounds.round_spec import RoundSpec

from ..conftest import heavy_trace, rollout, small_profile

STEPS = 12


@pytest.fixture(scope="module")
def drawn():
    profile = small_profile(rollout=(rollout(1, 2, 7e-3, 3e-5, kv_capacity_tokens=1800),))
    kind = RoundCosts(decode_cost(profile, profile.rollout[0]), 64, train_cost(profile.train[2]))
    spec = RoundSpec("exact", 4, 4, 1024, short_prompts=6, short_samples=4, cutoff_tokens=120)
    timeline = Timeline(STEPS)
    draws = Draws(fit_lengths(heavy_trace(24, 8)), 0, 4)
    run = simulate_run(spec, kind, kind, reward_cost(profile.reward, 1), draws, 20, 200, watch=timeline)
    return run, timeline.document()["traceEvents"]


def test_every_event_has_what_its_kind_needs_and_its_line_a_name(drawn):
    _, events = drawn
    for event in events:
        assert event["ph"] in "XCiM" and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "C" or all(value >= 0 for value in event["args"].values())
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"schedule", "engines", "reward workers", "trainers", "weight transfer"}
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"engine 0", "engine 1", "tail"}


def test_steps_follow_each_other_and_hold_their_phases(drawn):
    run, events = drawn
    spans = [e for e in events if e["ph"] == "X"]
    steps = [e for e in spans if e["pid"] == SCHEDULE and e["tid"] == 0]
    assert len(steps) == STEPS
    end = 0.0
    for span, step in zip(steps, run.steps, strict=False):
        assert span["ts"] == pytest.approx(end, abs=1)
        assert span["dur"] == pytest.approx(1e6 * step.step_s, abs=1)
        assert span["name"].startswith(step.kind)
        end = span["ts"] + span["dur"]
        inside = [e for e in spans if span["ts"] - 1 <= e["ts"] < end - 1 and e["pid"] in (TRAINERS, SYNC, REWARDS)]
        assert {e["pid"] for e in inside} >= {TRAINERS, SYNC}
        assert all(e["ts"] + e["dur"] <= end + 1 for e in inside)


def test_engine_spans_do_not_overlap(drawn):
    by_engine = defaultdict(list)
    for event in drawn[1]:
        if event["ph"] == "X" and event["pid"] == ENGINES:
            by_engine[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(by_engine) == {0, 1}
    for spans in by_engine.values():
        assert all(a[1] <= b[0] + 1 for a, b in pairwise(spans))


def test_what_is_put_off_cut_and_preempted_is_marked(drawn):
    run, events = drawn
    marks = Counter(event["name"] for event in events if event["ph"] == "i")
    queues = [0, *(step.deferred for step in run.steps[:STEPS])]
    assert marks["deferred"] == sum(max(0, after - before) for before, after in pairwise(queues)) > 0
    assert marks["preempted"] == sum(s.preemptions for s in run.steps[:STEPS]) > 0
    assert marks["cutoff"] > 0


def test_counters_fall_to_zero_at_a_rollouts_end(drawn):
    last = {event["name"]: next(iter(event["args"].values())) for event in drawn[1] if event["ph"] == "C"}
    assert set(last.values()) == {0}
    assert {"engine 0 running", "engine 1 KV", "waiting for a score"} <= set(last)
