"""Plans of one job side by side, over clusters and values: what each would take, cost and be held up by.

A point is one choice of cluster and values. It has a plan, or the reason why it has none. Nothing here is a document:
points live as long as `rlplan compare` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..phrases.caveats import assumed_facts, assumed_notes
from ..schema.plan import Plan
from ..schema.predicted import MemoryBar
from .critical_path import critical_path

TIGHT = 0.1
"""Share of a memory that stays free, below which the memory is said to bind."""


PHASE_NAMES = {
    "sync": "weight transfer",
    "rollout": "rollout",
    "reward_exposed": "waiting for rewards",
    "scoring": "scoring",
    "train": "update",
}
"""What the phases of a step are called where they are said to bind."""


@dataclass(frozen=True)
class ComparedPoint:
    """One choice of cluster and values, and what it comes to.

    Attributes:
        values: by dotted path (and `cluster`, where there are several), as a document has them: numbers are numbers.
        plan: None where there is none.
        reason: why there is none; empty where there is one.
        notes: what the solver warned of, and which profile was taken in place of the job's.
    """

    values: Mapping[str, Any]
    plan: Plan | None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """`nodes 4, prompts_per_step 256`."""
        said = [f"{short_name(path, list(self.values))} {value}" for path, value in self.shown.items()]
        return ", ".join(said) or "as it is"

    @property
    def shown(self) -> dict[str, str]:
        """The values as text."""
        return {path: shown(value) for path, value in self.values.items()}

    @property
    def assumed(self) -> list[str]:
        """What of the plan nobody measured on its job; empty where there is no plan."""
        return [] if self.plan is None else assumed_notes(self.plan.inputs)

    def data(self) -> dict[str, Any]:
        """As a JSON object; seconds, USD and shares as in the plan's `predicted`, null where there is no plan."""
        found: dict[str, Any] = {"values": dict(self.values), "reason": self.reason or None}
        found |= {"notes": list(self.notes), "assumed": self.assumed}
        plan = self.plan
        if plan is None:
            return found | dict.fromkeys(FIGURES)
        predicted = plan.predicted
        return found | {
            "mode": plan.job.bias.mode,
            "nodes": predicted.nodes,
            "step_s": predicted.step_s.mean,
            "step_p95_s": predicted.step_s.p95,
            "error": predicted.error.total,
            "seconds_per_sample": predicted.seconds_per_sample,
            "speedup": speedup(plan),
            "usd_per_hour": predicted.usd_per_hour,
            "usd_per_1k_samples": predicted.usd_per_1k_samples,
            "length_ratio": predicted.length_ratio,
            "binds": binds(plan),
        }


FIGURES = (
    "mode", "nodes", "step_s", "step_p95_s", "error", "seconds_per_sample", "speedup", "usd_per_hour",
    "usd_per_1k_samples", "length_ratio", "binds",
)  # fmt: skip
"""Keys of a point's data that a plan fills."""


def shown(value: Any) -> str:
    """A varied value as text: words as they are, all else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value)


def assumed_line(points: Sequence[ComparedPoint]) -> str:
    """What nobody measured of the job, each said once with the points that rest on it; empty where all was."""
    solved = [point for point in points if point.plan is not None]
    facts: dict[str, list[str]] = {}
    for point in solved:
        for fact in assumed_facts(point.plan.inputs) if point.plan is not None else []:
            facts.setdefault(fact, []).append(point.label)
    return "; ".join(
        fact if len(labels) == len(solved) else f"{fact} ({', '.join(labels)})" for fact, labels in facts.items()
    )


def short_name(path: str, paths: Sequence[str]) -> str:
    """The end of a dotted path that tells it from the others: `nodes`, or `main.nodes` beside `other.nodes`."""
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        end = ".".join(parts[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in paths) == 1:
            return end
    return path


def speedup(plan: Plan) -> float:
    """Samples per second over those of the plain synchronous plan on the same nodes."""
    return plan.predicted.baseline.seconds_per_sample / plan.predicted.seconds_per_sample


def memory_bars(plan: Plan) -> list[tuple[str, MemoryBar]]:
    """(name, bar) of every memory that a plan fills."""
    rounds = plan.predicted.rounds
    found: list[tuple[str, MemoryBar]] = []
    for kind in (rounds.short, rounds.long):
        if kind is not None:
            found.append(("KV cache", kind.memory.kv))
            if kind.memory.train is not None:
                found.append(("trainer memory", kind.memory.train))
    return [*found, ("host memory", plan.predicted.host_memory)]


def binds(plan: Plan) -> str:
    """What a faster or smaller one of would help most: the longest phase of the mean step, and a memory that is full.

    The rollout's tail is the part in which fewer than a quarter of its most sequences run.
    """
    path = critical_path(plan)
    rounds = (plan.predicted.rounds.short, plan.predicted.rounds.long)
    longest = max(path.steps, key=lambda step: step.seconds, default=None)
    parts = []
    if longest is not None:
        text = f"{PHASE_NAMES[longest.phase]} {longest.share:.0%} of the step"
        if longest.phase == "rollout":
            tail_s = sum(kind.share * kind.tail_s for kind in rounds if kind is not None)
            text += f" (its tail {tail_s / path.total_s:.0%})"
        parts.append(text)
    name, bar = min(memory_bars(plan), key=lambda item: item[1].headroom)
    if bar.headroom < TIGHT:
        parts.append(f"{name} {1 - bar.headroom:.0%} full")
    return ", ".join(parts)


def fastest(points: Sequence[ComparedPoint]) -> int | None:
    """Index of the point with the fewest seconds per trained sample; None if no point has a plan."""
    return _least(points, [p.plan.predicted.seconds_per_sample if p.plan else None for p in points])


def cheapest(points: Sequence[ComparedPoint]) -> int | None:
    """Index of the point with the fewest USD per trained sample; None if no point has a plan, or none a price."""
    costs = [p.plan.predicted.usd_per_1k_samples if p.plan else None for p in points]
    return _least(points, costs) if any(costs) else None


def _least(points: Sequence[ComparedPoint], values: Sequence[float | None]) -> int | None:
    known = [(value, index) for index, value in enumerate(values) if value is not None]
    return min(known)[1] if known else None
