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
import sys
from collections import Counter
from typing import Any

from benchmarks.length_holdout import FOLDS, Rule, check_checkpoints, check_population
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthTrace
from rlplan.tools.published_lengths import read_length_table

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
