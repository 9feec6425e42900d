"""`sync`, `race` and `defer` rounds: the first to finish are trained (RollPacker, arXiv 2509.21009, section 3).

One machine serves all: `sync` issues exactly P prompts x n samples and waits for every one; `race` over-issues prompts
and samples, trains the first P prompts with n rewarded samples and defers the rest; `defer` is `race` with n samples
per prompt, so whole prompts race but no group is cut. A long round is `sync` over deferred prompts.

Invariants:
- at most `target` groups are trained, each with the first n samples whose rewards arrived;
- a filtered group (dynamic sampling) is consumed and is replaced by a fresh prompt while one is free, so that it can
  never return (no livelock);
- an infrastructure failure costs one sample: a fresh one is issued in its place (a group is never trained in part).
"""

from __future__ import annotations

import math

from .events import Action
from .outcome import Fate, has_signal
from .round import Draw, Round, Take


class RaceRound(Round):
    """First `target` complete groups win.

    Args:
        prompts: prompts to issue, in order.
        target: groups to train (P).
        group_size: samples per trained group (n).
        samples: samples issued per prompt (>= n).
        max_tokens: the length cap.
        dynamic_sampling: drop groups whose rewards are all equal and refill.
        take: hands out fresh prompts for refills.
        kind: "short" or "long", for the trace.
    """

    def __init__(
        self,
        prompts: list[str],
        target: int,
        group_size: int,
        samples: int,
        max_tokens: int,
        *,
        dynamic_sampling: bool = False,
        take: Take = lambda k: [],
        kind: str = "short",
    ) -> None:
        super().__init__(prompts, group_size, max_tokens, take)
        if samples < group_size:
            raise ValueError("samples issued per prompt must be at least the group size")
        self.kind = kind
        self.cuts = len(prompts) > target or samples > group_size
        self.target = min(target, len(prompts))
        self.samples = samples
        self.dynamic_sampling = dynamic_sampling
        self.accepted = 0
        self._over = len(prompts) / max(self.target, 1)

    def start(self) -> list[Action]:
        actions: list[Action] = []
        for prompt in self._initial:
            self._issue_draw(prompt, self.samples, self.max_tokens, None, actions)
        self._close_if_done(actions)
        return actions

    def _on_finished(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        self._score(draw, sample, actions)

    def _on_scored(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if len(draw.rewards) < self.group_size:
            return
        if self.dynamic_sampling and not has_signal([draw.rewards[s] for s in self.trained_samples(draw)]):
            self._settle(draw, Fate.FILTERED, actions)
            self._refill(actions)
        else:
            self._settle(draw, Fate.TRAINED, actions)
            self.accepted += 1
        self._close_if_done(actions)

    def _on_lost(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        draw.tokens.pop(sample, None)
        draw.truncated.discard(sample)
        self._issue_sample(draw, self.max_tokens, None, actions)

    def _on_failed(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if self._gave_up(draw.prompt):
            self._settle(draw, Fate.FAILED, actions)
            self._refill(actions)
            self._close_if_done(actions)
        else:
            self._on_lost(draw, sample, actions)

    def _open(self) -> int:
        return sum(d.fate is None for d in self.draws)

    def _refill(self, actions: list[Action]) -> None:
        missing = self.target - self.accepted
        want = math.ceil(missing * self._over) - self._open()
        if want <= 0 or self.kind == "long":
            return
        fresh = self._take(want)
        self.taken.extend(fresh)
        for prompt in fresh:
            self._issue_draw(prompt, self.samples, self.max_tokens, None, actions)

    def _close_if_done(self, actions: list[Action]) -> None:
        if self.accepted < self.target and self._open():
            return
        for draw in self.draws:
            if draw.fate is None:
                self._settle(draw, Fate.DEFERRED, actions)
        self.done = True
