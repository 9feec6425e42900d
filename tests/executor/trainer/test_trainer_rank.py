"""The trainer against plain Hugging Face forwards, and against itself with other orders, splits and numbers of ranks.

Run as a script this file is one rank of a sharded trainer (see `several_ranks`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlplan.executor.trainer.advantages import group_advantages
from rlplan.executor.trainer.gradient_sum import GradientSum
from rlplan.executor.trainer.optimizer import sharded_adamw
from rlplan.executor.trainer.policy.chunked_head import ChunkedHead
from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.rank_actor import TRAINER_METHODS, TrainerRank
from rlplan.executor.trainer.samples import TrainSample
from rlplan.executor.trainer.step_checks import LOGPROB_LIMITS, refusal
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.executor.weights.checksum import tensor_checksum
from rlplan.plans.schema.sections.algorithm import Algorithm

VOCABULARY = 50  # dp 2 x tp 2 do not divide it: shards are padded
SAMPLES = 3
LONGEST = 90
TEMPERATURE = 0.7
DIVISORS = Divisors(samples=14.0, tokens=333.0, max_response_tokens=LONGEST)
RANK_DEADLINE_S = 240


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "llama": {"tie_word_embeddings": False},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}


def write_model(folder: Path, family: str = "qwen2", **changes: Any) -> str:
    """Save a model of two layers with random weights and grouped-query attention; returns its path."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    settings = {"tie_word_embeddings": True, "max_position_embeddings": 2048, "initializer_range": 0.2}
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **(settings | FAMILIES[family] | changes),
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def random_groups(prompts: int, seed: int) -> list[list[TrainSample]]:
    """Groups with a heavy tail of lengths and log-probabilities near those of a uniform policy."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    groups = []
    for number in range(prompts):
        prompt, group = tokens(rng.randint(1, 9)), []
        for sample in range(SAMPLES):
            length = min(LONGEST, int(rng.lognormvariate(3.0, 1.0)) + 1)
            logprobs = [-3.9 + rng.gauss(0, 0.1) for _ in range(length)]
            reward = [0.0, 1.0, rng.random()][sample]
            truncated = length > 35
            group.append(TrainSample(f"p{number:03d}", sample, prompt, tokens(length), logprobs, reward, truncated))
        groups.append(group)
    return groups


def new_trainer(model: str, micro_batch_tokens: int = 256, **changes: Any) -> Trainer:
    """A trainer on one thread; `changes` are of the algorithm, or of the trainer where it has such an argument."""
    algorithm = {
        "name": "grpo",
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "betas": (0.9, 0.95),
        "max_grad_norm": 1.0,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "loss_aggregation": "token-mean",
        "dynamic_sampling": False,
        "mask_truncated": False,
        "seed": 0,
    }
    where = {name: changes.pop(name) for name in ("rank", "init_method") if name in changes}
    config = {name: changes.pop(name) for name in ("dtype", "ranks", "tp", "sp", "logprob_limits") if name in changes}
    made = Algorithm.model_validate(algorithm | changes)
    update = UpdateSettings(micro_batch_tokens)
    return Trainer(TrainerConfig(model, made, update, SAMPLES, TEMPERATURE, DIVISORS, **config), **where)


def weights(trainer: Trainer, folder: Path) -> dict[str, torch.Tensor]:
    path = folder / f"weights-{random.random()}.safetensors"
    trainer.export_weights(path)
    return load_file(path)


def gradients(trainer: Trainer, groups: list[list[TrainSample]]) -> torch.Tensor:
    """The gradients of a step on `groups`, in one vector."""
    return torch.cat([gradient.flatten() for gradient in trainer.gradients(groups).values()])


def plain_logprobs(policy: torch.nn.Module, sample: TrainSample) -> torch.Tensor:
    """Log-probabilities of one response, by an unpacked forward of transformers' own."""
    tokens = torch.tensor([sample.prompt_tokens + sample.response_tokens])
    logits = policy(input_ids=tokens).logits[0, len(sample.prompt_tokens) - 1 : -1]
    chosen = torch.tensor(sample.response_tokens)[:, None]
    return (logits / TEMPERATURE).log_softmax(-1).gather(1, chosen)[:, 0]


