"""The kinds of round of a job, as numbers, and the number of prompts that they need in a data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from .machines.exact import ExactQueueRound, ExactShortRound
from .machines.race import RaceRound
from .machines.round import Round, Take

Mode = Literal["sync", "race", "defer", "exact", "predict"]
"""`sync`: plain rounds; `race`: first finished win; `defer`: whole prompts put off; `exact`: cutoff, unbiased;
`predict`: prompts whose earlier lengths were long get rounds of their own, unbiased."""
MODES: tuple[Mode, ...] = get_args(Mode)
UNBIASED: tuple[Mode, ...] = ("sync", "exact", "predict")
"""Modes whose trained lengths are unconditioned by construction."""
RoundName = Literal["short", "long"]

# Beyond the mean of the prompts that a round takes until P groups are accepted (a negative binomial count).
_REFILL_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class QueueRule:
    """Long rounds of `exact` by queue. A prompt's age is the number of long rounds that found it short.

    Attributes:
        prompts: the most deferred prompts that a round issues (Q).
        more_copies_every: long rounds after which there is one copy more.
        until_long_after: age from which a prompt is drawn in waves until a draw is long.
    """

    prompts: int
    more_copies_every: int = 2
    until_long_after: int = 32

    def __post_init__(self) -> None:
        if min(self.prompts, self.more_copies_every, self.until_long_after) < 1:
            raise ValueError("prompts, more_copies_every and until_long_after of a queue are at least 1")

    def copies(self, age: int) -> int:
        """Draws of a prompt of this age that are started at once."""
        return 1 + age // self.more_copies_every

    def until_long(self, age: int) -> bool:
        """Whether a prompt of this age is drawn until a draw is long."""
        return age >= self.until_long_after


@dataclass(frozen=True, slots=True)
class RoundKind:
    """A kind of round as numbers: all that a round's machine is made from, but for its prompts.

    Attributes:
        name: short or long.
        prompts: prompts issued at first.
        target: P; at most `prompts` groups are trained.
        group_size, samples: n, and the samples issued per prompt.
        max_tokens: the job's cap.
        cutoff_tokens: longer draws are long, in mode `exact`; None in the other modes, where the first to finish win.
        copies: by prompt, draws at once, in long rounds of `exact`.
        until_long: by prompt, whether it is drawn in waves until a draw is long, likewise.
        dynamic_sampling: groups whose rewards are all equal are dropped; short rounds refill.
    """

    name: RoundName
    prompts: int
    target: int
    group_size: int
    samples: int
    max_tokens: int
    cutoff_tokens: int | None = None
    copies: tuple[int, ...] = ()
    until_long: tuple[bool, ...] = ()
    dynamic_sampling: bool = False

    @property
    def exact(self) -> bool:
        """Whether draws are split by a cutoff."""
        return self.cutoff_tokens is not None

    @property
    def redraws(self) -> bool:
        """Whether a prompt may be drawn more than once."""
        return self.exact and self.name == "long"

    def machine(self, prompts: list[str], take: Take = lambda count: []) -> Round:
        """The machine of a round on these prompts; short rounds get the prompts for refills from `take`."""
        size, cap, dynamic = self.group_size, self.max_tokens, self.dynamic_sampling
        if self.cutoff_tokens is None:
            target, samples = self.target, self.samples
            return RaceRound(prompts, target, size, samples, cap, dynamic_sampling=dynamic, take=take, kind=self.name)
        if self.name == "short":
            cutoff = self.cutoff_tokens
            return ExactShortRound(prompts, self.target, size, cutoff, cap, dynamic_sampling=dynamic, take=take)
        return ExactQueueRound(
            prompts, self.target, size, self.cutoff_tokens, cap,
            copies=self.copies, until_long=self.until_long, dynamic_sampling=dynamic,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """How rounds of a job are issued; `short_*` include over-issue.

    The cutoff, copies and queue are for `exact` only. Its long rounds are by queue, or by waves: all prompts are drawn
    until a draw is long, so many `copies` at first. Where there is a queue, epochs and runs end with waves.
    `long_share` is for `predict` only: the share of the prompts, those with the longest history, that get long rounds.
    `keeps_history`: lengths are recorded in any mode, by which samples are balanced.
    """

    mode: Mode
    prompts_per_step: int
    samples_per_prompt: int
    max_tokens: int
    short_prompts: int
    short_samples: int
    cutoff_tokens: int | None = None
    copies: int = 1
    dynamic_sampling: bool = False
    long_share: float = 0.0
    keeps_history: bool = False
    queue: QueueRule | None = None

    def __post_init__(self) -> None:
        if self.short_prompts < self.prompts_per_step or self.short_samples < self.samples_per_prompt:
            raise ValueError("a round cannot issue fewer prompts or samples than it trains")
        if self.mode == "exact" and self.cutoff_tokens is None:
            raise ValueError("mode exact needs a cutoff")
        if self.queue is not None and (self.mode != "exact" or self.queue.prompts < self.prompts_per_step):
            raise ValueError("a queue belongs to mode exact, and issues at least P prompts")
        if self.mode in ("sync", "defer", "exact", "predict") and self.short_samples != self.samples_per_prompt:
            raise ValueError(f"mode {self.mode} issues exactly n samples per prompt")
        if self.mode in ("sync", "predict") and self.short_prompts != self.prompts_per_step:
            raise ValueError(f"mode {self.mode} issues exactly P prompts")
        if self.mode == "predict" and not 0.0 < self.long_share < 1.0:
            raise ValueError("mode predict needs a share of prompts, between 0 and 1, that get long rounds")

    @property
    def learns(self) -> bool:
        """Whether the lengths of trained groups are recorded."""
        return self.mode == "predict" or self.keeps_history

    def owes_alike(self, other: RoundSpec) -> bool:
        """Whether long rounds of `other` train what rounds of this spec deferred as its own long rounds would."""

        def rule(spec: RoundSpec) -> tuple[Mode, int, int | None]:
            return spec.mode, spec.samples_per_prompt, spec.cutoff_tokens

        return rule(self) == rule(other)

    def short(self) -> RoundKind:
        """The short rounds."""
        return self._kind("short", self.short_prompts, self.short_samples)

    def long(self, prompts: int) -> RoundKind:
        """A long round that trains so many prompts, by waves in `exact`."""
        kind = self._kind("long", prompts, self.samples_per_prompt)
        if not kind.exact:
            return kind
        return replace(kind, target=prompts, copies=(self.copies,) * prompts, until_long=(True,) * prompts)

    def long_by_queue(self, ages: Sequence[int]) -> RoundKind:
        """A long round by queue of prompts of these ages, in the order of the queue."""
        assert self.queue is not None
        kind = self._kind("long", len(ages), self.samples_per_prompt)
        copies, until_long = map(self.queue.copies, ages), map(self.queue.until_long, ages)
        return replace(kind, copies=tuple(copies), until_long=tuple(until_long))

    def _kind(self, name: RoundName, prompts: int, samples: int) -> RoundKind:
        return RoundKind(
            name=name,
            prompts=prompts,
            target=min(prompts, self.prompts_per_step),
            group_size=self.samples_per_prompt,
            samples=samples,
            max_tokens=self.max_tokens,
            cutoff_tokens=self.cutoff_tokens if self.mode == "exact" else None,
            dynamic_sampling=self.dynamic_sampling,
        )


def prompts_wanted(
    mode: Mode,
    target: int,
    short_prompts: int,
    long_share: float = 0.0,
    accepted: float = 1.0,
    queue: int | None = None,
) -> int:
    """How many prompts a data set must have for rounds of this kind to find all that they issue (P: `target`).

    While a short round is issued, up to P - 1 prompts wait for a long one, or Q - 1 with a queue that issues Q prompts
    (`queue`), and no prompt is issued twice. In `predict` a short round that goes on into the next epoch also passes
    over those of its own prompts.

    `accepted`, in (0, 1], is the share of the groups that a short round may train: short ones in `exact`, and those
    whose rewards differ with dynamic sampling. In the place of others it takes further prompts, as many as chance has
    it; three standard deviations more than the mean are counted, so a few rounds in a thousand still train fewer than
    P groups. At 1 no refill is counted, and data of so few prompts may leave rounds that want some without.
    """
    classified = math.ceil((target + _REFILL_DEVIATIONS * math.sqrt(target * (1.0 - accepted))) / accepted)
    if mode == "predict":
        return math.ceil((2 * target + classified) / (1.0 - long_share))
    # In `exact` the over-issue is there for those that are not accepted; elsewhere it is deferred beside them.
    taken = max(short_prompts, classified) if mode == "exact" else short_prompts + classified - target
    if mode == "sync" or (mode != "exact" and short_prompts == target):
        return taken
    return taken + (queue or target) - 1
