"""The figures of `rlplan report`: what a run's trace measured beside what its plan predicted."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plans.phrases.numbers import deviation
from ..plans.schema.predicted_evidence import HardwareLimit
from ..plans.yaml.errors import InputError
from .report_rounds import drafts_report, length_quantiles, overlap, reward_parts, round_timeline, tail, waste
from .report_state import evaluations, incidents, is_quiet, plan_changes, run_state
from .report_steps import checkpoint_costs, coverage, missing_engines, series, spreads, waits
from .report_texts import texts_report
from .run_log import Run, readable_runs
from .time_left import time_left_s
from .trace_events import Step

SPEED_PHASES = ("rollout", "train")
"""Phases of which `rlplan execute` measures anew how fast the machine is."""

ROLES = {"race": "race", "defer": "planned", "exact": "planned", "predict": "planned"}


def run_report(run: Run, baseline: Run | None) -> dict[str, Any]:
    """All figures of one run, in seconds and tokens; `baseline` is the run of mode sync that it is
    compared with.

    `speedup_predicted` is over that run as its own plan predicts it (a plan of mode sync may draft, and so did the
    run); without one, over plain rounds as the run's plan predicts them. `deviation` is measured / predicted - 1. An
    unknown figure is NaN, as is one of a run that diverged. Before its first step a run has only its state and what its
    plan predicts.
    """
    steps, predicted = run.log.steps, run.plan.predicted
    result: dict[str, Any] = {
        "mode": run.plan.job.bias.mode,
        "steps": len(steps),
        "step_s_predicted": predicted.step_s.mean,
        **run_state(run.log.events, steps, run.written_s, time.time(), run.driven),
        "left_s": left_s(run),
        "restarts": run.log.restarts,
        "resumes": run.log.resumes,
        "incidents": incidents(run.log.events, steps),
        "plan_changes": plan_changes(run.log),
        "speedup_predicted": _speedup_predicted(run, baseline),
        "length_ratio_predicted": predicted.length_ratio,
        "cut_share_predicted": predicted.cut_share,
        "cutoff_tokens": run.plan.job.rounds.short.cutoff_tokens,
        "predicted": predicted.model_dump(mode="json", exclude={"front"}),
    }
    return {**result, **_measured(run, baseline)} if steps else result


def left_s(run: Run) -> float | None:
    """Seconds that a run which goes on needs from the end of its last step; None of others, of one with a quiet trace,
    and of one that does not say how many steps it was asked for."""
    log = run.log
    state = run_state(log.events, log.steps, run.written_s, time.time(), run.driven)
    going = state["state"] == "running" or (state["state"] == "open" and not is_quiet(state))
    if not going or state["steps_wanted"] is None:
        return None
    steps = log.in_force
    return time_left_s(run.plan, steps, state["steps_wanted"], log.ended_s[-len(steps) - 1 :], log.drains)


def _speedup_predicted(run: Run, baseline: Run | None) -> float:
    predicted = run.plan.predicted
    if baseline is None:
        return predicted.speedup
    return _quotient(baseline.plan.predicted.seconds_per_sample, predicted.seconds_per_sample)


def _measured(run: Run, baseline: Run | None) -> dict[str, Any]:
    """Figures that need at least one step."""
    steps, predicted, means = run.log.steps, run.plan.predicted, run.means
    step_s = means.seconds("total_s")
    fifth = max(1, len(steps) // 5)
    result: dict[str, Any] = {
        "step_s": step_s,
        "step_s_expected": means.expected_s("total_s") / means.steps,
        "deviation": deviation(step_s, predicted.step_s.mean),
        **_speed(run),
        "seconds_per_sample": means.seconds_per_sample,
        "owed_prompts": means.owed_prompts,
        "phases_s": {
            phase: _phase(means.seconds(f"{phase}_s"), predicted_s)
            for phase, predicted_s in predicted.phases_s.model_dump().items()
        },
        "limit": _limit(run, {p: means.seconds(f"{p}_s") for p in ("rollout", "train", "total")}),
        "rounds": {kind: _round_report(run, kind) for kind in ("short", "long")},
        "coverage": coverage(run.log.in_force, predicted),
        "reward_first": _reward(steps[:fifth]),
        "reward_last": _reward(steps[-fifth:]),
        "rewards": [step.reward_mean for step in steps],
        "evaluations": evaluations(run.log.events),
        "trained_mean_tokens": sum(s.trained_tokens for s in steps) / max(1, sum(s.trained_samples for s in steps)),
        "cut_share": _cut_share(run),
        "max_over_median_tokens": _max_over_median(steps),
        "decoded_tokens": sum(math.nan if s.decoded_tokens is None else s.decoded_tokens for s in steps),
        "on_policy_violations": sum(s.on_policy_violations for s in steps),
        "conservation_violations": sum(len(s.conservation_violations) for s in steps),
        "checksum_mismatches": sum(s.checksum_mismatches for s in steps),
        "exhausted_prompts": sum(s.exhausted for s in steps),
        "logprob_max_abs_diff": _worst(
            [float(s.metrics["logprob_max_abs_diff"]) for s in steps if "logprob_max_abs_diff" in s.metrics]
        ),
        **_training(steps),
        "gradients": _gradients(run),
        "reward_timeouts": steps[-1].timeouts or {},
        "reward_failures": _sums([step.reward_failures or {} for step in steps]),
        "reward_parts": reward_parts(run.log),
        "checkpoints": checkpoint_costs(run.log.events, len(steps)),
        "missing_engines": missing_engines(steps),
        "waits": waits(steps),
        "series": series(steps),
        "trained_lengths_tokens": length_quantiles(run.trained_tokens),
        "tail": {kind: tail(run.log, kind) for kind in ("short", "long")},
        "waste": waste(run.log),
        "overlap": overlap(run.plan, run.log),
        "drafts": drafts_report(run.log),
        "timeline": round_timeline(run.log),
        "texts": texts_report(run.home, steps),
    }
    if baseline is not None:
        ratio, error = length_ratio(run, baseline)
        result["length_ratio"], result["length_ratio_standard_error"] = ratio, error
        result["length_ratio_as_trained"] = ratio_as_trained(run, baseline)
        result["length_ks"] = ks_distance(run.trained_tokens, baseline.trained_tokens)
        result["speedup"] = _quotient(baseline.means.seconds_per_sample, means.seconds_per_sample)
    return result


def _max_over_median(steps: Sequence[Step]) -> float:
    """The longest response of a step over its median one, median of the steps that say both; NaN if none does."""
    known = [(s.max_tokens, s.median_tokens) for s in steps if s.max_tokens is not None and s.median_tokens is not None]
    return statistics.median(longest / max(1, middle) for longest, middle in known) if known else math.nan


def _cut_share(run: Run) -> float:
    """Share of the trained samples that the cap cut, over the cycle: a long round counts for those owed, too.

    NaN without samples, and while prompts are owed to a run's first long round, which has the longest responses.
    """
    means, trained, cut = run.means, 0.0, 0.0
    if means.owed_prompts and not means.long_steps:
        return math.nan
    for step in run.log.steps:
        rows = run.log.samples.get(step.step)
        if rows is not None:
            weight = means.long_weight if step.kind == "long" else 1.0
            trained += weight * int(rows.trained.sum())
            cut += weight * int(rows["truncated"][rows.trained].sum())
    return _quotient(cut, trained)


_SHARES = ("logprob_beyond_share", "importance_truncated_share", "importance_masked_share", "importance_ratio_mean")


def _training(steps: Sequence[Step]) -> dict[str, Any]:
    """Skipped steps, differences of log-probs between engine and trainer, shares of tokens, and of a job with a KL the
    KL to its reference, in the last step and the largest, and mean seconds of the reference's passes.

    A difference is that of the worst step; a share is the mean over the steps. A figure that the run did not measure
    is left out.
    """
    metrics = [step.metrics for step in steps]
    figures: dict[str, Any] = {"skipped_steps": sum(bool(m.get("skipped")) for m in metrics)}
    for name in ("logprob_mean_abs_diff", "logprob_p99_abs_diff", *_SHARES):
        values = [float(m[name]) for m in metrics if name in m]
        if values:
            figures[name] = statistics.fmean(values) if name in _SHARES else _worst(values)
    if kl := [float(m["kl_reference"]) for m in metrics if "kl_reference" in m]:
        figures["kl_reference"], figures["kl_reference_max"] = kl[-1], _worst(kl)
        figures["reference_s"] = statistics.fmean(float(m["reference_s"]) for m in metrics if "reference_s" in m)
    return figures


def _gradients(run: Run) -> dict[str, Any] | None:
    """By kind of round: root mean square `norm` of gradients and mean `scale` that clipping left of them; `ratio` of
    the norms, long over short, and what the plan states. None where it states no norms or one of the kinds did not run.
    """
    planned = run.plan.job.loss.grad_norms
    if planned is None:
        return None
    result: dict[str, Any] = {}
    for kind in ("short", "long"):
        metrics = [s.metrics for s in run.log.in_force if s.kind == kind and "grad_scale" in s.metrics]
        if not metrics:
            return None
        norms = [float(each["grad_norm"]) for each in metrics]
        scale = statistics.fmean(float(each["grad_scale"]) for each in metrics)
        result[kind] = {"norm": math.hypot(*norms) / len(norms) ** 0.5, "scale": scale}
    ratio = _quotient(result["long"]["norm"], result["short"]["norm"])
    return {**result, "ratio": ratio, "ratio_planned": planned.long / planned.short}


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sum of counts by name."""
    total: Counter[str] = Counter()
    for counts_of_step in counts:
        total.update(counts_of_step)
    return dict(sorted(total.items()))


