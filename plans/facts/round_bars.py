"""One mean round of each kind as bars of a Gantt chart, and its critical path, from a plan's `predicted` alone.

The phases of a round follow each other as in the executor: weight transfer, rollout, the rest of scoring, update. They
are the critical path. The scoring of all samples but those decoded last runs beside the rollout on resources of its
own, and its bar shows only when it ends. So it has slack: the seconds by which it could be slower while the step stays
as long.

Invariants: bars of one lane do not overlap; bars that are critical follow each other without a gap from 0 to the sum of
the phases' means, which is the round's mean step.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from ..phrases.numbers import MATTERS, seconds
from ..phrases.sentences import PHASE_NAMES, listed
from ..schema.plan import Plan
from ..schema.predicted import Predicted, PredictedPhases, PredictedRound

KindName = Literal["short", "long"]
Lane = Literal["engines", "rewards", "trainers", "sync"]
LANES: tuple[Lane, ...] = ("sync", "engines", "rewards", "trainers")
"""The lanes in the order in which a round needs them."""


class RoundBar(NamedTuple):
    """A phase of a mean round on one resource.

    Attributes:
        kind: the kind of the round.
        lane: the resource.
        phase: `sync`, `rollout` (until its tail), `tail` (few sequences run), `scoring` (beside the rollout),
            `reward_exposed` (scoring after the last token), `train`.
        begin_s: seconds from the round's beginning.
        seconds: length of the bar; above 0.
        critical: whether the bar is on the critical path.
    """

    kind: KindName
    lane: Lane
    phase: str
    begin_s: float
    seconds: float
    critical: bool


def round_bars(plan: Plan) -> tuple[RoundBar, ...]:
    """Return the bars of a mean short round, then those of a mean long round if the plan has one, each by begin."""
    return tuple(bar for kind, mean in plan.predicted.rounds.kinds for bar in _bars(kind, mean))


def _bars(kind: KindName, mean: PredictedRound) -> tuple[RoundBar, ...]:
    rollout_s, exposed_s = mean.rollout_s.mean, mean.reward_exposed_s.mean
    begin = mean.sync_s
    decoded = begin + rollout_s
    tail_s = min(mean.tail_s, rollout_s)
    # The share of scoring that the step waits for has a bar of its own.
    scoring_s = min(rollout_s, max(0.0, rollout_s + exposed_s - mean.reward_slack_s))
    bars = [
        RoundBar(kind, "sync", "sync", 0.0, mean.sync_s, True),
        RoundBar(kind, "engines", "rollout", begin, rollout_s - tail_s, True),
        RoundBar(kind, "rewards", "scoring", begin, scoring_s, False),
        RoundBar(kind, "engines", "tail", decoded - tail_s, tail_s, True),
        RoundBar(kind, "rewards", "reward_exposed", decoded, exposed_s, True),
        RoundBar(kind, "trainers", "train", decoded + exposed_s, mean.train_s.mean, True),
    ]
    return tuple(bar for bar in bars if bar.seconds > 0)


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
    slack_s = sum(kind.share * kind.reward_slack_s for _, kind in predicted.rounds.kinds)
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
