"""Seconds of a judge for a sample: a line over its tokens, through two bursts of short and of long samples."""

from __future__ import annotations

from typing import NamedTuple


class Burst(NamedTuple):
    """Samples that a judge was given together: how many, their mean tokens, and seconds until the last verdict."""

    samples: int
    mean_tokens: float
    seconds: float

    @property
    def per_sample_s(self) -> float:
        """Seconds for each sample."""
        return self.seconds / self.samples


def fit_judge(short: Burst, long: Burst) -> tuple[float, float]:
    """(seconds per sample, seconds per token of it), both at least 0.

    Bursts of nearly the same length say nothing of tokens: then every sample takes their mean.
    """
    apart = long.mean_tokens - short.mean_tokens
    mean_s = (short.seconds + long.seconds) / (short.samples + long.samples)
    if apart < 0.1 * long.mean_tokens:
        return mean_s, 0.0
    per_token_s = max(0.0, (long.per_sample_s - short.per_sample_s) / apart)
    per_sample_s = short.per_sample_s - per_token_s * short.mean_tokens
    if per_sample_s < 0:  # longer samples took more than in proportion: a line through 0, right in the mean
        tokens = short.samples * short.mean_tokens + long.samples * long.mean_tokens
        return 0.0, (short.seconds + long.seconds) / tokens
    return (per_sample_s, per_token_s) if per_token_s else (mean_s, 0.0)