def _quotient(numerator: float, denominator: float) -> float:
    """A quotient; NaN if the denominator is 0."""
    return numerator / denominator if denominator else math.nan


def _worst(values: Sequence[float]) -> float:
    """The largest value; NaN if a value is NaN, or if there is no value."""
    return max(values) if values and not any(map(math.isnan, values)) else math.nan


def _speed_factors(run: Run) -> dict[str, float] | None:
    """By phase of SPEED_PHASES, seconds now over those when the machine was profiled, the mean over the run's
    measurements (event `speed`); None without any."""

    def is_factor(value: object) -> bool:
        return isinstance(value, int | float) and 0 < value < 1e9

    measured = [
        event
        for event in run.log.events
        if event["event"] == "speed"
        and int(event.get("step") or 0) >= run.log.plan_from
        and all(is_factor(event.get(phase)) for phase in SPEED_PHASES)
    ]
    return {phase: statistics.fmean(e[phase] for e in measured) for phase in SPEED_PHASES} if measured else None


def _speed(run: Run) -> dict[str, Any]:
    """`machine_factor`, by which the predicted step is longer on the machine as it was during the run (weights and
    rewards by the factor of decoding); `model_error`, by how much the measured step is longer than that, with its
    standard error by chance (the lengths of so few rounds, and of so few responses as the plan's lengths are from;
    None: of too few rounds to tell); `machine`, the same by phase. All None where nothing was measured."""
    factors, predicted, means = _speed_factors(run), run.plan.predicted, run.means
    if factors is None:
        return dict.fromkeys(("machine_factor", "model_error", "model_error_standard_error", "machine"))
    planned_s = predicted.phases_s.model_dump()
    slowed_s = {phase: factors["train" if phase == "train" else "rollout"] * planned_s[phase] for phase in planned_s}
    factor = sum(slowed_s.values()) / sum(planned_s.values())
    error = deviation(means.seconds("total_s"), factor * predicted.step_s.mean)
    chance = means.chance("total_s")
    of_lengths = predicted.error.lengths, predicted.error.assumed_lengths
    return {
        "machine_factor": factor,
        "model_error": error,
        "model_error_standard_error": None if chance is None else (1.0 + error) * math.hypot(chance, *of_lengths),
        "machine": {
            phase: {"factor": factors[phase], "model_error": deviation(means.seconds(f"{phase}_s"), slowed_s[phase])}
            for phase in SPEED_PHASES
        },
    }


