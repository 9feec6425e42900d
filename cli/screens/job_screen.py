"""A plan of one job on one screen: gain, rounds, seconds by phase, memory, alternatives, and reasons.

Alternatives: speed against bias, and the next best value of each decision with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...plans.facts.plan_text import (
    assumed_errors,
    cut_text,
    drift_text,
    limit_text,
    nodes_text,
    solver_status,
    wait_text,
)
from ...plans.facts.round_bars import critical_path, round_bars
from ...plans.phrases.numbers import bytes_of, bytes_text, count, digits, percent, ratio, seconds, times, usd
from ...plans.phrases.sentences import PHASE_NAMES, TIE_PERCENT, one_line, parse
from ...plans.schema.plan import Plan
from ...plans.schema.predicted import FrontPoint
from ...plans.schema.predicted_evidence import MUCH_AT_CAP
from .bars import gauge, histogram, table
from .rounds_table import LEGEND, charts, round_kinds, rounds_table, seconds_table
from .solved import plan_summary

_FRONT_ROWS, _WHY_ROWS, _OTHER_ROWS = 6, 6, 4

# Reasons that the screen shows elsewhere.
_SHOWN_ELSEWHERE = (
    "rounds", "step", "colocation", "model", "rounds.short.rollout.kv_tokens", "rounds.long.rollout.kv_tokens"
)  # fmt: skip

RE_SOLVED = "re-solved"
"""Marks an alternative whose cost is that of the best plan with it, in which other decisions may differ, too."""


def front_table(plan: Plan) -> Table:
    """The front of speed against bias, at most _FRONT_ROWS points."""
    p = plan.predicted
    shown = _thinned(p.front)
    left_out = f" of {len(p.front)}" if len(shown) < len(p.front) else ""
    drawn = table([f"front, {len(shown)}{left_out}", ">speed-up", ">length", ">USD/1000"])
    for point in shown:
        mark, rough = ("*" if point.chosen else " "), ("~" if point.rough else "")
        drawn.add_row(
            f"{mark} {point.mode}",
            f"{rough}{p.baseline.seconds_per_sample / point.seconds_per_sample:.2f}",
            ratio(point.length_ratio),
            digits(point.usd_per_1k_samples, 4),
            style="bold" if point.chosen else "",
        )
    return drawn


def _thinned(front: Sequence[FrontPoint]) -> list[FrontPoint]:
    """At most _FRONT_ROWS points, evenly spaced, with the first, the last and the chosen one."""
    if len(front) <= _FRONT_ROWS:
        return list(front)
    last = len(front) - 1
    kept = {round(k * last / (_FRONT_ROWS - 1)) for k in range(_FRONT_ROWS)}
    chosen = {index for index, point in enumerate(front) if point.chosen}
    if chosen - kept:
        kept.remove(min(kept - {0, last}, key=lambda index: abs(index - min(chosen))))
    return [front[index] for index in sorted(kept | chosen)]


def why_table(plan: Plan, wide: bool) -> list[RenderableType]:
    """The next best values of decisions by cost, then the other reasons in lines."""
    why = {key: one_line(text) for key, text in plan.job.why.items()}
    lines = {key: parse(text) for key, text in why.items()}
    # An alternative that is faster is tied with the plan: `why.ties` names it.
    costly = [(key, line) for key, line in lines.items() if line is not None and (line.percent or -1.0) > 0]
    ties = [_short(key) for key, line in lines.items() if line is not None and line.percent is None]
    drawn = table(["why", "next best", ">costs", *(["mostly"] if wide else [])])
    ranked = sorted(costly, key=lambda item: -(item[1].percent or 0.0))
    for _, line in ranked[:_WHY_ROWS]:
        cost = f"{'~' * line.rough}{line.percent:+.1f}%" + (" USD" if line.unit == "cost" else "")
        if not wide and line.where.startswith("takes"):
            cost += f", {line.where}"
        rest = f" ({RE_SOLVED})" if line.rest == "chosen anew" else ""  # else nothing but this decision differs
        drawn.add_row(line.chosen, line.next_best + rest, cost, *([line.where] if wide else []))
    others = [(key, text) for key, text in why.items() if lines[key] is None and key not in _SHOWN_ELSEWHERE]
    refused = [text for key, text in others if key.startswith("refused.")]
    rows: list[RenderableType] = [drawn] if costly else [Text("why", style="bold")]
    less = [f"{_short(key)} {line.percent:+.1f}%" for key, line in ranked[_WHY_ROWS:]]
    as_good = f"as good within {TIE_PERCENT:g}%: another choice of {', '.join(ties)}" if ties else ""
    if less or ties:
        rows.append(Text("; ".join([*([f"less: {', '.join(less)}"] if less else []), as_good]).strip("; ")))
    reasons = [f"{_short(key)}: {text}" for key, text in others if not key.startswith("refused.")]
    rows += [Text(text, style="dim") for text in reasons[:_OTHER_ROWS]]
    if len(reasons) > _OTHER_ROWS:
        rows.append(Text(f"and {len(reasons) - _OTHER_ROWS} more (--json)"))
    if refused:
        more = f"; {len(refused) - 1} more (--json)" if len(refused) > 1 else ""
        rows.append(Text(f"not possible: {refused[0]}{more}"))
    return rows


def _short(key: str) -> str:
    """A decision's key without the prefix `rounds.`."""
    return key.removeprefix("rounds.")


