"""A report of runs as lines for the terminal; a figure that is missing, or NaN because training diverged, is `unknown`.

`detail` is a run's part of a report (traces/report.py), NaN replaced by None. Texts of a trace are reduced to one line
each, without control characters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plans.diff.change import UNKNOWN
from ...plans.phrases.numbers import (
    MATTERS,
    beside_predicted,
    bytes_text,
    count,
    deviation,
    deviation_text,
    digits,
    duration,
    is_finite,
    machine_text,
    model_error_text,
    percent,
    ratio,
    seconds,
    times,
)
from ...plans.phrases.sentences import PHASE_NAMES, as_trained_text, exposed_text, one_line, source_text
from ...plans.phrases.tables import right, text_lines
from ...traces.report_state import evaluation_text
from .bars import spark

_INCIDENTS = 8
_EPOCHS = 8


def run_text(name: str, detail: dict[str, Any]) -> str:
    """The report of one run."""
    name = _named(name, detail["mode"])
    if not detail["steps"]:
        lines = [f"{name}: predicted {seconds(detail['step_s_predicted'])} a step"]
        return "\n".join([*lines, *_state(detail), *_incidents(detail)])
    steps = "1 step" if detail["steps"] == 1 else f"{detail['steps']} steps"
    lines = [
        f"{name}: {steps}; mean step of the cycle: {beside_predicted(detail['step_s'], detail['step_s_predicted'])}"
    ]
    if detail["step_s_expected"]:
        lines.append(
            f"  of which {_figure(detail['step_s_expected'], seconds)} are the predicted long round: deferred prompts "
            "wait for one, and none has run"
        )
    lines += [*_state(detail), *_speed(detail), *_phases(detail)]
    for kind, value in detail["rounds"].items():
        if value is not None:
            lines.append(
                f"  {kind + ' rounds':20}{value['step_s_predicted']:10.3f}{value['step_s']:10.3f}"
                f"{deviation_text(deviation(value['step_s'], value['step_s_predicted'])):>11}   "
                f"{percent(value['share'])} of the steps, predicted {percent(value['share_predicted'])}"
            )
    if (limit := detail.get("limit")) is not None:
        reads, mfu = (
            f"{_figure(limit[key], percent)} (predicted {_figure(limit[f'{key}_predicted'], percent)})"
            for key in ("of_bandwidth", "mfu")
        )
        lines.append(
            f"  at the hardware's peak a step takes {seconds(limit['step_s'])}; decoding reached {reads} of the memory "
            f"bandwidth, training an MFU of {mfu}"
        )
    if (waits := detail.get("waits")) is not None:
        lines.append(f"  {waits_text(waits)}")
    lines += _coverage(detail)
    first, last = (_figure(detail[key], "{:.3f}".format) for key in ("reward_first", "reward_last"))
    lines.append(f"  reward {first} -> {last}  {spark(detail['rewards'])}  first and last fifth of the steps")
    lines += _evaluations(detail.get("evaluations", ()))
    for name, part in (detail.get("reward_parts") or {}).items():
        others = ", ".join(f"{one_line(o)} {n}" for o, n in part["outcomes"].items() if o != "ok")
        mean = _figure(part["mean"], "{:.3f}".format)
        took = _figure(part["mean_s"], seconds)
        lines.append(f"    part {one_line(name)}: mean {mean}, {took} a sample" + (f"; {others}" if others else ""))
    # The ratio is None if the run has too few prompts in common with the plain one, and 1 of the plain one itself.
    if detail["mode"] != "sync" and detail.get("length_ratio") is not None and detail.get("length_ks") is not None:
        lines.append(
            f"  trained over unconditioned mean length: predicted {ratio(detail['length_ratio_predicted'])}, measured "
            f"{ratio(detail['length_ratio'])} ± {_figure(detail['length_ratio_standard_error'], ratio)}"
            f"{as_trained_text(detail)}; K-S distance of the lengths {detail['length_ks']:.3f}"
        )
    if (cut := detail.get("cut_share")) is not None:
        predicted = _figure(detail["cut_share_predicted"], percent)
        lines.append(f"  {percent(cut)} of the trained samples cut at the cap; predicted {predicted}")
    lines += [*_tail_and_waste(detail), *_overlap(detail), *_drafts(detail)]
    counts = detail["reward_timeouts"]
    if counts.get("timeouts"):
        lines.append(
            f"  {counts['timeouts']} of {counts.get('executions', UNKNOWN)} rewards timed out, "
            f"{counts.get('cut', UNKNOWN)} of these at an adaptive deadline, before the longest one: at most so many "
            "right answers were judged wrong for it"
        )
    if failures := detail.get("reward_failures"):
        outcomes = ", ".join(f"{one_line(outcome)} {number}" for outcome, number in failures.items())
        lines.append(f"  samples without a reward: {outcomes}; infra_failed ones were drawn again, the others got 0")
    difference = _figure(detail["logprob_max_abs_diff"], "{:.1e}".format)
    lines.append(
        f"  violations: on-policy {detail['on_policy_violations']}, conservation {detail['conservation_violations']}; "
        f"log-probs of engine and trainer differ by at most {difference}; {detail['restarts']} restarts"
    )
    lines += [*_training(detail), *_checkpoints(detail), *_missing_engines(detail)]
    return "\n".join([*lines, *_incidents(detail)])


def _evaluations(evaluated: Sequence[Mapping[str, Any]]) -> list[str]:
    """The curve of a run's evaluations, and of them the first, the best and the last."""
    if len(evaluated) < 2:
        return [f"  {evaluation_text(each)}" for each in evaluated]
    curve = [each["reward"][0] for each in evaluated]
    first, last = (_figure(value, "{:.3f}".format) for value in (curve[0], curve[-1]))
    best = max(evaluated, key=lambda each: each["reward"][0] if is_finite(each["reward"][0]) else -math.inf)
    shown = {each["step"]: each for each in (evaluated[0], best, evaluated[-1])}
    return [
        f"  evaluated reward {first} -> {last}  {spark(curve)}  {count(len(evaluated), 'evaluation')}",
        *(f"    {evaluation_text(each)}{' (the best)' * (each is best)}" for _, each in sorted(shown.items())),
    ]


