"""One mean round of each kind as bars of a Gantt chart, from a plan's `predicted` alone.

The phases of a round follow each other as in the executor: weight transfer, rollout, the rest of scoring, update.
Scoring beside the rollout runs on resources of its own; its bar shows only when it ends.

Invariants: bars of one lane do not overlap; bars that are critical follow each other without a gap from 0 to the sum
of the phases' means, which is the round's mean step.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..schema.plan import Plan
from ..schema.predicted import PredictedRound

KindName = Literal["short", "long"]
Lane = Literal["engines", "rewards", "trainers", "sync"]
LANES: tuple[Lane, ...] = ("sync", "engines", "rewards", "trainers")
"""The lanes in the order in which a round needs them."""


class Bar(NamedTuple):
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


def round_bars(plan: Plan) -> tuple[Bar, ...]:
    """Return the bars of a mean short round, then those of a mean long round if the plan has one, each by begin."""
    rounds = plan.predicted.rounds
    bars = _bars("short", rounds.short)
    return bars if rounds.long is None else bars + _bars("long", rounds.long)


def _bars(kind: KindName, mean: PredictedRound) -> tuple[Bar, ...]:
    rollout_s, exposed_s = mean.rollout_s.mean, mean.reward_exposed_s.mean
    begin = mean.sync_s
    decoded = begin + rollout_s
    tail_s = min(mean.tail_s, rollout_s)
    # The share of scoring that the step waits for has a bar of its own.
    scoring_s = min(rollout_s, max(0.0, rollout_s + exposed_s - mean.reward_slack_s))
    bars = [
        Bar(kind, "sync", "sync", 0.0, mean.sync_s, True),
        Bar(kind, "engines", "rollout", begin, rollout_s - tail_s, True),
        Bar(kind, "rewards", "scoring", begin, scoring_s, False),
        Bar(kind, "engines", "tail", decoded - tail_s, tail_s, True),
        Bar(kind, "rewards", "reward_exposed", decoded, exposed_s, True),
        Bar(kind, "trainers", "train", decoded + exposed_s, mean.train_s.mean, True),
    ]
    return tuple(bar for bar in bars if bar.seconds > 0)