WIDE = 96
"""Least width in characters at which tables stand side by side."""


def render(plan: Plan, path: str, notes: Sequence[str], width: int) -> Renderables:
    """The whole screen for a terminal of `width` characters; `notes` stand below the headline."""
    wide = width >= WIDE
    rows: list[RenderableType] = [
        *_headline(plan, path),
        *(Text(f"note: {note}", style="yellow") for note in notes),
        Text(),
        rounds_table(plan, wide),
        Text(),
        seconds_table(plan, wide),
        Text(),
        _gantt(plan, width, wide),
        *_path(plan),
        _named("limit         ", limit_text(plan.predicted.limit)),
        Text(),
        _side_by_side([_memory(plan), front_table(plan)], wide),
        *_held_by(plan),
        *_checkpoint(plan),
        *_evaluation(plan),
        _lengths(plan, wide),
        *_length_basis(plan),
        *_errors(plan),
        *_audit(plan),
        Text(),
        *why_table(plan, wide),
    ]
    legend = ["* this plan; ~ of few simulated rounds"] if any(point.rough for point in plan.predicted.front) else []
    if any("chosen anew" in text for text in plan.job.why.values()):
        legend.append(f"{RE_SOLVED}: other decisions change with it")
    rows += [Text("; ".join(legend), style="dim")] if legend else []
    return Renderables(*rows)


def data(plan: Plan, path: Path) -> dict[str, Any]:
    """The plan for --json: the summary of `solve --json`, the plan's own sections, bars and critical path."""
    whole = plan.model_dump(mode="json")
    critical = critical_path(plan.predicted)
    return {
        **plan_summary(plan, path),
        "error": plan.predicted.error.total,
        "errors": plan.predicted.error.model_dump(exclude={"parts", "prompts"}),
        "decisions": {key: value for key, value in whole["job"].items() if key != "why"},
        "predicted": whole["predicted"],
        "solver": whole["solver"],
        "bars": [bar._asdict() for bar in round_bars(plan)],
        "critical_path": {
            "steps": [step._asdict() for step in critical.steps],
            "slack_s": critical.slack_s,
            "total_s": critical.total_s,
        },
        "why": plan.job.why,
    }


def _named(name: str, text: str, style: str = "") -> Text:
    """A line that begins with a word in bold."""
    return Text.assemble((f"{name:<8} ", "bold"), (text, style))


def _headline(plan: Plan, path: str) -> list[Text]:
    p, solver, source = plan.predicted, plan.solver, plan.inputs.profile.provenance
    costs = f"costs {source}{'' if source == 'measured' else ', not measured'}"
    nodes = count(p.nodes, "node") if plan.job.placement is None else nodes_text(plan)
    money = f"{usd(p.usd_per_hour)} USD/h for {nodes}, {usd(p.usd_per_1k_samples)} USD per 1000 samples"
    return [
        Text.assemble(
            (
                f"{plan.job.name}: {plan.job.bias.mode}, {seconds(p.step_s.mean)} a step ±{percent(p.error.total)}",
                "bold",
            ),
            f" (p50 {digits(p.step_s.p50)}, p95 {digits(p.step_s.p95)}), ",
            (times(p.speedup), "bold green" if p.speedup >= 1 else "bold red"),
            " the samples per second of plain rounds",
        ),
        Text(f"{money}; length ratio {ratio(p.length_ratio)}, bias budget {percent(plan.job.bias.budget)}"),
        Text(cut_text(p), style="yellow" if (p.cut_share or 0) >= MUCH_AT_CAP else ""),
        *([Text(wait_text(p))] if p.wait is not None else []),
        Text(f"{solver_status(solver)}; {costs}; {path}", style="dim"),
    ]


def _gantt(plan: Plan, width: int, wide: bool) -> RenderableType:
    kinds = round_kinds(plan)
    beside = wide and len(kinds) > 1
    chart_width = (width - 3) // 2 if beside else min(width, 100)
    drawn = [Renderables(*lines) for lines in charts(plan, chart_width)]
    return Renderables(_side_by_side(drawn, beside), Text(LEGEND, style="dim"))


def _side_by_side(columns: Sequence[RenderableType], beside: bool) -> RenderableType:
    if not beside:
        return Renderables(*columns)
    grid = Table.grid(padding=(0, 3, 0, 0))
    for _ in columns:
        grid.add_column()
    grid.add_row(*columns)
    return grid


