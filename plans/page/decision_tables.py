"""Tables of a plan's page: settings of each kind of round, decisions with their `why`, input files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from ..phrases.numbers import NONE, percent, seconds
from ..phrases.sentences import sentence
from ..phrases.update_text import trainers_text, update_text
from ..schema.levers import UpdateLayout
from ..schema.plan import InputFile, Plan, Volatile
from ..schema.planned_rounds import LongRound, RoundRollout, ShortRound
from .elements import Banner, Table, code


def settings(plan: Plan) -> Table:
    """Return a table of the settings of each kind of round."""
    rounds = plan.job.rounds
    kinds: list[ShortRound | LongRound] = [rounds.short] + ([rounds.long] if rounds.long is not None else [])
    issue = [
        f"{r.issue.prompts:,} prompts × {r.issue.samples} samples"
        + (f", {r.issue.copies} copies at once" if isinstance(r, LongRound) and r.issue.copies > 1 else "")
        + (", by queue" if isinstance(r, LongRound) and r.queue is not None else "")
        for r in kinds
    ]
    rows = [
        ["issue", *issue],
        ["queue", *(_queue(r) for r in kinds)],
        ["engines", *(_engines(r.rollout) for r in kinds)],
        ["drafts", *(NONE if r.rollout.drafts is None else value_text(r.rollout.drafts) for r in kinds)],
        ["samples of a prompt", *(_prefix(r.rollout) for r in kinds)],
        ["order of samples", *(_balance(r.rollout) for r in kinds)],
        ["trainers", *(trainers_text(r.train) for r in kinds)],
        ["micro-batch", *(f"{r.train.micro_batch_tokens:,} tokens" for r in kinds)],
        ["hand-over", *(NONE if r.hand_over is None else value_text(r.hand_over) for r in kinds)],
        ["engines of the tail", *(_tail(r) for r in kinds)],
    ]
    if rounds.short.cutoff_tokens is not None:
        rows.insert(1, ["cutoff", f"{rounds.short.cutoff_tokens:,} tokens", NONE])
    if rounds.short.long_share is not None:
        rows.insert(1, ["prompts expected to be long", NONE, percent(rounds.short.long_share)])
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    head = ["", "short round", "long round"] if rounds.long is not None else ["", "every round"]
    return Table(head, rows, kind="two")


def _engines(rollout: RoundRollout) -> str:
    return f"{rollout.engines} × TP {rollout.tp}, {rollout.max_num_seqs:,} sequences each"


def _queue(round_: ShortRound | LongRound) -> str:
    queue = round_.queue if isinstance(round_, LongRound) else None
    if queue is None:
        return NONE
    return (
        f"one copy more for each {queue.more_copies_every} rounds without a long draw, drawn until long after "
        f"{queue.until_long_after}"
    )


def _tail(round_: ShortRound | LongRound) -> str:
    tail = round_.tail if isinstance(round_, LongRound) else None
    return (
        NONE if tail is None else f"{tail.engines} × TP {tail.tp}, from {percent(tail.at_finished)} of the samples on"
    )


def _prefix(rollout: RoundRollout) -> str:
    prefix = rollout.prefix
    return NONE if prefix is None else f"together, one ahead per {prefix.tokens_per_sample:,} shared tokens"


def _balance(rollout: RoundRollout) -> str:
    return NONE if rollout.balance is None else f"longest expected first, by {rollout.balance.by}"


def value_text(value: Any) -> str:
    """Return a decided value in a few words; a model as `key value, …`, without keys that are null or false."""
    if isinstance(value, RoundRollout):
        return _engines(value)
    if isinstance(value, UpdateLayout):
        return update_text(value)
    if isinstance(value, BaseModel):
        values = {key: getattr(value, key) for key in type(value).model_fields}
        return ", ".join(
            f"{key.replace('_', ' ')} {value_text(part)}" for key, part in values.items() if part not in (None, False)
        )
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def decided_text(plan: Plan, key: str) -> str:
    """Return the value that a key of `why` explains, as text; empty if the key names no single value."""
    value: Any = plan.job
    for part in key.split("."):
        value = getattr(value, part, None) if isinstance(value, BaseModel) else None
    if value is None or key in ("rounds", "rounds.short", "rounds.long"):
        return ""
    return value_text(value)


def reasons(plan: Plan) -> Table:
    """Return a table of decisions with their `why`."""
    rows = [[code(key), decided_text(plan, key), text] for key, text in plan.job.why.items()]
    return Table(["decision", "value", "why"], rows, kind="why")


def inputs(files: Sequence[tuple[str, InputFile]], digest: str) -> Table:
    """Return a table of the files that a plan was solved from, and of the digest of its decisions."""
    rows = [[name, code(file.path), getattr(file, "provenance", ""), code(file.sha256)] for name, file in files]
    rows.append(["decisions", "", "", code(digest)])
    if not any(row[2] for row in rows):
        return Table(["", "file", "SHA-256"], [[a, b, d] for a, b, _, d in rows])
    return Table(["", "file", "origin", "SHA-256"], rows)


def banners(notes: Sequence[str], edited: bool) -> list[Banner]:
    """Return the banners of a plan's page: each note, and a warning if the decisions were edited after the solve."""
    warning = "Edited since it was solved: the predictions and reasons below are of other decisions."
    return [Banner(sentence(note)) for note in notes] + [Banner(warning)] * edited


def solved(volatile: Volatile, changes: str) -> str:
    """Return when and by which version a plan was solved, and what makes it stale."""
    return (
        f"Solved {volatile.solved_at} in {seconds(volatile.solve_s)} by rlplan {volatile.rlplan}. When one of these "
        f"files {changes}, the plan is stale."
    )
