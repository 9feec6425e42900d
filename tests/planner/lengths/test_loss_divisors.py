"""The constants that a plan divides losses by: those of a synchronous step."""

from __future__ import annotations

import numpy as np
import pytest

from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.lengths.loss_divisors import expected_loss
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_trace import LengthRow, LengthTrace

from ..conftest import CAP


def algorithm(**keys):
    return {"name": "grpo", "learning_rate": 1e-3, **keys}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_divisors_are_the_means_of_synchronous_steps(make_trace, make_job, masked, dynamic) -> None:
    model = fit_lengths(make_trace(prompts=40, sigma=1.8), CAP)
    job = make_job(algorithm=algorithm(mask_truncated=masked, dynamic_sampling=dynamic))
    size, groups = job.rollout.samples_per_prompt, 20_000
    rng = np.random.default_rng(5)
    prompts = rng.integers(len(model.prompt_ids), size=groups)
    lengths = model.draw_many(prompts, (size,), rng)
    if dynamic:
        rewards = np.array([rng.choice(model.rewards[prompt], size) for prompt in prompts])
        lengths = lengths[rewards.min(axis=1) != rewards.max(axis=1)]
    counted = lengths < CAP if masked else np.ones_like(lengths, dtype=bool)
    steps = len(lengths) / job.rollout.prompts_per_step
    found = expected_loss(model, job)
    assert found.samples == pytest.approx(counted.sum() / steps, rel=5e-3)
    assert found.tokens == pytest.approx((lengths * counted).sum() / steps, rel=2e-2)
    assert (found.samples == job.rollout.samples_per_step) == (not masked)


def test_prompts_without_a_signal_do_not_count_where_they_are_filtered(make_job) -> None:
    def rows(prompt: str, tokens: int, rewards: tuple[float, ...]) -> list[LengthRow]:
        return [LengthRow(prompt, 0, s, tokens + s, False, reward, 18) for s, reward in enumerate(rewards)]

    trace = LengthTrace(rows("solved", 400, (1.0,) * 8) + rows("open", 40, (0.0, 1.0) * 4), CAP)
    job = make_job(algorithm=algorithm(dynamic_sampling=True))
    plain, filtered = (expected_loss(fit_lengths(trace, CAP), j).tokens for j in (make_job(), job))
    assert filtered < 64 * job.rollout.samples_per_step < plain


def test_a_trace_that_the_cap_cut_throughout_leaves_nothing_to_train_where_such_samples_are_masked(make_job) -> None:
    trace = LengthTrace([LengthRow(f"k{p}", 0, s, CAP, True, 0.0, 18) for p in range(4) for s in range(4)], CAP)
    with pytest.raises(Infeasible, match="mask_truncated"):
        expected_loss(fit_lengths(trace, CAP), make_job(algorithm=algorithm(mask_truncated=True)))