def plain_policy(model: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in FAMILIES),
     ("qwen2", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 0})],
    ids=[*FAMILIES, "sliding window"],
)  # fmt: skip
def test_packed_log_probs_equal_those_of_one_forward_per_sample(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    path = write_model(tmp_path, family, **changes)
    samples = [s for group in random_groups(7, seed=1) for s in group]
    policy = load_policy(path, "float32", torch.device("cpu"))
    row = packed_row([(s.prompt_tokens, s.response_tokens) for s in samples], torch.device("cpu"))
    packed = packed_logprobs(policy, ChunkedHead(policy, TEMPERATURE), row).logprobs
    plain = torch.cat([plain_logprobs(plain_policy(path), s) for s in samples])
    assert (packed - plain).abs().max() < 1e-5


def test_entropies_are_those_of_the_sampling_distribution(model: str) -> None:
    policy = load_policy(model, "float32", torch.device("cpu"))
    row = packed_row([([3, 4], [5, 6, 7]), ([8], [9])], torch.device("cpu"))
    result = packed_logprobs(policy, ChunkedHead(policy, TEMPERATURE), row)
    with torch.no_grad():
        logits = plain_policy(model)(input_ids=torch.tensor([[8]])).logits[0, 0]
    expected = torch.distributions.Categorical(logits=logits / TEMPERATURE).entropy()
    assert result.entropies[-1].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize(
    ("name", "aggregation"),
    [("grpo", "seq-mean-token-mean"), ("dr_grpo", "seq-mean-token-sum-norm"), ("rloo", "token-mean")],
)
def test_loss_and_gradient_equal_the_formula_applied_sample_by_sample(
    model: str, name: str, aggregation: str, mask_truncated: bool
) -> None:
    groups = random_groups(5, seed=2)
    assert 0 < sum(s.truncated for group in groups for s in group) < 15
    trainer = new_trainer(
        model, name=name, loss_aggregation=aggregation, mask_truncated=mask_truncated, max_grad_norm=1e9
    )
    computed = gradients(trainer, groups)
    metrics = trainer.step(groups)

    policy = plain_policy(model)
    losses = []
    for group in groups:
        for sample, advantage in zip(group, group_advantages(name, [s.reward for s in group]), strict=True):
            if not (mask_truncated and sample.truncated):
                ratio = torch.exp(plain_logprobs(policy, sample) - torch.tensor(sample.logprobs))
                losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    loss = {
        "token-mean": lambda: torch.cat(losses).sum() / DIVISORS.tokens,
        "seq-mean-token-mean": lambda: torch.stack([x.mean() for x in losses]).sum() / DIVISORS.samples,
        "seq-mean-token-sum-norm": lambda: torch.stack([x.sum() / LONGEST for x in losses]).sum() / DIVISORS.samples,
    }[aggregation]()
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-5)
    assert (computed - expected).norm() < 1e-5 * expected.norm()


