"""A frozen reference beside the policy: where it is kept, what is left of it, and how rewards and losses take it."""

import pytest
import torch

from rlplan.executor.trainer.policy.local_tensors import local

from .test_trainer_rank import (
    SAMPLES,
    agreeing,
    changed,
    gradients,
    new_trainer,
    plain_logprobs,
    plain_policy,
    random_groups,
    same_weights,
    without_variance,
)

KL = {"coefficient": 0.3, "estimator": "k3", "applied_to": "loss"}
IN_REWARD = {"coefficient": 0.01, "estimator": "k1", "applied_to": "reward"}


def stepped(trainer, steps=3):
    return [trainer.step(random_groups(3, seed=step)) for step in range(steps)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=["plain", "FSDP2"])
@pytest.mark.parametrize("kl", [KL, IN_REWARD], ids=["loss", "reward"])
def test_references_on_device_and_host_train_the_same_bits(model, dtype, kl):
    trainers, found = [], []
    for reference in ("device", "host"):
        trainer = new_trainer(model, dtype=dtype, kl=kl, reference=reference)
        found.append(stepped(trainer))
        trainer.close()
        trainers.append(trainer)
    assert same_weights(*trainers)
    seen = [[metrics["kl_reference"] for metrics in each] for each in found]
    assert seen[0] == seen[1] and seen[0][0] == 0.0 and all(abs(x) > 0.0 for x in seen[0][1:])
    assert all("kl_loss" in metrics for metrics in found[0]) == (kl is KL)
    assert all(metrics["reference_s"] > 0.0 for each in found for metrics in each)


def test_the_reference_is_the_model_that_was_loaded_and_not_the_checkpoint(model, tmp_path):
    straight, resumed = (new_trainer(model, kl=KL, reference="host") for _ in range(2))
    stepped(straight, 2)
    straight.save(tmp_path / "checkpoint")
    resumed.load(tmp_path / "checkpoint")
    assert not any("reference" in path.name for path in (tmp_path / "checkpoint").iterdir())
    groups = agreeing(model, random_groups(4, seed=9))
    one, other = straight.step(groups), resumed.step(groups)
    assert same_weights(straight, resumed) and one["kl_reference"] == other["kl_reference"]
    policy, trained = plain_policy(model), new_trainer(model)
    trained.load(tmp_path / "checkpoint")
    with torch.no_grad():
        for name, parameter in trained._model.named_parameters():
            policy.get_parameter(name).copy_(local(parameter))
        # `agreeing` gave the samples the log-probabilities of the initial weights.
        logs = [plain_logprobs(policy, s) - torch.tensor(s.logprobs) for group in groups for s in group]
    expected = torch.cat([torch.expm1(-d) + d for d in logs]).mean().item()
    assert one["kl_reference"] == pytest.approx(expected, rel=1e-4)


def test_a_kl_in_the_reward_trains_as_lowered_rewards(model):
    groups = random_groups(4, seed=3)
    groups = [*groups[:3], *without_variance(groups[3:])]
    initial = plain_policy(model)
    lowered = changed(
        groups,
        lambda s: {"reward": s.reward - 0.01 * (torch.tensor(s.logprobs) - plain_logprobs(initial, s)).sum().item()},
    )
    penalised, plain = new_trainer(model, 128, kl=IN_REWARD), new_trainer(model, 128)
    expected = gradients(plain, lowered)
    assert (gradients(penalised, groups) - expected).norm() < 1e-5 * expected.norm()
    assert (gradients(plain, groups) - expected).norm() > 0.01 * expected.norm()
    metrics = penalised.step(groups)
    assert metrics["reward_mean"] == pytest.approx(sum(s.reward for g in groups for s in g) / (4 * SAMPLES))


def test_a_large_coefficient_holds_the_policy_at_its_reference(model):
    loose, held = (new_trainer(model, kl=KL | {"coefficient": c}) for c in (1e-6, 10.0))
    groups = agreeing(model, random_groups(4, seed=7))
    seen = [[trainer.step(groups)["kl_reference"] for _ in range(10)] for trainer in (loose, held)]
    assert seen[0][0] == seen[1][0] == 0.0
    assert 0.0 < seen[1][-1] < 0.2 * seen[0][-1]


def test_groups_of_equal_rewards_are_pulled_to_the_reference_too(model):
    free, held = new_trainer(model), new_trainer(model, kl=KL)
    for trainer in (free, held):
        stepped(trainer, 1)  # away from the reference
    groups = without_variance(random_groups(3, seed=20))
    assert gradients(free, groups).norm() == 0.0 and gradients(held, groups).norm() > 1e-3


def test_a_loss_with_a_kl_streams_as_it_steps(model):
    one, other = (new_trainer(model, kl=KL) for _ in range(2))
    for trainer in (one, other):
        stepped(trainer, 1)
    groups = random_groups(5, seed=8)
    other.stream(groups[:2], first=True)
    metrics = [one.step(groups), other.step(groups[2:], streamed=True)]
    assert metrics[0]["kl_loss"] == pytest.approx(metrics[1]["kl_loss"], rel=1e-5)
    for mine, streamed in zip(one._model.parameters(), other._model.parameters(), strict=True):
        assert torch.allclose(mine, streamed, rtol=1e-5, atol=1e-6)
