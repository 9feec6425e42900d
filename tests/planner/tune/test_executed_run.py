"""Replays: a run whose times are the simulator's own is met exactly, whatever its mode cut short."""

import json

import pytest

from rlplan.planner.tune.executed_run import load_run
from rlplan.planner.tune.refit import replay_run
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.run_log import TRACE

from ..conftest import CAP, small_profile
from ..synthetic_run import solved, synthesize


@pytest.mark.parametrize("mode", ["sync", "race", "defer", "exact", "predict"])
def test_a_replay_of_a_simulated_round_takes_as_long_as_the_round_did(mode, tmp_path):
    documents = solved(mode=mode)
    plan, job = documents.plan, documents.job
    # Short epochs, so that `predict` comes to one that has a history.
    folder = synthesize(tmp_path / "r", plan, job, documents.profile, documents.trace, noise=0.0, steps=25, prompts=88)
    run = load_run(folder)
    replays = replay_run(run, CAP, False, documents.profile)
    assert [r.step.number for r in replays] == list(range(1, 26))
    if mode != "sync":
        assert {s.kind for s in run.steps} == {"short", "long"} or plan.job.rounds.long is None
    for replay in replays:
        assert replay.times.decode_end_s == pytest.approx(replay.step.rollout_s, rel=0.02)
        assert replay.times.end_s == pytest.approx(replay.step.rollout_s + replay.step.reward_exposed_s, rel=0.02)
        assert replay.update_s == pytest.approx(replay.step.train_s)
        assert replay.sync_s == pytest.approx(replay.step.sync_s)


def test_copies_of_a_long_round_that_were_all_aborted_are_replayed_as_copies(tmp_path):
    documents = solved(mode="exact")
    rounds = documents.plan.job.rounds
    doubled = rounds.model_copy(
        update={"long": rounds.long.model_copy(update={"issue": rounds.long.issue.model_copy(update={"copies": 3})})}
    )
    plan = documents.plan.model_copy(update={"job": documents.plan.job.model_copy(update={"rounds": doubled})})
    run = load_run(
        synthesize(tmp_path / "r", plan, documents.job, documents.profile, documents.trace, noise=0.0, steps=25)
    )
    long = [s for s in run.steps if s.kind == "long"]
    seen = {(s.number, r["draw"]) for s in long for r in s.rows}
    assert len(seen) < sum(s.issued_samples for s in long) / 4, "some draws left no finished sample"
    for replay in replay_run(run, CAP, False, documents.profile):
        assert replay.times.decode_end_s == pytest.approx(replay.step.rollout_s, rel=0.02)


def test_a_replay_scales_with_the_costs_that_it_is_given(tmp_path):
    documents = solved(mode="sync")
    run = load_run(
        synthesize(tmp_path / "r", documents.plan, documents.job, documents.profile, documents.trace, steps=5)
    )
    free = [c.model_copy(update={"factor": 2 * c.factor}) for c in small_profile().checks]
    before, after = (
        replay_run(run, CAP, False, profile) for profile in (documents.profile, small_profile(checks=tuple(free)))
    )
    for one, two in zip(before, after, strict=True):
        assert two.times.decode_end_s == pytest.approx(2 * one.times.decode_end_s, rel=1e-6)


def test_what_is_no_run_is_refused_with_what_would_be_one(tmp_path):
    documents = solved(mode="sync")
    for name in ("a", "b"):
        synthesize(tmp_path / "runs" / name, documents.plan, documents.job, documents.profile, documents.trace, steps=1)
    with pytest.raises(InputError, match="no such run folder"):
        load_run(tmp_path / "none")
    with pytest.raises(InputError, match="holds the runs a, b: name one"):
        load_run(tmp_path / "runs")
    trace = tmp_path / "runs" / "a" / TRACE
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join(line for line in lines if json.loads(line)["event"] != "step") + "\n")
    with pytest.raises(InputError, match="no step was finished"):
        load_run(tmp_path / "runs" / "a")
    trace.write_text("\n".join([lines[0], "not json", *lines[1:]]) + "\n")
    with pytest.raises(InputError, match=r"trace.jsonl:2: .*not a trace event"):
        load_run(tmp_path / "runs" / "a")
