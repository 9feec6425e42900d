"""The trainer against plain Hugging Face forwards, and against itself with other orders, splits and numbers of ranks.

Run as a script this file is one rank of a sharded trainer (see `several_ranks`).
"""

import dataclasses
import json
import math
import random
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rlplan.executor.records.model_export import export_model
from rlplan.executor.trainer import optimizer
from rlplan.executor.trainer.gradient_sum import GradientSum
from rlplan.executor.trainer.policy.chunked_head import ChunkedHead
from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.step_checks import LOGPROB_LIMITS, refusal
from rlplan.executor.trainer.train_samples import TrainSample, group_advantages
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.executor.weights.transfer import VERSION_KEY, tensor_checksum
from rlplan.plans.schema.algorithm import Algorithm
from rlplan.plans.schema.levers import LoraSpec

VOCABULARY = 50  # dp 2 x tp 2 do not divide it: shards are padded
SAMPLES = 3
LONGEST = 90
TEMPERATURE = 0.7
DIVISORS = Divisors(samples=14.0, tokens=333.0, max_response_tokens=LONGEST)
RANK_DEADLINE_S = 240
CONFIG = ("dtype", "head_dtype", "compile", "ranks", "tp", "sp", "state_copies", "logprob_limits", "lora")
Groups = list[list[TrainSample]]
LORA = LoraSpec(rank=4, alpha=12)  # a scale that is no power of two

SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, "initializer_range": 0.2,
}  # fmt: skip
FAMILIES = {
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "llama": {"tie_word_embeddings": False},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}


def write_model(folder, family="qwen2", **changes):
    """Save a model of two layers with random weights and grouped-query attention; returns its path."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(family, **(SHAPE | FAMILIES[family] | changes))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def random_groups(prompts, seed):
    """Groups with a heavy tail of lengths and log-probabilities near those of a uniform policy."""
    rng = random.Random(seed)

    def tokens(count):
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


def changed(groups, change):
    """The groups with other fields of samples."""
    return [[dataclasses.replace(sample, **change(sample)) for sample in group] for group in groups]


def without_variance(groups):
    return changed(groups, lambda sample: {"reward": 0.3})


def with_odd_logprobs(groups, change):
    """The groups as if the engine had said `change(logprobs)` of the third sample of the second prompt."""
    odd = groups[1][2]
    return changed(groups, lambda sample: {"logprobs": change(odd.logprobs)} if sample is odd else {})


def agreeing(model, groups):
    """The groups with the log-probabilities that the trainer itself finds."""
    policy = plain_policy(model)
    with torch.no_grad():
        return changed(groups, lambda sample: {"logprobs": plain_logprobs(policy, sample).tolist()})


def new_trainer(model, micro_batch_tokens=256, **changes):
    """A trainer on one thread; `changes` are of the algorithm, or of the trainer where it has such an argument."""
    algorithm = {
        "name": "grpo", "learning_rate": 1e-3, "weight_decay": 0.01, "betas": (0.9, 0.95), "max_grad_norm": 1.0,
        "clip_low": 0.2, "clip_high": 0.2, "loss_aggregation": "token-mean", "seed": 0,
    }  # fmt: skip
    where = {name: changes.pop(name) for name in ("rank", "init_method") if name in changes}
    config = {name: changes.pop(name) for name in CONFIG if name in changes}
    reference = changes.pop("reference", "none")
    made = Algorithm.model_validate(algorithm | changes)
    update = UpdateSettings(micro_batch_tokens, reference=reference)
    return Trainer(TrainerConfig(model, made, update, SAMPLES, TEMPERATURE, DIVISORS, **config), **where)


def weights(trainer, folder):
    path = folder / f"weights-{random.random()}.safetensors"
    trainer.export_weights(path)
    return load_file(path)


def same_weights(one, other):
    """Whether the weights of two trainers are the same, bit for bit."""
    pairs = zip(one._model.parameters(), other._model.parameters(), strict=True)
    return all(torch.equal(local(first), local(second)) for first, second in pairs)


def gradients(trainer, groups):
    """The gradients of a step on `groups`, in one vector."""
    return torch.cat([gradient.flatten() for gradient in trainer.gradients(groups).values()])


def plain_logs(policy, sample):
    """Log-probabilities [response, vocabulary] of one response, by an unpacked forward of transformers' own."""
    tokens = torch.tensor(np.concatenate([sample.prompt_tokens, sample.response_tokens]))[None]
    logits = policy(input_ids=tokens).logits[0, len(sample.prompt_tokens) - 1 : -1]
    return (logits / TEMPERATURE).log_softmax(-1)


