"""Real rounds against the simulator: what was added to the simulated times is found again."""

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.simulate.calibrate import check_rounds, simulated_s
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.laws.measured_fit import MeasuredRound

from ..conftest import small_profile

PROFILE = small_profile(checks=())
PROMPTS = {f"p{d:02d}": 20 for d in range(32)}
"""Tokens of each prompt."""


def rounds(seconds):
    """Plain rounds of one layout whose measured time is `seconds(samples, simulated)`."""
    rng = np.random.default_rng(4)
    decode, found = decode_cost(PROFILE, PROFILE.rollout[0]), []
    for index in range(12):
        size, cap = (16, 32)[index % 2], (60, 500)[(index // 2) % 2]
        drawn = np.minimum(np.ceil(rng.exponential(60, size=(size, 4))), cap).astype(int)
        lengths = {
            (d, s): (f"p{d:02d}", int(drawn[d, s]), bool(drawn[d, s] == cap)) for d in range(size) for s in range(4)
        }
        simulated = simulated_s(MeasuredRound(EngineLayout(1, 2), cap, lengths, 0.0), decode, PROFILE, PROMPTS)
        found.append(MeasuredRound(EngineLayout(1, 2), cap, lengths, seconds(4 * size, simulated)))
    return found


def test_overheads_per_round_and_sample_and_a_factor_are_told_apart() -> None:
    real = rounds(lambda samples, s: 0.05 + 0.001 * samples + 1.1 * s)
    [found] = check_rounds(PROFILE, real, PROMPTS)
    assert (found.tp, found.engines, found.rounds) == (1, 2, 12)
    overheads = found.overhead_s, found.overhead_s_per_sample, found.factor
    assert overheads == pytest.approx((0.05, 0.001, 1.1), rel=1e-3)
    assert found.error < 1e-3
    # Costs with the check in them predict the rounds that made it; not to the last digit, since each engine is held up
    # by its own samples, which are not quite half of all.
    checked = PROFILE.model_copy(update={"checks": (found,)})
    decode = decode_cost(checked, checked.rollout[0])
    for r in real:
        assert simulated_s(r, decode, checked, PROMPTS) == pytest.approx(r.rollout_s, rel=0.02)


def test_rounds_that_all_take_the_same_give_a_factor_and_an_error() -> None:
    [found] = check_rounds(PROFILE, rounds(lambda samples, s: 1.0), PROMPTS)
    assert found.factor > 0 and found.error > 0.05
