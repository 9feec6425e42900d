"""The objective of a step, by the job's algorithm: advantages and weights of samples, and the loss of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .advantages import group_advantages
from .losses import ClippedLoss, clipped_loss, importance_weights, token_weights
from .samples import TrainSample, sorted_groups
from .trainer_config import TrainerConfig


class Objective:
    """The algorithm's formulas for one trainer; it holds no state."""

    def __init__(self, config: TrainerConfig) -> None:
        self._algorithm = config.algorithm
        self._divisors = config.divisors
        self._samples_per_prompt = config.samples_per_prompt
        self._correction = config.algorithm.importance_sampling

    @property
    def importance_cap(self) -> float:
        """Importance weight above which a token is truncated or masked; infinite without importance sampling."""
        return math.inf if self._correction is None else self._correction.cap

    def prepare(self, groups: Sequence[Sequence[TrainSample]]) -> tuple[list[TrainSample], list[float], list[float]]:
        """All samples in their canonical order, with advantage and token weight of each."""
        assert groups, "a step needs at least one group"
        samples, advantages = [], []
        for group in sorted_groups(groups, self._samples_per_prompt):
            samples.extend(group)
            advantages.extend(group_advantages(self._algorithm.name, [s.reward for s in group]))
        in_loss = [not (s.truncated and self._algorithm.mask_truncated) for s in samples]
        lengths = [len(s.response_tokens) for s in samples]
        return samples, advantages, token_weights(self._algorithm.loss_aggregation, lengths, in_loss, self._divisors)

    def loss(
        self, logprobs: torch.Tensor, engine: torch.Tensor, advantages: torch.Tensor, weights: torch.Tensor
    ) -> ClippedLoss:
        """Loss of N tokens, all of shape [N]; `engine`: log-probabilities as they were sampled."""
        old = engine
        if self._correction is not None:
            old = logprobs.detach()
            ratio = torch.exp(old - engine)
            weights = weights * importance_weights(ratio, self._correction.cap, self._correction.beyond)
        return clipped_loss(logprobs, old, advantages, weights, self._algorithm.clip_low, self._algorithm.clip_high)

    def named(self, totals: dict[str, float]) -> dict[str, float]:
        """Metrics of a step by name; with importance sampling also the mean ratio and the share of tokens cut or masked."""
        mean, share = totals.pop("importance_ratio_mean"), totals.pop("importance_beyond_share")
        if self._correction is None:
            return totals
        done = "masked" if self._correction.beyond == "mask" else "truncated"
        return totals | {"importance_ratio_mean": mean, f"importance_{done}_share": share}
