"""What a run did, beside what its plan predicted: pure reading of plan and trace.

A run that stops in a tail cycle owes its deferred prompts a long round. Means *over the cycle* charge that debt: each
owed prompt adds the seconds, samples and tokens that a prompt of this run's long rounds took on average. Without it a
run would look faster, and its samples shorter, the more prompts it still owes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..plans.errors import InputError
from ..plans.plan import Plan, load_plan
from ..rounds.run_log import PLAN_COPY, TRACE, read_run
from ..rounds.trace import TraceError
from .report_lengths import length_quantiles, tail, waste
from .report_state import incidents, run_state
from .report_steps import series, spreads

ROLES = {"sync": "baseline", "race": "race", "defer": "planned", "exact": "planned", "predict": "planned"}


@dataclass
class RunTrace:
    """A run as its trace tells it; steps that a resume went back over are not in it."""

    name: str
    plan: Plan
    steps: list[dict[str, Any]]
    trained: dict[str, list[int]] = field(default_factory=dict)  # prompt -> trained lengths, tokens
    long_trained: dict[str, list[int]] = field(default_factory=dict)  # the part of it that long rounds trained
    restarts: int = 0
    resumes: int = 0
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # step -> samples that ended
    events: list[dict[str, Any]] = field(default_factory=list)  # what is neither step nor sample, in order
    quiet_s: float | None = None  # since the trace was last written


def load_runs(folder: Path) -> list[RunTrace]:
    """The run in `folder`, or those in its sub-folders. Raises InputError if there is none or one is damaged."""
    if not folder.is_dir():
        raise InputError("no such run folder; give the --out of rlplan execute", str(folder))
    homes = [folder] if (folder / TRACE).exists() else sorted(p.parent for p in folder.glob(f"*/{TRACE}"))
    if not homes:
        raise InputError("holds no run (no trace.jsonl); give the --out of rlplan execute", str(folder))
    return [_load(home) for home in homes]


def run_files(folder: Path) -> list[Path]:
    """What a report of `folder` is read from; not all of it need be there."""
    return [path for name in (TRACE, PLAN_COPY) for path in (folder / name, *sorted(folder.glob(f"*/{name}")))]


def _load(home: Path) -> RunTrace:
    plan = load_plan(home / PLAN_COPY)
    try:
        quiet_s = max(0.0, time.time() - (home / TRACE).stat().st_mtime)
        log = read_run(home / TRACE)
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(home / TRACE)) from error
    kinds = {step["step"]: step["kind"] for step in log.steps}
    # A step is written after its samples: those of one that did not come to its end were not trained.
    samples = {number: rows for number, rows in log.samples.items() if number in kinds}
    run = RunTrace(
        home.resolve().name, plan, log.steps, restarts=log.restarts, resumes=log.resumes, samples=samples,
        events=log.events, quiet_s=quiet_s,
    )  # fmt: skip
    for number, rows in samples.items():
        for row in rows:
            if row["fate"] != "trained":
                continue
            run.trained.setdefault(row["prompt"], []).append(row["tokens"])
            if kinds[number] == "long":
                run.long_trained.setdefault(row["prompt"], []).append(row["tokens"])
    return run


@dataclass(frozen=True, slots=True)
class Cycle:
    """Means over the cycle (see the module's docstring)."""

    step_s: float
    seconds_per_sample: float
    owed_prompts: int
    owed_tokens: float


# A phase's error is told against its seconds, or against this share of the step if it is shorter: a phase of some
# milliseconds may well take twice as many, and nobody's plan depends on it.
PHASE_FLOOR = 0.02


def cycle(run: RunTrace) -> Cycle:
    """Charge the deferred prompts that are left at the end with what a long round's prompt took."""
    owed, planned = int(run.steps[-1]["deferred"]), run.plan.job.issue
    long_steps, long_prompts = _long_rounds(run)
    long_tokens = 0.0
    if owed and long_prompts:
        long_tokens = sum(step["trained_tokens"] for step in long_steps) / (long_prompts * planned.samples_per_prompt)
    seconds = over_cycle(run, "total_s")
    samples = sum(step["trained_samples"] for step in run.steps) + owed * planned.samples_per_prompt
    return Cycle(seconds, seconds * _cycle_steps(run) / max(samples, 1), owed, long_tokens)


def over_cycle(run: RunTrace, key: str) -> float:
    """Mean seconds a step of one of the steps' durations, over the cycle."""
    owed_rounds = _cycle_steps(run) - len(run.steps)
    long_steps, _ = _long_rounds(run)
    seconds: float = sum(step[key] for step in run.steps)
    if owed_rounds and long_steps:
        seconds += owed_rounds * statistics.fmean(step[key] for step in long_steps)
    elif owed_rounds and (expected := run.plan.predicted.rounds.long) is not None:
        # No long round yet: the plan's expectation stands in, as far as it tells phases apart.
        known = {"total_s": expected.step_s.mean, "rollout_s": expected.rollout_s.mean}
        seconds += owed_rounds * known.get(key, seconds / len(run.steps))
    return seconds / _cycle_steps(run)


def _long_rounds(run: RunTrace) -> tuple[list[dict[str, Any]], float]:
    """(the run's long rounds that trained something, prompts that they trained)."""
    steps = [step for step in run.steps if step["kind"] == "long" and step["trained_samples"]]
    return steps, sum(step["trained_samples"] for step in steps) / run.plan.job.issue.samples_per_prompt


def _cycle_steps(run: RunTrace) -> float:
    """Steps, and the part of long rounds that owed prompts would have needed, as large as those that there were."""
    long_steps, long_prompts = _long_rounds(run)
    size = long_prompts / len(long_steps) if long_steps else run.plan.job.issue.prompts_per_step
    return len(run.steps) + int(run.steps[-1]["deferred"]) / size


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


def run_report(run: RunTrace, baseline: RunTrace | None) -> dict[str, Any]:
    """Everything about one run, as plain data. Seconds, tokens; `error` is |predicted / measured - 1|.

    Before the first step is done there is the run's state, and what the plan predicts.
    """
    steps, predicted = run.steps, run.plan.predicted
    begun: dict[str, Any] = {
        "mode": run.plan.job.bias.mode,
        "steps": len(steps),
        "step_s_predicted": predicted.step_s.mean,
        **run_state(run.events, steps, run.quiet_s),
        "restarts": run.restarts,
        "resumes": run.resumes,
        "incidents": incidents(run.events, steps),
        "speedup_predicted": predicted.baseline.seconds_per_sample / predicted.seconds_per_sample,
        "length_ratio_predicted": predicted.length_ratio,
        "cutoff_tokens": run.plan.job.rounds.short.cutoff_tokens,
        "predicted": predicted.model_dump(mode="json", exclude={"front"}),
    }
    return {**begun, **_measured(run, baseline)} if steps else begun


def _measured(run: RunTrace, baseline: RunTrace | None) -> dict[str, Any]:
    steps, predicted = run.steps, run.plan.predicted
    over = cycle(run)
    fifth = max(1, len(steps) // 5)
    result: dict[str, Any] = {
        "step_s": over.step_s,
        "prediction_error": abs(predicted.step_s.mean / over.step_s - 1),
        "seconds_per_sample": over.seconds_per_sample,
        "owed_prompts": over.owed_prompts,
        "phases_s": {
            phase: _phase(over_cycle(run, f"{phase}_s"), expected, over.step_s)
            for phase, expected in predicted.phases_s.model_dump().items()
        },
        "rounds": {kind: _round_report(run, kind) for kind in ("short", "long")},
        "reward_first": _reward(steps[:fifth]),
        "reward_last": _reward(steps[-fifth:]),
        "rewards": [step["reward_mean"] for step in steps],
        "trained_mean_tokens": sum(s["trained_tokens"] for s in steps)
        / max(1, sum(s["trained_samples"] for s in steps)),
        "max_over_median_tokens": statistics.median(s["max_tokens"] / max(1, s["median_tokens"]) for s in steps),
        "decoded_tokens": sum(s["decoded_tokens"] for s in steps),
        "on_policy_violations": sum(s["on_policy_violations"] for s in steps),
        "conservation_violations": sum(len(s["conservation_violations"]) for s in steps),
        "checksum_mismatches": sum(s["checksum_mismatches"] for s in steps),
        "exhausted_prompts": sum(s["exhausted"] for s in steps),
        "logprob_max_abs_diff": max(s["metrics"].get("logprob_max_abs_diff", 0.0) for s in steps),
        "reward_timeouts": steps[-1].get("timeouts") or {},
        "series": series(steps),
        "trained_lengths_tokens": length_quantiles([t for lengths in run.trained.values() for t in lengths]),
        "tail": {kind: tail(steps, run.samples, kind) for kind in ("short", "long")},
        "waste": waste(steps, run.samples),
    }
    if baseline is not None:
        ratio, error = length_ratio(run, baseline)
        result["length_ratio"], result["length_ratio_standard_error"] = ratio, error
        result["length_ks"] = ks_distance(
            [t for lengths in run.trained.values() for t in lengths],
            [t for lengths in baseline.trained.values() for t in lengths],
        )
        result["speedup"] = cycle(baseline).seconds_per_sample / over.seconds_per_sample
    return result


def _phase(measured_s: float, expected_s: float, step_s: float) -> dict[str, float]:
    error = abs(expected_s - measured_s) / max(measured_s, PHASE_FLOOR * step_s)
    return {"measured": measured_s, "predicted": expected_s, "error": error}


def _round_report(run: RunTrace, kind: str) -> dict[str, Any] | None:
    steps = [step for step in run.steps if step["kind"] == kind]
    expected = run.plan.predicted.rounds.long if kind == "long" else run.plan.predicted.rounds.short
    if not steps or expected is None:
        return None
    return {
        "count": len(steps),
        "share": len(steps) / len(run.steps),
        "share_predicted": expected.share,
        "step_s": statistics.fmean(step["total_s"] for step in steps),
        "step_s_predicted": expected.step_s.mean,
        "rollout_s": statistics.fmean(step["rollout_s"] for step in steps),
        "rollout_s_predicted": expected.rollout_s.mean,
        "rollout_s_predicted_p95": expected.rollout_s.p95,
        "measured": spreads(steps),
    }


def _reward(steps: Sequence[dict[str, Any]]) -> float:
    samples = sum(int(step["trained_samples"]) for step in steps)
    return sum(float(step["reward_mean"]) * int(step["trained_samples"]) for step in steps) / max(1, samples)


def report(folder: Path) -> dict[str, Any]:
    """The report of a folder of runs: `runs` by name, and a comparison if a plain (`sync`) run is among them.

    Runs may still be going on or have died, also before their first step. Raises InputError.
    """
    loaded = load_runs(folder)
    # After an early end some plans may not have had their turn.
    runs = [run for run in loaded if run.steps]
    plain = next((run for run in runs if run.plan.job.bias.mode == "sync"), None)
    details = {run.name: run_report(run, plain) for run in loaded}
    result: dict[str, Any] = {"runs": details}
    if plain is None:
        return result
    by_role: dict[str, dict[str, Any]] = {}
    for run in runs:
        by_role.setdefault(ROLES[run.plan.job.bias.mode], details[run.name])
    for role, detail in by_role.items():
        result[role] = {"step_s": detail["step_s"], "step_s_predicted": detail["step_s_predicted"]}
    result["prediction_error"] = {role: detail["prediction_error"] for role, detail in by_role.items()}
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
    result["logprob_max_abs_diff"] = max(details[run.name]["logprob_max_abs_diff"] for run in runs)
    return result
