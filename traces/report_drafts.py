"""What drafts gave a run: accepted tokens by source and epoch, seconds saved, bytes that it remembers.

A *sample step* is a step of an engine as one sample sees it: without drafts it gives the sample one token, and each
accepted token is one more. Only steps in which drafts were looked for are counted: a plan has drafts for small batches
alone, and drafts that do not pay are left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..plans.phrases.draft_sources import DRAFT_SOURCES

Event = dict[str, Any]


def drafts_report(steps: Sequence[Event], events: Sequence[Event]) -> dict[str, Any] | None:
    """Figures of the rounds that had drafts; None if there is none.

    `rounds`; `accepted`, tokens a sample step, and `by_source` the same by source; `accepted_share_at`, by place in a
    draft the share of its tokens that were accepted; `epochs`, each with `epoch`, `rounds`, `accepted`, `by_source` and
    `saved_s`; `saved_s`, engine seconds by which steps with drafts were shorter than those without for as many tokens,
    in all rounds (None where a trace of an earlier version does not tell; negative where drafts cost); `batches`, by
    the most samples of a class of batches; `ahead_samples`, `ahead_tokens`; `index_bytes` of the round with the most,
    `history_bytes` at the end.
    """
    numbers = {step["step"] for step in steps}
    # A step that was done again after a resume counts once, as it was done last.
    last = {event["step"]: event for event in events if event["event"] == "drafts" and event["step"] in numbers}
    rounds = [last[number] for number in sorted(last)]
    if not rounds:
        return None
    by_epoch = itertools.groupby(sorted(rounds, key=_epoch), key=_epoch)
    drafted, accepted = _at(rounds, "drafted_at"), _at(rounds, "accepted_at")
    return {
        **_figures(rounds),
        "accepted_share_at": [a / d if d else None for a, d in zip(accepted, drafted, strict=True)],
        "epochs": [{"epoch": epoch, **_figures(list(those))} for epoch, those in by_epoch],
        "batches": _batches(rounds),
        "ahead_samples": sum(event.get("ahead", (0, 0))[0] for event in rounds),
        "ahead_tokens": sum(event.get("ahead", (0, 0))[1] for event in rounds),
        "index_bytes": max(event["index_bytes"] for event in rounds),
        "history_bytes": rounds[-1]["history_bytes"],
    }


def _epoch(event: Event) -> int:
    return int(event["epoch"])


def _figures(rounds: Sequence[Event]) -> dict[str, Any]:
    """Figures of some rounds with drafts."""
    counts: Counter[str] = Counter()
    for event in rounds:
        counts.update(event["by_source"])
    sample_steps = max(1, sum(event["sequence_steps"] for event in rounds))
    named = [source for source in (*DRAFT_SOURCES, *sorted(set(counts) - set(DRAFT_SOURCES))) if counts[source]]
    saved = [batch.get("saved_s") for event in rounds for batch in event["batches"].values()]
    return {
        "rounds": len(rounds),
        "accepted": sum(counts.values()) / sample_steps,
        "by_source": {source: counts[source] / sample_steps for source in named},
        "saved_s": None if None in saved else sum(saved),
    }


def _at(rounds: Iterable[Event], name: str) -> list[int]:
    """Tokens at each place of a draft, over all rounds."""
    return [sum(column) for column in itertools.zip_longest(*(event[name] for event in rounds), fillvalue=0)]


def _batches(rounds: Iterable[Event]) -> dict[str, dict[str, Any]]:
    """By the most samples of a class of batches: the last means, and what is counted by round in all."""
    classes: dict[str, dict[str, Any]] = {}
    for event in rounds:
        for size, batch in event["batches"].items():
            before = classes.get(size, {})
            sums = {
                name: before.get(name, 0) + batch[name] if name in batch else None for name in ("verified", "saved_s")
            }
            classes[size] = {**{name: batch[name] for name in ("plain_s", "drafted_s", "emitted")}, **sums}
    return dict(sorted(classes.items(), key=lambda item: int(item[0])))
