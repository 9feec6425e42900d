"""Simulated columns: what a kind of short round, or of long round, costs and moves, over many rounds of it.

A short column runs rounds on fresh prompts, one after another; prompts that it defers are taken out (as a long round
would) and collected, those that it returns come first in its next round. A long column runs rounds on batches of such
prompts. In `predict` both run what history chose for them, in an epoch that has one (draws.py). Rounds of one
column are thus independent given their prompts, and a cycle's cost is a weighted mean of the two (cycle_cost.py).

Bias is measured as *excess*: the length that is trained of a prompt minus the uncut length of the prompt's first draw.
First draws are unconditioned, so the mean excess over a cycle is the bias. Both lengths are of the same prompt, so most
of the noise of heavy tails and of unlike prompts cancels; a prompt that is trained on its first draw has excess 0. The
excess of a deferred prompt has two parts. The short round counts the draw that deferred the prompt minus the first
draw. The long round counts the trained draw minus the deferring draw, for which it takes the first draw: both have the
same distribution.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....rounds.machines.exact import MAX_DRAWS
from ....rounds.machines.outcome import Fate
from ....rounds.round_spec import RoundKind
from ...choose.candidates.round_kinds import LongKey, ShortKey, defers
from ...costs.decode_costs import ChangeCost
from ...lengths.draws import FIRST, Draws, Numbers, Tokens, prompt_name, prompt_parts
from ..one_round import simulate_one_round
from ..round_arrays import FATES, RanOut, RoundDraws, SimulatedRound
from .column_setting import FEED, feed_size
from .column_setting import Setting as Setting  # re-exported for callers that make columns
from .round_log import RoundLog, mean, record_round


class ShortColumn:
    """A kind of short round, simulated further on demand; the same rounds come first however often it is extended."""

    def __init__(self, setting: Setting, key: ShortKey) -> None:
        self.key = key
        self._setting = setting
        self._cost = setting.cost_of(key)
        self.log = RoundLog(self._cost.sync_s, cost=self._cost)
        self.deferred_prompts: list[str] = []
        self._round_kind = RoundKind(
            name="short",
            prompts=key.prompts,
            target=setting.target,
            group_size=setting.group_size,
            samples=key.samples,
            max_tokens=setting.cap_tokens,
            cutoff_tokens=key.cutoff_tokens,
            dynamic_sampling=setting.dynamic_sampling,
        )
        self._feeds = 0
        # The feed's prompts by place: their numbers, their first draws' lengths, how often they were drawn.
        self._numbers: Numbers = np.empty(0, dtype=np.int64)
        self._lengths: Tokens = np.empty((0, FIRST, 0), dtype=np.int32)
        self._drawn: Numbers = np.empty(0, dtype=np.int64)
        self._fresh: list[int] = []  # places, next one last

    def extend(self, rounds: int) -> None:
        """Simulate until `rounds` rounds are in the log."""
        while len(self.log) < rounds:
            self._add_round()

    def first(self, rounds: int) -> RoundLog:
        """A log whose first rounds are those that this column had when it had `rounds` of them."""
        assert rounds <= len(self.log), "they were simulated"
        return self.log

    def _feed(self) -> None:
        key = self.key
        count = feed_size(key.mode, key.prompts)
        self._numbers = np.arange(self._feeds * count, (self._feeds + 1) * count)
        self._lengths = self._setting.draws.firsts(self._numbers, 0)
        self._drawn = np.zeros(count, dtype=np.int64)
        self._fresh = list(range(count))
        if key.mode == "predict":
            self._fresh = np.flatnonzero(~self._setting.earlier.expected_long(self._feeds, key.long_share)).tolist()
        random.Random(f"{self._feeds}:0").shuffle(self._fresh)
        self._feeds += 1

    def _add_round(self) -> None:
        setting, key = self._setting, self.key
        if len(self._fresh) < 3 * key.prompts:
            self._feed()
        places, round_draws, simulated = self._simulate_next()
        taken = len(simulated.row)
        del self._fresh[len(self._fresh) - taken :]
        self._drawn[places[:taken]] += 1
        fate = simulated.fate
        deferred = fate == FATES[Fate.DEFERRED]
        # Returned prompts keep their place at the head of the feed.
        self._fresh.extend(places[:taken][fate == FATES[Fate.RETURNED]][::-1].tolist())
        size = setting.group_size
        firsts = self._lengths[places[:taken], 0, :size].sum(axis=1, dtype=np.int64)
        # They differ from the first draws where a first draw did not count and was returned.
        put_off = round_draws.lengths[:taken][deferred, :size].sum(dtype=np.int64) - firsts[deferred].sum()
        self._record(self._numbers[places[:taken]], round_draws, simulated, firsts, int(put_off))

    def _simulate_next(self) -> tuple[Numbers, RoundDraws, SimulatedRound]:
        """Simulate the next round; (indices in the feed, its draws, the round)."""
        # Refills are rare and few: most rounds need no more rows than this, and the others are run once more.
        given = min(len(self._fresh), 2 * self.key.prompts)
        places, round_draws = self._draw_round(given)
        try:
            return places, round_draws, simulate_column_round(self._setting, self.key, self._round_kind, round_draws)
        except RanOut:
            places, round_draws = self._draw_round(len(self._fresh))
            return places, round_draws, simulate_column_round(self._setting, self.key, self._round_kind, round_draws)

    def _record(
        self, numbers: Numbers, round_draws: RoundDraws, simulated: SimulatedRound, firsts: Numbers, put_off: int
    ) -> None:
        """Add a round to the log; `numbers` and `firsts` by draw, `put_off` as of record_round."""
        record_round(self.log, self._round_kind, round_draws, simulated, firsts, put_off, streams=self._setting.streams)
        deferred = simulated.fate == FATES[Fate.DEFERRED]
        self.deferred_prompts.extend(prompt_name(int(n), 0) for n in numbers[deferred])

    def _draw_round(self, given: int) -> tuple[Numbers, RoundDraws]:
        """(indices of the next `given` prompts of the feed, their draws)."""
        setting, draws = self._setting, self._setting.draws
        places = np.array(self._fresh[: -given - 1 : -1], dtype=np.int64)
        numbers, nth = self._numbers[places], self._drawn[places]
        lengths = self._lengths[places, np.minimum(nth, FIRST - 1)]
        for late in np.flatnonzero(nth >= FIRST):
            lengths[late] = draws.row(int(numbers[late]), 0, int(nth[late]))
        more = given < len(self._fresh)
        return places, setting.round_draws(self.key, numbers, lengths, (numbers, 0, nth), more=more)


class LongColumn:
    """A kind of long round over prompts that its rule deferred."""

    def __init__(self, setting: Setting, key: LongKey) -> None:
        self.key = key
        self._setting = setting
        self._cost = setting.cost_of(key)
        self._change = setting.change_of(key)
        self.log = RoundLog(self._cost.sync_s, cost=self._cost)
        self._round_kind = RoundKind(
            name="long",
            prompts=setting.target,
            target=setting.target,
            group_size=setting.group_size,
            samples=setting.group_size,
            max_tokens=setting.cap_tokens,
            cutoff_tokens=key.deferral.cutoff_tokens,
            copies=(key.copies,) * setting.target,
            until_long=(True,) * setting.target,
            dynamic_sampling=setting.dynamic_sampling,
        )

    def extend(self, rounds: int, pool: Sequence[str]) -> None:
        """Simulate until `rounds` rounds are in the log; `pool`: deferred prompts, oldest first, at least one.

        When the pool is smaller than what the rounds take, its prompts come again in another stream: the same
        prompts, fresh draws.
        """
        assert pool, "a long round needs deferred prompts"
        while len(self.log) < rounds:
            self._add_round(pool)

    def first(self, rounds: int) -> RoundLog:
        """A log whose first rounds are those that this column had when it had `rounds` of them."""
        assert rounds <= len(self.log), "they were simulated"
        return self.log

    def _add_round(self, pool: Sequence[str]) -> None:
        setting = self._setting
        first = len(self.log) * setting.target
        laps, places = np.divmod(np.arange(first, first + setting.target), len(pool))
        numbers = np.array([prompt_parts(pool[place])[0] for place in places], dtype=np.int64)
        round_draws = self._draw_round(numbers, laps + 1)
        simulated = simulate_column_round(setting, self.key, self._round_kind, round_draws, self._change)
        firsts = np.empty(len(numbers), dtype=np.int64)
        for lap in np.unique(laps):
            mine = laps == lap
            firsts[mine] = setting.draws.firsts(numbers[mine], 0)[:, 0, : setting.group_size].sum(axis=1)
        record_round(self.log, self._round_kind, round_draws, simulated, firsts, 0, self.key, setting.streams)

    def _draw_round(self, numbers: Numbers, streams: Numbers) -> RoundDraws:
        lengths: list[Tokens] = []
        for stream in np.unique(streams).tolist():  # streams ascend
            lengths += self._rows(numbers[streams == stream], stream)
        offset = np.cumsum([0, *map(len, lengths)])
        places = np.repeat(np.arange(len(lengths)), np.diff(offset))
        drawn = numbers[places], streams[places], np.arange(len(places)) - offset[places]
        whole = np.concatenate(lengths)
        return self._setting.round_draws(self.key, numbers, whole, drawn, offset if self._round_kind.redraws else None)

    def _rows(self, numbers: Numbers, stream: int) -> list[Tokens]:
        """By prompt, lengths of all the draws that a round can want of it: waves that double until one is long."""
        firsts = self._setting.draws.firsts(numbers, stream)
        if not self._round_kind.redraws:
            return list(firsts[:, :1])
        size, cutoff_tokens, copies = self._setting.group_size, self._round_kind.cutoff_tokens, self.key.copies
        assert cutoff_tokens is not None, "prompts are redrawn in long rounds of exact only"
        # The number of the first draw that is long, or how many are known.
        long = np.c_[firsts[:, :, :size].max(axis=2) > cutoff_tokens, np.ones(len(numbers), dtype=bool)].argmax(axis=1)
        rows_of_prompts = []
        for number, first, rows in zip(numbers.tolist(), long.tolist(), firsts, strict=True):
            drawn = copies
            while True:
                drawn_rows = len(rows)
                if drawn > drawn_rows:
                    more = self._setting.draws.later(number, stream, drawn_rows, drawn)
                    rows = np.concatenate([rows, more])
                    if first >= drawn_rows:
                        first = drawn_rows + int(np.append(more[:, :size].max(axis=1) > cutoff_tokens, True).argmax())
                if first < drawn or drawn >= MAX_DRAWS:
                    break
                drawn = min(2 * drawn, MAX_DRAWS)
            rows_of_prompts.append(rows[:drawn])
        return rows_of_prompts


class QueueColumn(LongColumn):
    """A kind of long round that issues what waits in the queue; where the number of prompts is known, an epoch's last
    ones are drawn in waves."""

    def extend(self, rounds: int, pool: Sequence[str]) -> None:
        """Simulate until `rounds` rounds are in the log; the pool is the queue's own."""
        while len(self.log) < rounds:
            self._add_round(pool)

    def _add_round(self, pool: Sequence[str]) -> None:
        setting, number = self._setting, len(self.log)
        drawn = setting.queue_of(self.key).of_round(number, self.key.copies)
        round_kind = replace(
            self._round_kind,
            prompts=len(drawn.numbers),
            copies=tuple(drawn.copies.tolist()),
            until_long=tuple(drawn.until_long.tolist()),
        )
        places = np.repeat(np.arange(len(drawn.numbers)), np.diff(drawn.offset))
        nth = np.arange(len(places)) - drawn.offset[places]
        # A stream of its own for each round: whatever waited since an earlier one is drawn afresh.
        of_rows = drawn.numbers[places], number + 1, nth
        round_draws = setting.round_draws(self.key, drawn.numbers, drawn.lengths, of_rows, drawn.offset)
        simulated = simulate_column_round(setting, self.key, round_kind, round_draws, self._change)
        firsts = setting.draws.firsts(drawn.numbers, 0)[:, 0, : setting.group_size].sum(axis=1)
        record_round(self.log, round_kind, round_draws, simulated, firsts, 0, self.key, setting.streams)