def plain_logprobs(policy, sample):
    return plain_logs(policy, sample).gather(1, torch.tensor(sample.response_tokens).long()[:, None])[:, 0]


def plain_policy(model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in FAMILIES),
     ("qwen2", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 0})],
    ids=[*FAMILIES, "sliding window"],
)  # fmt: skip
def test_packed_log_probs_and_entropies_equal_those_of_single_forwards(tmp_path, family, changes):
    path = write_model(tmp_path, family, **changes)
    samples = [s for group in random_groups(7, seed=1) for s in group]
    policy, plain = load_policy(path, "float32", torch.device("cpu")), plain_policy(path)
    row = packed_row([(s.prompt_tokens, s.response_tokens) for s in samples], torch.device("cpu"))
    with torch.no_grad():
        found = packed_logprobs(policy, ChunkedHead(policy, TEMPERATURE), row)
        logs = [plain_logs(plain, s) for s in samples]
        chosen = torch.cat([plain_logprobs(plain, s) for s in samples])
    torch.testing.assert_close(found.logprobs, chosen, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropies, torch.cat([-(x.exp() * x).sum(-1) for x in logs]), rtol=0, atol=1e-5)


CAP = 1.5


def token_loss(policy, sample, advantage, beyond):
    """Of each token of a response, by the formula; `beyond`: how importance weights are bounded, None: they are off."""
    logprobs, engine = plain_logprobs(policy, sample), torch.tensor(sample.logprobs)
    ratio = torch.exp(logprobs - engine)
    if beyond is None:
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    weight = (ratio.clamp(max=CAP) if beyond == "truncate" else ratio * (ratio <= CAP)).detach()
    return -weight * advantage * torch.exp(logprobs - logprobs.detach())


@pytest.mark.parametrize(
    ("name", "aggregation", "masks", "beyond"),
    [
        ("grpo", "seq-mean-token-mean", False, None),
        ("dr_grpo", "seq-mean-token-sum-norm", True, None),
        ("rloo", "token-mean", True, None),
        ("dr_grpo", "token-mean", False, "truncate"),
        ("dr_grpo", "token-mean", False, "mask"),
    ],
)
def test_loss_and_gradient_equal_the_formula_sample_by_sample(model, name, aggregation, masks, beyond):
    groups = random_groups(5, seed=2)
    assert 0 < sum(s.truncated for group in groups for s in group) < 15
    correction = None if beyond is None else {"cap": CAP, "beyond": beyond}
    trainer = new_trainer(
        model, name=name, loss_aggregation=aggregation, mask_truncated=masks, importance_sampling=correction,
        max_grad_norm=1e9,
    )  # fmt: skip
    computed = gradients(trainer, groups)
    metrics = trainer.step(groups)

    policy, losses, ratios = plain_policy(model), [], []
    for group in groups:
        for sample, advantage in zip(group, group_advantages(name, [s.reward for s in group]), strict=True):
            if not (masks and sample.truncated):
                losses.append(token_loss(policy, sample, advantage, beyond))
                ratios.append(torch.exp(plain_logprobs(policy, sample).detach() - torch.tensor(sample.logprobs)))
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
    if beyond is None:
        assert metrics["ratio_clipped_share"] > 0 and not any("importance" in key for key in metrics)
        return
    ratio = torch.cat(ratios)
    assert 0 < (ratio > CAP).sum() < len(ratio)
    done = {"truncate": "truncated", "mask": "masked"}[beyond]
    assert metrics[f"importance_{done}_share"] == pytest.approx((ratio > CAP).float().mean().item())
    assert metrics["importance_ratio_mean"] == pytest.approx(ratio.mean().item(), rel=1e-5)
    assert metrics["ratio_clipped_share"] == 0.0


