"""Samples that are decoded ahead on engines that have little to do in a round's tail, as drafts for rounds to come.

Their prompts are the likeliest ones of the next round. They are decoded by the weights of this round, so they are never
trained: drafts are taken from their texts, so that even a prompt's first round has some (as in BubbleSpec and SRT,
arXiv 2601.09083).

Invariants:
- a prompt is decoded ahead at most once in a round;
- an engine gets one only while fewer samples than planned decode on it, those ahead included, and only after the first
  sample of the round has ended: until then engines are for samples of the round;
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
        """A sample of the round has ended: engines have room from now on, or soon."""
        self._ending = True

    def fill(self, running: Mapping[int, int]) -> list[tuple[int, str]]:
        """Which samples to begin ahead: (engine, prompt) of each.

        `running`: by engine, samples of the round that decode on it; other engines get none.
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
