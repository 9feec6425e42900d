"""Errors of the length model on left-out prompts: a step's longest response, its deferred groups, its seconds.

    python -m benchmarks.length_model_error --trace FILE [--cap TOKENS] [--prompts P] [--samples N] [--json]

FILE has the columns of tools/published_lengths.py. Each (source, step) in it is a population of its own:
another model has other lengths, and so has another checkpoint. Populations with fewer than 10 prompts of two samples
are skipped and named. Without --cap none of the lengths counts as cut.

Method. The prompts are dealt into 5 folds, several times. The model is fitted on four folds. It predicts a step of
P prompts x n samples of prompts that it has not seen: many models are resampled (`LengthModel.another`: a smoothed
bootstrap over prompts, so the band includes the uncertainty of the fit), and each predicts some steps. An observed step
has P different prompts of the fifth fold, and one traced group of n samples for each. n is 8, or fewer if the prompts
have fewer; P is half of a fold, at most 64, so that steps differ from each other.

A step's statistics are
- `step_s`: overhead + seconds per token x its longest response: 15 s and 16 ms, Qwen2.5-14B at a cap of 16k
  (RollPacker, arXiv 2509.21009; --overhead-s and --token-s for others);
- `deferred`: groups with a response beyond a cutoff, the fitted model's 80th percentile of a group's longest;
- `short_s`: a round that issues 1.25 P groups and ends with the P-th (`defer` at the published operating point);
- `long_s`: a long round of the groups beyond the cutoff (only in steps with such groups).

Figures. `step_s_error` compares the p50 of all predicted with the p50 of all observed steps of a
population; the headline is the worst population. `coverage` is the share of observed steps inside the
predicted p5 to p95 of their own fold, again of the population that is furthest from 0.9. One fold has few prompts:
`by_fold` gives the median and the worst error of a fold's p50, beside `unavoidable`, the median error of a prediction
that knows all prompts, left-out ones too. Nothing fitted to the rest can do much better than that.

For a source with two or more steps, `checkpoints` gives the drift per step, fitted on four folds, against the fifth
(`observed_over_predicted`: observed over predicted growth of lengths). `history` predicts the longest response of a
left-out prompt's next group from n lengths at the last step but one: correlation with the observed length, coverage of
p5 to p95, and the error in log tokens, with and without history.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.lengths.length_fit import fit_drift
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.plans.schema.length_evidence import LengthDrift
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthTrace
from rlplan.tools.published_lengths import read_length_table

# Cross-validation for `benchmarks.length_model_error`: predicted steps compared with steps of left-out prompts.


# Predict a prompt's next group from its earlier lengths, by a trace with more than one checkpoint, in log tokens.
#
# Given the mean of k earlier log lengths, a prompt's location at the next checkpoint is shrunk towards the mean of
# all prompts for two reasons: the noise of k samples (variance within / k), and the change of prompts between
# checkpoints (correlation of the true locations, noise removed). The prior is the set of the model's prompts, no
# normal distribution: each prompt is weighted with the likelihood of the earlier mean, and the next group's longest
# response is the weighted mixture. So shape and tail are those of the trace, and a prompt without history gets the
# distribution of any prompt.


def drift_factor(drift: LengthDrift, epochs: float, *, tail: bool = False) -> tuple[float, float, float]:
    """The factor on lengths after `epochs` epochs of drift: p5, p50, p95."""
    rate, error = (drift.tail, drift.tail_error) if tail else (drift.body, drift.body_error)
    low, high = sorted((rate * epochs - 1.645 * error * abs(epochs), rate * epochs + 1.645 * error * abs(epochs)))
    return math.exp(low), math.exp(rate * epochs), math.exp(high)


def components(logs: list[NDArray[np.float64]]) -> tuple[float, float, float]:
    """(mean over prompts, variance between prompts, variance within one) of log lengths; one-way random effects."""
    means = np.array([g.mean() for g in logs])
    sizes = np.array([len(g) for g in logs], dtype=np.float64)
    spare = float((sizes - 1).sum())
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in logs) / spare if spare > 0 else 0.0
    noise = within * float((1.0 / sizes).mean())
    between = max(0.0, float(means.var(ddof=1)) - noise) if len(means) > 1 else 0.0
    return float(means.mean()), between, within


@dataclass(frozen=True, eq=False)
class History:
    """Predicts a prompt's next group from its lengths at an earlier checkpoint. Made by `fit_history`.

    Attributes:
        model: lengths at the later checkpoint.
        earlier_mean: mean log length of the earlier checkpoint.
        between, within: variance of log lengths there, between prompts and within a prompt.
        correlation: of prompts' true locations between the two checkpoints.
    """

    model: LengthModel
    earlier_mean: float
    between: float
    within: float
    correlation: float

    def weights(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        """The weight of each prompt of `model` in a prompt with these earlier lengths; sums to 1."""
        if not len(lengths) or self.between <= 0:
            return np.full(len(self.model.prompt_ids), 1.0 / len(self.model.prompt_ids))
        places = self.model.locations - self.model.locations.mean()
        places = places / max(float(places.std()), 1e-12)
        # The expected earlier mean of a prompt whose location is now `places` standard deviations above the mean.
        expected = self.earlier_mean + self.correlation * math.sqrt(self.between) * places
        variance = self.between * (1.0 - self.correlation**2) + self.within / len(lengths)
        gap = float(np.mean(np.log(lengths))) - expected
        logs = -(gap**2) / (2 * max(variance, 1e-9))
        likelihood: NDArray[np.float64] = np.exp(logs - logs.max())
        likelihood /= likelihood.sum()
        return likelihood

    def next_longest(self, lengths: Sequence[int], group_size: int, levels: Sequence[float]) -> tuple[int, ...]:
        """Quantiles of the longest response of the prompt's next group, in tokens."""
        weights = self.weights(lengths)
        tables = self.model.tables
        values = np.unique(tables)
        cdf = np.zeros(len(values))
        for weight, row in zip(weights, tables, strict=True):
            if weight > 1e-6:
                cdf += weight * (np.searchsorted(row, values, side="right") / len(row)) ** group_size
        cdf /= cdf[-1]
        indices = np.searchsorted(cdf, np.asarray(levels) - 1e-12)
        return tuple(int(values[min(k, len(values) - 1)]) for k in indices)


