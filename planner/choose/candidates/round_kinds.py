"""Kinds of short and of long round: what identifies a candidate of either.

A *deferral rule* decides which prompts a short round defers: (mode, prompts, samples, cutoff_tokens). A long round
belongs to a deferral rule, since it runs the prompts that such short rounds defer. In `exact` the rule is the cutoff
alone: which draws count does not depend on how many are issued. In `predict` it is the share of the prompts that go to
long rounds without a draw.

A kind of round is described by few types, each for a reason of its own: a plan's `ShortRound` and `LongRound` are what
its reader sees; `RoundSpec` has what all rounds of a run are issued by; a `RoundKind` is one round of these as numbers,
from which its machine and its simulation are made. The keys here are candidates' names: they sort, and leave out what
all candidates of a solve share (P, n, the cap). A `DeferralRule` is what short and long rounds must have in common.
"""

from __future__ import annotations

from typing import NamedTuple

from ....plans.schema.levers import EngineLayout
from ....rounds.round_spec import Mode, QueueRule


def is_plain_key(key: ShortKey | LongKey) -> bool:
    """Whether a kind of round is plain: synchronous, and without levers that a job must ask for."""
    return key.deferral.mode == "sync" and not key.draft_tokens and not key.balanced


def _levers(key: ShortKey | LongKey) -> str:
    """The part of a column's name that states its levers; it is empty, and sorts first, without levers."""
    drafts = f":d{key.draft_tokens:02d}" if key.draft_tokens else ""
    if isinstance(key, LongKey) and key.hand_over:
        drafts = f":d{key.draft_tokens:02d}:h{key.hand_over}"
    if isinstance(key, LongKey) and key.tail:
        drafts = f":d{key.draft_tokens:02d}:t{key.tail_tp:03d}:{key.tail}"
    queue = ":q" + ":".join(f"{number:05d}" for number in key.queue) if isinstance(key, LongKey) and key.queue else ""
    return f"{drafts}{f':r{key.reward:03d}' if key.reward else ''}{':b' if key.balanced else ''}{queue}"


def column_name(key: ShortKey | LongKey) -> str:
    """Stable name that sorts by mode, issue, cutoff, share of long prompts, copies, layout."""
    rule = key.deferral
    layout = f"tp{key.layout.tp:03d}x{key.layout.engines:03d}{_levers(key)}"
    if rule.mode == "predict":
        layout = f"l{rule.long_share:.3f}:{layout}"
    if isinstance(key, ShortKey):
        return f"{key.mode}:p{key.prompts:05d}:n{key.samples:04d}:c{key.cutoff_tokens or 0:06d}:{layout}"
    return (
        f"{rule.mode}:p{rule.prompts:05d}:n{rule.samples:04d}:c{rule.cutoff_tokens or 0:06d}:m{key.copies:02d}:{layout}"
    )


class DeferralRule(NamedTuple):
    """The rule that decides which prompts a short round defers.

    `prompts` and `samples` are 0 in `exact`, `cutoff_tokens` is None elsewhere; `long_share` is 0 but in `predict`.
    """

    mode: Mode
    prompts: int
    samples: int
    cutoff_tokens: int | None
    long_share: float = 0.0


class ShortKey(NamedTuple):
    """A kind of short round; `draft_tokens` are drafted a step, 0 for no drafts; `reward` is the number of its reward
    workers and deadlines among the search's choices (reward_choices.py); `balanced` if samples start longest expected
    first (balance_choice.py)."""

    mode: Mode
    prompts: int
    samples: int
    cutoff_tokens: int | None
    layout: EngineLayout
    long_share: float = 0.0
    draft_tokens: int = 0
    reward: int = 0
    balanced: bool = False

    @property
    def layouts(self) -> tuple[EngineLayout, ...]:
        """Its engines."""
        return (self.layout,)

    @property
    def deferral(self) -> DeferralRule:
        """Which prompts it defers."""
        if self.mode == "exact":
            return DeferralRule("exact", 0, 0, self.cutoff_tokens)
        return DeferralRule(self.mode, self.prompts, self.samples, None, self.long_share)


class LongKey(NamedTuple):
    """A kind of long round; half of its engines train once a share `hand_over` of its samples ended, 0 for never, or
    engines of `tail_tp` devices take over from all its engines once a share `tail` has; `reward` and
    `balanced` as of a `ShortKey`; `queue` has the numbers of a `QueueRule`, none where prompts are drawn in waves."""

    deferral: DeferralRule
    copies: int
    layout: EngineLayout
    draft_tokens: int = 0
    hand_over: float = 0.0
    reward: int = 0
    tail: float = 0.0
    tail_tp: int = 0
    balanced: bool = False
    queue: tuple[int, ...] = ()

    @property
    def queue_rule(self) -> QueueRule | None:
        """How the round issues what waits in the queue; None: in waves."""
        return QueueRule(*self.queue) if self.queue else None

    @property
    def layouts(self) -> tuple[EngineLayout, ...]:
        """Its engines, and those of its tail where it has others."""
        return (self.layout,) if self.tail_layout is None else (self.layout, self.tail_layout)

    @property
    def freed_engines(self) -> int:
        """Engines that are handed over."""
        return self.layout.engines // 2 if self.hand_over else 0

    @property
    def tail_layout(self) -> EngineLayout | None:
        """Engines of the tail, as many as the devices of the round's engines hold; None: the tail has no others."""
        if not self.tail:
            return None
        return EngineLayout(self.tail_tp, max(1, self.layout.engines * self.layout.tp // self.tail_tp))


def defers(rule: DeferralRule, target: int) -> bool:
    """Whether short rounds under this deferral rule defer any prompt; they train `target` prompts."""
    return rule.mode in ("exact", "predict") or (rule.mode in ("race", "defer") and rule.prompts > target)
