"""Machine noise in predicted bands: the mixture's quantiles, what a profile has seen, and coverage of a run."""

import math

import numpy as np
import pytest

from rlplan.planner.choose.candidates.solve_options import Pass
from rlplan.planner.choose.cost_error import noise_of
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.simulate.columns.round_log import RoundLog
from rlplan.planner.simulate.columns.step_noise import share_within, spread_of, step_deviations
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.schema.predicted import StepNoise
from rlplan.profiles.phase_schema import Spread
from rlplan.traces.report import report

from ...conftest import small_profile
from ...synthetic_run import QUICK, solved, synthesize


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


def test_independent_phases_add_their_variances():
    train = train_cost(small_profile().train[2])
    log = RoundLog(sync_s=0.5, rollout_s=[3.0], reward_s=[0.25], tokens=[1000], squares=[10**6])
    update_s = log.updates_s(train)[0]
    (found,) = step_deviations(log, train, StepNoise(rollout=0.1, reward_exposed=0.3, train=0.2, sync=0.4), 0.1)
    parts = 3.0 * 0.1, 0.25 * 0.3, update_s * 0.2, 0.6 * 0.4
    assert found == pytest.approx(math.hypot(*parts) / (3.0 + 0.25 + update_s + 0.6), rel=0.03)


def test_a_profile_tells_the_noise_of_what_it_measured_alone():
    profile, layout = small_profile(), EngineLayout(1, 2)
    train, check = train_cost(profile.train[0]), profile.checks[0]
    stated = noise_of(small_profile(checks=(check.model_copy(update={"noise": 0.07}),)), layout, train)
    assert stated.rollout == 0.07
    assert stated.sync == pytest.approx(math.log(1.1) / 1.6449)
    # One that does not state it has the error of left-out rounds, a mean absolute one, in its place.
    assert noise_of(profile, layout, train).rollout == pytest.approx(0.02 / math.sqrt(2 / math.pi))
    still = Spread(p50=0.2, p95=0.4, repeats=0)
    entries = tuple(entry.model_copy(update={"sync": still}) for entry in profile.rollout)
    derived = noise_of(small_profile(checks=(), rollout=entries), layout, train)
    assert (derived.rollout, derived.sync) == (0.0, 0.0)


NOISE = 0.15


def noisy(profile):
    """The profile of a machine whose phases scatter by `NOISE`."""

    def spread(of):
        return Spread(p50=of.p50, p95=of.p50 * math.exp(1.6449 * NOISE), repeats=9)

    changes = {
        "checks": tuple(check.model_copy(update={"noise": NOISE}) for check in profile.checks),
        "rollout": tuple(entry.model_copy(update={"sync": spread(entry.sync)}) for entry in profile.rollout),
        "train": tuple(entry.model_copy(update={"noise": NOISE}) for entry in profile.train),
        "reward": profile.reward.model_copy(update={"latency": spread(profile.reward.latency)}),
    }
    return profile.model_copy(update=changes)


@pytest.mark.parametrize(("mode", "steps"), [("sync", 100), pytest.param("exact", 300, marks=pytest.mark.search)])
def test_of_a_runs_steps_as_many_are_below_quantiles_as_predicted(tmp_path, mode, steps):
    # The last pass's rounds are what is predicted from, and quantiles of few are off by themselves.
    given = solved(mode=mode, profile=noisy, passes=(*QUICK[:1], Pass(160, 80, 0.0)))
    documents = given.plan, given.job, given.profile, given.trace
    run = synthesize(tmp_path, *documents, steps=steps, prompts=20 * steps, noise=NOISE, seed=0)
    (found,) = report(run)["runs"].values()
    coverage = found["coverage"]
    assert list(coverage) == (["short", "long", "all"] if mode == "exact" else ["short", "all"])
    for kind, told in coverage.items():
        count = told["steps"]
        for figures in (value for key, value in told.items() if key != "steps"):
            for name, level in (("p50", 0.5), ("p95", 0.95)):
                chance = 3 * math.sqrt(level * (1 - level) / count)
                assert figures[f"share_below_{name}"] == pytest.approx(level, abs=chance + 0.02), (kind, name)
                assert figures[f"below_{name}"] == round(figures[f"share_below_{name}"] * count)
