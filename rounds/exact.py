"""`exact` rounds: tail batching that leaves the trained distribution as it is (design.md, "Bias is a budget").

Let a draw be *short* if its longest sample ends within the cutoff L*, else *long*; a sample that is cut at L* is long.

Short round. Draws stand in a row, in order of issue. A draw *counts* if and only if fewer than P of the draws before it
were accepted (short, and not filtered by dynamic sampling). That event does not depend on the draw itself, so counting
draws are unconditioned. A counting short draw is trained, a counting long draw is deferred, a draw that does not count
is returned as if never issued, whatever it drew.

Long round. Each deferred prompt is drawn again until a draw is long: `copies` draws at once, the lowest-numbered long
one is trained, later ones are aborted. Draws are independent, so the trained one is distributed as D given long,
however the copies interleave in time. If none is long, twice as many are drawn next, so that a prompt that is rarely
long costs a logarithmic number of waves; they run in the bubble that a long round has anyway.

Each prompt is then trained on P(short) * D|short + P(long) * D|long = D over a cycle.

Invariants:
- classification depends on token counts only, never on arrival times;
- a draw with a sample that was lost or failed is void: it is drawn again as a whole, in the same place of the row;
- after `MAX_DRAWS` draws of one prompt the last draw is trained as it is and the prompt is reported as `exhausted`:
  a bounded, counted leak instead of an unbounded wait. A prompt that is long with probability q is deferred with
  probability q and exhausted with (1 - q)^64, so the leak is at most 0.6 % of a prompt's weight, at q = 1/65.
"""

from __future__ import annotations

import math
from abc import abstractmethod

from .events import Action
from .outcome import Fate, has_signal
from .round import Draw, Round, Take

MAX_DRAWS = 64


def most_draws_at_once(copies: int) -> int:
    """The most draws of one prompt that decode at once in a long round: a wave begins when all before it have ended."""
    drawn = most = min(copies, MAX_DRAWS)
    while drawn < MAX_DRAWS:
        wave = min(drawn, MAX_DRAWS - drawn)
        drawn, most = drawn + wave, max(most, wave)
    return most


