"""What a step's seconds are made of, and what has time to spare: the longest path through the phases of a mean step.

The phases are a graph: sync, then the rollout, then what is left of scoring, then the update; beside the rollout and
what follows it runs the scoring of all samples but the last ones. The longest path is the step. An edge off it has
slack: the seconds by which it could be slower while the step stays as long.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, NamedTuple

import networkx as nx

from ..phrases.phase_names import PHASE_NAMES, RESOURCE_NAMES
from ..schema.plan import Plan
from ..schema.predicted import Predicted, PredictedPhases

RESOURCE_OF = {
    "sync": "sync",
    "rollout": "engines",
    "reward_exposed": "rewards",
    "scoring": "rewards",
    "train": "trainers",
}
"""Which resource a phase runs on."""


class PathStep(NamedTuple):
    """A phase on the critical path: its seconds, and their share of the step."""

    phase: str
    seconds: float
    share: float


class CriticalPath(NamedTuple):
    """Of a mean step, or of a mean round of one kind.

    Attributes:
        steps: the phases on the path, in order, those that take no time left out.
        slack_s: by resource, seconds by which what it does off the path could end later; 0 where all is on the path.
        total_s: the step.
    """

    steps: tuple[PathStep, ...]
    slack_s: dict[str, float]
    total_s: float

    @property
    def told(self) -> tuple[PathStep, ...]:
        """The phases that are worth a word: those of half a percent of the step and more."""
        return tuple(step for step in self.steps if step.share >= 0.005)

    def text(self) -> str:
        """In one line."""
        path = ", ".join(f"{PHASE_NAMES[step.phase]} {step.share:.0%}" for step in self.told)
        spare = [
            f"{RESOURCE_NAMES[name]} could come {seconds:.3g} s later without a longer step"
            for name, seconds in self.slack_s.items()
            if seconds > 0
        ]
        text = f"critical path of the mean step ({self.total_s:.3g} s): {path}"
        return f"{text}; {'; '.join(spare) or 'nothing beside it has time to spare'}"


def critical_path(plan: Plan) -> CriticalPath:
    """Of the plan's mean step, both kinds of round weighed by their share of the steps."""
    return path_of(plan.predicted)


def path_of(predicted: Predicted) -> CriticalPath:
    """The same of a prediction that is in no plan yet."""
    rounds = (predicted.rounds.short, predicted.rounds.long)
    slack_s = sum(kind.share * kind.reward_slack_s for kind in rounds if kind is not None)
    return longest_path(predicted.phases_s, slack_s)


def longest_path(phases: PredictedPhases, reward_slack_s: float) -> CriticalPath:
    """The path of one step with these mean phases, and scoring off the path that ends so long before the round."""
    # Fractions, since a sum of floats depends on its order, and a path must not be longer than another by that.
    seconds = {name: Fraction(value) for name, value in phases.model_dump().items()}
    round_s = seconds["rollout"] + seconds["reward_exposed"]
    graph: Any = nx.DiGraph()

    def edge(begin: str, end: str, phase: str, seconds: Fraction) -> None:
        graph.add_edge(begin, end, phase=phase, seconds=seconds)

    edge("begin", "synced", "sync", seconds["sync"])
    edge("synced", "decoded", "rollout", seconds["rollout"])
    edge("decoded", "scored", "reward_exposed", seconds["reward_exposed"])
    edge("synced", "scored", "scoring", max(Fraction(0), round_s - Fraction(reward_slack_s)))
    edge("scored", "trained", "train", seconds["train"])
    path = nx.dag_longest_path(graph, weight="seconds")
    total = Fraction(nx.path_weight(graph, path, "seconds"))
    on_path = [graph[a][b] for a, b in itertools.pairwise(path)]
    steps = tuple(
        PathStep(edge["phase"], float(edge["seconds"]), float(edge["seconds"] / total) if total else 0.0)
        for edge in on_path
        if edge["seconds"] > 0
    )
    return CriticalPath(steps, _slack(graph, total), float(total))


def _slack(graph: Any, total: Fraction) -> dict[str, float]:
    """By resource: what the longest path through any of its phases that take time leaves of `total`.

    The most of its phases, since a resource with something on the path is told by `steps` already.
    """
    earliest: dict[str, Fraction] = {}
    latest: dict[str, Fraction] = {}
    order = list(nx.topological_sort(graph))
    for node in order:
        earliest[node] = max(
            (earliest[a] + e["seconds"] for a, _, e in graph.in_edges(node, data=True)), default=Fraction(0)
        )
    for node in reversed(order):
        latest[node] = min((latest[b] - e["seconds"] for _, b, e in graph.out_edges(node, data=True)), default=total)
    slack = dict.fromkeys(RESOURCE_OF.values(), 0.0)
    for begin, end, edge in graph.edges(data=True):
        resource = RESOURCE_OF[edge["phase"]]
        slack[resource] = max(slack[resource], float(latest[end] - earliest[begin] - edge["seconds"]))
    return slack
