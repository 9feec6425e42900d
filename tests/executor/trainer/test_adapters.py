"""Adapters of the trainer against peft's on the same weights, and against the weights that they leave alone."""

import pytest
import torch

from rlplan.executor.records.model_export import export_model
from rlplan.executor.trainer.policy.adapters import base_parameters
from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.train_samples import group_advantages
from rlplan.plans.schema.levers import LoraSpec
from rlplan.plans.yaml.errors import InputError

from ..records.exportable_runs import OneRank, begin_run, save
from .test_trainer_rank import (
    DIVISORS,
    LORA,
    agreeing,
    changed,
    new_trainer,
    plain_logprobs,
    plain_policy,
    random_groups,
    same_weights,
    token_loss,
    weights,
    write_model,
)

FEW = LoraSpec(rank=2, alpha=1, target_modules=("q_proj", "down_proj"))
ATTENTION = LoraSpec(rank=4, alpha=4, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))


def gradient_metrics(trainer, groups):
    """Metrics of a step that is not taken."""
    trainer._gradients.drop()
    trainer._gradients.add(groups, trainer._config.update)
    return trainer._gradients.finish()


def peft_name(name):
    return f"base_model.model.{name}.default.weight"


@pytest.mark.parametrize(("family", "lora"), [("qwen2", LORA), ("llama", FEW), ("qwen3_moe", ATTENTION)])
def test_log_probs_and_gradients_are_those_of_peft(tmp_path, family, lora):
    peft = pytest.importorskip("peft")
    model, groups = write_model(tmp_path, family), random_groups(4, seed=2)
    trainer = new_trainer(model, name="dr_grpo", lora=lora, max_grad_norm=1e9)
    trainer.step(random_groups(3, seed=1))  # B is no longer zero
    targets = "all-linear" if lora.of_all else list(lora.target_modules)
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    policy = peft.get_peft_model(plain_policy(model), config)
    theirs = {name: each for name, each in policy.named_parameters() if each.requires_grad}
    ours = {peft_name(name): each for name, each in trainer._model.named_parameters() if each.requires_grad}
    assert ours.keys() == theirs.keys() and trainer.trained_parameters() == sum(p.numel() for p in theirs.values())
    with torch.no_grad():
        for name, values in ours.items():
            theirs[name].copy_(values)
    losses = [
        token_loss(policy, sample, advantage, None)
        for group in groups
        for sample, advantage in zip(group, group_advantages("dr_grpo", [s.reward for s in group]), strict=True)
    ]
    (torch.cat(losses).sum() / DIVISORS.tokens).backward()
    for name, gradient in trainer.gradients(groups).items():
        expected = theirs[peft_name(name)].grad
        assert (gradient - expected).norm() < 1e-5 * expected.norm(), name


def test_the_models_own_weights_stay_and_are_the_reference(tmp_path):
    model = write_model(tmp_path / "model")
    trainer, untouched = new_trainer(model, lora=LORA), new_trainer(model)
    before = weights(trainer, tmp_path)
    assert all(torch.equal(before[name], values) for name, values in weights(untouched, tmp_path).items()), "B is zero"
    trainer.step(random_groups(3, seed=1))
    pairs = zip(base_parameters(trainer._model).values(), untouched._model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) and ours.grad is None for ours, theirs in pairs)
    after = weights(trainer, tmp_path)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.split(".")[-2].endswith("_proj") and name.endswith("weight")}
    groups = agreeing(model, random_groups(3, seed=2))
    assert gradient_metrics(trainer, groups)["logprob_max_abs_diff"] > 1e-4
    with trainer.without_adapters(), torch.no_grad():
        row = packed_row([(s.prompt_tokens, s.response_tokens) for g in groups for s in g], torch.device("cpu"))
        found = packed_logprobs(trainer._model, trainer._gradients._head, row).logprobs
    engine = torch.cat([torch.tensor(s.logprobs) for g in groups for s in g])
    torch.testing.assert_close(found, engine, rtol=0, atol=1e-5)