def _phase(measured_s: float, predicted_s: float) -> dict[str, Any]:
    """Measured and predicted seconds of a phase, and its deviation."""
    return {"measured": measured_s, "predicted": predicted_s, "deviation": deviation(measured_s, predicted_s)}


def _limit(run: Run, measured_s: Mapping[str, float]) -> dict[str, Any] | None:
    """The least seconds of the plan's step on its hardware beside measured ones; None where no peak is known.

    `of_bandwidth`, `mfu`: what decoding and training reached, predicted and measured; decoding on the work that was
    predicted, since a trace does not count reads, training on its own.
    """
    limit = run.plan.predicted.limit
    if limit is None:
        return None
    phases = limit.phases
    return {
        "step_s": limit.step_s,
        "ratio_predicted": limit.ratio,
        "ratio": _quotient(limit.step_s, measured_s["total"]),
        "of_bandwidth_predicted": phases.rollout.ratio,
        "of_bandwidth": _quotient(phases.rollout.limit_s, measured_s["rollout"]),
        "mfu_predicted": phases.train.ratio,
        "mfu": _mfu(run, limit, measured_s["train"]),
    }


def _mfu(run: Run, limit: HardwareLimit, train_s: float) -> float:
    """MFU of the run's whole updates, on the tokens that it trained; of a run without samples on those predicted."""
    lengths = [
        rows["prompt_tokens"][rows.trained].astype(np.int64) + rows["tokens"][rows.trained]
        for rows in run.log.samples.values()
    ]
    if not run.trained or not limit.short.train_s:
        return _quotient(limit.phases.train.limit_s, train_s)

    def operations(tokens: float, squares: float) -> float:
        return limit.parameters * tokens + limit.attention_width * squares

    peak_s = limit.short.train_s / operations(limit.short.trained_tokens, limit.short.trained_squares)
    trained = operations(sum(int(each.sum()) for each in lengths), sum(int(each @ each) for each in lengths))
    updates_s = len(run.log.steps) * overlap(run.plan, run.log)["train"]["alone_s"]
    return _quotient(peak_s * trained, updates_s)


