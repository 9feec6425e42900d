"""Samples that are decoded ahead, where engines have little to do in a round's tail: drafts for rounds to come.

Their prompts are those that the next round will most likely have, and they are decoded by the weights of this round, so
that they are never trained: they are texts that drafts are taken from, so that even a prompt's first round has some
(BubbleSpec and SRT, arXiv 2601.09083, do so).

Invariants:
- a prompt is decoded ahead once at most in a round;
- an engine gets one only while fewer samples decode on it than planned, those ahead counted, and only after the round
  has begun to end: until then each place is for a sample of the round;
- decisions depend on counts only, never on a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class RunAhead:
    """Which prompt is decoded ahead on which engine.

    Args:
        prompts: that the next round may have, the likeliest first.
        sequences: samples up to which an engine is filled.
    """

    def __init__(self, prompts: Iterable[str], sequences: int) -> None:
        if sequences < 1:
            raise ValueError("an engine is filled up to one sample at least")
        self._prompts = iter(dict.fromkeys(prompts))
        self._sequences = sequences
        self._ending = False
        self._ahead: dict[int, int] = {}

    def sample_finished(self) -> None:
        """A sample of the round has ended: engines have places to spare from now on, or soon."""
        self._ending = True

    def fill(self, running: Mapping[int, int]) -> list[tuple[int, str]]:
        """By engine, samples of the round that decode on it; returns (engine, prompt) for each sample ahead to begin.

        Engines that are not told of get none.
        """
        begun: list[tuple[int, str]] = []
        for engine, samples in sorted(running.items()) if self._ending else ():
            for _ in range(self._sequences - samples - self._ahead.get(engine, 0)):
                prompt = next(self._prompts, None)
                if prompt is None:
                    return begun
                begun.append((engine, prompt))
                self._ahead[engine] = self._ahead.get(engine, 0) + 1
        return begun

    def ended(self, engine: int) -> None:
        """A sample ahead has ended on an engine."""
        self._ahead[engine] -= 1
        assert self._ahead[engine] >= 0, "more samples ahead ended than were begun"
