"""Cross-validation for `benchmarks.length_model_error`: predicted steps compared with steps of left-out prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.prompt_history import drift_factor, fit_history
from rlplan.planner.lengths.length_fit import fit_drift
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.profiles.length_trace import LengthTrace

FOLDS = 5
# Predicted steps of a fold, spread over several models: with few prompts, the models differ much.
PREDICTED_STEPS, STEPS_OF_FOLD = 1000, 200
MOST_MODELS, LEAST_MODELS = 40, 10
OVER_ISSUE, CUTOFF_LEVEL = 1.25, 0.8


@dataclass(frozen=True)
class Rule:
    """Size of a step, and the figures from which its seconds follow."""

    prompts: int
    samples: int
    overhead_s: float
    token_s: float
    cap_tokens: int

    @property
    def issued(self) -> int:
        """Groups that a short round issues."""
        return math.ceil(OVER_ISSUE * self.prompts)

    def statistics(self, longest: NDArray[np.int64], cutoff: int) -> dict[str, NDArray[np.float64]]:
        """Statistics of steps by name. `longest`: the longest response of each group, shape (steps, issued)."""

        def seconds(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
            return self.overhead_s + self.token_s * tokens.astype(np.float64)

        step = longest[:, : self.prompts]
        beyond = longest > cutoff
        long = np.where(beyond, longest, 0).max(axis=1)
        return {
            "step_s": seconds(step.max(axis=1)),
            "deferred": beyond[:, : self.prompts].sum(axis=1).astype(np.float64),
            "short_s": seconds(np.sort(longest, axis=1)[:, self.prompts - 1]),
            "long_s": seconds(long[long > 0]),
        }


def groups_of(trace: LengthTrace, samples: int) -> dict[str, NDArray[np.int64]]:
    """For each prompt its groups of `samples`, in order of sampling, shape (groups, samples).

    Prompts with fewer samples are left out.
    """
    groups = {}
    for prompt, rows in trace.by_prompt().items():
        whole = len(rows) // samples * samples
        if whole:
            groups[prompt] = np.array([r.tokens for r in rows[:whole]]).reshape(-1, samples)
    return groups


def observed(groups: list[NDArray[np.int64]], rule: Rule, steps: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Longest responses of traced groups of different prompts, shape (steps, issued)."""
    longest = [g.max(axis=1) for g in groups]
    drawn = [
        [rng.choice(longest[p]) for p in rng.choice(len(groups), rule.issued, replace=False)] for _ in range(steps)
    ]
    return np.array(drawn)


