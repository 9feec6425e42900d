"""Which groups a trainer takes next, where complete groups are trained while others still decode.

A group waits from the moment when it is certain to be trained until a trainer takes it; trainers take groups in the
order in which they became ready, a portion at a time. A portion that is larger makes fuller micro-batches, and the
update after the round, which has all devices, waits for the portion that is being trained. Gradients add up, and
no weight changes before the round's end, so what is taken when changes no gradient (RollPacker, arXiv 2509.21009, 4.4).

Invariants:
- a group is taken at most once, and only after it was offered;
- nothing is taken before the trainer's devices are there, while it trains, or after the round's end;
- a portion holds at most `budget_tokens`, or is one group.
"""

from __future__ import annotations

from collections import deque

# Of the tokens that fill the micro-batches of those that train: fuller ones are hardly faster a token.
PORTION = 0.25


class GroupQueue:
    """Groups of one round that wait for a trainer; `micro_batch_tokens`: of all micro-batches that train at once."""

    def __init__(self, micro_batch_tokens: int) -> None:
        if micro_batch_tokens < 1:
            raise ValueError("a micro-batch holds at least one token")
        self.budget_tokens = max(1, int(PORTION * micro_batch_tokens))
        self.open = False
        self.busy = False
        self.over = False
        self.taken: list[int] = []
        self._waiting: deque[tuple[int, int]] = deque()
        self._offered: set[int] = set()

    def offer(self, draw: int, tokens: int) -> None:
        """A draw is certain to be trained; `tokens` of its samples, prompts included."""
        assert draw not in self._offered, f"draw {draw} was offered twice"
        self._offered.add(draw)
        self._waiting.append((draw, tokens))

    def begin(self) -> None:
        """The trainer's devices are there."""
        self.open = True

    def take(self) -> list[int]:
        """The draws to train now, in the order in which they became ready; none while the trainer cannot take any."""
        if not self.open or self.busy or self.over or not self._waiting:
            return []
        draw, held = self._waiting.popleft()
        chosen = [draw]
        while self._waiting and held + self._waiting[0][1] <= self.budget_tokens:
            draw, tokens = self._waiting.popleft()
            chosen.append(draw)
            held += tokens
        self.busy = True
        self.taken += chosen
        return chosen

    def trained(self) -> None:
        """The trainer is done with what it took last."""
        assert self.busy, "nothing was taken"
        self.busy = False

    def end(self) -> None:
        """The round is over: what still waits is trained with the rest."""
        self.over = True

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        assert len(set(self.taken)) == len(self.taken), "a group was taken twice"
        assert set(self.taken) | {draw for draw, _ in self._waiting} == self._offered, "a group vanished"
        assert not self.busy or self.taken, "the trainer is busy with nothing"