def waits_text(waits: Mapping[str, Any]) -> str:
    """How long deferred prompts waited (report_steps.waits)."""
    by_queue = f"; {waits['by_queue']} of {count(waits['long_rounds'], 'long round')} by queue"
    return f"deferred prompts waited {waits['mean']:.1f} long rounds on average, {waits['longest']} at most" + (
        by_queue if waits["by_queue"] else ""
    )


def comparison(result: dict[str, Any]) -> str:
    """The runs beside the plain one, a row each: it first, then those without a bias, then the others."""
    order = {"sync": 0, "exact": 1, "predict": 1, "defer": 2, "race": 2}
    stepped = {name: detail for name, detail in result["runs"].items() if detail["steps"]}
    names = sorted(stepped, key=lambda name: (name != result["plain"], order[stepped[name]["mode"]], name))
    head = ["", *right(("s a step", "predicted", "machine", "model off", "speed", "predicted", "length ratio"))]
    rows = []
    for name in names:
        detail = stepped[name]
        plain, length = name == result["plain"], detail["length_ratio"]
        error = detail["length_ratio_standard_error"]
        rows.append(
            (
                _named(name, detail["mode"]),
                _figure(detail["step_s"], "{:.3f}".format),
                f"{detail['step_s_predicted']:.3f}",
                "" if detail["machine_factor"] is None else f"{detail['machine_factor']:.2f}x",
                "" if detail["model_error"] is None else model_error_text(detail),
                _figure(detail["speedup"], times),
                times(detail["speedup_predicted"]),
                "1" if plain else "" if length is None else f"{ratio(length)} ± {_figure(error, ratio)}",
            )
        )
    lines = text_lines(head, rows)
    if any(detail["mode"] in ("race", "defer") for detail in stepped.values()):
        lines.append(
            "race and defer train on shorter responses than the model gives: their speed is no fair comparison"
        )
    return "\n".join([*lines, *_machine(result)])


