"""Plans of one job for several clusters and values: the seconds, the cost and the bottleneck of each.

A point is one choice of cluster and values. It has a plan, or the reason why it has none. Points are not written to any
document: they exist while `rlplan compare` runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..phrases.sentences import PHASE_NAMES
from ..schema.plan import Plan
from .plan_text import assumed_facts, assumed_notes
from .round_bars import critical_path

TIGHT = 0.1
"""A memory is named as a bottleneck if less than this share of it stays free."""


@dataclass(frozen=True)
class ComparedPoint:
    """One choice of cluster and values, with its plan.

    Attributes:
        values: by dotted path (and `cluster`, where there are several), as a document has them: numbers are numbers.
        plan: the plan for this choice; None if there is none.
        reason: why there is no plan; empty if there is one.
        notes: warnings of the solver, and which profile was used instead of the job's.
    """

    values: Mapping[str, Any]
    plan: Plan | None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The values in one line: `nodes 4, prompts_per_step 256`."""
        settings = [f"{short_name(path, list(self.values))} {value}" for path, value in self.value_texts.items()]
        return ", ".join(settings) or "as it is"

    @property
    def value_texts(self) -> dict[str, str]:
        """The values as text."""
        return {path: setting_text(value) for path, value in self.values.items()}

    @property
    def assumed(self) -> list[str]:
        """One line for each input of the plan that was assumed and not measured; empty where there is no plan."""
        return [] if self.plan is None else assumed_notes(self.plan.inputs)

    def data(self) -> dict[str, Any]:
        """Return the point as a JSON object, with figures as in the plan's `predicted`; null where there is no plan."""
        point: dict[str, Any] = {"values": dict(self.values), "reason": self.reason or None}
        point |= {"notes": list(self.notes), "assumed": self.assumed}
        plan = self.plan
        if plan is None:
            return point | dict.fromkeys(FIGURES)
        predicted = plan.predicted
        return point | {
            "mode": plan.job.bias.mode,
            "nodes": predicted.nodes,
            "step_s": predicted.step_s.mean,
            "step_p95_s": predicted.step_s.p95,
            "error": predicted.error.total,
            "seconds_per_sample": predicted.seconds_per_sample,
            "speedup": predicted.speedup,
            "usd_per_hour": predicted.usd_per_hour,
            "usd_per_1k_samples": predicted.usd_per_1k_samples,
            "length_ratio": predicted.length_ratio,
            "cut_share": predicted.cut_share,
            "binds": binds(plan),
        }


FIGURES = (
    "mode", "nodes", "step_s", "step_p95_s", "error", "seconds_per_sample", "speedup", "usd_per_hour",
    "usd_per_1k_samples", "length_ratio", "cut_share", "binds",
)  # fmt: skip
"""Keys of a point's JSON object that come from its plan."""


def setting_text(value: Any) -> str:
    """Return a varied value as text: a string as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def labels_of(texts: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """By text the labels of the points that have it, from (label, texts) of each point."""
    labels: dict[str, list[str]] = {}
    for label, own in texts:
        for text in own:
            labels.setdefault(text, []).append(label)
    return labels


def assumed_line(points: Sequence[ComparedPoint]) -> str:
    """Return the assumed inputs of all plans in one line, each once with the points that use it; empty without any."""
    solved = [(point.label, assumed_facts(point.plan.inputs)) for point in points if point.plan is not None]
    return "; ".join(
        fact if len(labels) == len(solved) else f"{fact} ({', '.join(labels)})"
        for fact, labels in labels_of(solved).items()
    )


def notes_of(points: Sequence[ComparedPoint]) -> dict[str, list[str]]:
    """The notes of all points, each once with the labels of its points."""
    return labels_of((point.label, point.notes) for point in points)


def short_name(path: str, paths: Sequence[str]) -> str:
    """Return the shortest end of a dotted path that no other path has: `nodes`, or `a.nodes` beside `b.nodes`."""
    keys = path.split(".")
    for count in range(1, len(keys) + 1):
        end = ".".join(keys[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in paths) == 1:
            return end
    return path


def binds(plan: Plan) -> str:
    """Return the bottlenecks of a plan: the longest phase of the mean step, and a memory that is almost full.

    The rollout's tail is the part in which fewer than a quarter of its most sequences run.
    """
    path = critical_path(plan.predicted)
    longest = max(path.steps, key=lambda step: step.seconds, default=None)
    bottlenecks = []
    if longest is not None:
        text = f"{PHASE_NAMES[longest.phase]} {longest.share:.0%} of the step"
        if longest.phase == "rollout":
            tail_s = sum(kind.share * kind.tail_s for _, kind in plan.predicted.rounds.kinds)
            text += f", its tail {tail_s / path.total_s:.0%}"
        bottlenecks.append(text)
    place, _, bar = min(plan.predicted.memory_bars, key=lambda item: item[2].headroom)
    if bar.headroom < TIGHT:
        name = {"kv": "KV cache", "train": "trainer memory", "host": "host memory"}[place]
        bottlenecks.append(f"{name} {1 - bar.headroom:.0%} full")
    return ", ".join(bottlenecks)


def fastest(points: Sequence[ComparedPoint]) -> int | None:
    """Return the index of the point with the fewest seconds per trained sample; None if no point has a plan."""
    return _least(points, [p.plan.predicted.seconds_per_sample if p.plan else None for p in points])


def cheapest(points: Sequence[ComparedPoint]) -> int | None:
    """Return the index of the point with the fewest USD per trained sample; None if no plan has a price."""
    costs = [p.plan.predicted.usd_per_1k_samples if p.plan else None for p in points]
    return _least(points, costs) if any(costs) else None


def _least(points: Sequence[ComparedPoint], values: Sequence[float | None]) -> int | None:
    numbers = [(value, index) for index, value in enumerate(values) if value is not None]
    return min(numbers)[1] if numbers else None
