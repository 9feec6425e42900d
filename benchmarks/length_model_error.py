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

"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthTrace
from rlplan.tools.published_lengths import read_length_table

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
    populations, skipped = [], []
    for source, trace in read_length_table(given.trace, given.cap).items():
        for epoch in sorted({r.epoch for r in trace.rows}):
            part = LengthTrace([r for r in trace.rows if r.epoch == epoch], trace.cap_tokens)
            rule = rule_for(part, given.prompts, given.samples, given)
            if rule is None:
                skipped.append(f"{source} at step {epoch}: {len(part.prompts)} prompts, {len(part.rows)} samples")
                continue
            # A large population needs few repetitions: one deal of 5,000 prompts says what twelve of 50 do.
            repeats = given.repeats or max(1, min(12, 1200 // len(part.prompts)))
            populations.append(
                {"source": source, "step": epoch, "prompts": len(part.prompts), "responses": len(part.rows),
                 **check_population(part, rule, repeats, given.seed)}
            )  # fmt: skip
    if not populations:
        raise InputError("no population has several samples of at least 10 prompts; give a larger trace", given.trace)
    return {
        "step_s_error": max(p["step_s"]["error"] for p in populations),
        "coverage": max((p["step_s"]["coverage"] for p in populations), key=lambda c: abs(c - 0.9)),
        "overhead_s": given.overhead_s,
        "token_s": given.token_s,
        "populations": populations,
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
