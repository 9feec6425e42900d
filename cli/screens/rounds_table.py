"""Tables of a plan's kinds of round, and mean rounds as a Gantt chart of characters."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ...plans.facts.plan_text import trainers_text
from ...plans.facts.round_bars import LANES, RoundBar, round_bars
from ...plans.phrases.numbers import digits, percent, seconds
from ...plans.phrases.tables import right
from ...plans.schema.plan import Plan
from ...plans.schema.planned_rounds import LongRound, ShortRound
from ...plans.schema.predicted import PredictedRound, Quantiles
from .bars import FULL, LIGHT, block, table

LEGEND = f"height: share of sequences that run; {FULL} on the critical path, {LIGHT} with time to spare"
_STYLES = {"sync": "blue", "rollout": "cyan", "tail": "yellow", "reward_exposed": "red", "train": "magenta"}
_NAMES = {"sync": "transfer"}
_LABEL, _BESIDE = 10, 9  # characters before and behind a lane


def charts(plan: Plan, width: int) -> list[list[Text]]:
    """A chart of `width` characters for each kind of round; all have the same number of lines."""
    kinds, bars = plan.predicted.rounds.kinds, round_bars(plan)
    return [
        _chart(
            "mean round" if len(kinds) == 1 else f"mean {name} round",
            mean,
            [bar for bar in bars if bar.kind == name],
            width,
        )
        for name, mean in kinds
    ]


def _chart(title: str, mean: PredictedRound, bars: list[RoundBar], width: int) -> list[Text]:
    cells = max(10, width - _LABEL - _BESIDE)
    span = max(bar.begin_s + bar.seconds for bar in bars) if bars else 0.0
    tail = (
        f", tail {percent(mean.tail_s / mean.rollout_s.mean)} of rollout" if mean.tail_s and mean.rollout_s.mean else ""
    )
    lines = [Text.assemble((f"{title} {seconds(mean.step_s.mean)}", "bold"), tail)]
    if not span:
        return lines
    for lane in LANES:
        bars_of_lane = [bar for bar in bars if bar.lane == lane]
        line = Text(f"{_NAMES.get(lane, lane):{_LABEL}}")
        line.append_text(_lane(bars_of_lane, mean, span, cells))
        lines.append(line.append(f" {_beside(bars_of_lane, mean)}"))
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    axis = f"{'':{_LABEL}}0{seconds(span):>{cells - 1}}"
    return [*lines, Text(axis, style="dim")]


def _lane(bars: list[RoundBar], mean: PredictedRound, span: float, cells: int) -> Text:
    drawn = [(" ", "")] * cells
    for bar in bars:
        first = min(cells - 1, int(bar.begin_s / span * cells + 1e-9))
        last = min(cells, max(first + 1, round((bar.begin_s + bar.seconds) / span * cells)))
        for cell in range(first, last):
            drawn[cell] = (_character(bar, mean, (cell + 0.5) / cells * span), _STYLES.get(bar.phase, ""))
    return Text.assemble(*drawn)


def _character(bar: RoundBar, mean: PredictedRound, at_s: float) -> str:
    if bar.lane != "engines":
        return FULL if bar.critical else LIGHT
    running, whole = mean.running, mean.rollout_s.mean
    place = min(1.0, max(0.0, (at_s - mean.sync_s) / whole)) * (len(running) - 1)
    low = min(int(place), len(running) - 2)
    return block(running[low] + (place - low) * (running[low + 1] - running[low])) if whole else " "


def _beside(bars: list[RoundBar], mean: PredictedRound) -> str:
    """The seconds of a lane, beside its bar."""
    if not bars:
        return "-"
    lane = bars[0].lane
    if lane == "rewards":
        return f"+{digits(mean.reward_exposed_s.mean)}"
    return digits(sum(bar.seconds for bar in bars))


def round_kinds(plan: Plan) -> list[tuple[str, ShortRound | LongRound, PredictedRound]]:
    """Return the kinds of round of a plan: name, decisions, prediction."""
    of_name = dict(plan.predicted.rounds.kinds)
    return [(name, decided, of_name[name]) for name, decided in plan.job.rounds.kinds if name in of_name]


def rounds_table(plan: Plan, wide: bool) -> Table:
    """Return a table of what a round of each kind does; `wide`: with all columns."""
    kinds, total = round_kinds(plan), plan.predicted.step_s.mean
    columns: list[tuple[str, list[str]]] = [
        ("rounds", [name for name, _, _ in kinds]),
        (">steps", [percent(mean.share) for _, _, mean in kinds]),
        (">time", [percent(mean.share * mean.step_s.mean / total) if total else "" for _, _, mean in kinds]),
        (">issue", [_issue(decided) for _, decided, _ in kinds]),
        (">cutoff", [_cutoff(decided) for _, decided, _ in kinds]),
        (">engines", [f"{decided.rollout.engines} x tp {decided.rollout.tp}" for _, decided, _ in kinds]),
        (">seqs", [str(decided.rollout.max_num_seqs) for _, decided, _ in kinds]),
        (">KV tokens", [_kv(decided) for _, decided, _ in kinds]),
        (">drafts", [_drafts(decided) for _, decided, _ in kinds]),
        (">balance", [_balance(decided) for _, decided, _ in kinds]),
        (">kept", [_kept(decided) for _, decided, _ in kinds]),
        ("trainers", [_update(decided) for _, decided, _ in kinds]),
        ("freed", [_hand_over(decided) for _, decided, _ in kinds]),
        (">tail", [_tail(decided) for _, decided, _ in kinds]),
        (">reads", [_reached(plan, name, mean, "rollout") for name, _, mean in kinds]),
        (">MFU", [_reached(plan, name, mean, "train") for name, _, mean in kinds]),
    ]
    if not wide:
        columns = [
            column for column in columns if column[0] not in right(("time", "seqs", "KV tokens", "reads", "MFU"))
        ]
    # A column without any value is left out.
    shown = [(title, values) for title, values in columns if any(value != "-" for value in values)]
    drawn = table([title for title, _ in shown])
    for row in zip(*(values for _, values in shown), strict=True):
        drawn.add_row(*row)
    return drawn


def _kv(decided: ShortRound | LongRound) -> str:
    return "-" if decided.rollout.kv_tokens is None else f"{decided.rollout.kv_tokens:,}"


def _issue(decided: ShortRound | LongRound) -> str:
    if getattr(decided, "queue", None) is not None:
        return f"{decided.issue.prompts} x {decided.issue.samples} queue"
    copies = getattr(decided.issue, "copies", 1)
    return f"{decided.issue.prompts} x {decided.issue.samples}" + (f" x {copies}" if copies > 1 else "")


def _cutoff(decided: ShortRound | LongRound) -> str:
    expected_long = getattr(decided, "long_share", None)
    return f"{percent(expected_long)} long" if expected_long else str(getattr(decided, "cutoff_tokens", None) or "-")


def _drafts(decided: ShortRound | LongRound) -> str:
    drafts = decided.rollout.drafts
    return "-" if drafts is None else f"{drafts.tokens} to {drafts.up_to_sequences}"


def _kept(decided: ShortRound | LongRound) -> str:
    prefix = decided.rollout.prefix
    return "-" if prefix is None else f"1 per {prefix.tokens_per_sample}"


def _balance(decided: ShortRound | LongRound) -> str:
    return "-" if decided.rollout.balance is None else f"by {decided.rollout.balance.by}"


def _hand_over(decided: ShortRound | LongRound) -> str:
    freed = decided.hand_over
    return "-" if freed is None else f"{freed.engines} at {percent(freed.at_finished)}"


def _tail(decided: ShortRound | LongRound) -> str:
    tail = getattr(decided, "tail", None)
    return "-" if tail is None else f"{tail.engines} x tp {tail.tp} at {percent(tail.at_finished)}"


def _reached(plan: Plan, kind: str, mean: PredictedRound, phase: str) -> str:
    """The share of the hardware's peak that a phase of a kind of round uses; of training that of whole updates."""
    limit = plan.predicted.limit
    least = None if limit is None else limit.short if kind == "short" else limit.long
    least_s = 0.0 if least is None else getattr(least, f"{phase}_s")
    seconds = (mean.rollout_s if phase == "rollout" else mean.train_s).mean
    if phase == "train" and least is not None and least.update_s is not None:
        seconds = least.update_s
    return percent(least_s / seconds) if least_s and seconds else "-"


