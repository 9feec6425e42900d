"""Steps whose groups come to the trainer one after another, while others are still decoded."""

import pytest

from rlplan.executor.trainer.trainer_config import UpdateSettings

from .test_trainer_rank import SAMPLES, new_trainer, random_groups, same_weights, without_variance


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_streamed_groups_give_the_gradient_of_the_whole_step_in_float64(model, algorithm):
    groups = random_groups(9, seed=5)
    groups[3:4] = without_variance(groups[3:4])
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


def test_a_streamed_step_trains_as_one_that_was_not_streamed(model):
    groups = random_groups(7, seed=6)
    plain, streamed = new_trainer(model), new_trainer(model)
    expected = plain.step(groups)
    assert streamed.stream(groups[4:6], first=True) > 0
    assert streamed.version == 0 and same_weights(streamed, new_trainer(model))
    metrics = streamed.step(groups[:4] + groups[6:], streamed=True)
    for key in ("loss", "grad_norm", "samples", "tokens", "response_tokens", "reward_mean", "entropy"):
        assert metrics[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    for mine, other in zip(streamed._model.parameters(), plain._model.parameters(), strict=True):
        assert mine.sub(other).abs().max() < 2e-5
    assert not same_weights(streamed, new_trainer(model))


def test_a_step_takes_what_was_streamed_since_its_first_groups(model):
    groups = random_groups(5, seed=9)
    trainer = new_trainer(model)
    trainer.stream(groups[:3], first=True)
    assert trainer.step([], streamed=True)["samples"] == 3 * SAMPLES
    trainer.stream(groups[:2], first=True)
    assert trainer.step(groups)["samples"] == 5 * SAMPLES, "an abandoned step's groups are dropped"
    trainer.stream(groups[:2], first=True)
    trainer.stream(groups[1:3], first=True)
    assert trainer.step([groups[0]], streamed=True)["samples"] == 3 * SAMPLES


def test_moments_leave_for_a_streamed_backward_pass_if_they_are_offloaded(model):
    trainer = new_trainer(model)
    trainer.stream(random_groups(1, seed=9), UpdateSettings(64, offload=True), first=True)
    assert trainer._optimizer.host_bytes == 8 * trainer.parameters()


def test_no_prompt_may_be_streamed_twice(model):
    groups = random_groups(2, seed=10)
    trainer = new_trainer(model)
    trainer.stream(groups[:1], first=True)
    with pytest.raises(AssertionError, match="p000"):
        trainer.stream(groups)
