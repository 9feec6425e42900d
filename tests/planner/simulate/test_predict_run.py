"""Mode `predict` over epochs of a simulated run: it pays where prompts differ, and never costs bias."""

import pytest

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.whole_run import simulate_run
from rlplan.rounds.round_spec import RoundSpec


def test_predict_gains_with_the_dependence_inside_prompts_and_trains_on_the_same_lengths(
    make_trace, make_profile
) -> None:
    profile = make_profile()
    kind = RoundCosts(decode_cost(profile, profile.rollout[0]), 64, train_cost(profile.train[-1]))
    gains = {}
    for icc in (0.2, 0.9):
        model = fit_lengths(make_trace(icc=icc))
        runs = {
            mode: simulate_run(
                RoundSpec(mode, 16, 8, 1024, 16, 8, long_share=0.25 if mode == "predict" else 0.0),
                kind,
                kind,
                reward_cost(profile.reward, 1),
                Draws(model, 0, 8),
                steps=96,
                prompts=256,
            )
            for mode in ("sync", "predict")
        }
        assert runs["predict"].length_ratio() == pytest.approx(runs["sync"].length_ratio(), abs=0.02)
        # Nothing is known in the first of six epochs; in the others a quarter of the prompts are expected to be long.
        assert runs["predict"].long_share() == pytest.approx(0.25 * 5 / 6, abs=0.05)
        gains[icc] = runs["sync"].seconds_per_sample() / runs["predict"].seconds_per_sample()
    assert gains[0.9] > 1.3 and gains[0.9] > gains[0.2] + 0.15 > 1.1