def test_updates_are_those_of_plain_adamw_from_the_first_step(model):
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
        assert metrics["grad_scale"] == pytest.approx(0.05 / norm.item(), rel=1e-4)
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["grad_norm"] == pytest.approx(norm.item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for ours, plain in zip(trainer._model.parameters(), policy.parameters(), strict=True):
        assert (ours - plain).abs().max() < 1e-6
    norm = torch.cat([p.detach().flatten() for p in policy.parameters()]).norm().item()
    assert metrics["parameter_norm"] == pytest.approx(norm, rel=1e-5)
    longer = trainer.step(groups, UpdateSettings(256, norm_share=0.5))
    assert longer["grad_scale"] == pytest.approx(0.5 * 0.05 / longer["grad_norm"], rel=1e-4)


def test_offloaded_moments_in_small_buckets_give_the_same_updates(model, monkeypatch):
    plain, offloaded = new_trainer(model), new_trainer(model)
    away = []
    finish = GradientSum.finish

    def watched():
        away.append(offloaded._optimizer.host_bytes)
        return finish(offloaded._gradients)

    monkeypatch.setattr(offloaded._gradients, "finish", watched)
    monkeypatch.setattr(optimizer, "BUCKET_ELEMENTS", 100)  # less than most matrices have
    for step, offload in enumerate((True, False, True)):
        groups = random_groups(2, seed=step)
        plain.step(groups)
        offloaded.step(groups, UpdateSettings(256, offload=offload))
    # Moments come back after a backward pass, and leave before one.
    assert away == [8 * plain.parameters(), 8 * plain.parameters(), 8 * plain.parameters()]
    assert plain._optimizer.host_bytes == 0
    # The CPU's kernel rounds otherwise at the end of a tensor, where it has fewer elements than a vector.
    for mine, other in zip(plain._model.parameters(), offloaded._model.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-7)


def test_the_order_of_samples_does_not_change_a_bit_of_the_weights(model):
    groups = random_groups(6, seed=3)
    shuffled = [random.Random(i).sample(group, SAMPLES) for i, group in enumerate(groups)]
    random.Random(5).shuffle(shuffled)
    assert shuffled != groups
    one, other = new_trainer(model), new_trainer(model)
    for _ in range(2):
        one.step(groups)
        other.step(shuffled)
    assert same_weights(one, other)


def test_the_micro_batch_split_does_not_change_the_gradient(model):
    groups, found = random_groups(12, seed=4), []
    for budget in (64, 300, 8192):
        trainer = new_trainer(model, budget)
        computed = gradients(trainer, groups)
        found.append((trainer.step(groups)["micro_batches"], computed))
    assert found[0][0] > found[1][0] > found[2][0] == 1
    for _, gradient in found[:2]:
        assert (gradient - found[2][1]).norm() < 1e-6 * found[2][1].norm()


@pytest.mark.parametrize("saved_at", [0, 2])
def test_resuming_and_saving_change_nothing_bit_for_bit(model, tmp_path, saved_at):
    steps = [random_groups(2, seed=10 + i) for i in range(3)]
    straight, saving = new_trainer(model), new_trainer(model)
    resumed = new_trainer(model, seed=99)
    resumed.step(random_groups(2, seed=77))  # state that loading has to replace
    for number, groups in enumerate(steps):
        if number == saved_at:
            saving.save(tmp_path / "checkpoint")
            random_state = torch.get_rng_state()
            torch.rand(1)
            resumed.load(tmp_path / "checkpoint")
            assert resumed.version == saved_at and torch.equal(torch.get_rng_state(), random_state)
        straight.step(groups)
        saving.step(groups)
        if number >= saved_at:
            resumed.step(groups)
    assert same_weights(straight, saving) and same_weights(straight, resumed)
    assert resumed.version == straight.version == 3


def test_a_checkpoint_is_whole_or_absent_and_never_overwritten(model, tmp_path, monkeypatch):
    import torch.distributed.checkpoint as dcp

    trainer, save = new_trainer(model), dcp.save

    def crash(*arguments, **keywords):
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
def test_untrained_weights_export_as_the_checkpoint_they_came_from(tmp_path, tied):
    path = write_model(tmp_path / "model", tie_word_embeddings=tied)
    trainer = new_trainer(path)
    sums = trainer.export_weights(tmp_path / "weights.safetensors")
    source, exported = load_file(f"{path}/model.safetensors"), load_file(tmp_path / "weights.safetensors")
    assert ("lm_head.weight" in exported) != tied
    assert sums == {name: tensor_checksum(tensor) for name, tensor in exported.items()}
    assert sums == {name: tensor_checksum(tensor) for name, tensor in source.items()} == trainer.transfer("checksums")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "weights.safetensors"]
    for version, written in (("run:7", "run:7"), (None, "0")):
        assert trainer.export_weights(tmp_path / "weights.safetensors", version, checksums=False) == {}
        with safe_open(tmp_path / "weights.safetensors", framework="pt") as file:
            assert file.metadata()[VERSION_KEY] == written


