"""Mode `predict` in the planner: columns of an epoch with history, and what the solver makes of them."""

import dataclasses

import numpy as np
import pytest

from rlplan.planner.choose.candidates import LongKey, ShortKey
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, expected_deferrals
from rlplan.planner.simulate.whole_run import round_spec, simulate_plan, simulate_run
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.rounds.round_spec import RoundSpec

TARGET, GROUP, CAP, SHARE = 8, 4, 1024, 0.25
LAYOUT = EngineLayout(1, 2)
KEY = ShortKey("predict", TARGET, GROUP, None, LAYOUT, SHARE)


@pytest.fixture
def setting(make_trace, make_profile) -> Setting:
    profile = make_profile()
    decode = {r.layout: decode_cost(profile, r) for r in profile.rollout}
    draws = Draws(fit_lengths(make_trace(icc=0.8)), 0, GROUP)
    return Setting(TARGET, GROUP, CAP, False, decode, reward_cost(profile.reward, 1), draws)


def columns(setting: Setting, short_rounds: int, long_rounds: int) -> tuple[ShortColumn, LongColumn]:
    short, long = ShortColumn(setting, KEY), LongColumn(setting, LongKey(KEY.law, 1, LAYOUT))
    short.extend(short_rounds)
    long.extend(long_rounds, setting.earlier.long_prompts(SHARE, long_rounds * TARGET))
    return short, long


@pytest.mark.parametrize("dynamic", [False, True])
def test_columns_agree_with_the_epochs_of_a_run_that_have_history(setting, make_profile, dynamic) -> None:
    setting = dataclasses.replace(setting, dynamic_sampling=dynamic)
    train = train_cost(make_profile().train[2])
    short, long = columns(setting, 300, 150)
    ratio = expected_deferrals(short, setting) / TARGET
    samples = GROUP * (mean(short.log.groups) + ratio * mean(long.log.groups))
    steady = (mean(short.log.step_s(train)) + ratio * mean(long.log.step_s(train))) / samples
    cost = setting.decode[LAYOUT]
    kind = RoundCosts(cost, cost.max_sequences, train)
    spec = RoundSpec("predict", TARGET, GROUP, CAP, TARGET, GROUP, dynamic_sampling=dynamic, long_share=SHARE)
    run = simulate_run(spec, kind, kind, setting.reward, setting.draws, steps=0, prompts=800, epochs=4)
    assert run.seconds_per_sample(since_epoch=1) == pytest.approx(steady, rel=0.05)
    assert run.seconds_per_sample(since_epoch=1) < 0.9 * run.seconds_per_sample()
    late = [s for s in run.steps if s.epoch]
    assert sum(s.kind == "long" for s in late) / len(late) == pytest.approx(ratio / (1 + ratio), abs=0.02)
    for kind_name, log in (("short", short.log), ("long", long.log)):
        rollouts = [s.rollout_s for s in late if s.kind == kind_name]
        assert mean(rollouts) == pytest.approx(mean(log.rollout_s), rel=0.12)


def test_columns_rank_prompts_as_the_executor_does_and_share_them_out_once(setting) -> None:
    expected = setting.earlier.expected_long(0, SHARE)
    assert expected.sum() == round(SHARE * len(expected))
    assert np.array_equal(expected, setting.earlier.expected_long(0, SHARE))
    assert not np.any(expected & ~setting.earlier.expected_long(0, 2 * SHARE)), "a larger share holds the smaller one"
    traced = setting.draws.traced_of(np.arange(len(expected)))
    means = np.log(setting.draws.model.tables).mean(axis=1)
    assert means[traced[expected]].mean() > means[traced[~expected]].mean() + 0.8
    long = {int(name[1:8]) for name in setting.earlier.long_prompts(SHARE, int(expected.sum()))}
    assert long == set(np.flatnonzero(expected).tolist())
    short = ShortColumn(setting, KEY)
    short.extend(10)
    taken = set(np.flatnonzero(short._drawn).tolist())
    assert len(taken) == 10 * TARGET and not taken & long


def test_nothing_is_cut_short_so_no_column_has_a_bias_beyond_its_draws(setting) -> None:
    short, long = columns(setting, 40, 200)
    assert short.log.excess == [0] * 40 and short.log.deferred == [0] * 40
    assert short.log.settled == short.log.groups == [TARGET] * 40
    # Drawn afresh from the same prompts, whatever the history said: the control differs by luck only.
    noise = np.std(long.log.excess) / np.sqrt(len(long.log))
    assert abs(mean(long.log.excess)) < 3.5 * noise
    assert long.log.decoded == [t - 18 * TARGET * GROUP for t in long.log.tokens], "all that was decoded is trained"


def test_an_epoch_trains_every_prompt_once_and_aborts_nothing(setting, make_profile) -> None:
    spec = RoundSpec("predict", TARGET, GROUP, CAP, TARGET, GROUP, long_share=SHARE)
    cost = setting.decode[LAYOUT]
    kind = RoundCosts(cost, cost.max_sequences, train_cost(make_profile().train[2]))
    run = simulate_run(spec, kind, kind, setting.reward, setting.draws, steps=0, prompts=100, epochs=3)
    # 100 prompts are twelve rounds and a half.
    assert [s.groups for s in run.steps] == [TARGET] * len(run.steps)
    assert 300 <= sum(s.groups for s in (*run.steps, *run.settling)) < 300 + 2 * TARGET
    assert all(s.decoded_tokens == s.response_tokens for s in run.steps)
    assert {s.kind for s in run.steps if s.epoch == 0} == {"short"}
    assert {s.kind for s in run.steps if s.epoch == 1} == {"short", "long"}


def test_prompts_of_alike_lengths_are_worth_rounds_of_their_own(
    make_cluster, make_job, make_profile, make_trace, inputs
) -> None:
    job = make_job({"prompts_per_step": 8, "samples_per_prompt": 4})
    alike = make_trace(icc=0.9)
    arguments = make_cluster(), job, make_profile(), alike, inputs
    plan = solve(*arguments, SolveOptions(mode="predict")).plan
    gain = plan.predicted.baseline.seconds_per_sample / plan.predicted.seconds_per_sample
    assert plan.job.bias.mode == "predict" and gain > 1.2
    assert plan.predicted.length_ratio == 1.0 and plan.job.bias.budget == 0.0
    short, long = plan.job.rounds.short, plan.job.rounds.long
    assert short.long_share is not None and long is not None
    assert plan.predicted.rounds.long.share == pytest.approx(short.long_share)
    assert "the first has no history" in plan.job.why["bias.mode"]
    assert "next best" in plan.job.why["rounds.short.long_share"]
    assert loads(dump(plan), Plan).job == plan.job
    spec = round_spec(plan.job, CAP, False)
    assert (spec.mode, spec.long_share, spec.short_prompts, spec.short_samples) == ("predict", short.long_share, 8, 4)
    run = simulate_plan(plan, job, arguments[2], alike, steps=300, prompts=600)
    assert run.seconds_per_sample(since_epoch=1) == pytest.approx(plan.predicted.seconds_per_sample, rel=0.08)
    # Left free, the solver tells what it would gain, but does not count on there being a second epoch.
    free = solve(*arguments).plan
    assert free.job.bias.mode == "exact"
    assert plan.predicted.seconds_per_sample < free.predicted.seconds_per_sample
    assert "predict" in free.job.why["bias.mode"]
