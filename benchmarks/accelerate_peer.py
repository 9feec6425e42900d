"""The peer's side of `trainer_speed`: a GRPO update as a good script on transformers and accelerate does it.

What it does, and what it takes from rlplan:

- Samples are sorted by length, and as many rows go into a micro-batch as fit the token budget with their padding; rows
  are padded on the right. The model gets an attention mask and uses torch's sdpa.
- Only positions that predict a response token pass through the head; log-probabilities are gathered logits less their
  logsumexp. It computes no entropies and no differences between engine and trainer (rlplan's trainer does).
- Micro-batches are accumulated by `Accelerator.accumulate`, which steps after the last; the loss is a sum by tokens'
  weights, so accelerate's division by the number of micro-batches is undone. AdamW is torch's fused one, with rlplan's
  groups (no decay on norms and biases).
- Advantages, tokens' weights and PPO's clipped loss are rlplan's own functions: both compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from transformers import AutoModelForCausalLM

from rlplan.executor.trainer.losses import Objective
from rlplan.executor.trainer.train_samples import TrainSample, weighed_samples
from rlplan.executor.trainer.trainer_config import TrainerConfig


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` by micro-batch, the longest first: as many rows as fit `budget` tokens, padding included."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def padding_share(lengths: Sequence[int], budget: int) -> float:
    """Share of the tokens of `padded_batches` that are padding."""
    rows = sum(len(batch) * lengths[batch[0]] for batch in padded_batches(lengths, budget))
    return 1.0 - sum(lengths) / rows


class AcceleratePeer:
    """Model, optimizer and accelerator of one process on the CPU; `config` as for rlplan's trainer."""

    def __init__(self, config: TrainerConfig) -> None:
        self._config, self._objective = config, Objective(config)
        accumulation = GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False)
        self._accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=accumulation)
        # sdpa by default
        model: Any = AutoModelForCausalLM.from_pretrained(config.model_path, dtype=torch.float32).eval()
        algorithm = config.algorithm
        groups = [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": algorithm.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=algorithm.learning_rate, betas=algorithm.betas, fused=True)
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)

    def step(self, groups: Sequence[Sequence[TrainSample]]) -> float:
        """One optimizer step; returns the norm of the gradient before clipping."""
        return float(self._update(groups, take=True))

    def gradients(self, groups: Sequence[Sequence[TrainSample]]) -> dict[str, torch.Tensor]:
        """Gradients by parameter name, before clipping, of a step that is not taken."""
        self._update(groups, take=False)
        kept = {name: p.grad.clone() for name, p in self._model.named_parameters()}
        self._model.zero_grad()
        return kept

    def _update(self, groups: Sequence[Sequence[TrainSample]], take: bool) -> torch.Tensor:
        samples, advantages, weights = weighed_samples(groups, self._config)
        batches = padded_batches([s.tokens for s in samples], self._config.update.micro_batch_tokens)
        accelerator = self._accelerator
        accelerator.gradient_accumulation_steps = len(batches)
        norm = torch.zeros(())
        for batch in batches:
            with accelerator.accumulate(self._model):
                rows = [samples[i] for i in batch]
                loss = self._loss(rows, [advantages[i] for i in batch], [weights[i] for i in batch])
                accelerator.backward(loss * len(batches))
                if take and accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(self._model.parameters(), self._config.algorithm.max_grad_norm)
                if take:
                    self._optimizer.step()
                    self._optimizer.zero_grad()
        return norm

    def _loss(self, samples: list[TrainSample], advantages: list[float], weights: list[float]) -> torch.Tensor:
        """Loss of one padded micro-batch."""
        longest = max(s.tokens for s in samples)
        tokens = torch.zeros(len(samples), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        predicts = torch.zeros(len(samples), longest, dtype=torch.bool)
        for row, s in enumerate(samples):
            tokens[row, : s.tokens] = torch.tensor([*s.prompt_tokens, *s.response_tokens])
            mask[row, : s.tokens] = 1
            predicts[row, len(s.prompt_tokens) - 1 : s.tokens - 1] = True
        hidden = self._model.model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
        logits = self._model.lm_head(hidden[predicts]) / self._config.temperature
        targets = torch.tensor([token for s in samples for token in s.response_tokens])
        logprobs = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        old = torch.tensor([x for s in samples for x in s.logprobs])
        counts = torch.tensor([len(s.response_tokens) for s in samples])
        advantage = torch.tensor(advantages).repeat_interleave(counts)
        weight = torch.tensor(weights).repeat_interleave(counts)
        return self._objective.loss(logprobs, logprobs, old, advantage, weight, lambda means: means).loss