def _path(plan: Plan) -> list[Text]:
    path = critical_path(plan.predicted)
    tail_s = sum(mean.share * mean.tail_s for _, mean in plan.predicted.rounds.kinds)
    steps = " → ".join(
        f"{PHASE_NAMES[step.phase]} {percent(step.share)}"
        + (f" (tail {percent(tail_s / path.total_s)})" if step.phase == "rollout" and tail_s else "")
        for step in path.main_steps
    )
    return [_named("critical path ", steps), _named("time to spare ", path.slack)]


_MEMORY = {"kv": "KV", "train": "trainer", "host": "host"}


def _memory(plan: Plan) -> Table:
    bars, several = plan.predicted.memory_bars, plan.predicted.rounds.long is not None
    trainers = [bar for place, _, bar in bars if place == "train"]
    if len({(bar.needed_bytes, bar.capacity_bytes) for bar in trainers}) == 1:  # in both kinds of round: one line
        *engines, host = (item for item in bars if item[0] != "train")
        bars = [*engines, ("train", None, trainers[0]), host]
    drawn = table(["memory", "", ">needs", ">free"])
    for place, kind, bar in bars:
        name = _MEMORY[place] + (f" {kind}" if several and kind else "")
        free = Text(percent(bar.headroom), style="" if bar.headroom >= 0.05 else "bold red")
        share = min(1.0, bar.needed_bytes / bar.capacity_bytes)
        drawn.add_row(name, gauge(share, 12), bytes_of(bar.needed_bytes, bar.capacity_bytes), free)
    return drawn


def _held_by(plan: Plan) -> list[Text]:
    """What uses most of the memory of a trainer's accelerator and of a node's host."""
    trainers = [bar for place, _, bar in plan.predicted.memory_bars if place == "train"]
    fullest = max(trainers, key=lambda bar: bar.needed_bytes, default=None)
    texts = []
    for name, bar in (("trainer", fullest), ("host", plan.predicted.host_memory)):
        if bar is not None and bar.holds_bytes:
            largest = sorted(bar.holds_bytes.items(), key=lambda item: (-item[1], item[0]))[:3]
            held = (f"{key.replace('_', ' ').removeprefix(name + ' ')} {bytes_text(size)}" for key, size in largest)
            texts.append(f"{name}: {', '.join(held)}")
    return [_named("held by", "; ".join(texts))] if texts else []


def _checkpoint(plan: Plan) -> list[Text]:
    """What a checkpoint of the trainer takes, and how long training stands still for it."""
    checkpoint = plan.predicted.checkpoint
    if checkpoint is None:
        return []
    text = (
        f"{bytes_text(checkpoint.bytes)} on disk; training stops for {seconds(checkpoint.stood_s)}, beside the step, "
        f"while each rank copies {bytes_text(checkpoint.rank_bytes)} to host memory; the copy is written while "
        "training goes on"
    )
    return [_named("checkpoint", text)]


def _evaluation(plan: Plan) -> list[Text]:
    """What the job's evaluations take, beside the steps."""
    evaluation = plan.predicted.evaluation
    if evaluation is None:
        return []
    share = evaluation.seconds / (evaluation.every_steps * plan.predicted.step_s.mean)
    text = (
        f"{count(evaluation.prompts, 'prompt')} x {evaluation.samples} in {seconds(evaluation.seconds)}, beside the "
        f"steps, after every {evaluation.every_steps} of them: {percent(share)} of their time"
    )
    return [_named("evaluation", text)]


def _errors(plan: Plan) -> list[Text]:
    """The parts of the headline's ±, and what the error does not include."""
    e = plan.predicted.error
    error_parts = f"costs {percent(e.costs)}, length trace {percent(e.lengths)}, simulation {percent(e.sampling)}"
    error_parts += assumed_errors(e)
    if e.extrapolation is not None:
        error_parts += f", responses longer than any in the trace {percent(e.extrapolation)}"
    error = f"±{percent(e.total)} of the mean step (one standard deviation), from {error_parts}"
    return [_named("error", error), _named("learning", drift_text(plan.predicted.drift))]


def _audit(plan: Plan) -> list[Text]:
    """A line on whether the reward pays what is right; empty where nobody asked."""
    audit = plan.inputs.profile.reward_audit
    if audit is None:
        return []
    return [_named("reward", f"audited {audit.text}", "" if audit.passed else "yellow")]


def _length_basis(plan: Plan) -> list[Text]:
    """Lines on what the length trace does not show; empty if it shows all lengths."""
    basis, p = plan.predicted.length_basis, plan.predicted
    if basis is None:
        return []
    warnings = basis.thin_reasons(p.speedup)
    texts = list(dict.fromkeys([basis.sentence(p.speedup)] * basis.extrapolated + warnings))
    return [_named("trace", text, "yellow" if text in warnings else "") for text in texts]


def _lengths(plan: Plan, wide: bool) -> Text:
    q = plan.predicted.lengths_tokens
    drawn = f"{q[0]} {histogram(q, 30 if wide else 16)} {q[20]} tokens, log scale; p50 {q[10]}, p95 {q[19]}"
    return _named("lengths", drawn)