COMMON = 0.1
"""If all runs deviate by more than this share of the predicted seconds, in one direction, the machine is to blame."""


def _machine(result: Mapping[str, Any]) -> list[str]:
    """What the machine's speed explains of the deviations; where it was not measured, a guess, if all runs took longer
    than predicted, or all less."""
    factors = [factor for factor in result["machine_factor"].values() if factor is not None]
    if factors:
        errors = ", ".join(
            f"{role} {deviation_text(error)}" for role, error in result["model_error"].items() if error is not None
        )
        return [
            f"{machine_text(sum(factors) / len(factors))}; beyond that runs took other seconds than predicted: {errors}"
        ]
    known = [share for share in result["deviation"].values() if share is not None]
    if len(known) < 2 or not (min(known) > COMMON or max(known) < -COMMON):
        return []
    least, most = sorted((min(known), max(known)), key=abs)
    return [
        f"every run took {'longer' if least > 0 else 'less'} than predicted ({deviation_text(least)} to "
        f"{deviation_text(most)}): the machine was {'slower' if least > 0 else 'faster'} than when it was profiled; "
        f"the speed of one run over another is within {percent((1 + max(known)) / (1 + min(known)) - 1)} of the "
        "predicted one"
    ]


def _overlap(detail: dict[str, Any]) -> list[str]:
    """What of scoring and training was hidden behind decoding."""
    beside = detail["overlap"]
    lines = [f"  {exposed_text(beside)}"]
    if (streamed := beside["streamed"]) is not None:
        lines.append(
            f"  streaming, {count(streamed['rounds'], 'round')}: {streamed['groups']:.1f} groups trained before its "
            f"end, {streamed['moved']:.1f} samples moved to another engine"
        )
    if (balanced := beside["balanced"]) is not None:
        lines.append(
            f"  balancing, {count(balanced['rounds'], 'round')}: {percent(balanced['known'])} of the prompts had a "
            "history of lengths"
        )
    if (tails := beside["tails"]) is not None:
        lines.append(
            f"  tail, {count(tails['rounds'], 'round')}: engines of a higher TP size took over in "
            f"{seconds(tails['seconds'])} and got {tails['moved']:.1f} samples"
        )
    return lines


def _drafts(detail: dict[str, Any]) -> list[str]:
    """What drafts gave; nothing of a run without."""
    drafts = detail.get("drafts")
    if drafts is None:
        return []
    sources = ", ".join(f"{one_line(source_text(s))} {digits(tokens)}" for s, tokens in drafts["by_source"].items())
    lines = [
        f"  drafts, {count(drafts['rounds'], 'round')}: {digits(drafts['accepted'])} drafted tokens accepted in a "
        "sample's decoding step" + (f" ({sources})" if sources else "")
    ]
    shares = ", ".join(_figure(share, percent) for share in drafts["accepted_share_at"])
    if shares:
        lines.append(f"    accepted by position in the draft, from the first: {shares}")
    if len(epochs := drafts["epochs"]) > 1:
        shown = ", ".join(f"{epoch['epoch']}: {digits(epoch['accepted'])}" for epoch in epochs[-_EPOCHS:])
        lines.append(f"    accepted by epoch: {'... ' if len(epochs) > _EPOCHS else ''}{shown}")
    saved_s = drafts["saved_s"]
    if saved_s is not None:
        each = f"{'saved' if saved_s >= 0 else 'cost'} {seconds(abs(saved_s) / drafts['rounds'])}"
        lines.append(f"    drafts {each} of engine time a round, {seconds(abs(saved_s))} in the run")
    if drafts["ahead_samples"]:
        lines.append(
            f"    {count(drafts['ahead_samples'], 'sample')} decoded ahead for drafts alone, "
            f"{count(drafts['ahead_tokens'], 'token')}"
        )
    held = f"an engine's index takes at most {bytes_text(drafts['index_bytes'])}"
    return [*lines, f"    {held}; the run keeps {bytes_text(drafts['history_bytes'])} of earlier responses"]


