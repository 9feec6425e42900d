"""What is planned for a data set of few prompts: only rounds that find what they issue."""

import dataclasses
import warnings

import numpy as np
import pytest

from rlplan.planner.choose.candidates import enumerate_space
from rlplan.planner.choose.prompt_supply import accepted_share
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_trace import LengthTrace
from rlplan.rounds.round_spec import prompts_wanted

from ..conftest import CAP, heavy_trace, laptop, small_job, small_profile
from ..synthetic_run import QUICK, solved

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


def filtered_job():
    """16 prompts x 8 samples a step with dynamic sampling, and a trace whose odd prompts are always answered right."""
    sizes = {"prompts_per_step": 16, "samples_per_prompt": 8}
    algorithm = {"name": "grpo", "learning_rate": 1e-3, "dynamic_sampling": True}
    trace = heavy_trace()
    rows = [dataclasses.replace(r, reward=1.0) if int(r.prompt[1:]) % 2 else r for r in trace.rows]
    return small_job(sizes, algorithm=algorithm), LengthTrace(rows, CAP)


def planned(prompts):
    """The synchronous plan for so many prompts, and what was warned of."""
    job, trace = filtered_job()
    inputs = solved(mode="sync").plan.inputs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile = small_profile()
        plan = solve(
            laptop(), job, profile, trace, inputs, SolveOptions(mode="sync", passes=QUICK, prompts=prompts)
        ).plan
    run = simulate_plan(plan, job, profile, trace, steps=100, prompts=prompts)
    whole = sum(step.groups == 16 for step in run.steps) / 100
    return whole, [str(w.message) for w in caught if "further prompts" in str(w.message)]


def test_solving_for_data_too_small_for_refills_warns_that_steps_may_train_fewer_groups():
    whole, [said] = planned(24)
    assert "the data has 24 prompts" in said and "fewer than 16 groups" in said and "they train 48%" in said
    assert whole < 0.5


def test_solving_for_data_as_large_as_the_warning_asks_for_does_not_warn_and_steps_are_whole():
    _, [said] = planned(24)
    wanted = int(said.partition("want up to ")[2].partition(":")[0])
    whole, silence = planned(wanted)
    assert silence == [] and whole >= 0.99


def test_the_share_that_is_accepted_is_that_of_drawn_groups():
    job, trace = filtered_job()
    model, rng = fit_lengths(trace), np.random.default_rng(0)
    key = next(k for k in enumerate_space(laptop(), job, small_profile(), model, MODES).short if k.mode == "exact")
    indices = np.repeat(np.arange(len(model.prompt_ids)), 200)
    short = (model.draw_many(indices, (8,), rng) <= key.cutoff_tokens).all(axis=1)
    mixed = np.array([len(set(rng.choice(model.rewards[k], 8))) > 1 for k in indices])
    assert accepted_share(model, key, 8, False) == pytest.approx(short.mean(), abs=0.02)
    assert accepted_share(model, key, 8, True) == pytest.approx((short & mixed).mean(), abs=0.02)
    sync = key._replace(mode="sync", cutoff_tokens=None)
    assert accepted_share(model, sync, 8, False) == 1.0