def test_a_bfloat16_job_exports_bfloat16_and_trains_float32(model, tmp_path):
    trainer = new_trainer(model, dtype="bfloat16", learning_rate=1e-6, weight_decay=0.0)
    before = torch.cat([local(p).flatten().clone() for p in trainer._model.parameters()])
    trainer.step(random_groups(2, seed=8))
    after = torch.cat([local(p).flatten() for p in trainer._model.parameters()])
    assert {t.dtype for t in weights(trainer, tmp_path).values()} == {torch.bfloat16}
    # Of updates this small most are lost in bfloat16.
    assert (after != before).float().mean() > 0.5 > (after.bfloat16() != before.bfloat16()).float().mean()
    trainer.close()


def test_an_update_that_is_only_timed_changes_nothing(model):
    timed, untouched, groups = new_trainer(model), new_trainer(model), random_groups(4, 11)
    for trainer in (timed, untouched):
        trainer.step(random_groups(3, 10))
    state = torch.get_rng_state()
    assert timed.time_update(random_groups(5, 12), UpdateSettings(200, offload=True)) > 0
    assert timed._optimizer.host_bytes > 0, "as in a step, its backward pass has the moments' memory"
    assert torch.equal(torch.get_rng_state(), state) and timed.version == untouched.version == 1
    assert all(p.grad is None for p in timed._model.parameters())
    first, second = (t.step(groups) for t in (timed, untouched))
    assert {k: v for k, v in first.items() if k != "seconds"} == {k: v for k, v in second.items() if k != "seconds"}
    moments = [list(t._optimizer.tensors()) for t in (timed, untouched)]
    assert same_weights(timed, untouched) and all(map(torch.equal, *moments))


def test_metrics_tell_engine_and_trainer_apart(model):
    exact = agreeing(model, random_groups(4, seed=9))
    metrics = new_trainer(model).step(exact)
    samples = [s for group in exact for s in group]
    assert metrics["logprob_mean_abs_diff"] <= metrics["logprob_max_abs_diff"] < 1e-5
    assert metrics["ratio_clipped_share"] == 0.0
    assert metrics["samples"] == 12
    assert metrics["response_tokens"] == sum(len(s.logprobs) for s in samples)
    assert metrics["tokens"] == sum(len(s.logprobs) + len(s.prompt_tokens) for s in samples)
    assert metrics["reward_mean"] == pytest.approx(sum(s.reward for s in samples) / 12)
    metrics = new_trainer(model).step(with_odd_logprobs(exact, lambda logprobs: [logprobs[0] - 2.5, *logprobs[1:]]))
    assert metrics["logprob_max_abs_diff"] == pytest.approx(2.5, abs=1e-4)
    assert metrics["logprob_mean_abs_diff"] == pytest.approx(2.5 / metrics["response_tokens"], rel=1e-2)


