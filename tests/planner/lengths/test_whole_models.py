"""Length models, tables, drifts and divisors, held against a file: a changed figure is a changed line there."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rlplan.planner.lengths.length_fit import fit_drift
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.lengths.loss_divisors import cut_share, expected_loss, kind_norms
from rlplan.planner.lengths.table_lengths import extrapolated, named_lengths, shown_table
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_trace import LengthTrace

from ...golden import flat, same_as_golden
from ..conftest import CAP, heavy_trace, small_job


def test_what_is_told_of_lengths_is_as_it_was():
    heavy, table = heavy_trace(), named_lengths("math-16k")[0]
    epochs = [
        dataclasses.replace(r, epoch=r.sample % 3, tokens=1 + r.tokens * (3 + r.sample % 3) // 5) for r in heavy.rows
    ]
    traces = {
        "heavy": (heavy, None),
        "lower cap": (heavy, 300),
        "low cap": (heavy, 60),
        "higher cap": (heavy, 4 * CAP),
        "one sample": (heavy_trace(samples=1), None),
        "two prompts": (heavy_trace(prompts=2), None),
        "all capped": (LengthTrace([r for r in heavy.rows if r.truncated]), None),
        "none capped": (LengthTrace([r for r in heavy.rows if not r.truncated]), 2 * CAP),
        "epochs": (LengthTrace(epochs, CAP), None),
        "table": (table, 20000),
        "stated": (named_lengths("p50=800,p95=4000,max=16384,scale=0.8")[0], 9000),
    }
    told = {}
    for name, (trace, cap) in traces.items():
        model = fit_lengths(trace, cap)
        other = model.another(np.random.default_rng(1))
        told[name] = {
            "summary": dataclasses.asdict(trace.summary()),
            "mean": model.mean_tokens,
            "quantiles": model.quantiles(),
            "longest of 8": model.group_max_quantiles(8, (0.1, 0.5, 0.9, 0.99)),
            "tail": dataclasses.asdict(model.tail),
            "beyond": model.tail.share_beyond(1.5 * model.tail.start_tokens),
            "spread": float(model.locations.std()),
            "of prompts": [float(row.mean()) for row in model.tables[:6]],
            "another": [other.mean_tokens, other.quantiles()],
            "cautions": [model.caution, model.at_cap, extrapolated(model, trace)],
        }
    told["varied"] = {
        f"{key} {place}": dataclasses.asdict(table.varied(one).summary())
        for key, pair in table.variations().items()
        for place, one in enumerate(pair)
    }
    told["drift"] = fit_drift(LengthTrace(epochs, CAP)).model_dump()
    told["shown"] = [shown_table("math-16k,scale=0.8")[0].model_dump(mode="json")]
    same_as_golden(list(flat(told)), Path(__file__).with_name("golden") / "lengths.txt")


@pytest.mark.parametrize(("masked", "dynamic"), [(False, False), (True, False), (False, True), (True, True)])
def test_divisors_of_the_loss_are_the_means_of_synchronous_steps(masked, dynamic) -> None:
    model = fit_lengths(heavy_trace(prompts=40, sigma=1.8), CAP)
    algorithm = {"name": "grpo", "learning_rate": 1e-3, "mask_truncated": masked, "dynamic_sampling": dynamic}
    job = small_job(algorithm=algorithm)
    size, groups, rng = job.rollout.samples_per_prompt, 20_000, np.random.default_rng(5)
    prompts = rng.integers(len(model.prompt_ids), size=groups)
    lengths = model.draw_many(prompts, (size,), rng)
    if dynamic:
        rewards = np.array([rng.choice(model.rewards[prompt], size) for prompt in prompts])
        lengths = lengths[rewards.min(axis=1) != rewards.max(axis=1)]
    counted = lengths < CAP if masked else np.ones_like(lengths, dtype=bool)
    steps, found = len(lengths) / job.rollout.prompts_per_step, expected_loss(model, job)
    assert found.samples == pytest.approx(counted.sum() / steps, rel=5e-3)
    assert found.tokens == pytest.approx((lengths * counted).sum() / steps, rel=2e-2)
    assert (found.samples == job.rollout.samples_per_step) == (not masked)
    assert cut_share(model, job) == pytest.approx((lengths == CAP).mean(), rel=5e-2)
    capped = fit_lengths(LengthTrace([row for row in heavy_trace().rows if row.truncated]), CAP)
    if masked:
        with pytest.raises(Infeasible, match="mask_truncated"):
            expected_loss(capped, job)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("masked", [False, True])
def test_norms_of_the_kinds_of_round_are_those_of_their_tokens_noise(aggregation, masked) -> None:
    """Tokens of a response push by chance, so their squared weights add up."""
    model, cutoff = fit_lengths(heavy_trace(prompts=40, sigma=1.8), CAP), CAP // 4
    algorithm = {"name": "grpo", "learning_rate": 1e-3, "mask_truncated": masked, "loss_aggregation": aggregation}
    job = small_job(algorithm=algorithm)
    rng = np.random.default_rng(6)
    lengths = model.draw_many(rng.integers(len(model.prompt_ids), size=40_000), (job.rollout.samples_per_prompt,), rng)
    squares = 1.0 / lengths if aggregation == "seq-mean-token-mean" else lengths.astype(float)
    of_groups = (squares * (lengths < CAP if masked else 1.0)).sum(axis=1)
    long = lengths.max(axis=1) > cutoff
    found = kind_norms(model, job, cutoff, None)
    assert found is not None and 0.1 < long.mean() < 0.9
    for norm, kind in ((found.short, ~long), (found.long, long)):
        assert norm == pytest.approx((of_groups[kind].mean() / of_groups.mean()) ** 0.5, rel=2e-2)
    history = kind_norms(model, job, None, 0.25)
    assert history is not None and (history.long > history.short) == (aggregation == "token-mean")
    assert kind_norms(model, job, None, None) is None, "rounds of one kind"