def _named(name: str, mode: str) -> str:
    """A run's name, and its mode where that is not its name."""
    return one_line(name) if name == mode else f"{one_line(name)} ({mode})"


def _figure(value: float | None, text: Callable[[float], str]) -> str:
    """A figure as text; `unknown` if there is none."""
    return text(value) if is_finite(value) else UNKNOWN


def _state(detail: dict[str, Any]) -> list[str]:
    """A line on the run's state."""
    from ...traces.report_state import ago

    quiet_s = detail.get("quiet_s")
    left_s = detail.get("left_s")
    return [
        f"  {one_line(detail['state_text'])}"
        + ("" if quiet_s is None else f"; quiet for {ago(quiet_s)}")
        + ("" if not left_s else f"; about {duration(left_s)} left")
    ]


def _speed(detail: dict[str, Any]) -> list[str]:
    """How fast the machine was, and what that leaves of the deviation; nothing where it was not measured."""
    factor, machine = detail.get("machine_factor"), detail.get("machine")
    if factor is None or machine is None:
        return []
    phases = ", ".join(f"{PHASE_NAMES[phase]} {part['factor']:.2f}x" for phase, part in machine.items())
    return [f"  {machine_text(factor)} ({phases}); model off by {model_error_text(detail)}"]


def _training(detail: dict[str, Any]) -> list[str]:
    """Skipped steps, differences of log-probs between engine and trainer, importance weights, KL to a reference."""
    lines = []
    if skipped := detail.get("skipped_steps"):
        were = count(skipped, "step was", "steps were")
        lines.append(f"  {were} skipped, since a loss or a gradient was not finite: no weight changed")
    if "logprob_p99_abs_diff" in detail:
        mean, p99 = (_figure(detail[f"logprob_{name}_abs_diff"], "{:.1e}".format) for name in ("mean", "p99"))
        beyond = _figure(detail["logprob_beyond_share"], percent)
        lines.append(f"  log-probs in the worst step: mean {mean}, p99 {p99}; {beyond} of the tokens beyond the bound")
    if (gradients := detail.get("gradients")) is not None:
        norms, left = (
            [_figure(gradients[kind][key], told) for kind in ("short", "long")]
            for key, told in (("norm", "{:.3g}".format), ("scale", percent))
        )
        lines.append(
            f"  gradient norm {norms[0]} in short and {norms[1]} in long rounds, {_figure(gradients['ratio'], times)} "
            f"(planned {times(gradients['ratio_planned'])}); clipping left {left[0]} and {left[1]} of them"
        )
    if "kl_reference" in detail:
        last, largest = (_figure(detail[f"kl_reference{name}"], "{:.3g}".format) for name in ("", "_max"))
        lines.append(
            f"  KL to the reference {last} a token in the last step, at most {largest}; its passes took "
            f"{seconds(detail['reference_s'])} a step"
        )
    for done in ("truncated", "masked"):
        if (share := detail.get(f"importance_{done}_share")) is not None:
            mean = _figure(detail["importance_ratio_mean"], "{:.4f}".format)  # near 1: `ratio` has too few digits
            lines.append(f"  importance weights: mean ratio {mean}, {_figure(share, percent)} of the tokens {done}")
    return lines


