"""Gradients of a step whose groups come in portions against those of the whole step, in float64."""

from __future__ import annotations

import random
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlplan.executor.trainer.samples import TrainSample
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.algorithm import Algorithm

VOCABULARY, PROMPTS, SAMPLES, LONGEST = 64, 10, 4, 200
WHOLE, PORTIONS = UpdateSettings(1024), UpdateSettings(300)


def gradient_max_diff() -> float:
    """The largest difference of any gradient, over the largest gradient."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "qwen2",
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.2,
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        algorithm = Algorithm(
            name="grpo", learning_rate=1e-3, weight_decay=0.0, betas=(0.9, 0.95), max_grad_norm=1.0, clip_low=0.2,
            clip_high=0.2, loss_aggregation="token-mean", dynamic_sampling=False, mask_truncated=False, seed=0,
        )  # fmt: skip
        divisors = Divisors(float(PROMPTS * SAMPLES), 2000.0, LONGEST)
        trainer = Trainer(TrainerConfig(folder, algorithm, WHOLE, SAMPLES, 1.0, divisors))
        trainer._model.double()
        groups = _groups()
        whole = trainer.gradients(groups)
        random.Random(1).shuffle(groups)
        for first in range(0, PROMPTS, 3):
            trainer.stream(groups[first : first + 3], PORTIONS, first=first == 0)
        streamed = trainer.summed_gradients()
        largest = max(float(gradient.abs().max()) for gradient in whole.values())
        return max(float((whole[name] - streamed[name]).abs().max()) for name in whole) / largest


def _groups() -> list[list[TrainSample]]:
    """Groups of samples with a heavy tail of lengths."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    groups = []
    for number in range(PROMPTS):
        prompt, group = tokens(rng.randint(4, 20)), []
        for sample in range(SAMPLES):
            response = tokens(min(LONGEST, int(rng.lognormvariate(3.0, 1.2)) + 1))
            logprobs = [-4.1 + rng.gauss(0, 0.1) for _ in response]
            group.append(TrainSample(f"p{number:02d}", sample, prompt, response, logprobs, rng.random(), False))
        groups.append(group)
    return groups