POISONS = {
    "the engine's log-prob is NaN": lambda logprobs: [math.nan, *logprobs[1:]],
    "the engine drew what has no probability": lambda logprobs: [-math.inf, *logprobs[1:]],
}


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_a_step_that_is_not_finite_changes_nothing(model, poison):
    groups = changed(random_groups(4, seed=9), lambda sample: {"reward": float(sample.sample < 2)})
    trainer, untouched = new_trainer(model), new_trainer(model)
    for each in (trainer, untouched):
        each.step(random_groups(3, seed=5))
    metrics = trainer.step(with_odd_logprobs(groups, poison))
    assert metrics["skipped"] == 1.0 and trainer.version == 1 and "learning_rate" not in metrics
    found = refusal(metrics, None)
    assert found is not None and found.reason == "not finite"
    for each in (trainer, untouched):
        assert each.step(groups)["skipped"] == 0.0
    assert same_weights(trainer, untouched)
    moments = [list(t._optimizer.tensors()) for t in (trainer, untouched)]
    assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))


def test_weights_that_are_not_finite_are_never_saved(model, tmp_path):
    trainer = new_trainer(model)
    trainer.save(tmp_path / "good")
    with torch.no_grad():
        next(iter(trainer._model.parameters()))[0, 0] = math.nan
    with pytest.raises(RuntimeError, match="not finite"):
        trainer.save(tmp_path / "bad")
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    trainer.load(tmp_path / "good")
    trainer.save(tmp_path / "again")


def test_an_engine_of_other_weights_is_noticed_before_the_step(model):
    groups = agreeing(model, random_groups(8, seed=9))
    limits = LOGPROB_LIMITS["bfloat16"]
    trainer = new_trainer(model, logprob_limits=limits)
    metrics = trainer.step(changed(groups, lambda sample: {"logprobs": [x - 0.3 for x in sample.logprobs]}))
    found = refusal(metrics, limits)
    assert metrics["skipped"] == 1.0
    assert found is not None and found.reason == "log-probs" and "0.3 in the mean (limit 0.1)" in found.text
    assert same_weights(trainer, new_trainer(model))
    told = new_trainer(model, logprob_limits=limits._replace(stops=False))
    assert told.step(changed(groups, lambda sample: {"logprobs": [x - 0.3 for x in sample.logprobs]}))["skipped"] == 0
    # A single odd token is not enough.
    metrics = trainer.step(with_odd_logprobs(groups, lambda logprobs: [logprobs[0] - 3.0, *logprobs[1:]]))
    assert metrics["skipped"] == 0.0
    assert metrics["logprob_max_abs_diff"] == pytest.approx(3.0, abs=1e-4)
    assert metrics["logprob_p99_abs_diff"] < 1e-4
    assert metrics["logprob_beyond_share"] == pytest.approx(1 / metrics["response_tokens"])


def test_a_step_of_groups_without_variance_leaves_the_weights_alone(model):
    trainer = new_trainer(model, weight_decay=0.0)
    metrics = trainer.step(without_variance(random_groups(3, seed=6)))
    assert metrics["grad_norm"] == metrics["loss"] == 0.0 and trainer.version == 1
    assert same_weights(trainer, new_trainer(model))


def test_samples_without_a_gradient_are_watched_and_not_learnt_from(model):
    groups = random_groups(3, seed=12)
    mixed = [groups[0], *without_variance(groups[1:2]), groups[2]]
    trainer, other = new_trainer(model), new_trainer(model)
    metrics = trainer.step(mixed)
    assert metrics["samples"] == 9
    assert metrics["response_tokens"] == sum(len(s.logprobs) for g in mixed for s in g)
    alarm = other.step(with_odd_logprobs(mixed, lambda logprobs: [x - 7.5 for x in logprobs]))
    assert alarm["logprob_max_abs_diff"] > metrics["logprob_max_abs_diff"]
    # What the engine said about a sample that carries no gradient changes no weight.
    assert same_weights(trainer, other)


