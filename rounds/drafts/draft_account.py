"""Whether drafts pay on an engine, and how likely a drafted token must be, by the seconds and tokens of its steps.

A step that verifies drafts takes longer and emits more tokens, and the search for drafts takes time even if it finds
none. All depend on how many samples decode, so steps are counted in classes of batch size, by powers of two. In a class
drafts pay if the tokens that they add are worth more than the seconds that search and verification add.

To learn the seconds of a step without drafts, some steps of each class are *plain* (no search): the first
`PLAIN_FIRST`, and `PLAIN_RUN` consecutive ones of every `PLAIN_EVERY`. The first plain step after one with drafts does
not count: the code of the drafts, which ran before on the same core, makes it slower than on an engine without drafts.

If drafts do not pay, they pause, and are tried again for `TRIAL` steps. The first pause is of `PAUSE_FIRST` steps,
since acceptance rates are still being learnt, and each failed trial doubles the next pause, up to `PAUSE`. Once drafts
pay, the next pause is of `PAUSE_FIRST` steps again.

One more drafted token for each of B samples makes a step longer by B times the seconds of a token, and gains one token
per sample with the probability that it is accepted. So it pays if that probability is at least the share of the step's
seconds that the B tokens take.

Invariants:
- decisions depend on the recorded steps and their order, never on a clock: the same steps give the same decisions;
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
"""Steps of a class with a search for drafts before it is judged: acceptance rates are learnt meanwhile."""

SMOOTH_PLAIN, SMOOTH_DRAFTED = 1.0 / 4.0, 1.0 / (2.0 * PLAIN_EVERY)
"""Weight of the last step in a mean. Both means reach back equally far, over two runs of plain steps, and so see the
machine under the same load by other work."""

LOSS = 0.97
"""Gain below which drafts pause; a smaller loss is noise."""

OUTLIER = 3.0
"""A step that takes so many times the mean has waited for something else, and does not count."""

OUTLIERS = 8
"""Outliers in a row after which they are the rule: the mean begins anew."""

LEAST_CHANCE, MOST_CHANCE = 0.02, 0.9
"""Bounds of the least chance with which a token is drafted."""


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

    # Seconds of a plain step, without a search for drafts.
    plain_s: _Mean = field(default_factory=lambda: _Mean(SMOOTH_PLAIN))
    # A step with a search for drafts, found or not: its seconds, and its tokens per sample.
    looked_s: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    looked_emitted: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    # A step that verified drafts: likewise.
    drafted_s: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    emitted: _Mean = field(default_factory=lambda: _Mean(SMOOTH_DRAFTED))
    verified: int = 0  # steps with drafts in this round
    saved_s: float = 0.0  # in this round, by the steps with a search for drafts
    steps: int = 0
    resume: int = 0  # number of the step from which drafts are tried again
    pause: int = PAUSE_FIRST  # steps of the next pause
    judged_after: int = WARM_UP  # steps with a search for drafts

    def pays(self) -> bool:
        return self.looked_emitted.value * self.plain_s.value >= LOSS * self.looked_s.value


class BatchMeans(NamedTuple):
    """Steps of one class of batch.

    Attributes:
        plain_s, drafted_s: mean seconds of a plain step, and of one with drafts to verify; 0: there was none.
        emitted: mean tokens that a sample gets in a step with drafts.
        verified: steps of the round with drafts.
        saved_s: seconds by which the steps with a search for drafts were shorter than plain steps of as many tokens;
            negative if they were longer.
    """

    plain_s: float
    drafted_s: float
    emitted: float
    verified: int
    saved_s: float


class DraftAccount:
    """The account of one engine: call `least_chance` before a step is drafted, and `record` after the step.

    Args:
        up_to_sequences: of the plan; samples that decode at most while there are drafts.
    """

    def __init__(self, up_to_sequences: int) -> None:
        self.up_to_sequences = up_to_sequences
        self._batches: dict[int, _Batch] = {}
        self._looked = False  # whether the last step had a search for drafts

    def begin_round(self) -> None:
        """A round begins: counts of a round begin at 0."""
        for batch in self._batches.values():
            batch.verified, batch.saved_s = 0, 0.0

    def least_chance(self, running: int) -> float | None:
        """The least chance with which a token is drafted now, while `running` samples decode; None: no drafts."""
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

        A batch above `up_to_sequences` is recorded, too: it shows the seconds of one more token.

        Args:
            looked: whether drafts were searched for before the step.
            drafted: number of tokens that it verified.
            seconds: 0 if the step did more than decode; then it is only counted.
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
        """Seconds that one more token adds to a step: the slope between the smallest and the largest batch."""
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
