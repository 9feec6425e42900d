"""Figures of a run's rounds: lengths and what was decoded in vain, the tail of rollouts, parts of rewards, drafts, what
of scoring and training decoding has hidden, and who decoded, scored and trained when."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plans.phrases.sentences import DRAFT_SOURCES
from ..plans.schema.plan import Plan
from ..rounds.round_shape import TWENTIETHS, shape, tail_begins_s
from .report_steps import place_of
from .run_log import RunLog
from .sample_columns import Samples
from .trace_events import Drafts, Step, Streamed, Tail


def length_quantiles(tokens: NDArray[Any]) -> list[int]:
    """Quantiles of sorted lengths at 0, 5, …, 100 %; empty if there is no sample."""
    places = (place_of(len(tokens), index / TWENTIETHS) for index in range(TWENTIETHS + 1))
    return [int(tokens[place]) for place in places] if len(tokens) else []


def tail(log: RunLog, kind: str) -> dict[str, Any] | None:
    """Shape and tail of the rollouts of one kind of round; None if no round of that kind has all its samples.

    An aborted sample is not in the trace, so only rounds without aborted samples count. `running` and `tail_s` are
    computed as plans predict them (rounds/round_shape.py); `share` is the tails' seconds over all seconds of rollout.
    """
    seconds: list[float] = []
    shapes: list[Sequence[float]] = []
    tails: list[float] = []
    of_kind = [step for step in log.steps if step.kind == kind]
    for step in of_kind:
        rows = log.samples.get(step.step)
        if rows is not None and sum((step.samples or {}).values()) == len(rows) and (spans := _spans(rows)):
            levels = _levels(spans)
            end_s = levels[-1][0]
            seconds.append(end_s)
            shapes.append(shape(levels, end_s))
            tails.append(end_s - tail_begins_s(levels, end_s))
    if not seconds:
        return None
    return {
        "rounds": len(seconds),
        "of_rounds": len(of_kind),
        "tail_s": statistics.fmean(tails),
        "share": sum(tails) / (sum(seconds) or 1.0),
        "running": [round(statistics.fmean(column), 4) for column in zip(*shapes, strict=True)],
    }


def _spans(rows: Samples) -> list[tuple[float, float]]:
    """Begin and end of each sample; empty if one of them does not say."""
    timed = rows.timed
    return list(zip(rows["issued_s"].tolist(), rows["finished_s"].tolist(), strict=True)) if timed.all() else []


def _levels(spans: Sequence[tuple[float, float]]) -> list[tuple[float, int]]:
    """Number of running sequences over time, as round_shape.Levels, from the (start, end) of each sample.

    Real requests start one after another within milliseconds; simulated ones start at once. To compare the two, the
    largest number of the first twentieth counts from the first request on.
    """
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    levels = list(zip((time_s for time_s, _ in changes), accumulate(change for _, change in changes), strict=True))
    first = [pair for pair in levels if pair[0] <= levels[-1][0] / TWENTIETHS]
    if not first:
        return levels
    fullest = max(range(len(first)), key=lambda index: first[index][1])
    return [(levels[0][0], levels[fullest][1]), *levels[fullest + 1 :]]


def waste(log: RunLog) -> dict[str, Any]:
    """Tokens of samples that ended, by fate; the share of them that was not trained; the number of aborted samples.

    An aborted sample was stopped while it decoded; the trace does not say how many tokens it had.
    """
    tokens: Counter[str] = Counter()
    aborted = 0
    for step in log.steps:
        rows = log.samples.get(step.step, ())
        if isinstance(rows, Samples):
            for fate, those in rows.fates().items():
                tokens[fate or "unknown"] += int(rows["tokens"][those].sum(dtype=np.int64))
        aborted += max(0, sum((step.samples or {}).values()) - len(rows))
    total = tokens.total()
    return {
        "tokens": dict(sorted(tokens.items())),
        "share": 1 - tokens["trained"] / total if total else 0.0,
        "aborted_samples": aborted,
    }


def reward_parts(log: RunLog) -> dict[str, dict[str, Any]]:
    """By name of the part; {} for a reward of one part.

    Returns `mean`, of the trained samples and before the weight (None if none was trained); `mean_s`, over all scored
    samples; `outcomes`, counts over all scored samples.
    """
    values: dict[str, list[NDArray[Any]]] = {}
    seconds: dict[str, list[NDArray[Any]]] = {}
    outcomes: dict[str, Counter[str]] = {}
    for rows in log.samples.values():
        for name, (places, parts) in rows.parts().items():
            seconds.setdefault(name, []).append(parts["s"])
            values.setdefault(name, []).append(parts["value"][rows.trained[places]])
            outcomes.setdefault(name, Counter()).update(parts["outcome"].tolist())
    return {
        name: {
            "mean": _mean(values[name]),
            "mean_s": _mean(seconds[name]),
            "outcomes": dict(sorted(outcomes[name].items())),
        }
        for name in seconds
    }


def _mean(parts: Sequence[NDArray[Any]]) -> float | None:
    count = sum(map(len, parts))
    return math.fsum(itertools.chain.from_iterable(part.tolist() for part in parts)) / count if count else None


def drafts_report(log: RunLog) -> dict[str, Any] | None:
    """Figures of the rounds that had drafts; None if there is none.

    A *sample step* is a step of an engine as one sample sees it: without drafts it gives the sample one token, and each
    accepted token is one more. Only steps in which drafts were looked for are counted: a plan has drafts for small
    batches alone, and drafts that do not pay are left out.

    `rounds`; `accepted`, tokens a sample step, and `by_source` the same by source; `accepted_share_at`, by place in a
    draft the share of its tokens that were accepted; `epochs`, each with `epoch`, `rounds`, `accepted`, `by_source` and
    `saved_s`; `saved_s`, engine seconds by which steps with drafts were shorter than those without for as many tokens,
    in all rounds (None where a trace of an earlier version does not tell; negative where drafts cost); `batches`, by
    the most samples of a class of batches; `ahead_samples`, `ahead_tokens`; `index_bytes` of the round with the most,
    `history_bytes` at the end.
    """
    numbers = {step.step for step in log.steps}
    rounds = [event for number, event in sorted(log.drafts.items()) if number in numbers]
    if not rounds:
        return None
    by_epoch = itertools.groupby(sorted(rounds, key=_epoch), key=_epoch)
    drafted, accepted = _summed(e.drafted_at for e in rounds), _summed(e.accepted_at for e in rounds)
    return {
        **_draft_figures(rounds),
        "accepted_share_at": [a / d if d else None for a, d in zip(accepted, drafted, strict=True)],
        "epochs": [{"epoch": epoch, **_draft_figures(list(those))} for epoch, those in by_epoch],
        "batches": _batches(rounds),
        "ahead_samples": sum(event.ahead[0] for event in rounds),
        "ahead_tokens": sum(event.ahead[1] for event in rounds),
        "index_bytes": max(event.index_bytes for event in rounds),
        "history_bytes": rounds[-1].history_bytes,
    }


def _epoch(event: Drafts) -> int:
    return event.epoch


def _draft_figures(rounds: Sequence[Drafts]) -> dict[str, Any]:
    """Figures of some rounds with drafts."""
    counts: Counter[str] = Counter()
    for event in rounds:
        counts.update(event.by_source)
    sample_steps = max(1, sum(event.sequence_steps for event in rounds))
    named = [source for source in (*DRAFT_SOURCES, *sorted(set(counts) - set(DRAFT_SOURCES))) if counts[source]]
    saved = [batch.saved_s for event in rounds for batch in event.batches.values()]
    return {
        "rounds": len(rounds),
        "accepted": sum(counts.values()) / sample_steps,
        "by_source": {source: counts[source] / sample_steps for source in named},
        "saved_s": None if None in saved else sum(each for each in saved if each is not None),
    }


def _summed(counts: Iterable[Sequence[int]]) -> list[int]:
    """Tokens at each place of a draft, over all rounds."""
    return [sum(column) for column in itertools.zip_longest(*counts, fillvalue=0)]


def _batches(rounds: Iterable[Drafts]) -> dict[str, dict[str, Any]]:
    """By the most samples of a class of batches: the last means, and what is counted by round in all."""
    classes: dict[int, dict[str, Any]] = {}
    for event in rounds:
        for size, batch in event.batches.items():
            before = classes.get(size, {})
            classes[size] = {name: getattr(batch, name) for name in ("plain_s", "drafted_s", "emitted")}
            for name in ("verified", "saved_s"):
                value = getattr(batch, name)
                classes[size][name] = None if value is None else (before.get(name) or 0) + value
    return {str(size): batch for size, batch in sorted(classes.items())}


def overlap(plan: Plan, log: RunLog) -> dict[str, Any]:
    """What was hidden behind decoding, as means over the steps, in seconds: by name `reward` and `train`, `exposed_s`
    (the step waited for it) and `alone_s` (it would have waited, had nothing run beside the rollout).

    Scores alone take the seconds of all samples shared out over the workers; updates alone take the update's seconds
    and, at the speed of all replicas, those of the portions that were trained before. `streamed`: rounds in which
    groups were trained before the end, their groups and samples that moved, as means over these rounds; None: none.
    `balanced`: rounds that were balanced by history, and the share of their prompts of which something was known; None:
    none.
    `tails`: rounds whose tail other engines decoded, the seconds of the change and samples that moved, as means over
    these; None: none.
    """
    scored = [
        sum(np.nan_to_num(log.samples[step.step]["reward_s"]).tolist()) if step.step in log.samples else 0.0
        for step in log.steps
    ]
    exposed_s = statistics.fmean(step.train_s for step in log.steps)
    streamed = {event.step: event for event in log.streamed.values() if event.groups}
    hidden_s = [
        sum(ended - began for began, ended, _ in streamed[step.step].portions)
        * len(streamed[step.step].replicas) / plan.job.rounds.short.train.dp
        if step.step in streamed else 0.0
        for step in log.steps
    ]  # fmt: skip
    balanced = list(log.balanced.values())
    changed = [event for event in log.tails.values() if event.seconds is not None]
    return {
        "reward": {
            "exposed_s": statistics.fmean(step.reward_exposed_s for step in log.steps),
            "alone_s": statistics.fmean(scored) / _scored_at_once(plan),
        },
        "train": {"exposed_s": exposed_s, "alone_s": exposed_s + statistics.fmean(hidden_s)},
        "streamed": _means(list(streamed.values()), "groups", "moved"),
        "balanced": {
            "rounds": len(balanced),
            "known": sum(event.known for event in balanced) / max(1, sum(event.prompts for event in balanced)),
        }
        if balanced
        else None,
        "tails": _means(changed, "seconds", "moved"),
    }


def _means(events: Sequence[Streamed | Tail], *names: str) -> dict[str, Any] | None:
    """The number of rounds and the mean of each figure over them; None without any."""
    if not events:
        return None
    return {"rounds": len(events), **{name: statistics.fmean(getattr(e, name) for e in events) for name in names}}


def _scored_at_once(plan: Plan) -> int:
    """How many samples are scored at once: by reward workers, else by a judge; 1 where only lengths are looked at."""
    reward = plan.job.reward
    judged = 0 if reward.judge is None else reward.judge.instances * reward.judge.at_once
    return reward.workers or judged or 1


def round_timeline(log: RunLog) -> dict[str, Any] | None:
    """The last round that trained groups before its end, or else the last one that has samples: its `step`, `kind`,
    `end_s` (of the step) and `rows`, each with a `name`, `what` (decode, score, stream, train) and `spans` (begin and
    end in seconds from the round's start) that do not overlap; None without samples.

    Decoding is that of samples that ended; one that was aborted is not in a trace. Traces of earlier versions do not
    say when samples decoded, and have no timeline.
    """
    early = {event.step: event for event in log.streamed.values() if event.groups}
    by_streaming = itertools.chain((s for s in reversed(log.steps) if s.step in early), reversed(log.steps))
    timed = ((step, _decoded(log, step)) for step in by_streaming)
    step, rows = next(((step, rows) for step, rows in timed if rows), (None, []))
    if step is None:
        return None
    streamed, tail = early.get(step.step), log.tails.get(step.step)
    freed = set(streamed.freed) if streamed else set()
    began_s = [float(streamed.begun_s)] if streamed and streamed.begun_s is not None else []
    if tail is not None and tail.at_s is not None and tail.seconds is not None:
        began_s.append(tail.at_s + tail.seconds)
    moved_s = max(began_s, default=0.0)  # when samples that moved went on
    decoding: dict[str, list[tuple[float, float]]] = {name: [] for name in sorted(freed)}
    for engine, issued_s, finished_s, moves, _ in rows:
        began = moved_s if moves else issued_s
        decoding.setdefault(engine, []).append((began, max(began, finished_s)))
        if moves and len(freed) == 1:
            decoding[next(iter(freed))].append((issued_s, moved_s))
    round_s = step.rollout_s + step.reward_exposed_s + step.outside_s
    result = [_row(name, "decode", spans) for name, spans in sorted(decoding.items())]
    result.append(_row("scores", "score", ((ended_s, ended_s + scored_s) for _, _, ended_s, _, scored_s in rows)))
    if streamed is not None:
        name = "trainer, before the round's end"
        result.append(_row(name, "stream", ((began, ended) for began, ended, _ in streamed.portions)))
    result.append(_row("trainer", "train", [(round_s, round_s + step.train_s)]))
    return {"step": step.step, "kind": step.kind, "end_s": round_s + step.train_s, "rows": result}


def _decoded(log: RunLog, step: Step) -> list[tuple[str, float, float, int, float]]:
    """(engine, issued_s, finished_s, moves, seconds of scoring) of the samples that say where and when they decoded."""
    return [
        (row.engine, row.issued_s, row.finished_s, row.moves, row.reward_s or 0.0)
        for row in log.samples.get(step.step, ())
        if row.engine is not None and row.issued_s is not None and row.finished_s is not None
    ]


def _row(name: str, what: str, spans: Iterable[tuple[float, float]]) -> dict[str, Any]:
    """A row of a timeline; spans that touch become one."""
    joined: list[list[float]] = []
    for began, ended in sorted(spans):
        if joined and began <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], ended)
        elif ended > began:
            joined.append([began, ended])
    return {"name": name, "what": what, "spans": joined}
