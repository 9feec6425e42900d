"""What the simulator expects of a plan; the run report puts measurements beside it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Count, Mode, NonNegative, Positive, Strict


class Quantiles(Strict):
    """A duration over steps."""

    p50: NonNegative
    """Median in seconds."""

    p95: NonNegative
    """95th percentile in seconds."""

    mean: NonNegative
    """Mean in seconds."""


class Mean(Strict):
    """A duration of which only the mean is predicted."""

    mean: NonNegative
    """Mean in seconds."""


class PredictedBaseline(Strict):
    """The plain synchronous plan, best layout, simulated in the same way."""

    step_s: Quantiles
    """Seconds per step."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""


class PredictedPhases(Strict):
    """Where the mean step goes, in seconds."""

    rollout: NonNegative
    """Decoding."""

    reward_exposed: NonNegative
    """Waiting for rewards after the last token."""

    train: NonNegative
    """Gradients and update."""

    sync: NonNegative
    """Getting the new weights to the engines."""


class PredictedRound(Strict):
    """One kind of round."""

    share: Annotated[float, Field(ge=0, le=1)]
    """Share of the steps that are such rounds."""

    rollout_s: Quantiles
    """Seconds of its rollout."""

    step_s: Mean
    """Seconds of its whole step."""


class PredictedRounds(Strict):
    """The kinds of round."""

    short: PredictedRound
    """Short rounds."""

    long: PredictedRound | None
    """Long rounds; null when the plan has none."""


class FrontPoint(Strict):
    """A schedule that no other beats in both speed and bias."""

    mode: Mode
    """Its mode."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""

    usd_per_1k_samples: NonNegative
    """USD per 1000 trained samples."""

    length_ratio: Positive
    """Trained mean length over unconditioned mean length."""

    rounds: Count
    """Rounds of it that were simulated; with few of them its figures are rough."""

    chosen: bool
    """Whether it is this plan."""


class Predicted(Strict):
    """What the simulator expects of the plan."""

    step_s: Quantiles
    """Seconds per step."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""

    baseline: PredictedBaseline
    """The plain synchronous plan, for comparison."""

    phases_s: PredictedPhases
    """Where the mean step goes."""

    rounds: PredictedRounds
    """By kind of round."""

    length_ratio: Positive
    """Trained mean length over unconditioned mean length; 1 is unbiased."""

    nodes: Count
    """Nodes of the pool that the plan takes."""

    usd_per_1k_samples: NonNegative
    """USD per 1000 trained samples, for these nodes."""

    front: Annotated[tuple[FrontPoint, ...], Field(min_length=1, strict=False)]
    """Speed against bias: what a bias budget would buy, least biased first."""