LAYOUTS = {"dp 2": {"ranks": 2}, "tp 2": {"ranks": 2, "tp": 2}, "sp 2": {"ranks": 2, "sp": 2}}
LAYOUTS["dp 2 tp 2"] = {"ranks": 4, "tp": 2}
LAYOUTS["dp 4, two copies"] = {"ranks": 4, "state_copies": 2}
LAYOUTS["dp 2, two copies"] = {"ranks": 2, "state_copies": 2}
LAYOUTS["dp 2 sp 2, two copies"] = {"ranks": 4, "sp": 2, "state_copies": 2}
LAYOUTS["dp 2 sp 2, adapters"] = {"ranks": 4, "sp": 2, "lora": LORA}
LAYOUTS["dp 2, two copies, adapters"] = {"ranks": 2, "state_copies": 2, "lora": LORA}
LAYOUTS["dp 4 tp 2, two copies"] = {"ranks": 8, "tp": 2, "state_copies": 2}
ALGORITHMS = {
    "sp 2": {"name": "gspo", "clip_low": 0.02, "clip_high": 0.02, "dual_clip": 1.1, "entropy_bonus": 0.01},
    "dp 2 tp 2": {"kl": {"coefficient": 0.1}, "loss_aggregation": "step-token-mean"},
    "dp 4, two copies": {
        "kl": {"coefficient": 0.1, "estimator": "k1", "applied_to": "reward"},
        "name": "reinforce_plus_plus_baseline",
        "loss_aggregation": "step-token-mean",
    },
}
"""What is trained with a layout, where it is not grpo: a response's ratio, divisors of a whole step, a reference."""