def fit_history(trace: LengthTrace, cap_tokens: int | None = None, seed: int = 0) -> History:
    """Fit a History to the last two checkpoints of the trace.

    With only one checkpoint the correlation is unknown and taken as 1; history then tells at most as much as predicted.
    """
    epochs = sorted({r.epoch for r in trace.rows})
    later = LengthTrace([r for r in trace.rows if r.epoch == epochs[-1]], trace.cap_tokens)
    earlier = LengthTrace([r for r in trace.rows if r.epoch == epochs[-2 if len(epochs) > 1 else -1]], trace.cap_tokens)
    before, after = _logs(earlier), _logs(later)
    mean, between, within = components(list(before.values()))
    _, between_after, _ = components(list(after.values()))
    shared = [p for p in before if p in after]
    correlation = 1.0
    if len(epochs) > 1:
        correlation = 0.0
        if len(shared) > 2 and between > 0 and between_after > 0:
            means = np.array([[before[p].mean(), after[p].mean()] for p in shared])
            covariance = float(np.cov(means.T)[0, 1])
            correlation = min(max(covariance / math.sqrt(between * between_after), 0.0), 1.0)
    return History(fit_lengths(later, cap_tokens, seed), mean, between, within, correlation)


def _logs(trace: LengthTrace) -> dict[str, NDArray[np.float64]]:
    return {p: np.array([math.log(r.tokens) for r in rows]) for p, rows in trace.by_prompt().items()}


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


MOST_PROMPTS, MOST_SAMPLES = 64, 8
# The cap of predictions for a trace without a cap: no length reaches it.
NO_CAP = 1 << 22