class _ExactRound(Round):
    """Classification by cutoff and voiding of draws, shared by both kinds of exact round."""

    def __init__(self, prompts: list[str], group_size: int, cutoff_tokens: int, max_tokens: int, take: Take) -> None:
        super().__init__(prompts, group_size, max_tokens, take)
        if not 1 <= cutoff_tokens < max_tokens:
            raise ValueError("the cutoff must be at least 1 and below the length cap")
        self.cutoff_tokens = cutoff_tokens

    def _is_long(self, draw: Draw, sample: int) -> bool:
        tokens = draw.tokens[sample]
        return tokens > self.cutoff_tokens or (tokens == self.cutoff_tokens and sample in draw.truncated)

    def _is_short(self, draw: Draw) -> bool:
        return not draw.past_cutoff and len(draw.tokens) == self.group_size

    @abstractmethod
    def _replace(self, draw: Draw, actions: list[Action]) -> None:
        """Draw again in the place of `draw`."""

    @abstractmethod
    def _give_up(self, draw: Draw, actions: list[Action]) -> None:
        """Settle the prompt of `draw` as failed."""

    def _on_lost(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        self._replace(draw, actions)

    def _on_failed(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if self._gave_up(draw.prompt):
            self._give_up(draw, actions)
        else:
            self._replace(draw, actions)


class ExactShortRound(_ExactRound):
    """Train the first `target` accepted draws of the row; defer the long ones before them.

    Args:
        prompts: prompts to issue, in order (over-issued beyond `target`).
        target: groups to train (P).
        group_size: samples per group (n).
        cutoff_tokens: L*.
        max_tokens: the job's length cap; a short round itself never decodes past L*.
        dynamic_sampling: drop groups whose rewards are all equal.
        take: hands out fresh prompts when the row is too short.
    """

    kind = "short"

    def __init__(
        self,
        prompts: list[str],
        target: int,
        group_size: int,
        cutoff_tokens: int,
        max_tokens: int,
        *,
        dynamic_sampling: bool = False,
        take: Take = lambda k: [],
    ) -> None:
        super().__init__(prompts, group_size, cutoff_tokens, max_tokens, take)
        self.target = min(target, len(prompts))
        self.dynamic_sampling = dynamic_sampling
        self.accepted = 0
        self._over = len(prompts) / max(self.target, 1)
        self._row: list[Draw] = []  # current draw of each place
        self._next = 0  # first place that has not been judged
        self._accepted: set[int] = set()  # draws, by number

    def start(self) -> list[Action]:
        actions: list[Action] = []
        self._extend(self._initial, actions)
        self._judge(actions)
        return actions

    def _extend(self, prompts: list[str], actions: list[Action]) -> None:
        for prompt in prompts:
            self._row.append(self._issue_draw(prompt, self.group_size, self.cutoff_tokens, None, actions))

    def _on_finished(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if self._is_long(draw, sample):
            draw.past_cutoff = True
            # Deferred or returned, its samples are of no use either way.
            self._abort_live(draw, actions)
            self._judge(actions)
        else:
            self._score(draw, sample, actions)
            if self._is_short(draw):
                self._judge(actions)

    def _on_scored(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if len(draw.rewards) == self.group_size:
            if draw.number in self._accepted:
                self._mark_ready(draw)
            self._judge(actions)

    def _replace(self, draw: Draw, actions: list[Action]) -> None:
        place = self._row.index(draw)
        self._settle(draw, Fate.DISCARDED, actions)
        self._row[place] = self._issue_draw(draw.prompt, self.group_size, self.cutoff_tokens, None, actions)

    def _give_up(self, draw: Draw, actions: list[Action]) -> None:
        self._settle(draw, Fate.FAILED, actions)
        self._judge(actions)

    def _judge(self, actions: list[Action]) -> None:
        """Walk the row as far as it is classified; close the round when P are accepted or no prompt is free."""
        while self.accepted < self.target:
            if self._next == len(self._row):
                missing = self.target - self.accepted
                fresh = self._take(math.ceil(missing * self._over))
                if not fresh:
                    break
                self.taken.extend(fresh)
                self._extend(fresh, actions)
            draw = self._row[self._next]
            if draw.past_cutoff:
                self._settle(draw, Fate.DEFERRED, actions)
            elif draw.fate is not Fate.FAILED:
                if not self._is_short(draw):
                    return
                if self.dynamic_sampling:
                    # Acceptance of later draws depends on this one's rewards, so the walk has to wait for them.
                    if len(draw.rewards) < self.group_size:
                        return
                    if not has_signal(list(draw.rewards.values())):
                        self._settle(draw, Fate.FILTERED, actions)
                        self._next += 1
                        continue
                self.accepted += 1
                self._accepted.add(draw.number)
                if len(draw.rewards) == self.group_size:
                    self._mark_ready(draw)
            self._next += 1
        for draw in self._row[self._next :]:
            if draw.fate is None:
                self._settle(draw, Fate.RETURNED, actions)
        # A draw that was voided after its place had been judged is judged again here: if it is long now, it is deferred
        # and the batch is one group smaller.
        counting = [d for d in self._row[: self._next] if d.fate is None]
        if any(not d.past_cutoff and len(d.rewards) < self.group_size for d in counting):
            return
        for draw in counting:
            if draw.past_cutoff:
                fate = Fate.DEFERRED
            elif self.dynamic_sampling and not has_signal(list(draw.rewards.values())):
                fate = Fate.FILTERED
            else:
                fate = Fate.TRAINED
            self._settle(draw, fate, actions)
        self.done = True


class ExactLongRound(_ExactRound):
    """Draw each deferred prompt until a draw is long, and train that one.

    Args:
        prompts: deferred prompts, each settled in this round.
        group_size: samples per group (n).
        cutoff_tokens: the L* by which the prompts were deferred.
        copies: draws started at once per prompt.
        max_tokens: the length cap.
        dynamic_sampling: drop groups whose rewards are all equal (no refill: the batch is smaller).
    """

    kind = "long"

    def __init__(
        self,
        prompts: list[str],
        group_size: int,
        cutoff_tokens: int,
        copies: int,
        max_tokens: int,
        *,
        dynamic_sampling: bool = False,
    ) -> None:
        super().__init__(prompts, group_size, cutoff_tokens, max_tokens, lambda k: [])
        if copies < 1:
            raise ValueError("copies must be at least 1")
        self.copies = copies
        self.dynamic_sampling = dynamic_sampling
        self._rows: dict[str, list[Draw]] = {prompt: [] for prompt in prompts}  # draws of a prompt, in order
        self._chosen: dict[str, Draw] = {}
        self._open = len(self._rows)

    def start(self) -> list[Action]:
        actions: list[Action] = []
        # Copy by copy, not prompt by prompt: first copies are the likeliest to be trained and get the engines first.
        for _ in range(self.copies):
            for prompt in self._initial:
                self._rows[prompt].append(self._draw(prompt, actions))
        self.done = not self._initial
        return actions

    def _draw(self, prompt: str, actions: list[Action]) -> Draw:
        return self._issue_draw(prompt, self.group_size, self.max_tokens, self.cutoff_tokens, actions)

    def _on_cutoff(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if not draw.past_cutoff:
            draw.past_cutoff = True
            self._choose(draw.prompt, actions)

    def _on_finished(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        chosen = self._chosen.get(draw.prompt)
        if draw is chosen:
            self._score(draw, sample, actions)
            return
        if self._is_long(draw, sample):
            self._on_cutoff(draw, sample, actions)
        elif self._is_short(draw):
            self._choose(draw.prompt, actions)

    def _choose(self, prompt: str, actions: list[Action]) -> None:
        """Walk the prompt's draws in order to the first long one; all before it must be classified short."""
        row = self._rows[prompt]
        if prompt in self._chosen:
            return
        for draw in row:
            if draw.past_cutoff:
                self._take_draw(draw, actions)
                return
            if not self._is_short(draw):
                return
        if len(row) >= MAX_DRAWS:
            self._exhausted.append(prompt)
            self._take_draw(row[-1], actions)
            return
        for _ in range(min(len(row), MAX_DRAWS - len(row))):
            row.append(self._draw(prompt, actions))

    def _take_draw(self, draw: Draw, actions: list[Action]) -> None:
        self._chosen[draw.prompt] = draw
        for other in self._rows[draw.prompt]:
            if other is not draw and other.fate is None:
                self._settle(other, Fate.DISCARDED, actions)
        for sample in sorted(draw.tokens):
            self._score(draw, sample, actions)

    def _on_scored(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if len(draw.rewards) < self.group_size:
            return
        flat = self.dynamic_sampling and not has_signal(list(draw.rewards.values()))
        self._close(draw, Fate.FILTERED if flat else Fate.TRAINED, actions)

    def _close(self, draw: Draw, fate: Fate, actions: list[Action]) -> None:
        self._settle(draw, fate, actions)
        self._open -= 1
        self.done = self._open == 0

    def _replace(self, draw: Draw, actions: list[Action]) -> None:
        row = self._rows[draw.prompt]
        # Places, not draw numbers: a draw that replaced an elder one has a higher number than its juniors.
        place = row.index(draw)
        if self._chosen.get(draw.prompt) is draw:
            # Its elders are known to be short and its juniors were aborted: a new row starts here.
            del self._chosen[draw.prompt]
            del row[place + 1 :]
            if draw.prompt in self._exhausted:
                self._exhausted.remove(draw.prompt)
        self._settle(draw, Fate.DISCARDED, actions)
        row[place] = self._draw(draw.prompt, actions)

    def _give_up(self, draw: Draw, actions: list[Action]) -> None:
        for other in self._rows[draw.prompt]:
            if other is not draw and other.fate is None:
                self._settle(other, Fate.DISCARDED, actions)
        self._close(draw, Fate.FAILED, actions)
