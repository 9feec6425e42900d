"""The loss of a step's tokens, by the job's algorithm."""

from __future__ import annotations

import math

import torch

from .losses import ClippedLoss, clipped_loss, importance_weights
from .trainer_config import TrainerConfig


class Objective:
    """The algorithm's formulas for one trainer; it holds no state."""

    def __init__(self, config: TrainerConfig) -> None:
        self._algorithm = config.algorithm
        self._correction = config.algorithm.importance_sampling

    @property
    def importance_cap(self) -> float:
        """Importance weight above which a token is truncated or masked; infinite without importance sampling."""
        return math.inf if self._correction is None else self._correction.cap

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
        """The metrics of a step's totals; those of importance weights only with importance sampling."""
        mean, share = totals.pop("importance_ratio_mean"), totals.pop("importance_beyond_share")
        if self._correction is None:
            return totals
        done = "masked" if self._correction.beyond == "mask" else "truncated"
        return totals | {"importance_ratio_mean": mean, f"importance_{done}_share": share}