def rule_for(trace: LengthTrace, prompts: int | None, samples: int | None, given: argparse.Namespace) -> Rule | None:
    """The largest step that the population has prompts and samples for; None if it has too few."""
    sizes = [len(rows) for rows in trace.by_prompt().values()]
    usual = Counter(sizes).most_common(1)[0][0]
    samples = min(MOST_SAMPLES, usual) if samples is None else samples
    fold = sum(size >= samples for size in sizes) // FOLDS
    prompts = min(MOST_PROMPTS, fold // 2) if prompts is None else prompts
    if samples < 2 or fold < 2 or prompts < 1:
        return None
    rule = Rule(prompts, samples, given.overhead_s, given.token_s, given.cap or NO_CAP)
    if rule.issued > fold:
        raise InputError(
            f"a step of {prompts} x {samples} needs {FOLDS * rule.issued} prompts with {samples} samples, there are "
            f"{sum(size >= samples for size in sizes)}; lower --prompts or --samples"
        )
    return rule


def check_file(given: argparse.Namespace) -> dict[str, Any]:
    """The report on all populations of the file. Raises InputError for a file or a size that cannot be used."""
    populations, skipped, checkpoints = [], [], {}
    for source, trace in read_length_table(given.trace, given.cap).items():
        epochs = sorted({r.epoch for r in trace.rows})
        sizes = []
        for epoch in epochs:
            part = LengthTrace([r for r in trace.rows if r.epoch == epoch], trace.cap_tokens)
            rule = rule_for(part, given.prompts, given.samples, given)
            if rule is None:
                skipped.append(f"{source} at step {epoch}: {len(part.prompts)} prompts, {len(part.rows)} samples")
                continue
            sizes.append(rule.samples)
            # A large population needs few repetitions: one deal of 5,000 prompts says what twelve of 50 do.
            repeats = given.repeats or max(1, min(12, 1200 // len(part.prompts)))
            populations.append(
                {"source": source, "step": epoch, "prompts": len(part.prompts), "responses": len(part.rows),
                 **check_population(part, rule, repeats, given.seed)}
            )  # fmt: skip
        if len(sizes) == len(epochs) > 1:
            checkpoints[source] = check_checkpoints(
                trace, min(sizes), given.cap or NO_CAP, given.repeats or 12, given.seed
            )
    if not populations:
        raise InputError("no population has several samples of at least 10 prompts; give a larger trace", given.trace)
    return {
        "step_s_error": max(p["step_s"]["error"] for p in populations),
        "coverage": max((p["step_s"]["coverage"] for p in populations), key=lambda c: abs(c - 0.9)),
        "overhead_s": given.overhead_s,
        "token_s": given.token_s,
        "populations": populations,
        "checkpoints": checkpoints,
        "skipped": skipped,
    }


def _print(report: dict[str, Any]) -> None:
    print(f"step_s_error {report['step_s_error']:.1%} (worst population), coverage {report['coverage']:.1%}")
    for p in report["populations"]:
        print(
            f"\n{p['source']} at step {p['step']}: {p['prompts']} prompts, {p['responses']} responses; steps of "
            f"{p['prompts_per_step']} x {p['samples_per_prompt']}"
        )
        for name in ("step_s", "deferred", "short_s", "long_s"):
            if (row := p.get(name)) is None:
                continue
            print(
                f"  {name:9} p50 predicted {row['predicted_p50']:8.1f} observed {row['observed_p50']:8.1f} "
                f"({row['error']:.1%})  mean {row['predicted_mean']:8.2f} / {row['observed_mean']:8.2f}  "
                f"inside p5-p95 {row['coverage']:.1%}"
            )
        fold = p["by_fold"]
        print(f"  one fold's p50: median error {fold['median']:.1%} (unavoidable {fold['unavoidable']:.1%}), "
              f"worst {fold['worst']:.1%}")  # fmt: skip
    for source, c in report["checkpoints"].items():
        h, d, moved = c["history"], c["drift_per_step"], c["observed_over_predicted"]
        print(
            f"\n{source}, steps {c['steps'][0]} to {c['steps'][1]}: log length moves by {d['body']:.2e} a step "
            f"(+- {d['body_error']:.0e}), its p95 by {d['tail']:.2e} (+- {d['tail_error']:.0e}); "
            f"left-out prompts moved {moved['body']:.2f} x and {moved['tail']:.2f} x as far\n"
            f"  history: r {h['r']:.2f}, inside p5-p95 {h['coverage']:.1%}, log error {h['log_rmse']:.2f} "
            f"(without history {h['log_rmse_without']:.2f})"
        )
    for line in report["skipped"]:
        print(f"skipped {line}")


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 when the trace cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.length_model_error", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--trace", required=True)
    parser.add_argument("--cap", type=int, help="length cap of the trace in tokens")
    parser.add_argument("--prompts", type=int, help="prompts of a step")
    parser.add_argument("--samples", type=int, help="samples per prompt")
    parser.add_argument("--overhead-s", type=float, default=15.0)
    parser.add_argument("--token-s", type=float, default=0.016)
    parser.add_argument("--repeats", type=int, help="how often the prompts are dealt into folds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        report = check_file(given)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
