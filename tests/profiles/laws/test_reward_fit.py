"""Executions fitted to scored samples, and refused in a profile where they are no distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.profiles.laws.reward_fit import MOST, ScoredSample, equally_likely, fit_executions
from rlplan.profiles.phase_schema import Executions, Reward, Spread


@given(values=st.lists(st.floats(0, 30), min_size=1, max_size=300))
def test_few_values_stand_for_many(values) -> None:
    few = equally_likely(values)
    assert len(few) == min(MOST, len(values))
    assert list(few) == pytest.approx(sorted(few))
    assert min(values) - 1e-9 <= few[0] and few[-1] <= max(values) + 1e-9
    # Shares differ by at most one value.
    assert np.mean(few) == pytest.approx(np.mean(values), abs=30 / max(1, len(values) // MOST) / 2 + 1e-9)


def test_what_hangs_stays_visible() -> None:
    assert equally_likely([0.3] * 950 + [30.0] * 50)[-1] == 30.0


def test_prompts_are_solved_or_not_and_the_slowest_right_answer_counts() -> None:
    fitted = fit_executions(
        [
            ScoredSample("a", 1.0, 0.5), ScoredSample("a", 1.0, 0.7), ScoredSample("a", 0.0, 30.0),
            ScoredSample("b", 1.0, 0.2), ScoredSample("c", 0.0, 0.1), ScoredSample("d", -1.0, 0.4),
        ]
    )  # fmt: skip
    assert fitted == Executions(
        correct_s=(0.2, 0.7), wrong_s=(0.1, 0.4, 30.0), correct=0.75, unsolved=0.5, scatter=0.7 / 0.5
    )


def test_only_slow_prompts_tell_how_right_answers_to_one_prompt_differ() -> None:
    quick = [ScoredSample("quick", 1.0, seconds) for seconds in (0.03, 0.3)]
    slow = [ScoredSample("slow", 1.0, seconds) for seconds in (2.0, 3.0, 2.5)]
    wrong = [ScoredSample("slow", 0.0, 30.0)]
    both, only_quick = fit_executions(quick + slow + wrong), fit_executions(quick + wrong)
    assert both is not None and both.scatter == pytest.approx(1.5)
    assert only_quick is not None and only_quick.scatter is None


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_with_only_one_kind_of_answer_nothing_is_fitted(reward) -> None:
    assert fit_executions([ScoredSample("a", reward, 0.5)]) is None
    assert fit_executions([]) is None


def reward(executions: Executions | None) -> Reward:
    return Reward(workers=2, latency=Spread(p50=0.1, p95=0.2, repeats=3), per_sample_s=0.1, executions=executions)


def test_a_profile_without_executions_keeps_its_bytes_and_one_with_them_comes_back() -> None:
    assert "executions" not in dump(reward(None))
    with_them = reward(Executions(correct_s=(0.1, 0.2), wrong_s=(0.1, 30.0), correct=0.5, unsolved=0.25))
    assert loads(dump(with_them), Reward) == with_them


def test_seconds_that_are_not_ascending_are_refused_at_their_line() -> None:
    text = dump(reward(Executions(correct_s=(0.1, 0.2), wrong_s=(0.1, 30.0), correct=0.5, unsolved=0.25)))
    with pytest.raises(InputError, match="ascending") as caught:
        loads(text.replace("[0.1, 30.0]", "[30.0, 0.1]"), Reward)
    assert caught.value.line == 1 + text[: text.index("wrong_s")].count("\n")
