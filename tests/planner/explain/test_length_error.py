"""What the trace's prompts leave open, where other prompts might have given the plan's rounds nothing to train."""

import dataclasses

import numpy as np
import pytest

from rlplan.planner.explain.length_error import REDRAWS, TRACES, length_error
from rlplan.planner.lengths.length_model import LengthModel
from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.base import Mode
from rlplan.profiles.length_trace import LengthRow, LengthTrace

from ..conftest import CAP, laptop, small_job, small_profile
from ..synthetic_run import QUICK, solved


def bimodal_trace(short: int = 3, long: int = 2, samples: int = 8) -> LengthTrace:
    """`short` prompts with answers of about 3 tokens, `long` with answers of about three quarters of the cap."""
    rng = np.random.default_rng(0)
    rows = []
    for p in range(short + long):
        for s in range(samples):
            tokens = int(rng.integers(2, 5)) if p < short else int(0.75 * CAP + rng.integers(-20, 21))
            rows.append(LengthRow(f"k{p}", 0, s, tokens, False, float(rng.random() < 0.5), 18))
    return LengthTrace(rows, CAP)


def few_mixed(mixed: int = 3, prompts: int = 24) -> LengthTrace:
    """`prompts` prompts, of which all but `mixed` always get the same reward."""
    rng = np.random.default_rng(1)
    rows = []
    for p in range(prompts):
        for s in range(8):
            reward = float(s % 2) if p < mixed else 1.0
            rows.append(LengthRow(f"k{p:02d}", 0, s, int(rng.integers(20, 200)), False, reward, 18))
    return LengthTrace(rows, CAP)


def planned(trace: LengthTrace, mode: Mode, samples: int = 4, **algorithm: object) -> Solved:
    """A job of 4 prompts a step, solved in `mode`."""
    sizes = {"prompts_per_step": 4, "samples_per_prompt": samples}
    job = small_job(sizes, algorithm={"name": "grpo", "learning_rate": 1e-3, **algorithm})
    inputs = solved(mode="sync").plan.inputs
    return solve(laptop(), job, small_profile(), trace, inputs, SolveOptions(mode=mode, passes=QUICK))


@pytest.mark.filterwarnings("ignore:the length trace holds")
def test_prompts_of_two_kinds_can_be_solved_although_others_might_all_be_long() -> None:
    found = planned(bimodal_trace(), "exact", samples=8)
    model, cutoff = found.search.setting.draws.model, found.plan.job.rounds.short.cutoff_tokens
    sets = [model.another(np.random.default_rng([0, 53, place])) for place in range(TRACES)]
    assert min(other.short_groups(cutoff, 8) for other in sets) == 0.0, "the case that is looked at comes up"
    assert 0 < found.plan.predicted.error.lengths < 1


def test_few_prompts_of_mixed_rewards_can_be_solved_although_others_might_have_none() -> None:
    found = planned(few_mixed(), "sync", dynamic_sampling=True)
    model = found.search.setting.draws.model
    sets = [model.another(np.random.default_rng([0, 53, place])) for place in range(TRACES)]
    assert not all(any(len(set(rewards)) > 1 for rewards in other.rewards) for other in sets)
    assert 0 < found.plan.predicted.error.lengths < 2


def test_sets_that_never_train_anything_are_given_up_and_say_nothing_of_the_error(monkeypatch) -> None:
    found = planned(few_mixed(), "sync", dynamic_sampling=True)
    drawn = []

    def another(self: LengthModel, rng: np.random.Generator) -> LengthModel:
        drawn.append(rng)
        return dataclasses.replace(self, rewards=((1.0,),) * len(self.rewards))

    monkeypatch.setattr(LengthModel, "another", another)
    model = found.search.setting.draws.model
    assert length_error(found.search, found.solution.cycle, model, 0) == 0.0
    assert len(drawn) == TRACES * REDRAWS
