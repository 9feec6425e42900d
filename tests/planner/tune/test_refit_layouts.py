"""Corrections by layout: what was run is corrected by what it was off by, also where one entry prices many engines."""

import dataclasses
import math

import pytest

from rlplan.planner.costs.decode_costs import layout_cost
from rlplan.planner.costs.round_costs import decode_of, train_of
from rlplan.planner.tune import plan_gain
from rlplan.planner.tune import tune as tuning
from rlplan.planner.tune.executed_run import load_run
from rlplan.planner.tune.refit import TRANSFER, refit, replay_run, transfer_error, update_transfer_error
from rlplan.plans.schema.sections.layouts import EngineLayout, UpdateLayout
from rlplan.plans.schema.sections.planned_rounds import RoundRollout
from rlplan.profiles.profile_schema import RoundCheck

from ..conftest import CAP
from ..gpu_run import solved_on_gpus
from ..synthetic_run import QUICK, slower, synthesize


def refitted(documents, truth, folder, **options):
    run = load_run(synthesize(folder, documents.plan, documents.job, truth, documents.trace, **options))
    return run, refit(documents.profile, run, replay_run(run, CAP, False, documents.profile))


def with_rounds(documents, **changes):
    """The documents with `engines` and `tp` changed in some kinds of round of the plan."""
    rounds = documents.plan.job.rounds
    edited = {
        kind: getattr(rounds, kind).model_copy(
            update={"rollout": getattr(rounds, kind).rollout.model_copy(update=rollout)}
        )
        for kind, rollout in changes.items()
    }
    job = documents.plan.job.model_copy(update={"rounds": rounds.model_copy(update=edited)})
    return dataclasses.replace(documents, plan=documents.plan.model_copy(update={"job": job}))


def sharded(documents):
    """The documents with trainers of one replica: of few tokens a data parallel update is all gathering, and a run of
    it tells nothing of what a token takes."""
    rounds = documents.plan.job.rounds
    train = UpdateLayout(dp=1, tp=8, micro_batch_tokens=4096)
    kinds = {"short": rounds.short, **({"long": rounds.long} if rounds.long else {})}
    edited = {kind: of.model_copy(update={"train": train}) for kind, of in kinds.items()}
    job = documents.plan.job.model_copy(update={"rounds": rounds.model_copy(update=edited)})
    return dataclasses.replace(documents, plan=documents.plan.model_copy(update={"job": job}))


def by_layout(profile, tp, engines):
    return layout_cost(profile, EngineLayout(tp, engines)).base_s(16)


def test_a_run_slower_than_a_shipped_profile_is_corrected_by_as_much_in_every_phase_that_was(tmp_path):
    documents = sharded(solved_on_gpus())
    truth = slower(documents.profile, decode=1.5, train=1.5)
    run, found = refitted(documents, truth, tmp_path / "r", steps=16)
    [layout] = found.rollout
    assert layout == (4, 2), "not an entry of the profile, which knows one engine of each size"
    short = documents.plan.job.rounds.short
    now, real = (decode_of(profile, short.rollout) for profile in (found.profile, truth))
    for sequences, kv_tokens in ((1, 300), (16, 5_000)):
        assert now.steps_s(100, sequences, kv_tokens) == pytest.approx(
            real.steps_s(100, sequences, kv_tokens), rel=0.04
        )
    update, wanted = (train_of(profile, short.train) for profile in (found.profile, truth))
    assert update.update_s(4_000, 2_000_000) == pytest.approx(wanted.update_s(4_000, 2_000_000), rel=0.03)
    replays = replay_run(run, CAP, False, found.profile)
    assert sum(r.total_s for r in replays) == pytest.approx(sum(s.total_s for s in run.steps), rel=0.02)
    again = refit(found.profile, run, replays)
    assert again.rollout[layout].factor == pytest.approx(1.0, abs=0.02)
    assert again.train.factor == pytest.approx(1.0, abs=0.03)


def test_what_a_run_did_not_use_is_corrected_in_part_and_its_error_is_told(tmp_path):
    documents = sharded(solved_on_gpus())
    _, found = refitted(documents, slower(documents.profile, decode=1.5, train=1.5), tmp_path / "r", steps=16)
    factor = found.rollout[4, 2].factor
    grown = {key: by_layout(found.profile, *key) / by_layout(documents.profile, *key) for key in ((4, 1), (2, 4))}
    assert grown[4, 1] == pytest.approx(factor), "priced by the entry that was found to be too quick"
    assert grown[2, 4] == pytest.approx(factor**TRANSFER)
    short = documents.plan.job.rounds.short

    def engines(count, tp):
        return RoundRollout(pool="main", engines=count, tp=tp, max_num_seqs=16)

    assert transfer_error(found, [short.rollout]) == update_transfer_error(found, [short.train]) == 0.0
    for other in (engines(1, 4), engines(4, 2)):
        assert transfer_error(found, [short.rollout, other]) == pytest.approx((1 - TRANSFER) * math.log(factor))
    other = short.train.model_copy(update={"dp": 2, "tp": 4})
    assert 0.05 < update_transfer_error(found, [other]) < 0.15


def test_two_layouts_of_one_entry_are_corrected_each_by_its_own_rounds(tmp_path):
    documents = with_rounds(solved_on_gpus("exact"), short={"engines": 2, "tp": 4}, long={"engines": 1, "tp": 4})
    checks = tuple(
        RoundCheck(tp=4, engines=engines, rounds=9, overhead_s=0, overhead_s_per_sample=0, factor=factor, error=0.01)
        for engines, factor in ((2, 1.5), (1, 2.2))
    )
    _, found = refitted(documents, documents.profile.model_copy(update={"checks": checks}), tmp_path / "r", steps=30)
    assert found.rollout[4, 2].factor == pytest.approx(1.5, rel=0.04)
    assert found.rollout[4, 1].factor == pytest.approx(2.2, rel=0.04)
    for engines, factor in ((2, 1.5), (1, 2.2)):
        grown = by_layout(found.profile, 4, engines) / by_layout(documents.profile, 4, engines)
        assert grown == pytest.approx(factor, rel=0.04)


def test_tuning_says_how_far_the_layouts_and_updates_that_it_proposes_may_be_off(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_gain, "_GAIN_SAMPLES", 3_000)
    documents = with_rounds(sharded(solved_on_gpus()), short={"engines": 4, "tp": 2, "max_num_seqs": 8})
    truth = slower(documents.profile, decode=1.5, train=1.5)
    run = load_run(synthesize(tmp_path / "r", documents.plan, documents.job, truth, documents.trace, steps=16))
    tuned = tuning.tune(run, documents, documents, passes=QUICK)
    rollout, predicted = tuned.plan.job.rounds.short.rollout, tuned.plan.predicted
    assert (rollout.engines, rollout.tp) == (2, 4)
    assert tuned.not_run == ("2 x tp 4", "dp 8, offload, micro-batches of 4096 tokens")
    parts = ((predicted.phases_s.rollout, tuned.costs.rollout[2, 4]), (predicted.phases_s.train, tuned.costs.train))
    off_s = sum(seconds * (1 - TRANSFER) * math.log(line.factor) for seconds, line in parts)
    assert tuned.errors["transfer"] == pytest.approx(off_s / predicted.step_s.mean) and tuned.errors["transfer"] > 0.02