def test_the_reference_of_a_kl_is_the_model_without_adapters(tmp_path):
    model, told = write_model(tmp_path / "model"), []
    for lora in (LORA, None):
        trainer = new_trainer(model, lora=lora, kl={"coefficient": 0.1})
        told.append([trainer.step(random_groups(3, seed=seed))["kl_reference"] for seed in range(3)])
        groups = agreeing(model, random_groups(3, seed=9))
        # The reference's log-probabilities are the engine's here, so that the KL is that of engine and policy.
        metrics = gradient_metrics(trainer, groups)
        assert metrics["kl_reference"] > 0 and metrics["logprob_max_abs_diff"] > 1e-4
    assert told[0][0] == pytest.approx(0.0, abs=1e-9) == told[1][0] and min(told[0][1:]) > 0


def test_a_resumed_trainer_goes_on_bit_for_bit_from_adapters_alone(tmp_path):
    model = write_model(tmp_path / "model")
    straight, resumed = new_trainer(model, lora=LORA), new_trainer(model, lora=LORA, seed=99)
    straight.step(random_groups(2, seed=1))
    straight.save(tmp_path / "checkpoint")
    written = sum(path.stat().st_size for path in (tmp_path / "checkpoint").glob("*.distcp"))
    assert 12 * straight.trained_parameters() < written < 12 * straight.parameters()
    resumed.load(tmp_path / "checkpoint")
    for trainer in (straight, resumed):
        trainer.step(random_groups(2, seed=2))
    assert same_weights(straight, resumed)


def test_a_bfloat16_job_keeps_its_frozen_weights_in_bfloat16(tmp_path):
    model = write_model(tmp_path / "model")
    trainer = new_trainer(model, lora=LORA, dtype="bfloat16")
    assert trainer.step(random_groups(3, seed=1))["grad_norm"] > 0
    kinds = {local(each).dtype for each in base_parameters(trainer._model).values()}
    assert kinds == {torch.bfloat16} and {p.dtype for p in trainer._trained} == {torch.float32}
    trainer.close()


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_exports_are_a_merged_model_and_a_folder_of_peft(tmp_path, family):
    peft = pytest.importorskip("peft")
    model = write_model(tmp_path / "model", family)
    trainer, run = new_trainer(model, lora=LORA), begin_run(tmp_path, model)
    for seed in range(3):
        trainer.step(random_groups(3, seed=seed))
    save(run, 3, OneRank(trainer))
    whole = export_model(run, tmp_path / "merged")
    assert whole.parameters == sum(each.numel() for each in base_parameters(trainer._model).values())
    adapter = export_model(run, tmp_path / "adapter", adapter=True)
    assert adapter.parameters == trainer.trained_parameters() and adapter.bytes < whole.bytes
    policies = {"merged": plain_policy(tmp_path / "merged")}
    policies["peft"] = peft.PeftModel.from_pretrained(plain_policy(model), tmp_path / "adapter").eval()
    for name, policy in policies.items():

        def told(sample, of=policy):
            return {"logprobs": plain_logprobs(of, sample).tolist()}

        with torch.no_grad():
            groups = changed(random_groups(3, seed=8), told)
        assert gradient_metrics(trainer, groups)["logprob_max_abs_diff"] < 1e-5, name


def test_a_run_without_adapters_has_none_to_export(tmp_path):
    model = write_model(tmp_path / "model")
    run, trainer = begin_run(tmp_path, model), new_trainer(model)
    save(run, 1, OneRank(trainer))
    with pytest.raises(InputError, match="trained no adapters"):
        export_model(run, tmp_path / "out", adapter=True)


def test_modules_that_the_model_lacks_are_refused(tmp_path):
    model = write_model(tmp_path, "qwen3_moe")
    few = LoraSpec(rank=2, alpha=1, target_modules=("q_proj", "up_proj"))
    with pytest.raises(ValueError, match="target_modules names up_proj, and the model's experts are no modules"):
        new_trainer(model, lora=few)
