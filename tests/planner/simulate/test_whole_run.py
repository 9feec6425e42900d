"""Whole runs: epochs, drift, switches, onlookers that change nothing, and the columns that they are made of."""

import dataclasses
import math
from dataclasses import astuple
from functools import partial

import pytest

from rlplan.planner.choose.candidates.candidate_rounds import queue_rule
from rlplan.planner.choose.candidates.round_kinds import LongKey, ShortKey
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.columns.whole_columns import Setting
from rlplan.planner.simulate.run_summary import BusyMeter
from rlplan.planner.simulate.run_timeline import Timeline
from rlplan.planner.simulate.whole_run import simulate_plan, simulate_run
from rlplan.planner.solve import solve
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.rounds.round_spec import QueueRule, RoundSpec
from rlplan.traces.report_steps import quantile

from ..conftest import CAP, heavy_trace, laptop, small_job, small_profile, some_inputs
from ..synthetic_run import QUICK
from .columns.settings import EXACT as EXACT_KEY
from .columns.settings import GROUP, LAYOUT, PROFILE, TRAIN, long_of, make_setting, short_of, steady

EXACT = RoundSpec("exact", 4, GROUP, CAP, short_prompts=6, short_samples=GROUP, cutoff_tokens=120)
SYNC = RoundSpec("sync", 4, GROUP, CAP, short_prompts=4, short_samples=GROUP)
MODEL = fit_lengths(heavy_trace(24, 8))


def run(spec, steps=30, prompts=200, long_on_other=False, **options):
    two, one = (RoundCosts(decode_cost(PROFILE, entry), 64, TRAIN) for entry in PROFILE.rollout)
    reward, draws = reward_cost(PROFILE.reward, 1), Draws(MODEL, 0, GROUP)
    return simulate_run(spec, two, one if long_on_other else two, reward, draws, steps, prompts, **options)


@pytest.fixture(scope="module")
def owing():
    """A run that ends with prompts put off, of which the last round of four settles but a part."""
    return next(r for r in (run(EXACT, steps=n) for n in range(1, 9)) if r.steps[-1].deferred % 4)


