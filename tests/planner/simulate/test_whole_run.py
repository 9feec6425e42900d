"""Whole runs: epochs, drift, switches, and onlookers that change nothing."""

import math

import pytest

from rlplan.planner.choose.candidates import LongKey, ShortKey
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.columns.whole_columns import (
    LongColumn,
    Setting,
    ShortColumn,
    expected_deferrals,
    long_draws,
)
from rlplan.planner.simulate.run_summary import BusyMeter, quantile
from rlplan.planner.simulate.run_timeline import Timeline
from rlplan.planner.simulate.whole_run import simulate_run
from rlplan.rounds.round_spec import RoundSpec

EXACT = RoundSpec("exact", 4, 4, 1024, short_prompts=6, short_samples=4, cutoff_tokens=120)
SYNC = RoundSpec("sync", 4, 4, 1024, short_prompts=4, short_samples=4)


@pytest.fixture
def run(make_profile, make_trace):
    profile, model = make_profile(), fit_lengths(make_trace(24, 8))
    train = train_cost(profile.train[2])
    two, one = (RoundCosts(decode_cost(profile, entry), 64, train) for entry in profile.rollout)

    def simulate(spec, steps=30, prompts=200, long_on_other=False, **options):
        reward = reward_cost(profile.reward, 1)
        return simulate_run(
            spec, two, one if long_on_other else two, reward, Draws(model, 0, 4), steps, prompts, **options
        )

    return simulate


@pytest.mark.parametrize("prompts", [32, 37])
def test_no_round_is_small_because_an_epoch_ends(run, prompts):
    simulated = run(EXACT, steps=60, prompts=prompts)
    assert {s.groups for s in simulated.steps} == {4}
    assert max(s.epoch for s in simulated.steps) == -(-60 * 4 // prompts) - 1


def test_a_run_of_whole_epochs_goes_on_until_their_prompts_were_issued_and_settles_what_it_owes(run):
    epoch = run(EXACT, steps=0, prompts=90)
    trained = sum(s.groups for s in (*epoch.steps, *epoch.settling))
    assert 90 <= trained <= 90 + 4, "the last round fills up with the next epoch's"
    assert {s.groups for s in epoch.steps} == {4}


def test_the_last_round_of_what_is_owed_counts_by_its_prompts(run):
    owing = next(r for r in (run(EXACT, steps=n) for n in range(1, 9)) if r.steps[-1].deferred % 4)
    last = owing.settling[-1]
    assert last.taken < 4
    whole = sum(s.step_s for s in (*owing.steps, *owing.settling[:-1]))
    samples = sum(s.samples for s in (*owing.steps, *owing.settling))
    assert owing.seconds_per_sample() == pytest.approx((whole + last.step_s * last.taken / 4) / samples)


def test_the_seconds_that_columns_predict_are_those_of_whole_epochs_of_eight_steps(run, make_profile, make_trace):
    """Epochs that ended in smaller rounds took 4 to 9 % longer a trained group than the columns say."""
    profile, group, cutoff_tokens = make_profile(), 4, 150
    decode = decode_cost(profile, profile.rollout[0])
    train = train_cost(profile.train[2])
    kind = RoundCosts(decode, decode.max_sequences, train)
    # 64 prompts are the trace's own, so a data set of them is as long as the model says.
    draws = Draws(fit_lengths(make_trace(64, 8)), 0, group)
    reward = reward_cost(profile.reward, 1)
    setting = Setting(8, group, 1024, False, {decode.key: decode}, reward, draws)
    key = ShortKey("exact", 12, group, cutoff_tokens, decode.key)
    short, long = ShortColumn(setting, key), LongColumn(setting, LongKey(key.law, 1, decode.key))
    short.extend(300)
    long.extend(150, long_draws(draws, group, cutoff_tokens, 150 * 8))
    share = expected_deferrals(short, setting) / 8
    predicted = (mean(short.log.step_s(train)) + share * mean(long.log.step_s(train))) / (1 + share)
    spec = RoundSpec("exact", 8, group, 1024, 12, group, cutoff_tokens=cutoff_tokens)
    simulated = simulate_run(spec, kind, kind, reward, draws, steps=8 * 20, prompts=64)
    assert {s.groups for s in simulated.steps} == {8}
    assert mean([s.step_s for s in simulated.steps]) == pytest.approx(predicted, rel=0.04)
    assert simulated.seconds_per_sample() * 8 * group == pytest.approx(predicted, rel=0.04)


def test_the_queue_starts_empty_so_a_run_begins_with_short_rounds(run):
    steps = run(EXACT).steps
    first_long = next(i for i, s in enumerate(steps) if s.kind == "long")
    assert first_long >= 1
    assert [s.deferred for s in steps[:first_long]] == sorted(s.deferred for s in steps[:first_long])


def test_what_a_run_owes_at_its_end_is_settled_and_charged(run):
    owing = next(r for r in (run(EXACT, steps=n) for n in range(1, 9)) if r.steps[-1].deferred)
    assert sum(s.groups for s in owing.settling) == owing.steps[-1].deferred
    without = sum(s.step_s for s in owing.steps) / sum(s.samples for s in owing.steps)
    assert owing.seconds_per_sample() > without


def test_switch_seconds_are_paid_when_and_only_when_the_layout_changes(run):
    free, paid = (run(EXACT, long_on_other=True, switch_s=s) for s in (0.0, 2.5))
    kinds = [s.kind for s in paid.steps]
    changes = [a != b for a, b in zip(["short", *kinds], kinds, strict=False)]
    assert [s.switch_s for s in paid.steps] == [2.5 * c for c in changes]
    assert sum(changes) >= 2
    assert sum(s.step_s for s in paid.steps) == pytest.approx(sum(s.step_s for s in free.steps) + 2.5 * sum(changes))
    assert all(s.switch_s == 0 for s in run(EXACT, switch_s=2.5).steps)


def test_lengths_drift_by_their_logs_and_the_bias_is_measured_against_drifted_ones(run):
    still, grown = run(SYNC, steps=40), run(SYNC, steps=40, drift_per_step=math.log(2) / 40)
    assert grown.steps[0].response_tokens == still.steps[0].response_tokens
    late = [sum(s.response_tokens for s in r.steps[30:]) for r in (grown, still)]
    assert 1.5 < late[0] / late[1] < 2.0  # 2^(0.75..1), less what the cap takes
    assert still.length_ratio() == 1.0
    assert grown.length_ratio() == pytest.approx(1.0, abs=0.1)


def test_the_length_ratio_of_a_plain_run_is_exactly_one_and_that_of_a_race_below(run):
    assert run(SYNC).length_ratio() == 1.0
    race = RoundSpec("race", 4, 3, 1024, short_prompts=6, short_samples=4)
    assert 0.85 < run(race, steps=300, prompts=1000).length_ratio() < 0.95


def test_onlookers_change_nothing(run):
    meter = BusyMeter(Timeline(5))
    assert run(EXACT, watch=meter) == run(EXACT)


def test_busy_engine_seconds_are_at_most_what_there_was_and_nearly_all_of_it_for_one_engine(run):
    meter = BusyMeter()
    steps = run(SYNC, watch=meter).steps
    assert all(0 < busy <= 2 * s.rollout_s for busy, s in zip(meter.busy_s, steps, strict=True))


def test_quantiles_are_values_that_occurred():
    values = [3.0, 1.0, 2.0, 4.0]
    assert [quantile(values, level) for level in (0.25, 0.5, 0.51, 0.95, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0]