def _checkpoints(detail: dict[str, Any]) -> list[str]:
    """A line on what the checkpoints between steps cost; none where the run wrote none or did not measure it."""
    costs = detail.get("checkpoints")
    if costs is None:
        return []
    number, size = count(costs["count"], "checkpoint"), bytes_text(costs["bytes"])
    return [
        f"  {number} of {size}: training stood still for {seconds(costs['stood_s_per_step'])} a step; "
        f"each was then written in {seconds(costs['write_s'])}"
    ]


def _missing_engines(detail: dict[str, Any]) -> list[str]:
    """A line on what it cost that engines were missing when rounds began; none where all were there."""
    missing = detail.get("missing_engines")
    if missing is None:
        return []
    cost = missing["cost_s"]
    if cost is None:
        text = "no step of that kind had all engines, so what it cost is unknown"
    elif cost >= 0:
        text = f"those steps took {seconds(cost)} longer than as many with all engines"
    else:
        text = "those steps took no longer than others"
    share = percent(missing["engine_steps"] / missing["of_engine_steps"])
    return [f"  {count(missing['steps'], 'step')} began with fewer engines ({share} of all engine steps lost): {text}"]


def _phases(detail: dict[str, Any]) -> list[str]:
    """A table of the phases, in seconds; no deviation where it is too small a share of the step to matter."""
    lines = [f"  {'phase, seconds':20}{'predicted':>10}{'measured':>10}{'deviation':>11}"]
    for phase, value in detail["phases_s"].items():
        measured_s, predicted_s = value["measured"], value["predicted"]
        matters = not abs(measured_s - predicted_s) < MATTERS * (detail["step_s"] or 0.0)
        off = deviation_text(value["deviation"]) if matters else ""
        lines.append(f"  {PHASE_NAMES[phase]:20}{predicted_s:10.3f}{measured_s:10.3f}{off:>11}".rstrip())
    return lines


def _coverage(detail: dict[str, Any]) -> list[str]:
    """Numbers of steps at or below the predicted p50 and p95."""
    texts = [
        f"{kind} {percent(part['step_s']['share_below_p50'])} and {percent(part['step_s']['share_below_p95'])} "
        f"({part['step_s']['below_p50']} and {part['step_s']['below_p95']} of {part['steps']})"
        for kind, part in detail["coverage"].items()
        if kind != "all" or len(detail["coverage"]) > 2
    ]
    return [f"  steps up to the predicted p50 and p95, ideally 50% and 95%: {'; '.join(texts)}"] if texts else []


def _tail_and_waste(detail: dict[str, Any]) -> list[str]:
    """Longest responses, tails of rollouts, and tokens that were not trained."""
    tails = [
        f"{percent(value['share'])} of a {kind} one ({value['rounds']} of {value['of_rounds']} rounds)"
        for kind, value in detail["tail"].items()
        if value is not None
    ]
    lines = [
        f"  the longest response of a step is {_figure(detail['max_over_median_tokens'], '{:.1f}'.format)} times the "
        "median one"
        + (f"; tail of the rollout, with fewer than a quarter of its sequences: {', '.join(tails)}" if tails else "")
    ]
    waste = detail["waste"]
    if waste["share"] or waste["aborted_samples"]:
        fates = ", ".join(f"{one_line(fate)} {n:,}" for fate, n in waste["tokens"].items() if fate != "trained")
        stopped = count(waste["aborted_samples"], "sample")
        lines.append(
            f"  {percent(waste['share'])} of the tokens of finished samples were not trained"
            + (f" (tokens: {fates})" if fates else "")
            + (f"; {stopped} stopped unfinished" if waste["aborted_samples"] else "")
        )
    return lines


def _incidents(detail: dict[str, Any]) -> list[str]:
    """The last incidents, a line each."""
    incidents = detail["incidents"]
    lines = [
        f"  step {row['step']}, {row['t_s']:.0f} s: {row['kind']}: {one_line(row['text'])}"
        for row in incidents[-_INCIDENTS:]
    ]
    left = len(incidents) - _INCIDENTS
    return [f"  {left} earlier incidents: see --json", *lines] if left > 0 else lines
