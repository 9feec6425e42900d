"""Kinds of round of a plan: the samples that a round issues, its engines, its trainers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from ...rounds.round_spec import QueueRule
from ..phrases.numbers import count
from .base import MOST_ISSUED, Count, Name, Strict, cross_error, is_none
from .levers import EngineLayout, RoundBalance, RoundDrafts, RoundHandOver, RoundPrefix, RoundTail, UpdateLayout

_RULE = QueueRule(1)  # for its defaults


class RoundIssue(Strict):
    """What a short round issues."""

    prompts: Count
    """Prompts issued; what exceeds P is over-issue."""

    samples: Count
    """Samples issued per prompt; what exceeds n is over-issue."""

    @property
    def issued(self) -> int:
        """Samples that are issued when the round begins."""
        return self.prompts * self.samples

    @model_validator(mode="after")
    def _can_be_simulated(self) -> RoundIssue:
        if self.issued > MOST_ISSUED:
            raise cross_error(
                f"a round issues {self.issued} samples, and at most {MOST_ISSUED} can be simulated; write fewer",
                "prompts",
            )
        return self


class LongIssue(RoundIssue):
    """What a long round issues."""

    copies: Count = 1
    """Draws started at once for each deferred group that is drawn in waves until one is long; mode exact only, 1
    elsewhere."""

    @property
    def issued(self) -> int:
        """Samples that are issued when the round begins, all copies together."""
        return self.copies * super().issued


class LongQueue(Strict):
    """Long rounds of mode exact that issue more deferred prompts than they train, in the order of their queue. The
    first of them that are long are trained; what was short stays in the queue, and is a long round older."""

    more_copies_every: Count = _RULE.more_copies_every
    """A prompt is drawn once more at once for each so many long rounds that found it short."""

    until_long_after: Count = _RULE.until_long_after
    """Long rounds after which a prompt is drawn in waves until a draw is long, so that none waits for ever."""


class RoundRollout(Strict):
    """The engines of a round."""

    pool: Name
    """Pool of the cluster that the engines run on."""

    engines: Count
    """Number of engines."""

    tp: Count
    """Accelerators per engine (tensor parallelism)."""

    max_num_seqs: Count
    """Sequences that one engine decodes at once in this kind of round; more wait in their order."""

    kv_tokens: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """KV tokens that one engine has room for, all its accelerators together; engines that several kinds of round share
    have the most of them. What rounds need, times a margin: with too few, samples wait or are decoded again. Null: all
    that fit on accelerators beside which trainers make room."""

    drafts: RoundDrafts | None = None
    """Speculative decoding; null for none."""

    prefix: Annotated[RoundPrefix | None, Field(exclude_if=is_none)] = None
    """Placement of a prompt's samples on one engine; null: each sample goes to the least loaded engine."""

    balance: Annotated[RoundBalance | None, Field(exclude_if=is_none)] = None
    """Order and placement of samples by how long their prompts' earlier responses were; null: samples start in order,
    each on the engine that has the fewest. Not beside prefix."""

    @model_validator(mode="after")
    def _one_placement(self) -> RoundRollout:
        if self.balance is not None and self.prefix is not None:
            raise cross_error("is beside prefix, and each says where samples go; remove one of the two", "balance")
        return self

    @property
    def layout(self) -> EngineLayout:
        """The engines' layout, as costs are looked up by it."""
        return EngineLayout(self.tp, self.engines)


class ShortRound(Strict):
    """The round that most steps are; in mode sync, every step."""

    issue: RoundIssue
    """What the round issues."""

    cutoff_tokens: Count | None
    """Response length in tokens at which a running group is deferred; mode exact only, null elsewhere."""

    long_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the prompts, those with the longest history, that get long rounds; mode predict only, null elsewhere."""

    rollout: RoundRollout
    """The engines."""

    train: UpdateLayout
    """The trainers."""

    hand_over: RoundHandOver | None = None
    """Engines that train while the tail decodes; null for none."""

    @property
    def tail(self) -> None:
        """Engines of a tail, which only long rounds have."""
        return None

    @property
    def change(self) -> RoundHandOver | None:
        """The change of the round's engines before its end; None: they all decode to the end."""
        return self.hand_over

    @property
    def layouts(self) -> tuple[EngineLayout, ...]:
        """Layouts of all engines that the round needs."""
        return (self.rollout.layout,)


class LongRound(Strict):
    """The round that runs deferred prompts, or those that are expected to be long, to their end."""

    issue: LongIssue
    """What the round issues: P prompts, or up to `prompts` of what waits where there is a queue."""

    queue: Annotated[LongQueue | None, Field(exclude_if=is_none)] = None
    """How a round issues what waits; null: it trains all that it issues, in mode exact by draws in waves. With a queue
    only the rounds that end an epoch or a run do so."""

    rollout: RoundRollout
    """The engines."""

    train: UpdateLayout
    """The trainers."""

    hand_over: RoundHandOver | None = None
    """Engines that train while the tail decodes; null for none."""

    tail: Annotated[RoundTail | None, Field(exclude_if=is_none)] = None
    """Engines of a higher TP size that decode the round's tail in place of its engines; null for none."""

    @property
    def rule(self) -> QueueRule | None:
        """How a round issues what waits, as its machine takes it; None: in waves."""
        if self.queue is None:
            return None
        return QueueRule(self.issue.prompts, self.queue.more_copies_every, self.queue.until_long_after)

    @property
    def change(self) -> RoundHandOver | RoundTail | None:
        """The change of the round's engines before its end; None: they all decode to the end."""
        return self.tail or self.hand_over

    @property
    def layouts(self) -> tuple[EngineLayout, ...]:
        """Layouts of all engines that the round needs, those of its tail last."""
        return (self.rollout.layout,) if self.tail is None else (self.rollout.layout, self.tail.layout)


class Rounds(Strict):
    """The kinds of round."""

    short: ShortRound
    """The round that most steps are."""

    long: LongRound | None
    """The round for deferred prompts; null when the mode defers none."""


def hand_over_faults(rounds: Rounds) -> Iterator[tuple[str, str]]:
    """Yield hand-overs that leave no engine for decoding, as (message, dotted field below the job)."""
    for name, kind in (("short", rounds.short), ("long", rounds.long)):
        if kind is not None and kind.hand_over is not None and kind.hand_over.engines >= kind.rollout.engines:
            freed, engines = kind.hand_over.engines, kind.rollout.engines
            remedy = f"write at most {engines - 1}" if engines > 1 else "write hand_over: null"
            text = f"frees {freed} of {count(engines, 'engine')}, and one must go on decoding; {remedy}"
            yield text, f"rounds.{name}.hand_over.engines"


def tail_faults(rounds: Rounds) -> Iterator[tuple[str, str]]:
    """Yield what a tail's engines cannot be, as (message, dotted field below the job)."""
    long = rounds.long
    if long is None or long.tail is None:
        return
    tail, rollout = long.tail, long.rollout
    devices = rollout.engines * rollout.tp
    if long.hand_over is not None:
        text = "is beside rounds.long.hand_over, and engines change once in a round; write one of the two"
        yield text, "rounds.long.tail"
    elif tail.tp <= rollout.tp:
        yield f"is not above TP {rollout.tp} of the round's engines; write more, or tail: null", "rounds.long.tail.tp"
    elif tail.engines * tail.tp > devices:
        remedy = f"write at most {devices // tail.tp}" if devices >= tail.tp else "write tail: null"
        text = f"take {tail.engines * tail.tp} devices, and the round's engines have {devices}; {remedy}"
        yield text, "rounds.long.tail.engines"