def _round_report(run: Run, kind: str) -> dict[str, Any] | None:
    """Figures of one kind of round; None if it did not run or is not predicted."""
    of_plan = run.log.in_force
    steps = [step for step in of_plan if step.kind == kind]
    expected = run.plan.predicted.rounds.long if kind == "long" else run.plan.predicted.rounds.short
    if not steps or expected is None:
        return None
    return {
        "count": len(steps),
        "share": len(steps) / len(of_plan),
        "share_predicted": expected.share,
        "step_s": statistics.fmean(step.total_s for step in steps),
        "step_s_predicted": expected.step_s.mean,
        "rollout_s": statistics.fmean(step.rollout_s for step in steps),
        "rollout_s_predicted": expected.rollout_s.mean,
        "rollout_s_predicted_p95": expected.rollout_s.p95,
        "measured": spreads(steps),
    }


def _reward(steps: Sequence[Step]) -> float:
    """Mean reward of the trained samples; NaN if none was trained."""
    means = [(float(step.reward_mean), float(step.trained_samples)) for step in steps if step.trained_samples]
    return sum(mean * samples for mean, samples in means) / sum(s for _, s in means) if means else math.nan


def length_ratio(run: Run, baseline: Run) -> tuple[float, float]:
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


def ratio_as_trained(run: Run, baseline: Run) -> float:
    """As `length_ratio`, but the prompts that the run owes count in the unconditioned mean alone: they were drawn, and
    nothing of them is trained. Below 1 by what the end of the run lost."""
    common = _common(run, baseline)
    if len(common) < 2:
        return math.nan
    unconditioned = sum(weight * b for weight, _, b in common) / sum(weight for weight, _, _ in common)
    return statistics.fmean(a for _, a, _ in common) / unconditioned


