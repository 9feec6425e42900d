"""Predictions of the length model against samples that were left out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.profiles.length_trace import LengthRow, LengthTrace


@dataclass(frozen=True, slots=True)
class CutoffCheck:
    """For one cutoff: the share of left-out groups with a sample beyond it, predicted, observed, and its noise."""

    cutoff_tokens: int
    predicted: float
    observed: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class LengthCheck:
    """Predictions of a model fitted on half of each prompt's samples against groups of the other half."""

    groups: int
    cutoffs: tuple[CutoffCheck, ...]
    predicted_mean_tokens: float
    observed_mean_tokens: float
    predicted_group_max_tokens: float
    observed_group_max_tokens: float


def check_model(
    trace: LengthTrace, group_size: int, levels: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9, 0.95), seed: int = 0
) -> LengthCheck:
    """Fit on every other sample of each prompt, predict groups of `group_size` from the rest.

    Cutoffs are the observed quantiles, at `levels`, of the longest sample of a left-out group. Raises ValueError if no
    prompt has enough samples for a left-out group and as many again to fit on.
    """
    fit_rows: list[LengthRow] = []
    groups: dict[str, list[list[int]]] = {}
    rng = np.random.default_rng([seed, 23])
    for prompt, rows in trace.by_prompt().items():
        order = rng.permutation(len(rows))
        half = len(rows) // 2
        fit_rows += [rows[i] for i in order[:half]]
        left = [rows[i].tokens for i in order[half:]]
        full = len(left) // group_size
        if half and full:
            groups[prompt] = [left[g * group_size : (g + 1) * group_size] for g in range(full)]
    if not groups:
        raise ValueError(f"no prompt has {2 * group_size} samples; a group to check against cannot be left out")
    model = fit_lengths(LengthTrace(fit_rows, trace.cap_tokens), seed=seed)
    index = {p: i for i, p in enumerate(model.prompt_ids)}
    rows_of = np.array([index[p] for p, gs in groups.items() for _ in gs])
    observed = np.array([g for gs in groups.values() for g in gs])
    observed_max = observed.max(axis=1)
    drawn_max = model.draw_many(rows_of, (256, group_size), rng).max(axis=2)
    checks = []
    for cutoff in sorted({int(np.quantile(observed_max, level)) for level in levels}):
        beyond = 1.0 - (1.0 - model.share_beyond(cutoff)[rows_of]) ** group_size
        error = math.sqrt(float((beyond * (1 - beyond)).sum())) / len(beyond)
        seen = (observed_max > cutoff) | (observed_max >= model.cap_tokens)
        checks.append(CutoffCheck(cutoff, float(beyond.mean()), float(seen.mean()), error))
    return LengthCheck(
        groups=len(rows_of),
        cutoffs=tuple(checks),
        predicted_mean_tokens=float(model.tables[rows_of].mean()),
        observed_mean_tokens=float(observed.mean()),
        predicted_group_max_tokens=float(drawn_max.mean()),
        observed_group_max_tokens=float(observed_max.mean()),
    )