def _update(decided: ShortRound | LongRound) -> str:
    return f"{trainers_text(decided.train)}, {decided.train.micro_batch_tokens}"


def seconds_table(plan: Plan, wide: bool) -> Table:
    """Return a table of predicted seconds of each kind of round, of all steps, and of plain rounds."""
    p = plan.predicted
    drawn = table(["seconds", *right(("step", "p50", "p95", "transfer", "rollout", "reward", "train"))])

    def whole(step: Quantiles) -> list[str]:
        return [digits(step.mean), digits(step.p50), digits(step.p95)]

    def phase(spread: Quantiles) -> str:
        return f"{digits(spread.mean)} (p95 {digits(spread.p95)})" if wide else digits(spread.mean)

    kinds = round_kinds(plan)
    for name, _, mean in kinds:
        spreads = (mean.rollout_s, mean.reward_exposed_s, mean.train_s)
        drawn.add_row(f"{name} round", *whole(mean.step_s), digits(mean.sync_s), *map(phase, spreads))
    if len(kinds) > 1:
        means = (p.phases_s.sync, p.phases_s.rollout, p.phases_s.reward_exposed, p.phases_s.train)
        drawn.add_row("all steps", *whole(p.step_s), *map(digits, means), style="bold")
    if p.limit is not None:
        least = (p.limit.phases.sync, p.limit.phases.rollout, p.limit.phases.reward_exposed, p.limit.phases.train)
        drawn.add_row("at peak", digits(p.limit.step_s), "", "", *(digits(phase.limit_s) for phase in least))
    drawn.add_row("plain rounds", *whole(p.baseline.step_s), style="dim")
    return drawn
