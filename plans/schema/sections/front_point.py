"""A point of the front of speed against bias in a plan's `predicted`."""

from __future__ import annotations

from ..base import Count, Mode, NonNegative, Positive, Strict

ROUGH_ROUNDS = 32
"""Figures from fewer simulated rounds are only about right."""


class FrontPoint(Strict):
    """A schedule that no other schedule beats in both speed and bias."""

    mode: Mode
    """Bias mode of the schedule."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""

    usd_per_1k_samples: NonNegative
    """USD per 1000 trained samples."""

    length_ratio: Positive
    """Trained mean length over unconditioned mean length."""

    rounds: Count
    """Number of its rounds that were simulated; with few of them its figures are rough."""

    chosen: bool
    """Whether the plan is this schedule."""

    @property
    def rough(self) -> bool:
        """Whether its figures are only about right; those of the chosen schedule are the plan's own."""
        return not self.chosen and self.rounds < ROUGH_ROUNDS
