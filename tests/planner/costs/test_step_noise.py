"""Machine noise in predicted bands: the mixture's quantiles, what a profile has seen, and coverage of a run."""

import math

import numpy as np
import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.costs.step_noise import share_within, spread_of, step_deviations
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.explain.cost_error import noise_of
from rlplan.planner.simulate.columns.round_log import RoundLog
from rlplan.plans.schema.predicted import StepNoise
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.profiles.phase_schema import Spread
from rlplan.profiles.profile_schema import RoundCheck
from rlplan.traces.report import report

from ..synthetic_run import QUICK, solved, synthesize


def test_without_noise_quantiles_are_those_of_the_rounds():
    values = [float(k) for k in range(1, 101)]
    found = spread_of([(1.0, values, [0.0] * 100)])
    assert (found.p50, found.p95, found.mean) == (50.0, 95.0, 50.5)
    both = spread_of([(0.9, [1.0], [0.0]), (0.1, [10.0], [0.0])])
    assert (both.p50, both.p95, both.mean) == (1.0, 10.0, pytest.approx(1.9))


def test_noise_widens_the_band_as_drawn_factors_do_and_leaves_the_mean():
    rng = np.random.default_rng(0)
    rounds, deviation = [2.0, 3.0, 3.5, 5.0], 0.2
    factors = np.exp(deviation * rng.standard_normal(400_000) - deviation**2 / 2)
    drawn = rng.choice(rounds, 400_000) * factors
    parts = [(1.0, rounds, [deviation] * 4)]
    found = spread_of(parts)
    assert found.mean == pytest.approx(np.mean(rounds))
    assert found.p50 == pytest.approx(np.quantile(drawn, 0.5), rel=0.01)
    assert found.p95 == pytest.approx(np.quantile(drawn, 0.95), rel=0.01)
    assert share_within(found.p95, parts) == pytest.approx(0.95, abs=1e-9)
    assert spread_of([(1.0, [0.0, 0.0], [0.3, 0.3])]).p95 == 0.0


def test_independent_phases_add_their_variances(make_profile):
    train = train_cost(make_profile().train[2])
    log = RoundLog(sync_s=0.5, rollout_s=[3.0], reward_s=[0.0], tokens=[1000], squares=[10**6])
    update_s = log.updates_s(train)[0]
    (found,) = step_deviations(log, train, StepNoise(rollout=0.1, reward_exposed=9.0, train=0.2, sync=0.0))
    total = 3.5 + update_s
    assert found == pytest.approx(math.hypot(3.0 * 0.1, update_s * 0.2) / total, rel=0.02)


def test_a_profile_tells_the_noise_of_what_it_measured_and_none_of_what_was_derived(make_profile):
    train, layout = train_cost(make_profile().train[0]), EngineLayout(1, 2)
    check = make_profile().checks[0]
    stated = noise_of(make_profile(checks=(check.model_copy(update={"noise": 0.07}),)), layout, train)
    assert stated.rollout == 0.07
    assert stated.sync == pytest.approx(math.log(1.1) / 1.6449)
    # One that does not state it has the error of left-out rounds, a mean absolute one, in its place.
    assert noise_of(make_profile(), layout, train).rollout == pytest.approx(0.02 / math.sqrt(2 / math.pi))
    derived = make_profile(checks=())
    still = Spread(p50=0.2, p95=0.4, repeats=0)
    entries = tuple(entry.model_copy(update={"sync": still}) for entry in derived.rollout)
    found = noise_of(derived.model_copy(update={"rollout": entries}), layout, train)
    assert (found.rollout, found.sync) == (0.0, 0.0)


def noisy(profile, noise):
    """The profile of a machine whose phases scatter by `noise`."""

    def spread(of):
        return Spread(p50=of.p50, p95=of.p50 * math.exp(1.6449 * noise), repeats=9)

    check = profile.checks[0]
    checks = (RoundCheck(**{**check.model_dump(), "noise": noise}),)
    rollout = tuple(entry.model_copy(update={"sync": spread(entry.sync)}) for entry in profile.rollout)
    train = tuple(entry.model_copy(update={"noise": noise}) for entry in profile.train)
    reward = profile.reward.model_copy(update={"latency": spread(profile.reward.latency)})
    return profile.model_copy(update={"checks": checks, "rollout": rollout, "train": train, "reward": reward})


@pytest.mark.parametrize(("mode", "steps"), [("exact", 300), ("sync", 150)])
def test_half_of_a_runs_steps_lie_below_p50_and_95_percent_below_p95_in_every_kind_of_round(tmp_path, mode, steps):
    noise = 0.15
    # The last pass's rounds are what is predicted from, and quantiles of few are off by themselves.
    passes = (*QUICK, Pass(160, 80, 0.0))
    given = solved(mode=mode, profile=lambda profile: noisy(profile, noise), passes=passes)
    run = synthesize(
        tmp_path, given.plan, given.job, given.profile, given.trace, steps=steps, prompts=6000, noise=noise, seed=0
    )
    (found,) = report(run)["runs"].values()
    coverage = found["coverage"]
    kinds = ["short", "long", "all"] if mode == "exact" else ["short", "all"]
    assert list(coverage) == kinds
    for kind in kinds:
        count = coverage[kind]["steps"]
        for figures in (value for key, value in coverage[kind].items() if key != "steps"):
            for name, level in (("p50", 0.5), ("p95", 0.95)):
                chance = 3 * math.sqrt(level * (1 - level) / count)
                assert figures[f"share_below_{name}"] == pytest.approx(level, abs=chance + 0.02), (kind, name)
                assert figures[f"below_{name}"] == round(figures[f"share_below_{name}"] * count)
