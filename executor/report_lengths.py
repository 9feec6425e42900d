"""What a run's samples tell: how long they were, the tail of its rollouts, and what was decoded for nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .report_steps import quantile

Samples = Mapping[int, Sequence[dict[str, Any]]]
POINTS = 21


def length_quantiles(tokens: Sequence[int]) -> list[int]:
    """Quantiles at 0, 5, …, 100 %; empty without a sample."""
    return [int(quantile(tokens, index / (POINTS - 1))) for index in range(POINTS)] if tokens else []


def tail(steps: Sequence[dict[str, Any]], samples: Samples, kind: str) -> dict[str, Any] | None:
    """The shape of the rollouts of one kind; None if no round of it tells it.

    A sample that was aborted is not in the trace, so only rounds tell it in which each sample that was issued is.
    `running`: sequences at each twentieth of the rollout as a share of the most, mean over rounds. `tail_s`: mean
    seconds of its end in which fewer than a quarter of the most run; `share`: these over all seconds of rollout.
    """
    whole = [
        [(float(r["issued_s"]), float(r["finished_s"])) for r in samples.get(step["step"], ())]
        for step in steps
        if step["kind"] == kind and _is_whole(step, samples.get(step["step"], ()))
    ]
    if not whole:
        return None
    shapes = [_shape(spans) for spans in whole]
    seconds = [max(end for _, end in spans) for spans in whole]
    tails = [tail_s for _, tail_s in shapes]
    return {
        "rounds": len(whole),
        "of_rounds": sum(step["kind"] == kind for step in steps),
        "tail_s": statistics.fmean(tails),
        "share": sum(tails) / (sum(seconds) or 1.0),
        "running": [round(statistics.fmean(column), 4) for column in zip(*(s for s, _ in shapes), strict=True)],
    }


def _is_whole(step: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Whether every sample that the round issued is in the trace, with its times."""
    timed = all(isinstance(row.get(key), int | float) for row in rows for key in ("issued_s", "finished_s"))
    return bool(rows) and timed and sum((step.get("samples") or {}).values()) == len(rows)


def _shape(spans: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
    """(running sequences at each twentieth as a share of the most, seconds of the tail) of one round."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    times, running = [0.0], [0]
    for at, change in changes:
        times.append(at)
        running.append(running[-1] + change)
    end, most = times[-1], max(running)
    shares, index = [], 0
    for point in range(POINTS):
        while index + 1 < len(times) and times[index + 1] <= end * point / (POINTS - 1):
            index += 1
        shares.append(running[index] / most)
    # Nothing runs at the very beginning; what begins within the first twentieth counts.
    shares[0] = max(n for at, n in zip(times, running, strict=True) if at <= end / (POINTS - 1)) / most
    last_full = max(i for i, number in enumerate(running) if 4 * number >= most)
    return shares, end - times[last_full + 1]


def waste(steps: Sequence[dict[str, Any]], samples: Samples) -> dict[str, Any]:
    """Tokens of samples that ended, by what became of them, and what cannot be told.

    `share`: of these tokens, those that were not trained. `aborted_samples`: stopped while they decoded; the trace
    does not say how far they were.
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
