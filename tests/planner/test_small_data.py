"""What is planned for a data set of few prompts: only rounds that find what they issue."""

import pytest

from rlplan.planner.candidates import enumerate_space
from rlplan.planner.length_model import fit_lengths
from rlplan.plans.errors import Infeasible
from rlplan.rounds.schedule import prompts_wanted

from .conftest import heavy_trace, laptop, small_job, small_profile

P = 8
MODES = ("sync", "race", "defer", "exact", "predict")


def space(prompts, modes=MODES):
    job = small_job({"prompts_per_step": P, "samples_per_prompt": 4})
    return enumerate_space(laptop(), job, small_profile(), fit_lengths(heavy_trace()), modes, prompts=prompts)


def test_rounds_that_want_more_prompts_than_there_are_are_not_candidates():
    everything = {key for key in space(None).short}
    for prompts in (P, 2 * P, 3 * P, 40, 10_000):
        found = space(prompts)
        wanted = {k: prompts_wanted(k.mode, P, k.prompts, k.long_share) for k in everything}
        assert set(found.short) == {key for key in everything if wanted[key] <= prompts}
        assert {key.law for key in found.long} <= {key.law for key in found.short}
    assert set(space(10_000).short) == everything


def test_with_one_steps_prompts_nothing_can_wait_and_the_plan_says_which_modes_fell_out():
    found = space(P)
    assert {(key.mode, key.prompts) for key in found.short} == {("sync", P), ("race", P)} and not found.long
    [why] = [text for text in found.refused if "prompts" in text]
    assert "8 prompts" in why and all(f"{mode} " in why for mode in ("defer", "exact", "predict"))
    assert not any("prompts" in text for text in space(10_000).refused)


@pytest.mark.parametrize("mode", ["defer", "exact", "predict"])
def test_a_forced_mode_that_too_few_prompts_rule_out_is_infeasible(mode):
    with pytest.raises(Infeasible, match=f"the data has 9 prompts; .*{mode} .*plan mode sync"):
        space(9, ("sync", mode))