def several_ranks(model, folder, prompts, layout, start=None):
    """Train two steps on gloo ranks, a process each, in `folder`; returns rank 0's metrics of the second step.

    `start`: a trainer that has made the first of them; the ranks take over from it.
    """
    folder.mkdir()
    if start is not None:
        start.save(folder / "start")
    from ..rank_processes import run_ranks  # the ranks themselves, which run this file as a script, have no package

    count = LAYOUTS[layout]["ranks"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        (folder / "meeting").write_text(f"tcp://127.0.0.1:{free.getsockname()[1]}/secret")
    run_ranks(__file__, [model, str(folder), str(prompts), layout], count, folder, RANK_DEADLINE_S)
    metrics = [json.loads((folder / f"metrics-{rank}.json").read_text()) for rank in range(count)]
    for of_rank in metrics:
        del of_rank["seconds"]
        of_rank.pop("reference_s", None)
    assert all(of_rank == metrics[0] for of_rank in metrics), "ranks must agree on every metric"
    return metrics[0]


def of_layout(model, layout, **where):
    return new_trainer(model, **ALGORITHMS.get(layout, {}), **({"lora": LAYOUTS[layout].get("lora")} | where))


def groups_of_step(prompts, number):
    """Random groups; of several the second one teaches nothing."""
    groups = random_groups(prompts, seed=20 + number)
    return [*groups[:1], *without_variance(groups[1:2]), *groups[2:]]


def run_rank(model, folder, prompts, layout, rank):
    trainer = of_layout(model, layout, rank=rank, **LAYOUTS[layout], init_method=(folder / "meeting").read_text())
    # Kinds of round differ in these.
    updates = [UpdateSettings(128), UpdateSettings(256, recompute=True, offload=True)]
    if (folder / "start").is_dir():
        trainer.load(folder / "start")
    for number, update in list(enumerate(updates))[trainer.version :]:
        groups = groups_of_step(prompts, number)
        early = 2 if number and prompts > 2 else 0
        if early:  # the last replica trains them while engines still use the devices of the others
            trainer.stream(groups[:1], update, (trainer._mesh.dp - 1,), first=True)
            trainer.stream(groups[1:2], update, (trainer._mesh.dp - 1,))
        metrics = trainer.step(groups[early:], update, streamed=early > 0)
        moved = trainer._parked.place(False)  # as on a GPU between two updates, whose memory engines have meanwhile
        assert moved > 0 and trainer._parked.place(True) == moved
    # The odd sample is on one rank only; all must leave the step, or their weights part.
    poisoned = changed(random_groups(1, seed=50), lambda sample: {"logprobs": [math.nan] * len(sample.logprobs)})
    assert trainer.step(poisoned)["skipped"] == 1.0, "a rank without the odd sample takes the step"
    if trainer._mesh.copies_group is not None:
        for parameter in trainer._model.parameters():
            largest = local(parameter.detach()).clone()
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=trainer._mesh.copies_group)
            assert torch.equal(largest, local(parameter)), "copies of the states part"
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
        ("qwen3_moe", "sp 2", 5),
        ("qwen3", "dp 2 tp 2", 5),
        ("qwen3", "dp 4, two copies", 5),
        ("qwen2", "dp 2 sp 2, adapters", 5),
        pytest.param("qwen3_moe", "dp 2, two copies, adapters", 1, marks=pytest.mark.search),
        pytest.param("qwen2", "dp 2, two copies", 1, marks=pytest.mark.search),
        pytest.param("qwen3_moe", "dp 2 sp 2, two copies", 5, marks=pytest.mark.search),
        pytest.param("qwen3", "dp 4 tp 2, two copies", 5, marks=pytest.mark.search),
        pytest.param("qwen3_moe", "dp 2", 8, marks=pytest.mark.search),
        pytest.param("qwen3", "tp 2", 5, marks=pytest.mark.search),
        pytest.param("qwen2", "dp 2 tp 2", 5, marks=pytest.mark.search),
        pytest.param("llama", "dp 2 tp 2", 5, marks=pytest.mark.search),
    ],
)
def test_ranks_of_every_layout_train_the_weights_that_one_rank_trains(tmp_path, family, layout, prompts):
    model = write_model(tmp_path / "model", family)
    from ..records.exportable_runs import OneRank, begin_run, save  # the ranks, which run this file, have no package

    sharded_metrics = several_ranks(model, tmp_path / "sharded", prompts, layout)
    single = of_layout(model, layout)
    metrics = [single.step(groups_of_step(prompts, step)) for step in range(2)][-1]
    one, several = weights(single, tmp_path), load_file(tmp_path / "sharded" / "weights.safetensors")
    assert max((one[name] - several[name]).abs().max().item() for name in one) < 1e-5
    names = ["loss", "grad_norm", "entropy", "parameter_norm", "tokens", "logprob_max_abs_diff"]
    if "kl" in ALGORITHMS.get(layout, {}):
        names.append("kl_reference")
        assert metrics["kl_reference"] != 0.0, "after a step the policy is not its reference"
    for name in names:
        assert sharded_metrics[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name
    resumed = of_layout(model, layout)
    resumed.load(tmp_path / "sharded" / "checkpoint")
    for trainer in (single, resumed):
        trainer.step(random_groups(prompts, seed=33))
    first, second = weights(single, tmp_path), weights(resumed, tmp_path)
    assert max((first[name] - second[name]).abs().max().item() for name in first) < 1e-5
    run = begin_run(tmp_path, model)
    save(run, 2, OneRank(written=tmp_path / "sharded" / "checkpoint"))
    export_model(run, tmp_path / "model of ranks")
    exported = load_file(tmp_path / "model of ranks" / "model.safetensors")
    assert exported.keys() == several.keys() and all(torch.equal(exported[name], several[name]) for name in several)


def test_copies_of_the_states_go_on_from_what_one_rank_saved(tmp_path):
    model = write_model(tmp_path / "model", "qwen2")
    single = of_layout(model, "dp 4, two copies")
    single.step(groups_of_step(3, 0))
    several_ranks(model, tmp_path / "sharded", 3, "dp 4, two copies", start=single)
    single.step(groups_of_step(3, 1))
    one, several = weights(single, tmp_path), load_file(tmp_path / "sharded" / "weights.safetensors")
    assert max((one[name] - several[name]).abs().max().item() for name in one) < 1e-5


if __name__ == "__main__":
    run_rank(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
