"""The long round of `exact` (exact.py says why it leaves the trained distribution as it is)."""

from __future__ import annotations

from .events import Action
from .exact import ExactRound
from .outcome import Fate, has_signal
from .round import Draw

MAX_DRAWS = 64


def most_draws_at_once(copies: int) -> int:
    """The most draws of one prompt that decode at once in a long round: a wave begins when all before it have ended."""
    drawn = most = min(copies, MAX_DRAWS)
    while drawn < MAX_DRAWS:
        wave = min(drawn, MAX_DRAWS - drawn)
        drawn, most = drawn + wave, max(most, wave)
    return most


class ExactLongRound(ExactRound):
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
