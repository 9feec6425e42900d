"""Refits: exact where the data is, drawn to the profile where it is not, and never against the order of costs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.tune.executed_run import load_run
from rlplan.planner.tune.fitted_line import FACTOR_PRIOR, Line, fit_line, fit_ratio
from rlplan.planner.tune.refit import refit, replay_run, transfer_error

from ..conftest import CAP
from ..synthetic_run import slower, solved, synthesize


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


@settings(max_examples=80, deadline=None)
@given(ratio=st.floats(0.05, 20), rounds=st.integers(1, 50))
def test_ratios_lie_between_one_and_what_was_measured(ratio, rounds):
    line = fit_ratio([0.3] * rounds, [0.3 * ratio] * rounds, FACTOR_PRIOR)
    assert min(1.0, ratio) - 1e-9 <= line.factor <= max(1.0, ratio) + 1e-9


@pytest.fixture(scope="module")
def documents():
    return solved(mode="exact")


def found(documents, truth, folder, **options):
    run = load_run(synthesize(folder, documents.plan, documents.job, truth, documents.trace, **options))
    return run, refit(documents.profile, run, replay_run(run, CAP, False, documents.profile))


def test_slower_decoding_and_slower_updates_are_found_and_told_apart(documents, tmp_path):
    run, result = found(documents, slower(documents.profile, decode=1.6, train=2.5), tmp_path / "r")
    for line in result.rollout.values():
        assert line.factor == pytest.approx(1.6, rel=0.05)
    assert result.train.factor == pytest.approx(2.5, rel=0.1)
    again = refit(result.profile, run, replay_run(run, CAP, False, result.profile))
    for line in again.rollout.values():
        assert line.factor == pytest.approx(1.0, abs=0.02)
    assert again.train.factor == pytest.approx(1.0, abs=0.05)


def test_a_refitted_profile_predicts_the_run_that_it_was_fitted_on(documents, tmp_path):
    run, result = found(documents, slower(documents.profile, decode=0.7), tmp_path / "r")
    replays = replay_run(run, CAP, False, result.profile)
    measured = sum(s.total_s for s in run.steps)
    assert sum(r.total_s for r in replays) == pytest.approx(measured, rel=0.03)


def test_layouts_that_were_not_run_take_part_of_the_correction_and_less_once_they_were(documents, tmp_path):
    _, result = found(documents, slower(documents.profile, decode=2.0), tmp_path / "r")
    base = {(r.tp, r.engines): decode_cost(documents.profile, r).a for r in documents.profile.rollout}
    now = {(r.tp, r.engines): decode_cost(result.profile, r).a for r in result.profile.rollout}
    [other] = set(base) - set(result.rollout)
    assert 1.2 < now[other] / base[other] < 1.9
    checks = tuple(c.model_copy(update={"rounds": 500}) for c in result.profile.checks)
    known = documents.profile.model_copy(
        update={
            "checks": tuple(
                c.model_copy(update={"factor": 1.0, "overhead_s": 0.0, "overhead_s_per_sample": 0.0}) for c in checks
            )
        }
    )
    run = load_run(tmp_path / "r")
    later = refit(known, run, replay_run(run, CAP, False, known))
    entry = next(r for r in later.profile.rollout if (r.tp, r.engines) == other)
    assert decode_cost(later.profile, entry).a == pytest.approx(entry.step_s, rel=0.05)
    unused = next(r for r in documents.profile.rollout if (r.tp, r.engines) == other)
    assert transfer_error(result, [unused]) > 0.1
    used = next(r for r in documents.profile.rollout if (r.tp, r.engines) in result.rollout)
    assert transfer_error(result, [used]) == 0.0


def test_steps_in_which_something_had_to_start_are_no_evidence(documents, tmp_path):
    run, result = found(documents, documents.profile, tmp_path / "r", steps=12)
    assert [s.warm for s in run.steps] == [False] + [True] * 11
    assert sum(line.rounds for line in result.rollout.values()) == 11
    assert isinstance(result.reward, Line)
