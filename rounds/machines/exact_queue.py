"""The long round of `exact` (exact.py says why it leaves the trained distribution as it is)."""

from __future__ import annotations

from collections.abc import Sequence

from .events import Action
from .exact import ExactRound
from .outcome import Fate, has_signal
from .round import Draw

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
