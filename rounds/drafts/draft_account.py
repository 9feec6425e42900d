"""Whether drafts pay on an engine, and how likely a drafted token must be, by what its steps took and gave so far.

A step that verifies drafts takes longer and gives more tokens, and looking for drafts takes time also where none are
found. All depend on how many samples decode, so steps are kept by batch: powers of two. Within a class drafts pay if
the tokens that a sample gains in the steps for which drafts were looked for outweigh the seconds of these steps.
To know what a step takes without drafts, for some steps of every class none are looked for: the first
`PLAIN_FIRST`, and `PLAIN_RUN` in a row of `PLAIN_EVERY`. The first of them after a step with drafts is not counted: it
takes longer than a step of an engine that never drafts, since other code ran before it on its core.
Where drafts do not pay they are left out, and tried again for `TRIAL` steps after a pause. A pause is of `PAUSE_FIRST`
steps, since at the beginning rates of acceptance are being learnt, and of twice as many after each trial that failed,
up to `PAUSE`. Once drafts pay, the next pause is of `PAUSE_FIRST` steps again.

One more drafted token for each of B samples makes a step longer by B times the seconds of a token. It gains one token
per sample with the probability that it is accepted. So it pays if that probability is at least the share of the step's
seconds that the B tokens take.

Invariants:
- decisions depend on what was recorded and in which order, never on a clock: the same steps give the same decisions;
- a batch above `up_to_sequences` gets no drafts;
- where drafts never pay, at most `TRIAL` of `PAUSE` steps are lost in the long run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

PLAIN_FIRST = 4
PLAIN_EVERY, PLAIN_RUN = 128, 3
TRIAL = 16
PAUSE_FIRST, PAUSE = 64, 1024
WARM_UP = 64
"""Steps of a class for which drafts were looked for before it is judged: rates of acceptance are learnt meanwhile."""

SMOOTH_PLAIN, SMOOTH_DRAFTED = 1.0 / 4.0, 1.0 / (2.0 * PLAIN_EVERY)
"""What the last step counts in a mean: both reach back equally far, over two rows of steps without drafts, and so both
see the same machine where other work on it comes and goes."""

LOSS = 0.97
"""Drafts are left out below this gain: above it the difference is noise."""

OUTLIER = 3.0
"""A step that takes so many times the mean has waited for something else, and is not counted."""

OUTLIERS = 8
"""After so many of them in a row steps take as long as that: the mean begins anew."""

LEAST_CHANCE, MOST_CHANCE = 0.02, 0.9
"""Bounds of the chance from which a token is drafted."""


@dataclass(slots=True)
class _Mean:
    """A mean over about the last 1 / `smooth` values."""

    smooth: float
    value: float = 0.0
    count: int = 0
    outliers: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(self.smooth, 1.0 / self.count)

    def add_seconds(self, seconds: float) -> bool:
        """Add the seconds of a step, unless it is an outlier; returns whether it was added."""
        outlier = self.count >= PLAIN_FIRST and seconds > OUTLIER * self.value
        self.outliers = self.outliers + 1 if outlier else 0
        if outlier and self.outliers < OUTLIERS:
            return False
        self.count = 0 if outlier else self.count
        self.add(seconds)
        return True


@dataclass(slots=True)
class _Batch:
    """Steps of one class of batch: means of three kinds of step, and when drafts are judged and tried again."""

    # A step for which no drafts were looked for: its seconds.
    plain_s: _Mean = field(default_factory=lambda: _Mean(SMOOTH_PLAIN))
    # A step for which drafts were looked for, found or not: its seconds, and tokens of a sample in it.
    looked_s: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    looked_emitted: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    # A step that verified drafts: likewise.
    drafted_s: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    emitted: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    verified: int = 0  # steps with drafts in this round
    saved_s: float = 0.0  # in this round, by the steps for which drafts were looked for
    steps: int = 0
    resume: int = 0  # number of the step from which on drafts are tried again
    pause: int = PAUSE_FIRST  # steps that the next pause takes
    judged_after: int = WARM_UP  # steps for which drafts were looked for

    def pays(self) -> bool:
        return self.looked_emitted.value * self.plain_s.value >= LOSS * self.looked_s.value


class BatchMeans(NamedTuple):
    """Steps of one class of batch.

    Attributes:
        plain_s, drafted_s: mean seconds of a step for which no drafts were looked for, and of one with drafts to
            verify; 0: there was none.
        emitted: mean tokens that a sample gets in a step with drafts.
        verified: steps of the round with drafts.
        saved_s: seconds by which the steps for which drafts were looked for were shorter than steps without that give
            as many tokens; negative where they were longer.
    """

    plain_s: float
    drafted_s: float
    emitted: float
    verified: int
    saved_s: float


class DraftAccount:
    """The account of one engine. Ask `least_chance` before a step is drafted, and tell `record` what the step took.

    Args:
        up_to_sequences: of the plan; samples that decode at most while there are drafts.
    """

    def __init__(self, up_to_sequences: int) -> None:
        self.up_to_sequences = up_to_sequences
        self._batches: dict[int, _Batch] = {}
        self._looked = False  # whether drafts were looked for before the last step

    def begin_round(self) -> None:
        """A round begins: what is counted by round is counted anew."""
        for batch in self._batches.values():
            batch.verified, batch.saved_s = 0, 0.0

    def least_chance(self, running: int) -> float | None:
        """The least chance from which a token is drafted now, while `running` samples decode; None: no drafts."""
        if not 1 <= running <= self.up_to_sequences:
            return None
        batch = self._batches.setdefault(running.bit_length(), _Batch())
        batch.steps += 1
        if batch.plain_s.count < PLAIN_FIRST or batch.steps % PLAIN_EVERY < PLAIN_RUN or batch.steps < batch.resume:
            return None
        if batch.looked_s.count >= batch.judged_after:
            if not batch.pays():
                batch.resume, batch.judged_after = batch.steps + batch.pause, TRIAL
                batch.pause = min(2 * batch.pause, PAUSE)
                batch.looked_s.count = batch.looked_emitted.count = 0  # the trial is judged by itself
                return None
            batch.pause = PAUSE_FIRST
        return min(max(running * self._token_s() / batch.plain_s.value, LEAST_CHANCE), MOST_CHANCE)

    def record(self, running: int, looked: bool, drafted: int, emitted: int, seconds: float) -> None:
        """A step of `running` samples took `seconds` and gave `emitted` tokens.

        A batch above `up_to_sequences` is recorded, too: it says what a token more takes.

        Args:
            looked: whether drafts were looked for before the step.
            drafted: tokens in all that it verified.
            seconds: 0 where the step did more than decode; it is only counted.
        """
        batch = self._batches.setdefault(running.bit_length(), _Batch())
        batch.verified += bool(drafted)
        after_drafts = self._looked and not looked
        self._looked = looked
        if seconds <= 0.0 or after_drafts:
            return
        if not looked:
            batch.plain_s.add_seconds(seconds)
            return
        gained = emitted / running
        if batch.looked_s.add_seconds(seconds):
            batch.looked_emitted.add(gained)
            batch.saved_s += gained * batch.plain_s.value - seconds if batch.plain_s.count else 0.0
            if drafted:
                batch.drafted_s.add(seconds)
                batch.emitted.add(gained)

    def _token_s(self) -> float:
        """Seconds that a token more makes a step longer: the slope between the smallest and the largest batch."""
        known = sorted((size, batch.plain_s.value) for size, batch in self._batches.items() if batch.plain_s.count)
        (small, small_s), (large, large_s) = known[0], known[-1]
        if small == large:
            return 0.0
        return max(0.0, (large_s - small_s) / (1.5 * float(2 ** (large - 1)) - 1.5 * float(2 ** (small - 1))))

    def means(self) -> dict[int, BatchMeans]:
        """By the largest batch of a class: its steps."""
        return {
            2**size - 1: BatchMeans(
                batch.plain_s.value, batch.drafted_s.value, batch.emitted.value, batch.verified, batch.saved_s
            )
            for size, batch in sorted(self._batches.items())
        }
