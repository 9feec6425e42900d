"""Real rounds against the simulator: what was added to the simulated times is found again."""

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.simulate.calibrate import RealRound, check_rounds, simulated_s
from rlplan.plans.schema.sections.layouts import EngineLayout

PROMPT_TOKENS = 20


def rounds(profile, seconds, caps=(60, 500), sizes=(16, 32)):
    """Plain rounds of one layout whose measured time is `seconds(samples, simulated)`."""
    rng = np.random.default_rng(4)
    decode = decode_cost(profile, profile.rollout[0])
    found = []
    for index in range(12):
        size, cap = sizes[index % 2], caps[(index // 2) % 2]
        drawn = np.minimum(np.ceil(rng.exponential(60, size=(size, 4))), cap).astype(int)
        lengths = {
            (d, s): (f"p{d:02d}", int(drawn[d, s]), bool(drawn[d, s] == cap)) for d in range(size) for s in range(4)
        }
        real = RealRound(EngineLayout(1, 2), cap, lengths, 0.0)
        simulated = simulated_s(real, decode, profile, dict.fromkeys((f"p{d:02d}" for d in range(size)), PROMPT_TOKENS))
        found.append(RealRound(EngineLayout(1, 2), cap, lengths, seconds(4 * size, simulated)))
    return found


def check(profile, real):
    prompt_tokens = {prompt: PROMPT_TOKENS for r in real for prompt, _, _ in r.lengths.values()}
    return check_rounds(profile, real, prompt_tokens)


def test_what_comes_per_round_per_sample_and_per_step_is_told_apart(make_profile) -> None:
    profile = make_profile(checks=())
    [found] = check(profile, rounds(profile, lambda samples, s: 0.05 + 0.001 * samples + 1.1 * s))
    assert (found.tp, found.engines, found.rounds) == (1, 2, 12)
    assert found.overhead_s == pytest.approx(0.05, rel=1e-3)
    assert found.overhead_s_per_sample == pytest.approx(0.001, rel=1e-3)
    assert found.factor == pytest.approx(1.1, rel=1e-3)
    assert found.error < 1e-3


def test_costs_with_the_check_in_them_predict_the_rounds_that_made_it(make_profile) -> None:
    profile = make_profile(checks=())
    real = rounds(profile, lambda samples, s: 0.05 + 0.001 * samples + 1.1 * s)
    checked = profile.model_copy(update={"checks": tuple(check(profile, real))})
    decode = decode_cost(checked, checked.rollout[0])
    prompt_tokens = {prompt: PROMPT_TOKENS for r in real for prompt, _, _ in r.lengths.values()}
    for r in real:
        # Not to the last digit: each engine is held up by its own samples, which are not quite half of all.
        assert simulated_s(r, decode, checked, prompt_tokens) == pytest.approx(r.rollout_s, rel=0.02)


def test_rounds_that_all_take_the_same_time_give_a_factor_and_no_overhead(make_profile) -> None:
    profile = make_profile(checks=())
    real = rounds(profile, lambda samples, s: 1.0)
    [found] = check(profile, real)
    assert found.factor > 0 and found.error > 0.05