def predicted(model: LengthModel, rule: Rule, models: int, steps: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Longest responses of groups drawn from `models` resampled models, shape (models * steps, issued)."""
    lengths = []
    for _ in range(models):
        other = model.another(rng)
        chosen = np.stack([rng.choice(len(other.prompt_ids), rule.issued, replace=False) for _ in range(steps)])
        drawn = other.draw_many(chosen.ravel(), (rule.samples,), rng)
        lengths.append(drawn.max(axis=1).reshape(chosen.shape))
    return np.concatenate(lengths)


def folds(prompts: list[str], repeats: int, rng: np.random.Generator) -> Iterator[tuple[set[str], set[str]]]:
    """Yield (prompts to fit, prompts left out) for each fold of each repetition."""
    for _ in range(repeats):
        order = [prompts[i] for i in rng.permutation(len(prompts))]
        for fold in range(FOLDS):
            left = set(order[fold::FOLDS])
            yield set(prompts) - left, left


def _only(trace: LengthTrace, prompts: set[str]) -> LengthTrace:
    return LengthTrace([r for r in trace.rows if r.prompt in prompts], trace.cap_tokens)


def _apart(p50: float, truth: float) -> float:
    return p50 / truth - 1.0 if truth else float(p50 > 0)


def check_population(trace: LengthTrace, rule: Rule, repeats: int, seed: int) -> dict[str, Any]:
    """The report on one population: the statistics of `Rule.statistics`, predicted and observed over all folds."""
    rng = np.random.default_rng([seed, 53])
    groups = groups_of(trace, rule.samples)
    models = max(LEAST_MODELS, min(MOST_MODELS, 8000 // len(groups)))
    every = observed(list(groups.values()), rule, STEPS_OF_FOLD * FOLDS, rng)
    pooled: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    by_fold, unavoidable, bands = [], [], []
    for fitted, left in folds(list(groups), repeats, rng):
        model = fit_lengths(_only(trace, fitted), rule.cap_tokens, seed)
        cutoff = model.group_max_quantiles(rule.samples, (CUTOFF_LEVEL,))[0]
        ours = rule.statistics(predicted(model, rule, models, PREDICTED_STEPS // models, rng), cutoff)
        theirs = rule.statistics(observed([groups[p] for p in sorted(left)], rule, STEPS_OF_FOLD, rng), cutoff)
        for name, values in ours.items():
            pooled.setdefault(name, []).append((values, theirs[name]))
        truth = float(np.median(theirs["step_s"]))
        by_fold.append(abs(_apart(float(np.median(ours["step_s"])), truth)))
        unavoidable.append(abs(_apart(float(np.median(rule.statistics(every, cutoff)["step_s"])), truth)))
        bands.append(np.quantile(ours["step_s"], (0.05, 0.95)))
    low, high = np.mean(bands, axis=0)
    return {
        "prompts_per_step": rule.prompts,
        "samples_per_prompt": rule.samples,
        # If all lengths are alike, no group exceeds the cutoff, and there is no long round to compare.
        **{
            name: _compare(pairs, counts=name == "deferred")
            for name, pairs in pooled.items()
            if all(sum(len(side) for side in sides) for sides in zip(*pairs, strict=True))
        },
        "step_s_band": [round(float(low), 1), round(float(high), 1)],
        "by_fold": {
            "median": round(float(np.median(by_fold)), 4),
            "worst": round(float(np.max(by_fold)), 4),
            "unavoidable": round(float(np.median(unavoidable)), 4),
        },
    }


def _compare(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]], *, counts: bool) -> dict[str, float]:
    """Compare (predicted, observed) values fold by fold. The error is that of the median, for `counts` of the mean."""
    ours, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
    inside = [
        (values >= np.quantile(band, 0.05)) & (values <= np.quantile(band, 0.95))
        for band, values in pairs
        if len(band) and len(values)
    ]
    p50, truth = float(np.median(ours)), float(np.median(theirs))
    return {
        "predicted_p50": round(p50, 2),
        "observed_p50": round(truth, 2),
        "predicted_mean": round(float(ours.mean()), 2),
        "observed_mean": round(float(theirs.mean()), 2),
        "error": round(abs(_apart(float(ours.mean()), float(theirs.mean())) if counts else _apart(p50, truth)), 4),
        "coverage": round(float(np.concatenate(inside).mean()), 4),
    }


def check_checkpoints(trace: LengthTrace, samples: int, cap_tokens: int, repeats: int, seed: int) -> dict[str, Any]:
    """The report on drift and history, from the last two checkpoints, on left-out prompts."""
    rng = np.random.default_rng([seed, 59])
    before, after = sorted({r.epoch for r in trace.rows})[-2:]
    trace = LengthTrace([r for r in trace.rows if r.epoch in (before, after)], trace.cap_tokens)
    earlier, later = (
        groups_of(LengthTrace([r for r in trace.rows if r.epoch == epoch], trace.cap_tokens), samples)
        for epoch in (before, after)
    )
    shared = sorted(earlier.keys() & later.keys())
    drifts, history, blind, came, inside = [], [], [], [], []
    for fitted, left in folds(shared, repeats, rng):
        fitted_rows = _only(trace, fitted)
        drift = fit_drift(fitted_rows, seed)
        here = sorted(left)
        old, new = (np.concatenate([g[p].ravel() for p in here]) for g in (earlier, later))
        body = float(np.exp(np.log(new).mean() - np.log(old).mean()))
        tail = float(np.quantile(new, 0.95) / np.quantile(old, 0.95))
        ahead = after - before
        drifts.append((body / drift_factor(drift, ahead)[1], tail / drift_factor(drift, ahead, tail=True)[1]))
        model = fit_history(fitted_rows, cap_tokens, seed)
        without = model.next_longest([], samples, (0.5,))[0]
        for prompt in here:
            longest = int(rng.choice(later[prompt].max(axis=1)))
            low, middle, high = model.next_longest(rng.choice(earlier[prompt]).tolist(), samples, (0.05, 0.5, 0.95))
            history.append(math.log(middle))
            blind.append(math.log(without))
            came.append(math.log(longest))
            inside.append(low <= longest <= high)
    whole = fit_drift(trace, seed)
    truth = np.array(came)
    return {
        "steps": [before, after],
        "drift_per_step": {"body": whole.body, "body_error": whole.body_error, "tail": whole.tail,
                           "tail_error": whole.tail_error},
        "observed_over_predicted": dict(
            zip(("body", "tail"), (round(float(x), 3) for x in np.median(drifts, axis=0)), strict=True)
        ),
        "history": {
            "r": round(float(np.corrcoef(history, truth)[0, 1]), 3),
            "coverage": round(float(np.mean(inside)), 3),
            "log_rmse": round(float(np.sqrt(np.mean((np.array(history) - truth) ** 2))), 3),
            "log_rmse_without": round(float(np.sqrt(np.mean((np.array(blind) - truth) ** 2))), 3),
        },
    }  # fmt: skip
