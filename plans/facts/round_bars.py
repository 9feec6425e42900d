"""One mean round of each kind as bars in time: what a Gantt chart of a plan draws, from `predicted` alone.

A round goes as the executor and the simulator have it: sync, then rollout, then what is left of scoring, then the
update. Scoring runs beside the rollout on resources of its own; all that is drawn of it there is when it ends.

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
"""In the order in which a round needs them."""


class Bar(NamedTuple):
    """What one resource does for a while in a mean round.

    Attributes:
        kind: of the round.
        lane: the resource.
        phase: `sync`, `rollout` (until its tail), `tail` (few sequences run), `scoring` (beside the rollout),
            `reward_exposed` (what of it comes after the last token), `train`.
        begin_s: seconds from the round's beginning.
        seconds: how long; above 0.
        critical: the step would be shorter without it.
    """

    kind: KindName
    lane: Lane
    phase: str
    begin_s: float
    seconds: float
    critical: bool


def round_bars(plan: Plan) -> tuple[Bar, ...]:
    """The bars of a mean short round and, where there is one, of a mean long round, each by begin."""
    rounds = plan.predicted.rounds
    found = _bars("short", rounds.short)
    return found if rounds.long is None else found + _bars("long", rounds.long)


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
