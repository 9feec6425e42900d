"""How a run's trained lengths differ from those of a plain synchronous run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .report_runs import RunTrace


def length_ratio(run: RunTrace, baseline: RunTrace) -> tuple[float, float]:
    """(trained mean length / unconditioned mean length, its standard error), over the prompts that both runs trained.

    The baseline's samples are unconditioned. Comparing prompt by prompt removes the differences between prompts from
    the error. The prompts that the run owes a long round are assumed to have the mean lengths of those that its long
    rounds trained, in the run and in the baseline. Both are NaN with fewer than two prompts in common.
    """
    common = _common(run, baseline)
    if len(common) < 2:
        return math.nan, math.nan
    pairs = [(weight * a, weight * b) for weight, a, b in common]
    trained, unconditioned = (sum(column) for column in zip(*pairs, strict=True))
    ratio = trained / unconditioned
    variance = sum((a - ratio * b) ** 2 for a, b in pairs)
    return ratio, math.sqrt(variance) / unconditioned


def ratio_as_trained(run: RunTrace, baseline: RunTrace) -> float:
    """As `length_ratio`, but the prompts that the run owes count in the unconditioned mean alone: they were drawn, and
    nothing of them is trained. Below 1 by what the end of the run lost."""
    common = _common(run, baseline)
    if len(common) < 2:
        return math.nan
    unconditioned = sum(weight * b for weight, _, b in common) / sum(weight for weight, _, _ in common)
    return statistics.fmean(a for _, a, _ in common) / unconditioned


def _common(run: RunTrace, baseline: RunTrace) -> list[tuple[float, float, float]]:
    """(weight, mean length in the run, in the baseline) of each prompt that both trained; one of a long round stands
    for itself and for its share of the owed prompts."""
    long_weight = 1.0 + (run.means.owed_prompts / len(run.long_trained) if run.long_trained else 0.0)
    return [
        (long_weight if prompt in run.long_trained else 1.0, statistics.fmean(lengths),
         statistics.fmean(baseline.trained[prompt]))
        for prompt, lengths in sorted(run.trained.items()) if prompt in baseline.trained
    ]  # fmt: skip


def ks_distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Largest distance between two empirical distribution functions (Kolmogorov-Smirnov); NaN if one has no value."""
    if not first or not second:
        return math.nan
    a, b = sorted(first), sorted(second)
    distance, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        value = min(a[i], b[j])
        while i < len(a) and a[i] <= value:
            i += 1
        while j < len(b) and b[j] <= value:
            j += 1
        distance = max(distance, abs(i / len(a) - j / len(b)))
    return distance
