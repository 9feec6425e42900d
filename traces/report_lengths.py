"""Figures of a run's samples: their lengths, the tail of its rollouts, tokens that were decoded and not trained, and
what each part of a reward of several parts gave."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..rounds.round_shape import TWENTIETHS, shape, tail_begins_s
from .report_steps import quantile
from .run_log import LONGEST_S

Samples = Mapping[int, Sequence[dict[str, Any]]]


def length_quantiles(tokens: Sequence[int]) -> list[int]:
    """Quantiles of lengths at 0, 5, …, 100 %; empty if there is no sample."""
    return [int(quantile(tokens, index / TWENTIETHS)) for index in range(TWENTIETHS + 1)] if tokens else []


def tail(steps: Sequence[dict[str, Any]], samples: Samples, kind: str) -> dict[str, Any] | None:
    """Shape and tail of the rollouts of one kind of round; None if no round of that kind has all its samples.

    An aborted sample is not in the trace, so only rounds without aborted samples count. `running` and `tail_s` are
    computed as plans predict them (rounds/round_shape.py); `share` is the tails' seconds over all seconds of rollout.
    """
    spans_of_rounds = [
        [(float(r["issued_s"]), float(r["finished_s"])) for r in samples.get(step["step"], ())]
        for step in steps
        if step["kind"] == kind and _is_whole(step, samples.get(step["step"], ()))
    ]
    if not spans_of_rounds:
        return None
    rounds = [_levels(spans) for spans in spans_of_rounds]
    seconds = [levels[-1][0] for levels in rounds]
    shapes = [shape(levels, end_s) for levels, end_s in zip(rounds, seconds, strict=True)]
    tails = [end_s - tail_begins_s(levels, end_s) for levels, end_s in zip(rounds, seconds, strict=True)]
    return {
        "rounds": len(rounds),
        "of_rounds": sum(step["kind"] == kind for step in steps),
        "tail_s": statistics.fmean(tails),
        "share": sum(tails) / (sum(seconds) or 1.0),
        "running": [round(statistics.fmean(column), 4) for column in zip(*shapes, strict=True)],
    }


def _is_whole(step: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Whether every sample that the round issued is in the trace, with its times."""
    whole = sum((step.get("samples") or {}).values()) == len(rows)
    return bool(rows) and whole and all(_is_timed(row) for row in rows)


def _is_timed(row: dict[str, Any]) -> bool:
    begin, end = row.get("issued_s"), row.get("finished_s")
    return isinstance(begin, int | float) and isinstance(end, int | float) and 0 <= begin <= end <= LONGEST_S


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


def waste(steps: Sequence[dict[str, Any]], samples: Samples) -> dict[str, Any]:
    """Tokens of samples that ended, by fate; the share of them that was not trained; the number of aborted samples.

    An aborted sample was stopped while it decoded; the trace does not say how many tokens it had.
    """
    tokens: Counter[str] = Counter()
    aborted = 0
    for step in steps:
        rows = samples.get(step["step"], ())
        for row in rows:
            tokens[row["fate"] or "unknown"] += int(row["tokens"])
        aborted += max(0, sum((step.get("samples") or {}).values()) - len(rows))
    total = tokens.total()
    return {
        "tokens": dict(sorted(tokens.items())),
        "share": 1 - tokens["trained"] / total if total else 0.0,
        "aborted_samples": aborted,
    }


def reward_parts(samples: Samples) -> dict[str, dict[str, Any]]:
    """By name of the part; {} for a reward of one part. `samples`: those of each step.

    Returns `mean`, of the trained samples and before the weight (None if none was trained); `mean_s`, over all scored
    samples; `outcomes`, counts over all scored samples.
    """
    values: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    outcomes: dict[str, Counter[str]] = {}
    for rows in samples.values():
        for row in rows:
            for name, part in (row.get("reward_parts") or {}).items():
                seconds.setdefault(name, []).append(float(part["s"]))
                outcomes.setdefault(name, Counter())[str(part["outcome"])] += 1
                if row["fate"] == "trained":
                    values.setdefault(name, []).append(float(part["value"]))
    return {
        name: {
            "mean": statistics.fmean(values[name]) if name in values else None,
            "mean_s": statistics.fmean(seconds[name]),
            "outcomes": dict(sorted(outcomes[name].items())),
        }
        for name in seconds
    }
