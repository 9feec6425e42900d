"""Loss and gradients of a whole step beside TRL's own `_compute_loss` on the same model, responses and engine."""

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.algorithm import Algorithm

from .test_trainer_rank import (
    LONGEST,
    SAMPLES,
    TEMPERATURE,
    agreeing,
    changed,
    gradients,
    plain_logprobs,
    plain_logs,
    plain_policy,
    random_groups,
    without_variance,
    write_model,
)

GRPOTrainer = pytest.importorskip("trl").GRPOTrainer
CASES = {
    "gspo": ({"name": "gspo"}, {"level": "sequence", "low": 3e-4, "high": 4e-4}),
    "gspo, dual clip": (
        {"name": "gspo", "dual_clip": 1.03, "clip_low": 0.02, "clip_high": 0.01},
        {"level": "sequence", "low": 0.02, "high": 0.01, "delta": 1.03},
    ),
    "cispo": ({"name": "cispo"}, {"loss": "cispo", "high": 5.0}),
    "cispo that clips": ({"name": "cispo", "clip_high": 0.1}, {"loss": "cispo", "high": 1.1}),
    "dual clip": ({"name": "grpo", "dual_clip": 1.3}, {"delta": 1.3}),
    "entropy bonus": (
        {"name": "grpo", "entropy_bonus": 0.03, "loss_aggregation": "token-mean"},
        {"loss": "dapo", "entropy": 0.03},
    ),
    "reinforce++-baseline": ({"name": "reinforce_plus_plus_baseline"}, {"scale": "step"}),
    "dapo by the step's tokens": (
        {"name": "grpo", "loss_aggregation": "step-token-mean", "clip_high": 0.28, "mask_truncated": True},
        {"loss": "dapo", "high": 0.28, "masks": True},
    ),
    "dr_grpo, truncated": (
        {"name": "dr_grpo", "importance_sampling": {"cap": 1.2}},
        {"loss": "dr_grpo", "scale": "none", "cap": 1.2},
    ),
    "kl": ({"name": "grpo", "kl": {"coefficient": 0.3}}, {"beta": 0.3}),
    "kl, truncated, by tokens": (
        {"name": "grpo", "kl": {"coefficient": 0.3}, "importance_sampling": {"cap": 1.2},
         "loss_aggregation": "step-token-mean"},
        {"loss": "dapo", "beta": 0.3, "cap": 1.2},
    ),
}  # fmt: skip
DRIFT = 0.03
"""Standard deviation of what is added to each weight of the policies, so that they differ from their reference."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def groups(model):
    """Of five prompts, one of which teaches nothing; an engine that differs by a few percent."""
    noise = random.Random(5)
    made = agreeing(model, random_groups(5, seed=2))
    made = changed(made, lambda s: {"logprobs": [x + noise.gauss(0, 0.15) for x in s.logprobs]})
    return [*made[:3], *without_variance(made[3:4]), *made[4:]]


def trl_loss(policy, groups, loss="grpo", level="token", low=0.2, high=0.2, delta=None, entropy=0.0, scale="group",
             masks=False, cap=None, beta=0.0, reference=None):  # fmt: skip
    """(TRL's loss, its mean KL) of one micro-batch that holds the step, padded to its longest response."""
    samples = [s for group in groups for s in group]
    logs = [plain_logs(policy, s) for s in samples]
    own = [
        x.gather(1, torch.tensor(s.response_tokens).long()[:, None])[:, 0] for x, s in zip(logs, samples, strict=True)
    ]
    entropies = [-(x.exp() * x).sum(-1) for x in logs]
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
        for name, values in {
            "own": own, "entropies": entropies, "engine": [torch.tensor(s.logprobs) for s in samples],
            "reference": [plain_logprobs(reference or policy, s).detach() for s in samples],
            "mask": [torch.full((len(s.response_tokens),), int(not (masks and s.truncated))) for s in samples],
        }.items()
    }  # fmt: skip
    rewards = torch.tensor([[s.reward for s in group] for group in groups], dtype=torch.float64)
    centred = rewards - rewards.mean(1, keepdim=True)
    spread = {"group": rewards.std(1, keepdim=True), "step": centred.std(), "none": 1.0 - 1e-4}[scale]
    tokens = padded["mask"].sum()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded["own"], padded["entropies"], None),
        args=SimpleNamespace(delta=delta, steps_per_generation=1, use_bias_correction_kl=False),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, sync_gradients=False),
        model=SimpleNamespace(training=True), _metrics=defaultdict(lambda: defaultdict(list)),
        loss_type=loss, importance_sampling_level=level, epsilon_low=low, epsilon_high=high, beta=beta,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=cap is not None,
        vllm_importance_sampling_correction=cap is not None, current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST, _entropy_bonus_enabled=entropy > 0, use_adaptive_entropy=False,
        entropy_coef=entropy, aux_loss_enabled=False,
    )  # fmt: skip
    inputs = {
        "prompt_ids": padded["mask"][:, :0], "prompt_mask": padded["mask"][:, :0], "completion_ids": padded["mask"],
        "completion_mask": padded["mask"], "advantages": (centred / (spread + 1e-4)).flatten().float(),
        "old_per_token_logps": padded["engine"], "num_items_in_batch": tokens,
        "ref_per_token_logps": padded["reference"],
    }  # fmt: skip
    if cap is not None:
        inputs["old_per_token_logps"] = padded["own"].detach()
        inputs["importance_sampling_ratio"] = torch.exp(padded["own"].detach() - padded["engine"]).clamp(max=cap)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, trainer._metrics["train"]["kl"]


def our_trainer(model, groups, settings, micro_batch_tokens):
    tokens = sum(len(s.response_tokens) for group in groups for s in group)
    algorithm = Algorithm.model_validate({"learning_rate": 1e-3, "max_grad_norm": 1e9} | settings)
    # The plan's expected tokens are the step's own, but where the step's own divide.
    expected = 333.0 if algorithm.loss_aggregation == "step-token-mean" else float(tokens)
    divisors = Divisors(samples=float(SAMPLES * len(groups)), tokens=expected, max_response_tokens=LONGEST)
    return Trainer(TrainerConfig(model, algorithm, UpdateSettings(micro_batch_tokens), SAMPLES, TEMPERATURE, divisors))


def drifted(policy):
    """The policy with other weights, the same for each policy that starts from the same ones."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in sorted(policy.named_parameters()):
            parameter.add_(DRIFT * torch.randn(parameter.shape, generator=noise))
    return policy


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_trl(model, groups, case):
    settings, of_trl = CASES[case]
    drifts = drifted if "kl" in settings else lambda policy: policy
    policy = drifts(plain_policy(model))
    loss, kl = trl_loss(policy, groups, reference=plain_policy(model), **of_trl)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    trainer = our_trainer(model, groups, settings, micro_batch_tokens=100)
    drifts(trainer._model)
    computed = gradients(trainer, groups)
    trainer.stream(groups[:2], first=True)
    metrics = trainer.step(groups[2:], streamed=True)
    assert metrics["micro_batches"] > 4
    assert (computed - expected).norm() < 1e-5 * expected.norm()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
    assert metrics["grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-5)
    clips = "cap" not in of_trl and case != "cispo"
    assert (0.0 < metrics["ratio_clipped_share"] < 1.0) == clips
    assert [metrics[key] for key in ("kl_reference",) if key in metrics] == pytest.approx(kl, rel=1e-5)
    assert ("kl_loss" in metrics) == bool(kl) and all(x > 0.01 for x in kl)
