"""What an earlier epoch has recorded of simulated prompts: which are predicted to be long (mode `predict`), and
how long samples are expected to be (where they are balanced by history).

The history is one earlier epoch: a group of every prompt, drawn from a stream that no round draws from, recorded and
ranked by the executor's own code (rounds/predict.py). So columns are about the second epoch of a run; later ones know a
little more if lengths stand still, and the first knows nothing and is plain.

Invariants:
- prompts are ranked block by block, a block being an epoch: the same prompts are predicted long whatever else was
  queried;
- given the prompt, this prediction is independent of every length that a round draws.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...rounds.balancing.length_estimates import Expected, Recorded
from ...rounds.predict import LengthHistory
from .draws import Draws, prompt_name

# Rounds draw from stream 0 and from one for each lap of a pool (draws.py): never this many.
_STREAM = 1_000_003


class EarlierEpoch:
    """The history of blocks of `block` consecutive synthetic prompts, each drawn once as a group of `group_size`."""

    def __init__(self, draws: Draws, group_size: int, block: int) -> None:
        self._draws = draws
        self._group_size = group_size
        self._block = block
        self._histories: dict[int, LengthHistory] = {}

    def _names(self, block: int) -> list[str]:
        return [prompt_name(n, 0) for n in range(block * self._block, (block + 1) * self._block)]

    def history(self, block: int) -> LengthHistory:
        """Lengths that the earlier epoch recorded for the prompts of a block."""
        if block not in self._histories:
            history = self._histories[block] = LengthHistory()
            numbers = np.arange(block * self._block, (block + 1) * self._block)
            groups = self._draws.firsts(numbers, _STREAM)[:, 0, : self._group_size].tolist()
            for name, tokens in zip(self._names(block), groups, strict=True):
                history.record(name, tokens)
        return self._histories[block]

    def expected_long(self, block: int, share: float) -> NDArray[np.bool_]:
        """For each prompt of a block, whether it is among the `share` of its epoch with the longest history."""
        names, history = self._names(block), self.history(block)
        expected = history.expected_long(names, share)
        return np.array([name in expected for name in names])

    def recorded(self, numbers: NDArray[np.int64]) -> Recorded:
        """What was recorded of a round's prompts, by their places in it as text; the spread is their blocks' mean."""
        expected: dict[str, Expected] = {}
        spreads: list[float] = []
        blocks = numbers // self._block
        for block in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == block).tolist()
            names = {prompt_name(int(numbers[place]), 0): place for place in places}
            known = self.history(block).recorded(names)
            spreads += [known.spread] * len(places)
            expected |= {str(names[name]): tokens for name, tokens in known.expected.items()}
        return Recorded(expected, math.fsum(spreads) / len(spreads))

    def long_prompts(self, share: float, count: int) -> list[str]:
        """The first `count` prompts that are predicted to be long."""
        prompts: list[str] = []
        block = 0
        while len(prompts) < count:
            places = np.flatnonzero(self.expected_long(block, share)).tolist()
            assert places, "an epoch of which no prompt is expected long"
            prompts += [prompt_name(block * self._block + place, 0) for place in places]
            block += 1
        return prompts[:count]
