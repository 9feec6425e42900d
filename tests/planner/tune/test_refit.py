"""Replays that meet a simulated run exactly, and refits: exact where the data is, drawn to the profile elsewhere."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rlplan.planner.costs.decode_costs import decode_cost, layout_cost
from rlplan.planner.costs.round_costs import decode_of, train_of
from rlplan.planner.tune.executed_run import load_executed
from rlplan.planner.tune.refit import (
    FACTOR_PRIOR,
    TRANSFER,
    fit_line,
    fit_ratio,
    refit,
    replay_run,
    transfer_error,
    update_transfer_error,
)
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.plans.schema.planned_job import PlannedJob
from rlplan.plans.schema.planned_rounds import RoundRollout
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads
from rlplan.profiles.profile_schema import Profile, RoundCheck
from rlplan.rounds.round_spec import QueueRule
from rlplan.traces.run_log import TRACE

from ..conftest import CAP
from ..gpu_run import solved_on_gpus
from ..synthetic_run import ran, slower, solved

# -- replays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "race", "defer", "exact", "predict"])
def test_a_replay_of_a_simulated_round_takes_as_long_as_it_did(mode, tmp_path):
    documents = solved(mode=mode)
    # Short epochs, so that `predict` comes to one that has a history.
    run = ran(tmp_path / "r", documents, noise=0.0, steps=25, prompts=88)
    replays = replay_run(run, CAP, False, documents.profile)
    assert [r.step.step for r in replays] == list(range(1, 26))
    if mode != "sync":
        assert {s.kind for s in run.steps} == {"short", "long"} or documents.plan.job.rounds.long is None
    for replay in replays:
        assert replay.times.decode_end_s == pytest.approx(replay.step.rollout_s, rel=0.02)
        assert replay.times.end_s == pytest.approx(replay.step.rollout_s + replay.step.reward_exposed_s, rel=0.02)
        assert replay.update_s == pytest.approx(replay.step.train_s)
        assert replay.sync_s == pytest.approx(replay.step.sync_s)


def with_rounds(documents, **kinds):
    """The documents with parts of some kinds of round of the plan changed: `short={"train": ...}`."""
    rounds = documents.plan.job.rounds
    edited = {kind: getattr(rounds, kind).model_copy(update=parts) for kind, parts in kinds.items()}
    job = documents.plan.job.model_copy(update={"rounds": rounds.model_copy(update=edited)})
    return dataclasses.replace(documents, plan=documents.plan.model_copy(update={"job": job}))


def test_copies_that_were_all_aborted_are_replayed_as_copies(tmp_path):
    documents = solved(mode="exact")
    issue = documents.plan.job.rounds.long.issue.model_copy(update={"copies": 3})
    documents = with_rounds(documents, long={"issue": issue})
    run = ran(tmp_path / "r", documents, noise=0.0, steps=25)
    long = [s for s in run.steps if s.kind == "long"]
    seen = {(s.step, r.draw) for s in long for r in s.rows}
    assert len(seen) < sum(s.issued_samples for s in long) / 4, "some draws left no finished sample"
    for replay in replay_run(run, CAP, False, documents.profile):
        assert replay.times.decode_end_s == pytest.approx(replay.step.rollout_s, rel=0.02)


def test_rounds_by_queue_are_replayed_at_their_prompts_ages(tmp_path, monkeypatch):
    documents = solved(mode="exact")
    target, of_plan = documents.plan.job.issue.prompts_per_step, PlannedJob.round_spec
    rule = QueueRule(2 * target + 3, more_copies_every=1, until_long_after=3)
    monkeypatch.setattr(PlannedJob, "round_spec", lambda *given: dataclasses.replace(of_plan(*given), queue=rule))
    run = ran(tmp_path / "r", documents, noise=0.0, steps=40)
    by_queue = [step for step in run.steps if step.ages]
    assert {len(step.ages) for step in by_queue} == {rule.prompts} and max(max(step.ages) for step in by_queue) > 0
    for replay in replay_run(run, CAP, False, documents.profile):
        assert replay.times.decode_end_s == pytest.approx(replay.step.rollout_s, rel=0.02)
        assert replay.update_s == pytest.approx(replay.step.train_s)


def test_what_is_no_run_is_refused_with_what_would_be_one(tmp_path):
    for name in ("a", "b"):
        ran(tmp_path / "runs" / name, solved(mode="sync"), steps=1)
    with pytest.raises(InputError, match="no such run folder"):
        load_executed(tmp_path / "none")
    with pytest.raises(InputError, match="holds the runs a, b: name one"):
        load_executed(tmp_path / "runs")
    trace = tmp_path / "runs" / "a" / TRACE
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join(line for line in lines if json.loads(line)["event"] != "step") + "\n")
    with pytest.raises(InputError, match="no step was finished"):
        load_executed(tmp_path / "runs" / "a")
    trace.write_text("\n".join([lines[0], "not json", *lines[1:]]) + "\n")
    with pytest.raises(InputError, match=r"trace.jsonl:2: .*not a trace event"):
        load_executed(tmp_path / "runs" / "a")


# -- lines -------------------------------------------------------------------------------------------------------------


def test_many_quiet_rounds_of_unlike_sizes_give_overhead_and_factor_back():
    x = np.linspace(0.5, 8.0, 40)
    line = fit_line(x, 0.4 + 1.3 * x, 0.1)
    assert (line.overhead, line.factor) == (pytest.approx(0.4, rel=0.05), pytest.approx(1.3, rel=0.01))


def test_a_single_noisy_round_moves_the_profile_less_than_many_do():
    rng = np.random.default_rng(0)

    def correction(rounds):
        x = np.full(rounds, 2.0)
        line = fit_line(x, 2.0 * x * (1 + 0.8 * rng.uniform(-1, 1, size=rounds)), 0.0)
        return (line.overhead + 2.0 * line.factor) / 2.0

    few = np.mean([correction(2) for _ in range(200)])
    many = np.mean([correction(400) for _ in range(20)])
    assert 1.0 < few < many - 0.1
    assert many == pytest.approx(2.0, abs=0.12)


@settings(max_examples=80, deadline=None)
@given(
    rounds=st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=12),
    overhead=st.floats(0, 5),
)
def test_a_refitted_cost_never_falls_where_the_profiles_rises(rounds, overhead):
    line = fit_line([x for x, _ in rounds], [m for _, m in rounds], overhead)
    assert line.overhead >= 0 and line.factor > 0 and math.isfinite(line.factor) and line.error >= 0


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_an_overhead_that_the_profile_cannot_state_goes_into_the_factor(least):
    x = np.linspace(2.0, 8.0, 400)
    line = fit_line(x, 0.2 + 1.5 * x, 0.6, least)
    assert line.overhead == pytest.approx(max(0.2, least), rel=0.1)
    assert np.mean(line.overhead + line.factor * x) == pytest.approx(np.mean(0.2 + 1.5 * x), rel=0.01)


@settings(max_examples=80, deadline=None)
@given(ratio=st.floats(0.05, 20), rounds=st.integers(1, 50))
def test_ratios_lie_between_one_and_what_was_measured(ratio, rounds):
    line = fit_ratio([0.3] * rounds, [0.3 * ratio] * rounds, FACTOR_PRIOR)
    assert min(1.0, ratio) - 1e-9 <= line.factor <= max(1.0, ratio) + 1e-9


# -- profiles ----------------------------------------------------------------------------------------------------------


def found(documents, truth, folder, **options):
    """(a run where costs are `truth`, what is refitted from it)."""
    run = ran(folder, documents, truth, **options)
    return run, refit(documents.profile, run, replay_run(run, CAP, False, documents.profile))


def test_slower_decoding_and_slower_updates_are_told_apart(tmp_path):
    documents = solved(mode="exact")
    run, result = found(documents, slower(documents.profile, decode=1.6, train=2.5), tmp_path / "r")
    assert [line.factor for line in result.rollout.values()] == pytest.approx([1.6] * len(result.rollout), rel=0.05)
    assert result.train.factor == pytest.approx(2.5, rel=0.1)
    replays = replay_run(run, CAP, False, result.profile)
    assert sum(r.total_s for r in replays) == pytest.approx(sum(s.total_s for s in run.steps), rel=0.03)
    again = refit(result.profile, run, replays)
    assert [line.factor for line in again.rollout.values()] == pytest.approx([1.0] * len(again.rollout), abs=0.02)
    assert again.train.factor == pytest.approx(1.0, abs=0.05)


def test_layouts_that_were_not_run_take_part_of_the_correction(tmp_path):
    """And less once they were run."""
    documents = solved(mode="exact")
    run, result = found(documents, slower(documents.profile, decode=2.0), tmp_path / "r")
    entries = {entry.layout: entry for entry in documents.profile.rollout}
    [unused] = set(entries) - set(result.rollout)

    def step_s(profile):
        (entry,) = (entry for entry in profile.rollout if entry.layout == unused)
        return decode_cost(profile, entry).a

    assert 1.2 < step_s(result.profile) / step_s(documents.profile) < 1.9
    plain = {"rounds": 500, "factor": 1.0, "overhead_s": 0.0, "overhead_s_per_sample": 0.0}
    known = documents.profile.model_copy(
        update={"checks": tuple(c.model_copy(update=plain) for c in result.profile.checks)}
    )
    later = refit(known, run, replay_run(run, CAP, False, known))
    assert step_s(later.profile) == pytest.approx(entries[unused].step_s, rel=0.05)
    assert transfer_error(result, [entries[unused]]) > 0.1
    assert transfer_error(result, [entries[layout] for layout in result.rollout]) == 0.0


# -- one entry of a shipped profile prices many engines ----------------------------------------------------------------


def sharded(documents):
    """The documents with trainers of one replica: of few tokens a data parallel update is all gathering, and a run of
    it tells nothing of what a token takes."""
    return with_rounds(documents, short={"train": UpdateLayout(dp=1, tp=8, micro_batch_tokens=4096)})


def by_layout(profile, tp, engines):
    return layout_cost(profile, EngineLayout(tp, engines)).base_s(16)


def test_a_run_slower_than_a_shipped_profile_corrects_every_phase(tmp_path):
    documents = sharded(solved_on_gpus())
    truth = slower(documents.profile, decode=1.5, train=1.5)
    run, result = found(documents, truth, tmp_path / "r", steps=16)
    [layout] = result.rollout
    assert layout == (4, 2), "not an entry of the profile, which knows one engine of each size"
    short = documents.plan.job.rounds.short
    now, real = (decode_of(profile, short.rollout) for profile in (result.profile, truth))
    for sequences, kv_tokens in ((1, 300), (16, 5_000)):
        seconds = real.steps_s(100, sequences, kv_tokens)
        assert now.steps_s(100, sequences, kv_tokens) == pytest.approx(seconds, rel=0.04)
    update, wanted = (train_of(profile, short.train) for profile in (result.profile, truth))
    assert update.update_s(4_000, 2_000_000) == pytest.approx(wanted.update_s(4_000, 2_000_000), rel=0.03)
    replays = replay_run(run, CAP, False, result.profile)
    assert sum(r.total_s for r in replays) == pytest.approx(sum(s.total_s for s in run.steps), rel=0.02)
    # What the run did not use is corrected in part, and its error is told.
    factor = result.rollout[4, 2].factor
    grown = {key: by_layout(result.profile, *key) / by_layout(documents.profile, *key) for key in ((4, 1), (2, 4))}
    assert grown[4, 1] == pytest.approx(factor), "priced by the entry that was found to be too quick"
    assert grown[2, 4] == pytest.approx(factor**TRANSFER)
    assert transfer_error(result, [short.rollout]) == update_transfer_error(result, [short.train]) == 0.0
    other = RoundRollout(pool="main", engines=1, tp=4, max_num_seqs=16)
    assert transfer_error(result, [short.rollout, other]) == pytest.approx((1 - TRANSFER) * math.log(factor))
    assert 0.05 < update_transfer_error(result, [short.train.model_copy(update={"dp": 2, "tp": 4})]) < 0.15


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """By kind of machine: (documents, a run, its replays)."""
    several = {"gpus": sharded(solved_on_gpus()), "cpus": solved(mode="exact")}
    runs = {name: ran(tmp_path_factory.mktemp(name), documents, steps=8) for name, documents in several.items()}
    return {
        name: (documents, runs[name], replay_run(runs[name], CAP, False, documents.profile))
        for name, documents in several.items()
    }


TIMES = st.lists(
    st.builds(
        lambda scale, digits, seconds: [round(scale * s, digits) for s in seconds],
        st.sampled_from([0.0, 0.01, 1.0, 1e3]),
        st.integers(0, 6),
        st.lists(st.floats(0, 1), min_size=5, max_size=5),
    ),
    min_size=8,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(times=TIMES, kind=st.sampled_from(["gpus", "cpus"]))
def test_what_is_refitted_to_any_times_can_be_read_again(replayed, times, kind):
    documents, run, replays = replayed[kind]
    names = ("rollout_s", "reward_exposed_s", "train_s", "sync_s", "other_s")
    measured = [
        dataclasses.replace(r, step=structs.replace(r.step, **dict(zip(names, seconds, strict=True))))
        for r, seconds in zip(replays, times, strict=True)
    ]
    profile = refit(documents.profile, run, measured).profile
    read = loads(dump(profile, digits=WRITTEN_DIGITS), Profile)
    assert all(value > 0 for value in read.train_law.factors.values()) if read.train_law else read.train


def test_updates_that_start_at_once_leave_a_profile_that_predicts_them(tmp_path):
    """Where the law charges an optimizer more than updates without tokens were seen to take."""
    documents = sharded(solved_on_gpus())
    law = documents.profile.train_law
    quick = law.model_copy(update={"factors": {**law.factors, "step": 40.0}})
    priced = dataclasses.replace(documents, profile=documents.profile.model_copy(update={"train_law": quick}))
    run = ran(tmp_path / "r", documents, slower(documents.profile, train=0.3), steps=40, noise=0.01)
    replays = replay_run(run, CAP, False, priced.profile)
    for _ in range(8):  # tuned again and again, it settles
        profile = refit(priced.profile, run, replays).profile
        priced = dataclasses.replace(priced, profile=loads(dump(profile, digits=WRITTEN_DIGITS), Profile))
        replays = replay_run(run, CAP, False, priced.profile)
    assert sum(r.update_s for r in replays) == pytest.approx(sum(s.train_s for s in run.steps), rel=0.05)


def test_two_layouts_of_one_entry_are_corrected_each_by_its_own_rounds(tmp_path):
    documents = solved_on_gpus("exact")
    rollout = documents.plan.job.rounds.short.rollout
    two, one = (rollout.model_copy(update={"engines": engines, "tp": 4}) for engines in (2, 1))
    documents = with_rounds(documents, short={"rollout": two}, long={"rollout": one})
    checks = tuple(
        RoundCheck(tp=4, engines=engines, rounds=9, overhead_s=0, overhead_s_per_sample=0, factor=factor, error=0.01)
        for engines, factor in ((2, 1.5), (1, 2.2))
    )
    truth = documents.profile.model_copy(update={"checks": checks})
    _, result = found(documents, truth, tmp_path / "r", steps=30)
    for engines, factor in ((2, 1.5), (1, 2.2)):
        assert result.rollout[4, engines].factor == pytest.approx(factor, rel=0.04)
        grown = by_layout(result.profile, 4, engines) / by_layout(documents.profile, 4, engines)
        assert grown == pytest.approx(factor, rel=0.04)