def _common(run: Run, baseline: Run) -> list[tuple[float, float, float]]:
    """(weight, mean length in the run, in the baseline) of each prompt that both trained; one of a long round stands
    for itself and for its share of the owed prompts."""
    long_weight = 1.0 + (run.means.owed_prompts / len(run.long_trained) if run.long_trained else 0.0)
    return [
        (long_weight if prompt in run.long_trained else 1.0, tokens / samples, truediv(*baseline.trained[prompt]))
        for prompt, (tokens, samples) in sorted(run.trained.items())
        if prompt in baseline.trained
    ]


def ks_distance(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Largest distance between the distribution functions of two sorted samples (Kolmogorov-Smirnov); NaN if one has
    no value."""
    if not len(first) or not len(second):
        return math.nan
    values = np.concatenate([first, second])
    below = [np.searchsorted(each, values, side="right") / len(each) for each in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def _levers(run: Run) -> int:
    """How many levers a plan's short rounds use: streaming, drafts, balance. A baseline has none."""
    placement, short = run.plan.job.placement, run.plan.job.rounds.short
    streams = short.hand_over is not None or (placement is not None and placement.streams)
    return streams + (short.rollout.drafts is not None) + (short.rollout.balance is not None)


def report(folder: Path) -> dict[str, Any]:
    """The report of a folder of runs: `runs` by name, and a comparison if one of them is plain (`sync`).

    A run may still be going on or have died, even before its first step. `unreadable` holds the reason why a run
    cannot be read, by name. Raises InputError if no run can be read.
    """
    return report_of(*readable_runs(folder))


def report_of(loaded: Sequence[Run], refused: Mapping[str, InputError]) -> dict[str, Any]:
    """The report of runs of one job; `refused`: why others cannot be read, by name."""
    runs = [run for run in loaded if run.log.steps]  # after an early end some plans have no step yet
    sync = [run for run in runs if run.plan.job.bias.mode == "sync"]
    # Where levers gain nothing, two plans are alike: then the one that is called plain is the baseline.
    plain = min(sync, key=lambda run: (_levers(run), run.name != "plain"), default=None)
    details = {run.name: run_report(run, plain) for run in loaded}
    result: dict[str, Any] = {"runs": details, "unreadable": {name: str(error) for name, error in refused.items()}}
    if plain is None:
        return result
    result["plain"] = plain.name
    by_role: dict[str, dict[str, Any]] = {"baseline": details[plain.name]}
    for run in runs:
        if run is not plain:
            mode = run.plan.job.bias.mode
            by_role.setdefault("levers" if mode == "sync" else ROLES[mode], details[run.name])
    for role, detail in by_role.items():
        result[role] = {"step_s": detail["step_s"], "step_s_predicted": detail["step_s_predicted"]}
    for key in ("deviation", "machine_factor", "model_error", "model_error_standard_error"):
        result[key] = {role: detail[key] for role, detail in by_role.items()}
    result["max_over_median_tokens"] = by_role["baseline"]["max_over_median_tokens"]
    result["length_ratio"] = {role: detail["length_ratio"] for role, detail in by_role.items() if role != "baseline"}
    result["length_ratio_standard_error"] = {
        role: detail["length_ratio_standard_error"] for role, detail in by_role.items() if role != "baseline"
    }
    if "planned" in by_role:
        result["speedup"] = by_role["planned"]["speedup"]
        result["reward_first"] = by_role["planned"]["reward_first"]
        result["reward_last"] = by_role["planned"]["reward_last"]
    if "race" in by_role:
        result["race_speedup"] = by_role["race"]["speedup"]
    for total in ("on_policy_violations", "conservation_violations"):
        result[total] = sum(details[run.name][total] for run in runs)
    result["logprob_max_abs_diff"] = _worst([details[run.name]["logprob_max_abs_diff"] for run in runs])
    return result
