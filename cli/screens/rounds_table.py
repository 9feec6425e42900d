"""Tables of a plan's kinds of round: what a round does, and its predicted seconds by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from ...plans.phrases.numbers import digits, percent
from ...plans.phrases.update_text import trainers_text
from .bars import table

if TYPE_CHECKING:
    from ...plans.schema.plan import Plan
    from ...plans.schema.planned_rounds import LongRound, ShortRound
    from ...plans.schema.predicted import PredictedRound, Quantiles


def round_kinds(plan: Plan) -> list[tuple[str, ShortRound | LongRound, PredictedRound]]:
    """Return the kinds of round of a plan: name, decisions, prediction."""
    rounds, predicted = plan.job.rounds, plan.predicted.rounds
    kinds: list[tuple[str, ShortRound | LongRound, PredictedRound]] = [("short", rounds.short, predicted.short)]
    if rounds.long is not None and predicted.long is not None:
        kinds.append(("long", rounds.long, predicted.long))
    return kinds


def rounds_table(plan: Plan, wide: bool) -> Table:
    """Return a table of what a round of each kind does; `wide`: with all columns."""
    kinds, total = round_kinds(plan), plan.predicted.step_s.mean
    columns: list[tuple[str, list[str]]] = [
        ("rounds", [name for name, _, _ in kinds]),
        ("steps", [percent(mean.share) for _, _, mean in kinds]),
        ("time", [percent(mean.share * mean.step_s.mean / total) if total else "" for _, _, mean in kinds]),
        ("issue", [_issue(decided) for _, decided, _ in kinds]),
        ("cutoff", [_cutoff(decided) for _, decided, _ in kinds]),
        ("engines", [f"{decided.rollout.engines} x tp {decided.rollout.tp}" for _, decided, _ in kinds]),
        ("seqs", [str(decided.rollout.max_num_seqs) for _, decided, _ in kinds]),
        ("KV tokens", [_kv(decided) for _, decided, _ in kinds]),
        ("drafts", [_drafts(decided) for _, decided, _ in kinds]),
        ("balance", [_balance(decided) for _, decided, _ in kinds]),
        ("kept", [_kept(decided) for _, decided, _ in kinds]),
        ("<trainers", [_update(decided) for _, decided, _ in kinds]),
        ("<freed", [_hand_over(decided) for _, decided, _ in kinds]),
        ("tail", [_tail(decided) for _, decided, _ in kinds]),
        ("reads", [_reached(plan, name, mean, "rollout") for name, _, mean in kinds]),
        ("MFU", [_reached(plan, name, mean, "train") for name, _, mean in kinds]),
    ]
    if not wide:
        columns = [column for column in columns if column[0] not in ("time", "seqs", "KV tokens", "reads", "MFU")]
    # A column without any value is left out.
    shown = [(title, values) for title, values in columns if any(value != "-" for value in values)]
    drawn = table(*(title for title, _ in shown))
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
    drawn = table("seconds", "step", "p50", "p95", "transfer", "rollout", "reward", "train")

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
