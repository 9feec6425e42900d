"""The critical path of a mean step: the phases that its seconds consist of, and the slack of the rewards beside it.

A weight transfer comes first, then the rollout, the rest of scoring, and the update. The scoring of all samples but
those decoded last runs beside the second and the third, and ends with them at the latest. So the four are the path, and
that scoring has slack: the seconds by which it could be slower while the step stays as long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..phrases.numbers import MATTERS, seconds
from ..phrases.phase_names import PHASE_NAMES
from ..phrases.sentences import listed
from ..schema.predicted import Predicted, PredictedPhases

_PATH = ("sync", "rollout", "reward_exposed", "train")
_RESOURCES = ("sync", "engines", "rewards", "trainers")


class PathStep(NamedTuple):
    """A phase on the critical path, its seconds, and their share of the step."""

    phase: str
    seconds: float
    share: float


class CriticalPath(NamedTuple):
    """The critical path of a mean step.

    Attributes:
        steps: the phases on the path, in order, without those that take no time.
        slack_s: by resource, seconds by which its phases off the path could end later; only rewards have any.
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
        """What the rewards' slack is, in words."""
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
    phase_s = [(phase, float(getattr(phases, phase))) for phase in _PATH]
    total_s = math.fsum(took_s for _, took_s in phase_s)
    steps = tuple(PathStep(phase, took_s, took_s / total_s) for phase, took_s in phase_s if took_s > 0)
    slack_s = dict.fromkeys(_RESOURCES, 0.0) | {"rewards": min(reward_slack_s, phases.rollout + phases.reward_exposed)}
    return CriticalPath(steps, slack_s, total_s)
