"""Steps whose groups come to the trainer one after another, while others are still decoded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.trainer.trainer_config import UpdateSettings

from .test_trainer_rank import SAMPLES, new_trainer, random_groups, weights, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo"])
def test_streamed_groups_give_the_gradient_of_the_whole_step_in_float64(model: str, algorithm: str) -> None:
    groups = random_groups(9, seed=5)
    groups[3] = [dataclasses.replace(sample, reward=1.0) for sample in groups[3]]  # one that teaches nothing
    trainer = new_trainer(model, micro_batch_tokens=64, name=algorithm, max_grad_norm=1e9)
    trainer._model.double()
    whole = trainer.gradients(groups)
    late_first = [groups[i] for i in (7, 2, 3, 8, 0, 4, 1, 6, 5)]
    trainer.stream(late_first[:1], first=True)
    trainer.stream(late_first[1:6])
    trainer._gradients.add(late_first[6:], UpdateSettings(200))
    streamed = trainer.summed_gradients()
    scale = max(float(g.abs().max()) for g in whole.values())
    assert scale > 0.01
    assert max(float((whole[name] - streamed[name]).abs().max()) for name in whole) <= 1e-6 * scale


def test_a_streamed_step_trains_as_one_that_was_not_streamed(model: str, tmp_path: Path) -> None:
    groups = random_groups(7, seed=6)
    plain, streamed = new_trainer(model), new_trainer(model)
    expected = plain.step(groups)
    streamed.stream(groups[4:6], first=True)
    before = weights(streamed, tmp_path)
    assert before.keys() and streamed.version == 0
    metrics = streamed.step(groups[:4] + groups[6:], streamed=True)
    for key in ("loss", "grad_norm", "samples", "tokens", "response_tokens", "reward_mean", "entropy"):
        assert metrics[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    after, same = weights(streamed, tmp_path), weights(plain, tmp_path)
    assert all(torch.allclose(after[name], same[name], atol=2e-5) for name in same)
    assert any(not torch.equal(after[name], before[name]) for name in same)


def test_a_step_whose_groups_were_all_streamed_needs_no_more(model: str) -> None:
    groups = random_groups(3, seed=8)
    trainer = new_trainer(model)
    trainer.stream(groups, first=True)
    assert trainer.step([], streamed=True)["samples"] == 3 * SAMPLES


def test_what_an_abandoned_step_streamed_is_dropped(model: str) -> None:
    groups = random_groups(5, seed=9)
    trainer = new_trainer(model)
    trainer.stream(groups[:2], first=True)
    assert trainer.step(groups)["samples"] == 5 * SAMPLES
    trainer.stream(groups[:2], first=True)
    trainer.stream(groups[1:3], first=True)
    assert trainer.step([groups[0]], streamed=True)["samples"] == 3 * SAMPLES


def test_no_prompt_may_be_streamed_twice(model: str) -> None:
    groups = random_groups(2, seed=10)
    trainer = new_trainer(model)
    trainer.stream(groups[:1], first=True)
    with pytest.raises(AssertionError, match="p000"):
        trainer.stream(groups)
