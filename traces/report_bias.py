"""How a run's trained lengths differ from those of a plain synchronous run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .report_cycle import cycle
from .report_runs import RunTrace


def length_ratio(run: RunTrace, baseline: RunTrace) -> tuple[float, float]:
    """(trained mean length / unconditioned mean length, its standard error), on prompts that both runs trained.

    The baseline's samples are unconditioned. Comparing prompt by prompt takes the difference between prompts out of
    the noise. Owed prompts enter with the mean of the run's long rounds on both sides of the cycle: their share of
    the run's trained prompts is put in at the long-trained prompts' own ratio to their baseline lengths.
    """
    common = sorted(set(run.trained) & set(baseline.trained))
    if len(common) < 2:
        return math.nan, math.nan
    owed = cycle(run).owed_prompts
    long_common = [p for p in common if p in run.long_trained]
    # Each long-trained prompt stands for itself and for its share of the owed ones, so the strata keep their weights.
    weight = 1.0 + (owed / len(run.long_trained) if run.long_trained else 0.0)
    heavy = set(long_common)
    pairs = [
        (
            (weight if p in heavy else 1.0) * statistics.fmean(run.trained[p]),
            (weight if p in heavy else 1.0) * statistics.fmean(baseline.trained[p]),
        )
        for p in common
    ]
    top, bottom = (sum(column) for column in zip(*pairs, strict=True))
    ratio = top / bottom
    variance = sum((a - ratio * b) ** 2 for a, b in pairs)
    return ratio, math.sqrt(variance) / bottom


def ks_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest distance between two empirical distribution functions (Kolmogorov-Smirnov)."""
    if not one or not other:
        return math.nan
    a, b = sorted(one), sorted(other)
    distance, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        value = min(a[i], b[j])
        while i < len(a) and a[i] <= value:
            i += 1
        while j < len(b) and b[j] <= value:
            j += 1
        distance = max(distance, abs(i / len(a) - j / len(b)))
    return distance
