"""`exact` rounds: tail batching that leaves the trained distribution as it is.

Let D be the distribution of a prompt's draws. A draw is *short* if its longest sample ends within the cutoff L*, else
*long*; a sample that is cut at L* is long.

Short round. Draws stand in a row, in order of issue. A draw *counts* if and only if fewer than P of the draws before it
were accepted (short, and not filtered by dynamic sampling). That event does not depend on the draw itself, so counting
draws are unconditioned. A counting short draw is trained, a counting long draw is deferred, a draw that does not count
is returned as if never issued, whatever it drew.

Long round. Deferred prompts stand in a row too, in the order in which they were deferred, each in as many copies as its
age says: the number of long rounds that deferred it again. A prompt is long if one of its copies is. It counts if and
only if fewer than P of the prompts before it are long. Of a counting prompt the lowest-numbered long copy is trained;
one without is deferred again, in its place; a prompt that does not count is returned, as if never issued. Whether a
prompt counts, and in how many copies it is drawn, follows from earlier rounds and from draws of others before it in the
row: given those, its copies are independent draws from D. So the draws that a prompt has where it counts, copy by copy
and round by round, are a sequence from D. The first long one in it is trained, and that is distributed as D given long,
whatever the copies and however many rounds it takes. (D is one distribution here; while the policy learns, a round
draws from that of its own weights.) A round that finds fewer than P trains those: losses are divided by planned
constants, so a group weighs the same in any round. What is not trained yet when a run ends would be missing, so it is
drained.

From an age on that the plan states, a prompt is drawn in waves until a draw is long: once all its draws are short, as
many again are made, so that one that is rarely long costs a logarithmic number of waves. It is long for certain, so
those behind it are judged without its draws; it is drawn beyond its copies only where it counts. A long round by waves
is one of such prompts alone; epochs and runs end with them, since what waits for chance might never be over.

Each prompt is then trained on P(short) * D|short + P(long) * D|long = D over an epoch.

Invariants:
- classification depends on token counts only, never on arrival times;
- a draw with a sample that was lost or failed is void: it is drawn again as a whole, in the same place of the row;
  whether others count is not judged again;
- after `MAX_DRAWS` draws of one prompt in a round the last draw is trained as it is and the prompt is reported as
  `exhausted`: a bounded, counted leak instead of an unbounded wait. A prompt that is long with probability q is
  deferred with probability q and exhausted with (1 - q)^64, so the leak is at most 0.6 % of a prompt's weight, at
  q = 1/65; less where it went through rounds by queue before.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from .events import Action
from .outcome import Fate, has_signal
from .round import Draw, Round, Take


class ExactRound(Round):
    """Base class of short and long rounds of `exact`: a cutoff that tells long draws from short ones, and voided
    draws."""

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


# -- short rounds ------------------------------------------------------------------------------------------------------


class ExactShortRound(ExactRound):
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
    cuts = True

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


# -- long rounds -------------------------------------------------------------------------------------------------------


MAX_DRAWS = 64


def most_draws_at_once(copies: int) -> int:
    """The most draws of one prompt that decode at once in waves: a wave begins when all before it have ended."""
    drawn = most = min(copies, MAX_DRAWS)
    while drawn < MAX_DRAWS:
        wave = min(drawn, MAX_DRAWS - drawn)
        drawn, most = drawn + wave, max(most, wave)
    return most


class ExactQueueRound(ExactRound):
    """Train the first `target` prompts of the queue whose draws are long; those that were short wait on.

    Invariants, by prompt:
    - its row holds its draws in order, up to the first that is known to be long: later ones are discarded then;
    - the last draw of its row has the prompt's fate, the others are discarded;
    - it is drawn beyond its copies only if it counts, so that what is issued does not depend on arrival times.

    Args:
        prompts: deferred prompts, in the order of the queue.
        target: groups to train (P).
        group_size: samples per group (n).
        cutoff_tokens: the L* by which the prompts were deferred.
        max_tokens: the length cap.
        copies: by prompt, draws that are started at once.
        until_long: by prompt, whether it is drawn in waves until a draw is long, once it is certain to count.
        dynamic_sampling: drop groups whose rewards are all equal (they count towards the target).
    """

    kind = "long"

    def __init__(
        self,
        prompts: list[str],
        target: int,
        group_size: int,
        cutoff_tokens: int,
        max_tokens: int,
        *,
        copies: Sequence[int],
        until_long: Sequence[bool],
        dynamic_sampling: bool = False,
    ) -> None:
        super().__init__(prompts, group_size, cutoff_tokens, max_tokens, lambda k: [])
        if min(copies, default=1) < 1:
            raise ValueError("copies must be at least 1")
        self.target = min(target, len(prompts))
        self.cuts = not all(until_long) or target < len(prompts)
        self.dynamic_sampling = dynamic_sampling
        self.accepted = 0
        self._copies = dict(zip(prompts, copies, strict=True))
        self._until_long = {prompt for prompt, waves in zip(prompts, until_long, strict=True) if waves}
        self._rows: dict[str, list[Draw]] = {prompt: [] for prompt in prompts}
        self._chosen: dict[str, Draw] = {}  # the first long draw of a row, all before it being short
        self._counting: set[str] = set()
        self._failed: set[str] = set()
        self._next = 0  # place in the queue of the first prompt that is not judged
        self._open = 0  # counting prompts that are not settled

    def start(self) -> list[Action]:
        actions: list[Action] = []
        # Copy by copy, not prompt by prompt: first copies are the likeliest to be trained and get the engines first.
        for copy in range(max(self._copies.values(), default=0)):
            for prompt in self._initial:
                if copy < self._copies[prompt]:
                    self._draw(prompt, actions)
        self._judge(actions)
        return actions

    def _draw(self, prompt: str, actions: list[Action]) -> None:
        draw = self._issue_draw(prompt, self.group_size, self.max_tokens, self.cutoff_tokens, actions)
        self._rows[prompt].append(draw)

    def _on_cutoff(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if draw.past_cutoff:
            return
        draw.past_cutoff = True
        row = self._rows[draw.prompt]
        place = row.index(draw)
        self._discard(row[place + 1 :], actions)
        del row[place + 1 :]
        self._choose(draw.prompt, actions)
        self._judge(actions)

    def _on_finished(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if draw is self._chosen.get(draw.prompt):
            if draw.prompt in self._counting:
                self._score(draw, sample, actions)
        elif self._is_long(draw, sample):
            self._on_cutoff(draw, sample, actions)
        elif self._is_short(draw):
            self._choose(draw.prompt, actions)
            self._judge(actions)

    def _choose(self, prompt: str, actions: list[Action]) -> None:
        """Look for the prompt's first long draw; draw on where all are short and more are to come."""
        row, counts = self._rows[prompt], prompt in self._counting
        if not all(map(self._is_short, row[:-1])):
            return
        if not row[-1].past_cutoff:
            if not self._is_short(row[-1]):
                return
            more = self._copies[prompt] - len(row)  # where a draw that had discarded its juniors was void
            if more <= 0:
                if not counts:
                    return
                if prompt not in self._until_long:  # its long draw was void: the batch is one group smaller
                    self._close(row[-1], Fate.DEFERRED, actions)
                    return
                more = min(len(row), MAX_DRAWS - len(row))
            for _ in range(more):
                self._draw(prompt, actions)
            if more > 0:
                return
            self._exhausted.append(prompt)
        self._chosen[prompt] = row[-1]
        self._discard(row[:-1], actions)
        if counts:
            for sample in sorted(row[-1].tokens):
                self._score(row[-1], sample, actions)

    def _judge(self, actions: list[Action]) -> None:
        """Walk the queue as far as it is decided; what is behind the last prompt that counts is returned."""
        while self.accepted < self.target and self._next < len(self._initial):
            prompt = self._initial[self._next]
            row = self._rows[prompt]
            if prompt in self._chosen or (prompt in self._until_long and prompt not in self._failed):
                self.accepted += 1
                self._open += 1
                self._counting.add(prompt)
                self._choose(prompt, actions)
            elif prompt not in self._failed:
                if len(row) < self._copies[prompt] or not all(map(self._is_short, row)):
                    return
                self._end(row[-1], Fate.DEFERRED, actions)
            self._next += 1
        for prompt in self._initial[self._next :]:
            if prompt not in self._failed:
                self._end(self._rows[prompt][-1], Fate.RETURNED, actions)
        self._next = len(self._initial)
        self.done = self._open == 0

    def _on_scored(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if len(draw.rewards) == self.group_size:
            flat = self.dynamic_sampling and not has_signal(list(draw.rewards.values()))
            self._close(draw, Fate.FILTERED if flat else Fate.TRAINED, actions)

    def _discard(self, draws: list[Draw], actions: list[Action]) -> None:
        for draw in draws:
            if draw.fate is None:
                self._settle(draw, Fate.DISCARDED, actions)

    def _end(self, draw: Draw, fate: Fate, actions: list[Action]) -> None:
        """Settle a prompt by one of its draws."""
        self._discard([other for other in self._rows[draw.prompt] if other is not draw], actions)
        self._settle(draw, fate, actions)

    def _close(self, draw: Draw, fate: Fate, actions: list[Action]) -> None:
        """Settle a prompt that counts."""
        self._end(draw, fate, actions)
        self._open -= 1
        self._judge(actions)

    def _replace(self, draw: Draw, actions: list[Action]) -> None:
        row = self._rows[draw.prompt]
        if self._chosen.get(draw.prompt) is draw:
            del self._chosen[draw.prompt]
            if draw.prompt in self._exhausted:
                self._exhausted.remove(draw.prompt)
        self._settle(draw, Fate.DISCARDED, actions)
        self._draw(draw.prompt, actions)
        row[row.index(draw)] = row.pop()

    def _give_up(self, draw: Draw, actions: list[Action]) -> None:
        if draw.prompt in self._counting:
            self._close(draw, Fate.FAILED, actions)
        else:
            self._failed.add(draw.prompt)
            self._chosen.pop(draw.prompt, None)
            self._end(draw, Fate.FAILED, actions)
            self._judge(actions)
