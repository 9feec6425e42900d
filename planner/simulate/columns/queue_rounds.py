"""The queue of `exact` in its steady state: which prompts a long round issues, how old they are, how long they waited.

Which draws are long does not depend on engines. So the queue is followed without them: whether a prompt counts in a
round is a coin with the length model's probability, thrown once for each of its copies. The queue grows by what a short
round defers in the mean, and may hold more than a long round issues. What is issued is kept, after a warm-up or, where
the number of prompts is known, over whole epochs, each of which ends with waves. A long round that is simulated on
engines takes what one of these held, and draws lengths of its own: all layouts the same, so the queue of a cutoff is
followed once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....rounds.machines.exact import MAX_DRAWS
from ....rounds.round_spec import QueueRule
from ...lengths.draws import Draws, Numbers, Tokens

WARM_UP = 64
"""Long rounds until the queue is in its steady state: old prompts are drawn until long long before."""

KEPT = 192
"""Long rounds of the steady state that are followed, and of epochs at least."""

_STRIDE = (math.sqrt(5) - 1) / 2  # any number of first rounds are spread over all that are kept


@dataclass(frozen=True, slots=True, eq=False)
class Issued:
    """What a long round issues: prompts (indices of traced ones) in queue order, in how many long rounds each was
    short; `waves`: they are drawn in waves, as at an epoch's end."""

    prompts: Numbers
    ages: Numbers
    waves: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IssuedDraws:
    """An `Issued` with lengths.

    Attributes:
        numbers: of the prompts among the synthetic ones, in queue order.
        copies, until_long: by prompt.
        lengths: of all the draws that the round can want, prompt by prompt; shape (rows, width).
        offset: prompt k has rows offset[k] to offset[k + 1].
    """

    issued: Issued
    numbers: Numbers
    copies: Numbers
    until_long: NDArray[np.bool_]
    lengths: Tokens
    offset: Numbers


