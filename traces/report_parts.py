"""What each part of a reward of several parts gave: its mean value, its seconds, and how its scoring ended."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def reward_parts(samples: Mapping[int, Sequence[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
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