def test_updates_are_those_of_plain_adamw_from_the_first_step(model: str) -> None:
    schedule = {"kind": "cosine", "warmup_steps": 1, "decay_steps": 2, "final_share": 0.1}
    trainer, policy = new_trainer(model, max_grad_norm=0.05, schedule=schedule), plain_policy(model)
    matrices = [p for p in policy.parameters() if p.ndim > 1]
    vectors = [p for p in policy.parameters() if p.ndim == 1]
    parameters = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95))
    for step, rate in enumerate((0.5e-3, 1e-3, 0.55e-3, 0.1e-3, 0.1e-3)):
        groups = random_groups(3, seed=step)
        for name, gradient in trainer.gradients(groups).items():
            policy.get_parameter(name).grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.05)
        assert norm > 0.05, "clipping must act"
        metrics = trainer.step(groups)
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["grad_norm"] == pytest.approx(norm.item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for ours, plain in zip(trainer._model.parameters(), policy.parameters(), strict=True):
        assert (ours - plain).abs().max() < 1e-6


def test_updates_of_offloaded_moments_in_small_buckets_are_the_same(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, offloaded = new_trainer(model), new_trainer(model)
    away = []
    backward = GradientSum.finish

    def watch(trainer: Trainer) -> None:
        def watched() -> Any:
            away.append(trainer._optimizer.host_bytes > 0)
            return backward(trainer._gradients)

        monkeypatch.setattr(trainer._gradients, "finish", watched)

    watch(plain)
    watch(offloaded)
    monkeypatch.setattr(sharded_adamw, "BUCKET_ELEMENTS", 100)  # less than most matrices have
    for step, offload in enumerate((True, False, True)):
        groups = random_groups(2, seed=step)
        plain.step(groups)
        offloaded.step(groups, UpdateSettings(256, offload=offload))
    assert away[1::2] == [True, True, True], "moments come back after a backward pass and leave before one"
    # The CPU's kernel rounds otherwise at the end of a tensor, where it has fewer elements than a vector.
    for mine, other in zip(plain._model.parameters(), offloaded._model.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-7)


def test_the_order_of_samples_does_not_change_a_bit_of_the_weights(model: str, tmp_path: Path) -> None:
    groups = random_groups(6, seed=3)
    shuffled = [random.Random(i).sample(group, SAMPLES) for i, group in enumerate(groups)]
    random.Random(5).shuffle(shuffled)
    assert shuffled != groups
    one, other = new_trainer(model), new_trainer(model)
    for _ in range(2):
        one.step(groups)
        other.step(shuffled)
    first, second = weights(one, tmp_path), weights(other, tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_micro_batch_split_does_not_change_the_gradient(model: str) -> None:
    groups, found = random_groups(12, seed=4), []
    for budget in (64, 300, 8192):
        trainer = new_trainer(model, budget)
        computed = gradients(trainer, groups)
        found.append((trainer.step(groups)["micro_batches"], computed))
    assert found[0][0] > found[1][0] > found[2][0] == 1
    for _, gradient in found[:2]:
        assert (gradient - found[2][1]).norm() < 1e-6 * found[2][1].norm()


@pytest.mark.parametrize("saved_at", [0, 2])
def test_resuming_equals_not_resuming_bit_for_bit(model: str, tmp_path: Path, saved_at: int) -> None:
    steps = [random_groups(3, seed=10 + i) for i in range(4)]
    straight, broken = new_trainer(model), new_trainer(model)
    for groups in steps:
        straight.step(groups)
    for groups in steps[:saved_at]:
        broken.step(groups)
    broken.save(tmp_path / "checkpoint")
    resumed = new_trainer(model, seed=99)
    resumed.step(random_groups(2, seed=77))  # state that loading has to replace
    resumed.load(tmp_path / "checkpoint")
    assert resumed.version == saved_at
    for groups in steps[saved_at:]:
        resumed.step(groups)
    first, second = weights(straight, tmp_path), weights(resumed, tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert resumed.version == straight.version == 4


def test_saving_changes_nothing_in_the_trainer_that_saves(model: str, tmp_path: Path) -> None:
    quiet, saving = new_trainer(model), new_trainer(model)
    for step in range(2):
        saving.save(tmp_path / f"checkpoint-{step}")
        for trainer in (quiet, saving):
            trainer.step(random_groups(2, seed=step))
    first, second = weights(quiet, tmp_path), weights(saving, tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_checkpoint_is_whole_or_absent_and_never_overwritten(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed.checkpoint as dcp

    trainer, save = new_trainer(model), dcp.save

    def crash(*arguments: Any, **keywords: Any) -> None:
        save(*arguments, **keywords)
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(dcp, "save", crash)
        with pytest.raises(OSError, match="disk full"):
            trainer.save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(FileNotFoundError):
        trainer.load(tmp_path / "checkpoint")
    trainer.save(tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    with pytest.raises(FileExistsError):
        trainer.save(tmp_path / "checkpoint")


@pytest.mark.parametrize("tied", [True, False])
def test_untrained_weights_export_as_the_checkpoint_they_came_from(tmp_path: Path, tied: bool) -> None:
    path = write_model(tmp_path / "model", tie_word_embeddings=tied)
    sums = new_trainer(path).export_weights(tmp_path / "weights.safetensors")
    source, exported = load_file(f"{path}/model.safetensors"), load_file(tmp_path / "weights.safetensors")
    assert ("lm_head.weight" in exported) != tied
    assert sums == {name: tensor_checksum(tensor) for name, tensor in exported.items()}
    assert sums == {name: tensor_checksum(tensor) for name, tensor in source.items()}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "weights.safetensors"]


def test_a_bfloat16_job_exports_bfloat16_and_trains_float32(model: str, tmp_path: Path) -> None:
    trainer = new_trainer(model, dtype="bfloat16", learning_rate=1e-6, weight_decay=0.0)
    before = torch.cat([local(p).flatten().clone() for p in trainer._model.parameters()])
    trainer.step(random_groups(2, seed=8))
    after = torch.cat([local(p).flatten() for p in trainer._model.parameters()])
    assert {t.dtype for t in weights(trainer, tmp_path).values()} == {torch.bfloat16}
    # Of updates this small most are lost in bfloat16.
    assert (after != before).float().mean() > 0.5 > (after.bfloat16() != before.bfloat16()).float().mean()
    trainer.close()


def test_metrics_tell_engine_and_trainer_apart(model: str) -> None:
    groups, policy = random_groups(4, seed=9), plain_policy(model)
    with torch.no_grad():
        exact = [[dataclasses.replace(s, logprobs=plain_logprobs(policy, s).tolist()) for s in g] for g in groups]
    metrics = new_trainer(model).step(exact)
    samples = [s for group in exact for s in group]
    assert metrics["logprob_mean_abs_diff"] <= metrics["logprob_max_abs_diff"] < 1e-5
    assert metrics["ratio_clipped_share"] == 0.0
    assert metrics["samples"] == 12
    assert metrics["response_tokens"] == sum(len(s.logprobs) for s in samples)
    assert metrics["tokens"] == sum(len(s.logprobs) + len(s.prompt_tokens) for s in samples)
    assert metrics["reward_mean"] == pytest.approx(sum(s.reward for s in samples) / 12)

    odd = samples[5]
    exact[1][2] = dataclasses.replace(odd, logprobs=[odd.logprobs[0] - 2.5, *odd.logprobs[1:]])
    metrics = new_trainer(model).step(exact)
    assert metrics["logprob_max_abs_diff"] == pytest.approx(2.5, abs=1e-4)
    assert metrics["logprob_mean_abs_diff"] == pytest.approx(2.5 / metrics["response_tokens"], rel=1e-2)


def with_logprobs(groups: list[list[TrainSample]], change: Any) -> list[list[TrainSample]]:
    """The groups as if the engine had said `change(logprobs)` of the third sample of the second prompt."""
    odd = groups[1][2]
    changed = dataclasses.replace(odd, logprobs=change(odd.logprobs))
    return [groups[0], [*groups[1][:2], changed], *groups[2:]]


def agreeing(model: str, groups: list[list[TrainSample]]) -> list[list[TrainSample]]:
    """The groups with the log-probabilities that the trainer itself finds."""
    policy = plain_policy(model)
    with torch.no_grad():
        return [[dataclasses.replace(s, logprobs=plain_logprobs(policy, s).tolist()) for s in g] for g in groups]


POISONS = {
    "the engine's log-prob is NaN": lambda logprobs: [math.nan, *logprobs[1:]],
    "the ratio overflows": lambda logprobs: [-1e5, *logprobs[1:]],
}


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_a_step_that_is_not_finite_changes_neither_weights_nor_optimizer_and_the_next_one_goes_on(
    model: str, tmp_path: Path, poison: Any
) -> None:
    groups = [[dataclasses.replace(s, reward=float(s.sample < 2)) for s in g] for g in random_groups(4, seed=9)]
    trainer, untouched = new_trainer(model), new_trainer(model)
    for each in (trainer, untouched):
        each.step(random_groups(3, seed=5))
    metrics = trainer.step(with_logprobs(groups, poison))
    assert metrics["skipped"] == 1.0 and trainer.version == 1
    found = refusal(metrics, None)
    assert found is not None and found.reason == "not finite"
    for each in (trainer, untouched):
        assert each.step(groups)["skipped"] == 0.0
    first, second = weights(trainer, tmp_path), weights(untouched, tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)
    moments = [list(t._optimizer.tensors()) for t in (trainer, untouched)]
    assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))


def test_weights_that_are_not_finite_are_never_saved(model: str, tmp_path: Path) -> None:
    trainer = new_trainer(model)
    trainer.save(tmp_path / "good")
    with torch.no_grad():
        next(iter(trainer._model.parameters()))[0, 0] = math.nan
    with pytest.raises(RuntimeError, match="not finite"):
        trainer.save(tmp_path / "bad")
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    trainer.load(tmp_path / "good")
    trainer.save(tmp_path / "again")


def test_an_engine_of_other_weights_is_noticed_before_the_step_and_a_single_odd_token_is_not_enough(
    model: str, tmp_path: Path
) -> None:
    groups = agreeing(model, random_groups(8, seed=9))
    limits = LOGPROB_LIMITS["bfloat16"]
    trainer = new_trainer(model, logprob_limits=limits)
    before = weights(trainer, tmp_path)
    shifted = [[dataclasses.replace(s, logprobs=[x - 0.3 for x in s.logprobs]) for s in g] for g in groups]
    metrics = trainer.step(shifted)
    found = refusal(metrics, limits)
    assert metrics["skipped"] == 1.0
    assert found is not None and found.reason == "log-probs" and "0.3 in the mean (limit 0.1)" in found.text
    after = weights(trainer, tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)

    odd = with_logprobs(groups, lambda logprobs: [logprobs[0] - 3.0, *logprobs[1:]])
    metrics = trainer.step(odd)
    assert metrics["skipped"] == 0.0
    assert metrics["logprob_max_abs_diff"] == pytest.approx(3.0, abs=1e-4)
    assert metrics["logprob_p99_abs_diff"] < 1e-4
    assert metrics["logprob_beyond_share"] == pytest.approx(1 / metrics["response_tokens"])


@pytest.mark.parametrize("beyond", ["truncate", "mask"])
def test_importance_sampling_weighs_tokens_by_the_ratio_of_trainer_to_engine_up_to_its_cap(
    model: str, beyond: str
) -> None:
    groups, cap = random_groups(5, seed=2), 1.5
    correction = {"cap": cap, "beyond": beyond}
    trainer = new_trainer(model, name="dr_grpo", importance_sampling=correction, max_grad_norm=1e9)
    computed = gradients(trainer, groups)
    metrics = trainer.step(groups)

    policy = plain_policy(model)
    loss, ratios = torch.zeros(()), []
    for group in groups:
        for sample, advantage in zip(group, group_advantages("dr_grpo", [s.reward for s in group]), strict=True):
            logprobs = plain_logprobs(policy, sample)
            ratio = torch.exp(logprobs - torch.tensor(sample.logprobs)).detach()
            weight = ratio.clamp(max=cap) if beyond == "truncate" else ratio * (ratio <= cap)
            loss = loss - (weight * advantage * logprobs).sum() / DIVISORS.tokens
            ratios.append(ratio)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert (computed - expected).norm() < 1e-5 * expected.norm()
    ratio = torch.cat(ratios)
    assert 0 < (ratio > cap).sum() < len(ratio)
    done = {"truncate": "truncated", "mask": "masked"}[beyond]
    assert metrics[f"importance_{done}_share"] == pytest.approx((ratio > cap).float().mean().item())
    assert metrics["importance_ratio_mean"] == pytest.approx(ratio.mean().item(), rel=1e-5)
    assert metrics["ratio_clipped_share"] == 0.0


def test_without_importance_sampling_no_metric_speaks_of_it(model: str) -> None:
    assert not any("importance" in name for name in new_trainer(model).step(random_groups(2, seed=3)))


def test_a_step_of_groups_without_variance_leaves_the_weights_alone(model: str, tmp_path: Path) -> None:
    trainer = new_trainer(model, weight_decay=0.0)
    before = weights(trainer, tmp_path)
    metrics = trainer.step([[dataclasses.replace(s, reward=0.3) for s in g] for g in random_groups(3, seed=6)])
    after = weights(trainer, tmp_path)
    assert metrics["grad_norm"] == metrics["loss"] == 0.0
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_samples_without_a_gradient_are_watched_and_not_learnt_from(model: str, tmp_path: Path) -> None:
    groups = random_groups(4, seed=12)
    flat = [dataclasses.replace(s, reward=0.5) for s in groups[2]]
    mixed = [groups[0], groups[1], flat]
    trainer = new_trainer(model)
    metrics = trainer.step(mixed)
    assert metrics["samples"] == 9
    assert metrics["response_tokens"] == sum(len(s.logprobs) for g in mixed for s in g)
    odd = [dataclasses.replace(flat[0], logprobs=[x - 7.5 for x in flat[0].logprobs]), *flat[1:]]
    other = new_trainer(model)
    alarm = other.step([groups[0], groups[1], odd])
    assert alarm["logprob_max_abs_diff"] > metrics["logprob_max_abs_diff"]
    # What the engine said about a sample that carries no gradient changes no weight.
    before, after = weights(trainer, tmp_path), weights(other, tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_incomplete_group_is_never_trained(model: str) -> None:
    groups = random_groups(2, seed=6)
    with pytest.raises(AssertionError, match="p001"):
        new_trainer(model).step([groups[0], groups[1][:-1]])


LAYOUTS: dict[str, dict[str, int]] = {
    "dp 2": {"ranks": 2},
    "tp 2": {"ranks": 2, "tp": 2},
    "sp 2": {"ranks": 2, "sp": 2},
    "dp 2 tp 2": {"ranks": 4, "tp": 2},
}


def several_ranks(model: str, folder: Path, prompts: int, layout: str) -> dict[str, float]:
    """Train two steps on gloo ranks, a process each, in `folder`; returns rank 0's metrics of the second step."""
    folder.mkdir()
    from ..rank_processes import run_ranks  # the ranks themselves, which run this file as a script, have no package

    count = LAYOUTS[layout]["ranks"]
    run_ranks(__file__, [model, str(folder), str(prompts), layout], count, folder, RANK_DEADLINE_S)
    metrics = [json.loads((folder / f"metrics-{rank}.json").read_text()) for rank in range(count)]
    for of_rank in metrics:
        del of_rank["seconds"]
    assert all(of_rank == metrics[0] for of_rank in metrics), "ranks must agree on every metric"
    return metrics[0]


def one_group() -> list[list[TrainSample]]:
    return random_groups(1, seed=50)


def groups_of_step(prompts: int, number: int) -> list[list[TrainSample]]:
    """Random groups; of several the second one teaches nothing."""
    groups = random_groups(prompts, seed=20 + number)
    flat = [[dataclasses.replace(sample, reward=1.0) for sample in group] for group in groups[1:2]]
    return [*groups[:1], *flat, *groups[2:]]


def run_rank(model: str, folder: Path, prompts: int, layout: str, rank: int) -> None:
    trainer = new_trainer(model, rank=rank, **LAYOUTS[layout], init_method=f"file://{folder}/meeting-point")
    # Kinds of round differ in these.
    updates = [UpdateSettings(128), UpdateSettings(256, recompute=True, offload=True)]
    for number, update in enumerate(updates):
        groups = groups_of_step(prompts, number)
        early = 2 if number and prompts > 2 else 0
        if early:  # the last replica trains them while engines still use the devices of the others
            trainer.stream(groups[:1], update, (trainer._mesh.dp - 1,), first=True)
            trainer.stream(groups[1:2], update, (trainer._mesh.dp - 1,))
        metrics = trainer.step(groups[early:], update, streamed=early > 0)
        moved = trainer._parked.place(False)  # as on a GPU between two updates, whose memory engines have meanwhile
        assert moved > 0 and trainer._parked.place(True) == moved
    # The odd sample is on one rank only; all must leave the step, or their weights part.
    poisoned = [[dataclasses.replace(s, logprobs=[math.nan] * len(s.logprobs)) for s in g] for g in one_group()]
    assert trainer.step(poisoned)["skipped"] == 1.0, "a rank without the odd sample takes the step"
    sums = trainer.export_weights(folder / "weights.safetensors")
    assert bool(sums) == (rank == 0)
    trainer._parked.place(False)
    trainer.save(folder / "checkpoint")
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    trainer.close()


@pytest.mark.parametrize(
    ("family", "layout", "prompts"),
    [
        ("qwen2", "dp 2", 1),  # a rank without samples
        ("qwen3_moe", "dp 2", 8),
        ("qwen3", "tp 2", 5),
        ("qwen3_moe", "sp 2", 5),
        ("qwen2", "dp 2 tp 2", 5),
        ("qwen3", "dp 2 tp 2", 5),
        ("llama", "dp 2 tp 2", 5),
    ],
)
def test_ranks_of_every_layout_train_the_weights_that_one_rank_trains(
    tmp_path: Path, family: str, layout: str, prompts: int
) -> None:
    model = write_model(tmp_path / "model", family)
    sharded_metrics = several_ranks(model, tmp_path / "sharded", prompts, layout)
    single = new_trainer(model)
    metrics = [single.step(groups_of_step(prompts, step)) for step in range(2)][-1]
    one, several = weights(single, tmp_path), load_file(tmp_path / "sharded" / "weights.safetensors")
    assert max((one[name] - several[name]).abs().max().item() for name in one) < 1e-5
    for name in ("loss", "grad_norm", "entropy", "parameter_norm", "tokens", "logprob_max_abs_diff"):
        assert sharded_metrics[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name

    resumed = new_trainer(model)
    resumed.load(tmp_path / "sharded" / "checkpoint")
    for trainer in (single, resumed):
        trainer.step(random_groups(prompts, seed=33))
    first, second = weights(single, tmp_path), weights(resumed, tmp_path)
    assert max((first[name] - second[name]).abs().max().item() for name in first) < 1e-5


def test_what_the_actor_of_a_rank_hands_on_the_trainer_has():
    assert all(callable(getattr(Trainer, name)) and callable(getattr(TrainerRank, name)) for name in TRAINER_METHODS)


if __name__ == "__main__":
    run_rank(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
