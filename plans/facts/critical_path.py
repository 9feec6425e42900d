"""The critical path of a mean step: the phases that its seconds consist of, and the slack of the other phases.

The phases are a graph: weight transfer, then the rollout, then the rest of scoring, then the update. The scoring of all
samples but those decoded last is an edge beside the rollout and the rest of scoring. The longest path is the step. A
phase off that path has slack: the seconds by which it could be slower while the step stays as long.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, NamedTuple

import networkx as nx

from ..phrases.numbers import MATTERS, seconds
from ..phrases.phase_names import PHASE_NAMES
from ..phrases.sentences import listed
from ..schema.predicted import Predicted, PredictedPhases

RESOURCE_OF = {
    "sync": "sync",
    "rollout": "engines",
    "reward_exposed": "rewards",
    "scoring": "rewards",
    "train": "trainers",
}
"""The resource that a phase runs on."""


class PathStep(NamedTuple):
    """A phase on the critical path, its seconds, and their share of the step."""

    phase: str
    seconds: float
    share: float


class CriticalPath(NamedTuple):
    """The critical path of a mean step.

    Attributes:
        steps: the phases on the path, in order, without those that take no time.
        slack_s: by resource, seconds by which its phases off the path could end later; 0 where all are on the path.
        total_s: seconds of the step.
    """

    steps: tuple[PathStep, ...]
    slack_s: dict[str, float]
    total_s: float

    @property
    def main_steps(self) -> tuple[PathStep, ...]:
        """The phases that take half a percent of the step or more."""
        return tuple(step for step in self.steps if step.share >= 0.005)

    @property
    def slack(self) -> str:
        """What the rewards' slack is, in words: no other resource has any beside the path."""
        return slack_text(self.slack_s["rewards"], self.total_s)

    def text(self) -> str:
        """Return the path and the slack beside it as one line."""
        path = listed(f"{PHASE_NAMES[step.phase]} {step.share:.0%}" for step in self.main_steps)
        return f"the mean step of {seconds(self.total_s)} is {path}; {self.slack}"


def slack_text(slack_s: float, step_s: float) -> str:
    """Return by how much rewards may be slower while a step of `step_s` seconds does not grow; little is none."""
    some = slack_s > 0 and slack_s >= MATTERS * step_s
    return f"rewards have {seconds(slack_s)} slack, save for the last samples" if some else "rewards have no slack"


def critical_path(predicted: Predicted) -> CriticalPath:
    """Return the critical path of the mean step; each kind of round counts by its share of the steps."""
    rounds = (predicted.rounds.short, predicted.rounds.long)
    slack_s = sum(kind.share * kind.reward_slack_s for kind in rounds if kind is not None)
    return longest_path(predicted.phases_s, slack_s)


def longest_path(phases: PredictedPhases, reward_slack_s: float) -> CriticalPath:
    """Return the critical path of a step with these mean phases.

    `reward_slack_s`: seconds by which the scores of all samples but those decoded last could come later.
    """
    # Fractions, since a sum of floats depends on its order, and a path must not be longer than another by that.
    phase_s = {name: Fraction(value) for name, value in phases.model_dump().items()}
    round_s = phase_s["rollout"] + phase_s["reward_exposed"]
    graph: Any = nx.DiGraph()

    def edge(begin: str, end: str, phase: str, seconds: Fraction) -> None:
        graph.add_edge(begin, end, phase=phase, seconds=seconds)

    edge("begin", "synced", "sync", phase_s["sync"])
    edge("synced", "decoded", "rollout", phase_s["rollout"])
    edge("decoded", "scored", "reward_exposed", phase_s["reward_exposed"])
    edge("synced", "scored", "scoring", max(Fraction(0), round_s - Fraction(reward_slack_s)))
    edge("scored", "trained", "train", phase_s["train"])
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
    """Return by resource the largest slack of its phases: `total` less the longest path through the phase.

    The largest, since a phase without slack is on the path and `steps` has it.
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
