"""The page of a plan of one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from ..facts.digest import job_decisions
from ..facts.plan_text import (
    assumed_errors,
    cut_text,
    drift_text,
    limit_text,
    nodes_text,
    proof_word,
    solver_status,
    trainers_text,
    update_text,
    wait_text,
)
from ..facts.round_bars import round_bars
from ..phrases.numbers import NONE, bytes_text, count, digits, percent, ratio, seconds, times, usd
from ..phrases.sentences import sentence
from ..phrases.tables import Table
from ..schema.levers import UpdateLayout
from ..schema.plan import InputFile, Inputs, Plan, Volatile
from ..schema.planned_rounds import LongRound, RoundRollout, ShortRound
from ..schema.predicted import Predicted
from ..schema.predicted_evidence import MUCH_AT_CAP, HardwareLimit
from . import charts_plan
from .charts_round import timeline
from .elements import Banner, Card, render


def settings(plan: Plan) -> Table:
    """Return a table of the settings of each kind of round."""
    rounds = plan.job.rounds
    kinds = [kind for _, kind in rounds.kinds]
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
    return Table.of(head, rows, kind="two")


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
    rows = [(key, decided_text(plan, key), text) for key, text in plan.job.why.items()]
    return Table.of(["`decision", "value", "why"], rows, kind="why")


def inputs(files: Sequence[tuple[str, InputFile]], digest: str) -> Table:
    """Return a table of the files that a plan was solved from, and of the digest of its decisions."""
    rows = [(name, file.path, getattr(file, "provenance", ""), file.sha256) for name, file in files]
    rows.append(("decisions", "", "", digest))
    if not any(row[2] for row in rows):
        return Table.of(["", "`file", "`SHA-256"], [(a, b, d) for a, b, _, d in rows])
    return Table.of(["", "`file", "origin", "`SHA-256"], rows)


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


def plan_page(plan: Plan, *, title: str, notes: Sequence[str] = ()) -> str:
    """Return the page of a plan of one job.

    `notes`: warnings that are not in the plan itself, such as that its inputs have changed.
    """
    job, origin = plan.job, plan.inputs
    subtitle = (
        f"Plan of job {job.name}: mode {job.bias.mode}, {count(job.issue.prompts_per_step, 'prompt')} × "
        f"{count(job.issue.samples_per_prompt, 'sample')} a step, on {nodes_text(plan)}"
    )
    edited = job_decisions(job) != plan.decisions_sha256
    input_files = [
        ("cluster", origin.cluster),
        ("job", origin.job),
        ("profile", origin.profile),
        ("lengths", InputFile(path=origin.lengths.name, sha256=origin.lengths.sha256)),
        *_rewards(origin),
    ]
    return render(
        "plan.html.j2",
        title,
        subtitle,
        banners=banners(notes, edited),
        cards=headline(plan),
        timeline=timeline(plan.predicted, round_bars(plan)),
        charts=[f(plan) for f in (charts_plan.phases, charts_plan.front, charts_plan.lengths, charts_plan.memory)],
        drift=sentence(drift_text(plan.predicted.drift)),
        rounds=settings(plan),
        reasons=reasons(plan),
        inputs=inputs(input_files, plan.decisions_sha256),
        solved=solved(plan.volatile, "changes in what the solver reads"),
    )


def _rewards(origin: Inputs) -> list[tuple[str, InputFile]]:
    """Return the table of reward seconds that ships with rlplan, if the plan was solved with one."""
    rewards = origin.rewards
    return [] if rewards is None else [("rewards", InputFile(path=rewards.library, sha256=rewards.sha256))]


def _limit(limit: HardwareLimit | None) -> list[Card]:
    """Return the card on the distance to the hardware's peak; none where that is not known."""
    return [] if limit is None else [Card("Of the hardware's peak", percent(limit.ratio), limit_text(limit))]


def _cut(predicted: Predicted) -> list[Card]:
    """Return the card on the trained samples that the job's cap cuts; none for an older plan."""
    if (cut := predicted.cut) is None:
        return []
    return [Card("Cut at the cap", percent(cut.share), cut_text(predicted), "warn" if cut.share >= MUCH_AT_CAP else "")]


def _wait(predicted: Predicted) -> list[Card]:
    """Return the card on how long prompts wait in the queue of long rounds; none without a queue."""
    wait = predicted.wait
    return [] if wait is None else [Card("Wait in the queue", digits(wait.mean_rounds), wait_text(predicted))]


def headline(plan: Plan) -> list[Card]:
    """Return the cards with the headline figures."""
    predicted, solver = plan.predicted, plan.solver
    plain_ms, here_ms = 1000 * predicted.baseline.seconds_per_sample, 1000 * predicted.seconds_per_sample
    name, tightest, _ = min(charts_plan.named_memory(plan), key=lambda bar: bar[1].headroom)
    off = abs(1 - predicted.length_ratio)
    return [
        Card(
            "Mean step",
            seconds(predicted.step_s.mean),
            f"± {percent(predicted.error.total)} (costs {percent(predicted.error.costs)}, "
            f"lengths {percent(predicted.error.lengths)}, simulation {percent(predicted.error.sampling)}"
            + assumed_errors(predicted.error)
            + (f", longer than seen {percent(predicted.error.extrapolation)}" if predicted.error.extrapolation else "")
            + "); "
            f"p50 {seconds(predicted.step_s.p50)}, p95 {seconds(predicted.step_s.p95)}",
        ),
        Card(
            "Speed-up",
            times(predicted.speedup),
            f"{here_ms:,.1f} ms a trained sample; plain rounds take {plain_ms:,.1f} ms",
            "good" if predicted.speedup > 1.005 else "bad" if predicted.speedup < 0.995 else "",
        ),
        *_limit(predicted.limit),
        Card(
            "USD per hour",
            usd(predicted.usd_per_hour),
            f"{usd(predicted.usd_per_1k_samples)} USD per 1,000 samples, {count(predicted.nodes, 'node')}",
        ),
        Card(
            "Bias: length ratio",
            ratio(predicted.length_ratio),
            f"mode {plan.job.bias.mode}, budget {digits(plan.job.bias.budget)}; 1 is unbiased",
            "good" if off < 0.005 else "bad" if off > plan.job.bias.budget + 0.02 else "warn",
        ),
        *_cut(predicted),
        *_wait(predicted),
        Card(
            "Memory to spare",
            percent(tightest.headroom),
            f"tightest: {name}, {bytes_text(tightest.needed_bytes)} of {bytes_text(tightest.capacity_bytes)}",
            "bad" if tightest.headroom < 0 else "warn" if tightest.headroom < 0.05 else "",
        ),
        Card(
            "Proof",
            proof_word(solver),
            f"{solver_status(solver)}; objective {solver.objective.replace('_', ' ')}, {solver.method}, "
            f"{solver.name}; costs "
            f"{plan.inputs.profile.provenance}",
            "good" if solver.status == "optimal" else "warn",
        ),
    ]