@pytest.mark.parametrize("prompts", [32, 37])
def test_no_round_is_small_because_an_epoch_ends(prompts):
    simulated = run(EXACT, steps=60, prompts=prompts)
    assert {s.groups for s in simulated.steps} == {4}
    assert max(s.epoch for s in simulated.steps) == -(-60 * 4 // prompts) - 1


def test_a_run_of_whole_epochs_trains_all_their_prompts():
    epoch = run(EXACT, steps=0, prompts=90)
    trained = sum(s.groups for s in (*epoch.steps, *epoch.settling))
    assert 90 <= trained <= 90 + 4, "the last round fills up with the next epoch's"
    assert {s.groups for s in epoch.steps} == {4}


def test_a_run_with_a_queue_trains_each_prompt_of_its_epoch():
    rule = QueueRule(12, more_copies_every=1, until_long_after=4)
    epoch = run(dataclasses.replace(EXACT, queue=rule), steps=0, prompts=400)
    assert 400 <= sum(s.groups for s in (*epoch.steps, *epoch.settling)) <= 404
    by_queue = [step for step in epoch.steps if step.ages]
    assert len(by_queue) > 20 and mean([s.groups for s in by_queue]) > 3.8
    assert {len(step.ages) for step in by_queue} == {12} and max(max(step.ages) for step in by_queue) == 4
    assert sum(len(step.waits) for step in (*epoch.steps, *epoch.settling)) == sum(
        step.groups for step in (*epoch.steps, *epoch.settling) if step.kind == "long"
    )
    waves = run(EXACT, steps=0, prompts=400)
    assert epoch.length_ratio() == pytest.approx(waves.length_ratio(), abs=0.08)
    # The longest response and the unluckiest prompt: a round by queue waits for the first alone.
    rollouts = [mean([s.rollout_s for s in r.steps if s.kind == "long"]) for r in (epoch, waves)]
    assert rollouts[0] < rollouts[1]


def test_what_a_run_owes_at_its_end_is_settled_and_charged(owing):
    assert sum(s.groups for s in owing.settling) == owing.steps[-1].deferred
    last = owing.settling[-1]
    assert last.taken < 4
    whole = sum(s.step_s for s in (*owing.steps, *owing.settling[:-1]))
    samples = sum(s.samples for s in (*owing.steps, *owing.settling))
    charged = whole + last.step_s * last.taken / 4
    assert owing.seconds_per_sample() == pytest.approx(charged / samples), "the last round counts by its prompts"


def test_switch_seconds_are_paid_only_when_the_layout_changes():
    free, paid = (run(EXACT, long_on_other=True, switch_s=s) for s in (0.0, 2.5))
    kinds = [s.kind for s in paid.steps]
    changes = [a != b for a, b in zip(["short", *kinds], kinds, strict=False)]
    assert [s.switch_s for s in paid.steps] == [2.5 * c for c in changes]
    assert sum(changes) >= 2
    assert sum(s.step_s for s in paid.steps) == pytest.approx(sum(s.step_s for s in free.steps) + 2.5 * sum(changes))
    assert all(s.switch_s == 0 for s in run(EXACT, switch_s=2.5).steps)


def test_lengths_and_what_measures_bias_drift_by_their_logs():
    still, grown = run(SYNC, steps=40), run(SYNC, steps=40, drift_per_step=math.log(2) / 40)
    assert grown.steps[0].response_tokens == still.steps[0].response_tokens
    late = [sum(s.response_tokens for s in r.steps[30:]) for r in (grown, still)]
    assert 1.5 < late[0] / late[1] < 2.0  # 2^(0.75..1), less what the cap takes
    assert still.length_ratio() == 1.0
    assert grown.length_ratio() == pytest.approx(1.0, abs=0.1)


def test_a_race_trains_on_shorter_samples_than_a_plain_run():
    race = RoundSpec("race", 4, 3, CAP, short_prompts=6, short_samples=4)
    assert 0.85 < run(race, steps=300, prompts=1000).length_ratio() < 0.95


def test_onlookers_change_nothing_and_count_busy_seconds():
    meter = BusyMeter(Timeline(5))
    assert run(EXACT, watch=meter) == run(EXACT)
    steps = run(SYNC, watch=(meter := BusyMeter())).steps
    assert all(0 < busy <= 2 * s.rollout_s for busy, s in zip(meter.busy_s, steps, strict=True))


def test_quantiles_are_values_that_occurred():
    values = [3.0, 1.0, 2.0, 4.0]
    assert [quantile(values, level) for level in (0.25, 0.5, 0.51, 0.95, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0]


# -- runs beside the columns that they are made of -------------------------------------------------------------------


def run_of(setting: Setting, spec: RoundSpec, **sizes):
    cost = setting.decode[LAYOUT]
    kind = RoundCosts(cost, cost.max_sequences, TRAIN)
    return simulate_run(spec, kind, kind, setting.reward, setting.draws, **sizes)


@pytest.mark.parametrize(
    ("target", "prompts", "cutoff_tokens", "sizes", "off"),
    [
        (4, 7, 200, {"steps": 400, "prompts": 1000}, 0.06),
        # Epochs of eight steps that ended in smaller rounds took 4 to 9 % longer a trained group than the columns say.
        # 64 prompts are the trace's own, so a data set of them is as long as the model says.
        (8, 12, 150, {"steps": 160, "prompts": 64}, 0.04),
    ],
)
def test_a_run_takes_what_its_columns_predict(target, prompts, cutoff_tokens, sizes, off):
    setting = make_setting(target, GROUP)
    key = EXACT_KEY._replace(prompts=prompts, cutoff_tokens=cutoff_tokens)
    predicted = steady(setting, short_of(setting, key, 300), long_of(setting, key, 150))
    simulated = run_of(
        setting, RoundSpec("exact", target, GROUP, CAP, prompts, GROUP, cutoff_tokens=cutoff_tokens), **sizes
    )
    assert simulated.seconds_per_sample() == pytest.approx(predicted.sample_s, rel=off)
    assert mean([s.step_s for s in simulated.steps]) == pytest.approx(predicted.sample_s * target * GROUP, rel=off)
    assert simulated.long_share() == pytest.approx(predicted.long_share, abs=0.04)
    assert simulated.length_ratio() == pytest.approx(1.0, abs=0.06)
    assert all(s.samples == s.groups * GROUP and s.groups == target for s in simulated.steps)
    assert not simulated.settling or simulated.settling[-1].deferred == 0


@pytest.mark.parametrize("prompts", [400, 1600])
def test_a_run_by_queue_takes_and_waits_as_predicted(prompts):
    target, cutoff_tokens = 8, 200
    setting = make_setting(target, GROUP, prompts=prompts)
    key = EXACT_KEY._replace(prompts=12, cutoff_tokens=cutoff_tokens)
    rule = queue_rule(setting.draws.model, key.deferral, GROUP, target)
    law = LongKey(key.deferral, 1, LAYOUT, queue=astuple(rule))
    short, long = short_of(setting, key, 300), long_of(setting, law, 150)
    predicted, states = steady(setting, short, long), setting.queue_of(law)
    spec = RoundSpec("exact", target, GROUP, CAP, 12, GROUP, cutoff_tokens=cutoff_tokens, queue=rule)
    simulated = run_of(setting, spec, steps=0, prompts=prompts, epochs=max(1, 1600 // prompts))
    steps = [*simulated.steps, *simulated.settling]
    assert simulated.seconds_per_sample() == pytest.approx(predicted.sample_s, rel=0.06)
    assert simulated.long_share() == pytest.approx(predicted.long_share, abs=0.03)
    assert simulated.length_ratio() == pytest.approx(1.0, abs=0.06)
    trained = [s.groups for s in steps if s.kind == "long"]
    assert mean(trained) == pytest.approx(mean(states.trained), rel=0.05)
    assert mean([s.rollout_s for s in steps if s.kind == "long"]) == pytest.approx(mean(long.log.rollout_s), rel=0.08)


SHARE = 0.25
predicting = partial(RoundSpec, "predict", 8, GROUP, CAP, 8, GROUP, long_share=SHARE)


@pytest.mark.parametrize("dynamic", [False, True])
def test_epochs_with_history_take_what_columns_predict(dynamic):
    setting = make_setting(8, GROUP, icc=0.8, dynamic_sampling=dynamic)
    key = ShortKey("predict", 8, GROUP, None, LAYOUT, SHARE)
    short = short_of(setting, key, 150)
    long = long_of(setting, key, 80, setting.earlier.long_prompts(SHARE, 80 * 8))
    predicted = steady(setting, short, long)
    simulated = run_of(setting, predicting(dynamic_sampling=dynamic), steps=0, prompts=800, epochs=3)
    assert simulated.seconds_per_sample(since_epoch=1) == pytest.approx(predicted.sample_s, rel=0.06)
    assert simulated.seconds_per_sample(since_epoch=1) < 0.9 * simulated.seconds_per_sample()
    late = [s for s in simulated.steps if s.epoch]
    assert sum(s.kind == "long" for s in late) / len(late) == pytest.approx(predicted.long_share, abs=0.02)
    for kind, log in (("short", short.log), ("long", long.log)):
        assert mean([s.rollout_s for s in late if s.kind == kind]) == pytest.approx(mean(log.rollout_s), rel=0.14)


def test_a_predicted_epoch_trains_every_prompt_once_and_aborts_nothing():
    simulated = run_of(make_setting(8, GROUP, icc=0.8), predicting(), steps=0, prompts=100, epochs=3)
    # 100 prompts are twelve rounds and a half.
    assert {s.groups for s in simulated.steps} == {8}
    assert 300 <= sum(s.groups for s in (*simulated.steps, *simulated.settling)) < 300 + 2 * 8
    assert all(s.decoded_tokens == s.response_tokens for s in simulated.steps)
    kinds = [{s.kind for s in simulated.steps if s.epoch == epoch} for epoch in (0, 1)]
    assert kinds == [{"short"}, {"short", "long"}]


def test_prompts_of_alike_lengths_are_worth_rounds_of_their_own():
    job = small_job({"prompts_per_step": 8, "samples_per_prompt": 4}, search={"tp": [1], "micro_batch_tokens": [4096]})
    alike, profile = heavy_trace(icc=0.9), small_profile()
    arguments = laptop(), job, profile, alike, some_inputs()
    plan = solve(*arguments, SolveOptions(passes=QUICK, mode="predict")).plan
    gain = plan.predicted.baseline.seconds_per_sample / plan.predicted.seconds_per_sample
    assert plan.job.bias.mode == "predict" and gain > 1.2
    assert plan.predicted.length_ratio == 1.0 and plan.job.bias.budget == 0.0
    short, long = plan.job.rounds.short, plan.job.rounds.long
    assert short.long_share is not None and long is not None
    assert plan.predicted.rounds.long.share == pytest.approx(short.long_share)
    assert "the first epoch has no history" in plan.job.why["bias.mode"]
    assert "next best" in plan.job.why["rounds.short.long_share"]
    assert loads(dump(plan), Plan).job == plan.job
    spec = plan.job.round_spec(CAP, False)
    assert (spec.mode, spec.long_share, spec.short_prompts, spec.short_samples) == ("predict", short.long_share, 8, 4)
    simulated = simulate_plan(plan, job, profile, alike, steps=150, prompts=300)
    assert simulated.seconds_per_sample(since_epoch=1) == pytest.approx(plan.predicted.seconds_per_sample, rel=0.12)
    # Left free, the solver tells what it would gain, but does not count on there being a second epoch.
    free = solve(*arguments, SolveOptions(passes=QUICK)).plan
    assert free.job.bias.mode == "exact"
    assert plan.predicted.seconds_per_sample < free.predicted.seconds_per_sample
    assert "predict" in free.job.why["bias.mode"]
