"""Fits find the law that made the points, name what does not belong, and never promise free work."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads
from rlplan.profiles.laws.factor_fit import Factor, fit_factors
from rlplan.profiles.laws.measured_fit import (
    TrainPoint,
    fit_decode,
    fit_train,
    leave_one_out_error,
    nonnegative_least_squares,
)
from rlplan.profiles.laws.reward_fit import ScoredSample, equally_likely, fit_executions
from rlplan.profiles.phase_schema import MOST_EXECUTIONS, DecodePoint, Reward, RewardExecutions, Spread

# -- factors over a law, drawn to a prior ------------------------------------------------------------------------------

PRIOR = (Factor("fixed", 0.0, 0.5), Factor("slope", 0.0, 0.5))
X = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def line(x):
    return lambda logs: np.exp(logs[0]) * 10 + np.exp(logs[1]) * x


def test_many_exact_points_win_over_the_prior():
    fit = fit_factors(PRIOR, line(X), line(X)(np.log([1.6, 0.7])))
    assert fit.as_dict() == pytest.approx({"fixed": 1.6, "slope": 0.7}, rel=0.01)


def test_without_points_that_tell_a_factor_stays_at_the_prior():
    fit = fit_factors(PRIOR, line(np.array([1e-9])), np.array([20.0])).as_dict()
    assert fit["fixed"] == pytest.approx(2.0, rel=0.02) and fit["slope"] == pytest.approx(1.0, rel=1e-3)


def test_a_plainly_wrong_point_pulls_little():
    points = line(X)(np.zeros(2))
    points[3] *= 4
    assert fit_factors(PRIOR, line(X), points).logs == pytest.approx([0, 0], abs=0.03)


def test_a_prediction_is_less_sure_the_further_it_lies_from_points():
    near = np.array([1.0, 2.0, 3.0])
    sds = fit_factors(PRIOR, line(near), line(near)(np.zeros(2))).relative_sd(line(np.array([2.0, 20.0, 200.0])))
    assert sds == pytest.approx([0.030467, 0.194424, 0.302924], rel=1e-3)


@settings(max_examples=15)
@given(st.floats(-0.8, 0.8), st.floats(-0.8, 0.8), st.integers(0, 100))
def test_the_fit_is_no_worse_than_the_truth(fixed, slope, seed):
    truth = np.array([fixed, slope])
    points = line(X)(truth) * np.exp(np.random.default_rng(seed).normal(scale=0.03, size=len(X)))

    def cost(logs):
        residuals = np.log(line(X)(logs) / points) / 0.05
        return float(4 * np.log1p(residuals**2 / 4).sum() + ((logs / 0.5) ** 2).sum())

    assert cost(fit_factors(PRIOR, line(X), points).logs) <= cost(truth) + 1e-3


# -- decode steps and updates that were measured -----------------------------------------------------------------------

A, B, C = 2e-3, 4e-5, 1.5e-7


def grid(noise=0.0):
    rng = np.random.default_rng(0)
    return [
        DecodePoint(
            sequences=sequences,
            kv_tokens=sequences * context,
            step_s=(A + B * sequences + C * sequences * context) * (1 + noise * rng.uniform(-1, 1)),
            spread=0.0,
        )
        for sequences in (1, 4, 16, 64, 128)
        for context in (70, 700)
    ]


def test_the_decode_line_is_found_and_its_error_is_the_noise():
    exact, noisy = fit_decode(grid()), fit_decode(grid(0.05))
    assert (exact.a, exact.b, exact.c) == pytest.approx((A, B, C), rel=1e-6)
    assert exact.error < 1e-9 and not any(p.outlier for p in exact.points)
    assert (noisy.a, noisy.b, noisy.c) == pytest.approx((A, B, C), rel=0.25)
    assert noisy.error == pytest.approx(0.02765, rel=1e-3), "of up to 5 %"


def test_a_point_that_does_not_belong_is_named_and_left_out():
    points = grid(0.02)
    points[7] = points[7].model_copy(update={"step_s": 3 * points[7].step_s})
    fit = fit_decode(points)
    assert [p.outlier for p in fit.points] == [i == 7 for i in range(len(points))]
    assert (fit.a, fit.b, fit.c) == pytest.approx((A, B, C), rel=0.15)


@settings(max_examples=30)
@given(truth=st.lists(st.floats(-1.0, 2.0), min_size=3, max_size=3), seed=st.integers(0, 1000))
def test_coefficients_are_never_negative_and_none_are_better(truth, seed):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.1, 3.0, size=(9, 3))
    values = np.maximum(rows @ np.array(truth), 0.05)
    best = nonnegative_least_squares(rows, values)
    assert (best >= 0).all()
    others = np.maximum(best + rng.normal(size=(40, 3)) * rng.choice([0.01, 0.3], size=(40, 1)), 0)
    misfits = ((np.vstack([best, others]) @ rows.T / values - 1) ** 2).sum(axis=1)
    assert misfits[0] <= misfits.min() + 1e-9


def test_updates_share_what_attention_costs_and_differ_by_token():
    per_token = {2048: 5e-5, 8192: 3e-5}
    shapes = ((2000, 10**5), (6000, 10**6), (21_000, 9 * 10**6))
    points = {
        budget: [TrainPoint(tokens, squares, 0.02 + cost * tokens + 3e-8 * squares) for tokens, squares in shapes]
        for budget, cost in per_token.items()
    }
    fits = fit_train(points)
    assert {budget: fit.per_token for budget, fit in fits.items()} == pytest.approx(per_token, rel=1e-6)
    for fit in fits.values():
        assert (fit.base, fit.per_squared_token) == pytest.approx((0.02, 3e-8), rel=1e-6)
        assert fit.error < 1e-6
    seconds = [1.0 + 0.1 * (number % 2) for number in range(9)]
    points = [TrainPoint(*shape, took_s) for shape, took_s in zip(shapes * 3, seconds, strict=True)]
    assert fit_train({1: points, 2: points})[1].noise == pytest.approx(0.049388, rel=1e-3)


def test_too_few_points_to_leave_one_out_judge_themselves():
    assert leave_one_out_error(np.array([[1.0, 2.0], [1.0, 5.0]]), np.array([3.0, 6.0])) < 1e-9


# -- executions of scored samples --------------------------------------------------------------------------------------


SECONDS = st.one_of(
    st.floats(0, 3600),
    st.builds(round, st.floats(0, 3), st.integers(0, 2)),  # as logs have them: many are equal
    st.sampled_from([0.0, 0.1, 0.3, 2.7, 30.0]),
)
TIMES = st.one_of(
    st.lists(SECONDS, min_size=1, max_size=300),
    st.builds(lambda value, count: [value] * count, SECONDS, st.integers(1, 5000)),
)


@settings(max_examples=200)
@given(values=TIMES)
def test_few_values_stand_for_many(values):
    few = equally_likely(values)
    assert len(few) == min(MOST_EXECUTIONS, len(values))
    assert list(few) == sorted(few) and min(values) <= few[0] and few[-1] <= max(values)
    if len(set(values)) == 1:
        assert set(few) == set(values)
    # Shares differ by at most one value.
    assert np.mean(few) == pytest.approx(
        np.mean(values), abs=max(values) / max(1, len(values) // MOST_EXECUTIONS) / 2 + 1e-9
    )
    assert equally_likely([0.3] * 950 + [30.0] * 50)[-1] == 30.0, "what hangs stays visible"


@settings(max_examples=100)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 1.0]), SECONDS), min_size=1, max_size=200)
)
def test_what_is_fitted_to_scored_samples_can_be_read_again(rows):
    fitted = fit_executions([ScoredSample(*row) for row in rows])
    assert fitted is None or loads(dump(fitted, digits=WRITTEN_DIGITS), RewardExecutions).correct == pytest.approx(
        fitted.correct, rel=1e-5
    )


def test_prompts_are_solved_or_not_and_their_slowest_answer_counts():
    rows = [("a", 1.0, 0.5), ("a", 1.0, 0.7), ("a", 0.0, 30.0), ("b", 1.0, 0.2), ("c", 0.0, 0.1), ("d", -1.0, 0.4)]
    assert fit_executions([ScoredSample(*row) for row in rows]) == RewardExecutions(
        correct_s=(0.2, 0.7), wrong_s=(0.1, 0.4, 30.0), correct=0.75, unsolved=0.5, scatter=0.7 / 0.5
    )


def test_only_slow_prompts_tell_how_right_answers_differ():
    quick = [ScoredSample("quick", 1.0, seconds) for seconds in (0.03, 0.3)]
    slow = [ScoredSample("slow", 1.0, seconds) for seconds in (2.0, 3.0, 2.5)]
    wrong = [ScoredSample("slow", 0.0, 30.0)]
    assert fit_executions(quick + slow + wrong).scatter == pytest.approx(1.5)
    assert fit_executions(quick + wrong).scatter is None


@pytest.mark.parametrize("rows", [[], [ScoredSample("a", 0.0, 0.5)], [ScoredSample("a", 1.0, 0.5)]])
def test_with_only_one_kind_of_answer_nothing_is_fitted(rows):
    assert fit_executions(rows) is None


def test_executions_come_back_from_a_profile_and_must_ascend():
    def reward(executions):
        return Reward(workers=2, latency=Spread(p50=0.1, p95=0.2, repeats=3), per_sample_s=0.1, executions=executions)

    assert "executions" not in dump(reward(None))
    with_them = reward(RewardExecutions(correct_s=(0.1, 0.2), wrong_s=(0.1, 30.0), correct=0.5, unsolved=0.25))
    text = dump(with_them)
    assert loads(text, Reward) == with_them
    with pytest.raises(InputError, match="ascending") as caught:
        loads(text.replace("[0.1, 30.0]", "[30.0, 0.1]"), Reward)
    assert caught.value.line == 1 + text[: text.index("wrong_s")].count("\n")