def long_rounds(setting: Setting, key: LongKey) -> LongColumn:
    """The column of whole long rounds of a kind."""
    return QueueColumn(setting, key) if key.queue else LongColumn(setting, key)


def simulate_column_round(
    setting: Setting,
    key: ShortKey | LongKey,
    round_kind: RoundKind,
    round_draws: RoundDraws,
    change: ChangeCost | None = None,
) -> SimulatedRound:
    """Simulate a round of a column; raises as `simulate_one_round` does."""
    observe = setting.watch() if setting.watch else None
    cost, reward, at_once = setting.cost_of(key), setting.reward_of(key), setting.at_once(key)
    return simulate_one_round(round_kind, round_draws, cost, reward, at_once, change, observe=observe)


def long_draws(draws: Draws, group_size: int, cutoff_tokens: int, count: int) -> list[str]:
    """Prompts that `exact` defers at `cutoff_tokens`: the first `count` whose first draw in stream 0 is long.

    A draw counts or not regardless of its own lengths, so the deferred ones are simply the long ones among all, and no
    round need be simulated to find them.
    """
    prompts: list[int] = []
    cap = draws.model.cap_tokens
    # 64 laps of an epoch bound the search where long draws are too rare to fill a queue; callers repeat prompts then.
    for start in range(0, 64 * max(FEED, count), FEED):
        numbers = np.arange(start, start + FEED)
        longest = draws.firsts(numbers, 0)[:, 0, :group_size].max(axis=1)
        prompts += numbers[(longest > cutoff_tokens) | (longest >= cap)].tolist()
        if len(prompts) >= count:
            break
    return [prompt_name(number, 0) for number in prompts[:count]]


def expected_deferrals(column: ShortColumn, setting: Setting) -> float:
    """Prompts that a short round defers, on average.

    Without dynamic sampling this needs no simulation. `race` and `defer` put off what they issue beyond P; in `exact`
    the long draws before the P-th short one are negative binomial, with mean P (1 - q) / q for a share q of short
    groups. In `predict` prompts wait for long rounds at the pace at which the others are settled.
    """
    rule = column.key.deferral
    if not defers(rule, setting.target):
        return 0.0
    if rule.mode == "predict":
        settled = mean(column.log.settled) if setting.dynamic_sampling else float(setting.target)
        return settled * rule.long_share / (1.0 - rule.long_share)
    if setting.dynamic_sampling:
        return mean(column.log.deferred)
    if rule.cutoff_tokens is not None:
        short = setting.draws.model.short_groups(rule.cutoff_tokens, setting.group_size)
        return setting.target * (1.0 - short) / short
    return float(column.key.prompts - setting.target)
