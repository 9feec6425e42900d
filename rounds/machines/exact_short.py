"""The short round of `exact` (exact.py says why it leaves the trained distribution as it is)."""

from __future__ import annotations

import math

from .events import Action
from .exact import ExactRound
from .outcome import Fate, has_signal
from .round import Draw, Take


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