@dataclass
class QueueStates:
    """What the queue of a cutoff holds as its long rounds begin.

    Args:
        prompts: of the data; None: epochs have no end.

    Attributes:
        kept: what the long rounds that were followed issued, in order.
        trained, waits: prompts that each of them trained, and of each prompt the long rounds that it waited, the one
            that trains it included.
    """

    draws: Draws
    group_size: int
    target: int
    cutoff_tokens: int
    rule: QueueRule
    prompts: int | None = None
    kept: list[Issued] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    waits: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _drawn: dict[tuple[int, int], IssuedDraws] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.draws.model
        self._long = 1.0 - model.groups_within(self.cutoff_tokens, self.group_size)
        # Among the first synthetic prompts is each traced one once.
        self._number = np.argsort(self.draws.traced_of(np.arange(len(self._long))))
        self._follow()

    @cached_property
    def most_draws(self) -> int:
        """The most draws that a round issues at its start."""
        return max(int(self._copies(issued).sum()) for issued in self.kept)

    def of_round(self, number: int, copies: int) -> IssuedDraws:
        """What the `number`-th long round that is simulated issues; `copies`: of prompts that are drawn in waves."""
        if (number, copies) not in self._drawn:
            self._drawn[number, copies] = self._with_lengths(number, copies)
        return self._drawn[number, copies]

    def _copies(self, issued: Issued) -> Numbers:
        return 1 + issued.ages // self.rule.more_copies_every

    def _follow(self) -> None:
        """Follow the queue through a warm-up and `KEPT` rounds, or through whole epochs."""
        rng = np.random.default_rng(5)  # whatever the draws: a plan has room for what it issues before it is simulated
        weights = np.cumsum(self._long / self._long.sum())
        target, most = self.target, self.rule.prompts
        who = ages = since = np.empty(0, dtype=np.int64)
        waits: list[Numbers] = []
        number, warm = 0, WARM_UP if self.prompts is None else 0
        long_share = float(self._long.mean())
        of_epoch = left = math.inf if self.prompts is None else max(target, round(self.prompts * long_share))
        # By a short round. Where nearly all groups are long it defers without end: at most 1,000 times `target`, then.
        deferred = max(1, round(target * long_share / max(1e-3, 1.0 - long_share)))
        while True:
            wanted = max(0, most - len(who))
            fresh = int(min(left, math.ceil(wanted / deferred) * deferred))
            ends = fresh < wanted
            if ends:  # the last rounds of an epoch take what is left of it, and are filled from the next
                waves = math.ceil((len(who) + fresh) / target)
                fresh = waves * target - len(who)
            left -= fresh
            who = np.concatenate([who, np.searchsorted(weights, rng.random(fresh))])
            ages, since = (np.concatenate([each, np.full(fresh, new)]) for each, new in ((ages, 0), (since, number)))
            if ends:
                for _ in range(waves):
                    self.kept.append(Issued(who[:target], ages[:target], waves=True))
                    self.trained.append(target)
                    waits.append(number + 1 - since[:target])
                    who, ages, since = who[target:], ages[target:], since[target:]
                    number += 1
                left += of_epoch
                if len(self.kept) >= KEPT:
                    break
                continue
            issued = Issued(who[:most], ages[:most])
            chance = 1.0 - (1.0 - self._long[issued.prompts]) ** self._copies(issued)
            chance[issued.ages >= self.rule.until_long_after] = 1.0
            long = np.append(rng.random(len(chance)) < chance, np.zeros(len(who) - len(chance), dtype=bool))
            ahead = np.cumsum(long)  # long prompts up to this one, itself included
            trained = long & (ahead <= target)
            decided = (ahead - long < target) & (np.arange(len(who)) < most)
            if number >= warm:
                self.kept.append(issued)
                self.trained.append(int(trained.sum()))
                waits.append(number + 1 - since[trained])
            ages = ages + (decided & ~long)
            who, ages, since = who[~trained], ages[~trained], since[~trained]
            number += 1
            if self.prompts is None and len(self.kept) == KEPT:
                break
        self.waits = np.concatenate(waits)

    def _with_lengths(self, number: int, copies: int) -> IssuedDraws:
        model = self.draws.model
        issued = self.kept[math.floor((0.5 + number * _STRIDE) % 1.0 * len(self.kept))]
        rng = np.random.default_rng([self.draws.seed, 6, number])
        if issued.waves:
            at_first, until_long = np.full_like(issued.ages, copies), np.ones(len(issued.ages), dtype=bool)
        else:
            at_first, until_long = self._copies(issued), issued.ages >= self.rule.until_long_after

        def draw(prompts: Numbers, counts: Numbers) -> Tokens:
            picks = rng.integers(model.tables.shape[1], size=(int(counts.sum()), self.draws.width))
            return model.lengths_of(np.repeat(prompts, counts), picks).astype(np.int32)

        rows, counts = draw(issued.prompts, at_first), at_first
        parts = [rows]
        owners = [np.repeat(np.arange(len(counts)), counts)]
        open_ = until_long & ~self._any_long(rows, counts)
        while open_.any():
            more = np.where(open_, np.minimum(counts, MAX_DRAWS - counts), 0)
            rows = draw(issued.prompts, more)
            parts.append(rows)
            owners.append(np.repeat(np.arange(len(counts)), more))
            counts = counts + more
            open_ = open_ & ~self._any_long(rows, more) & (counts < MAX_DRAWS)
        order = np.argsort(np.concatenate(owners), kind="stable")
        return IssuedDraws(
            issued=issued,
            numbers=self._number[issued.prompts],
            copies=at_first,
            until_long=until_long,
            lengths=np.concatenate(parts)[order],
            offset=np.concatenate([[0], np.cumsum(counts)]),
        )

    def _any_long(self, rows: Tokens, counts: Numbers) -> NDArray[np.bool_]:
        """By prompt, whether any of its rows is long; `counts`: rows of each."""
        long = rows[:, : self.group_size].max(axis=1, initial=0) > self.cutoff_tokens
        return np.bincount(np.repeat(np.arange(len(counts)), counts), weights=long, minlength=len(counts)) > 0
