"""Synthetic prompts with common random numbers: the same prompt drawn the k-th time has the same lengths in every
candidate, so candidates are compared on the same random draws.

A synthetic prompt's id names its number and its stream: "s000012.0". Blocks of consecutive numbers hold every traced
prompt once, in random order, as an epoch does. A stream is an independent future of the same prompt: short rounds draw
from stream 0 and long rounds, simulated apart, from a stream of their own, since a deferred prompt is drawn afresh.

The compiled simulator gets draws as arrays, the reference gets them sample by sample; both read the same tables.

An earlier epoch (`EarlierEpoch`) tells which prompts are predicted to be long (mode `predict`), and how long samples
are expected to be (where they are balanced by history): a group of every prompt, drawn from a stream that no round
draws from, recorded and ranked by the executor's own code (rounds/predict.py). So columns are about the second epoch
of a run; later ones know a little more if lengths stand still, and the first knows nothing and is plain. Prompts are
ranked block by block, a block being an epoch: the same prompts are predicted long whatever else was queried. Given
the prompt, this prediction is independent of every length that a round draws.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...rounds.balancing.length_estimates import Expected, Recorded
from ...rounds.predict import LengthHistory
from .length_model import LengthModel

_CHUNK = 256  # prompts whose first occurrences are drawn at once
FIRST = 4  # occurrences of a prompt that are drawn with its chunk; later ones are rare and drawn in blocks
_BLOCK = 16

# Rounds draw from stream 0 and from one for each lap of a pool: never this many.
_STREAM = 1_000_003

Tokens = NDArray[np.int32]
Numbers = NDArray[np.int64]


def prompt_name(number: int, stream: int) -> str:
    """Id of a synthetic prompt."""
    return f"s{number:07d}.{stream}"


def prompt_parts(prompt: str) -> tuple[int, int]:
    """(number, stream) of a synthetic prompt."""
    number, stream = prompt[1:].split(".")
    return int(number), int(stream)


class _Order:
    """Indices of the traced prompts behind synthetic ones 0, 1, …: in each block all of them, in random order."""

    def __init__(self, seed: int, prompts: int) -> None:
        self._seed, self._prompts = seed, prompts
        self._indices: Numbers = np.empty(0, dtype=np.int64)

    def of(self, numbers: Numbers) -> Numbers:
        """Indices of the traced prompts behind `numbers`."""
        prompts = self._prompts
        blocks = int(numbers.max()) // prompts + 1 if len(numbers) else 0
        before = len(self._indices) // prompts
        if before < blocks:
            # Twice as many as asked for, so that a count that creeps up costs little.
            more = [np.random.default_rng([self._seed, 1, b]).permutation(prompts) for b in range(before, 2 * blocks)]
            self._indices = np.concatenate([self._indices, *more])
        return self._indices[numbers]


@lru_cache(maxsize=16)
def _order(seed: int, prompts: int) -> _Order:
    """The order of a seed, shared by all models of as many prompts: drawing it may take longer than simulating."""
    return _Order(seed, prompts)


def _picks(seed: tuple[int, ...], count: int, shape: tuple[int, ...]) -> NDArray[np.unsignedinteger[Any]]:
    """Random whole numbers below `count`, in the smallest type that holds them."""
    drawn = np.random.default_rng(list(seed)).integers(count, size=shape)
    return drawn.astype(np.min_scalar_type(count - 1))


# Many length models are simulated on the same random numbers (length_error.py), which take tens of megabytes.
_chunk_picks = lru_cache(maxsize=512)(_picks)
_late_picks = lru_cache(maxsize=8192)(_picks)


class Draws:
    """All random draws of a solve: a function of (model, seed, width) and the prompt, stream and occurrence.

    Args:
        width: samples of a draw that have lengths; the largest over-issue.
    """

    def __init__(self, model: LengthModel, seed: int, width: int) -> None:
        self.model = model
        self.seed = seed
        self.width = width
        self._order = _order(seed, len(model.prompt_ids))
        self._chunks: dict[tuple[int, int], Tokens] = {}
        self._late: dict[tuple[int, int, int], Tokens] = {}
        self.queues: dict[tuple[object, ...], Any] = {}  # followed on these draws, by column_setting.py
        self._count = model.tables.shape[1]
        self._prompt_tokens = model.prompt_tokens.astype(np.int32)
        self._reward_counts = np.array([len(r) for r in model.rewards], dtype=np.uint64)
        self._rewards = np.zeros((len(model.rewards), max(len(r) for r in model.rewards)))
        for row, rewards in zip(self._rewards, model.rewards, strict=True):
            row[: len(rewards)] = rewards

    # -- by prompt -----------------------------------------------------------------------------------------------------

    def traced(self, number: int) -> int:
        """Index of the traced prompt behind a synthetic one."""
        return int(self.traced_of(np.array([number]))[0])

    def traced_of(self, numbers: Numbers) -> Numbers:
        """Indices of the traced prompts behind synthetic ones."""
        return self._order.of(numbers)

    def prompt_tokens(self, prompt: str) -> int:
        """Tokens of a prompt."""
        return int(self._prompt_tokens[self.traced(prompt_parts(prompt)[0])])

    def prompt_tokens_of(self, numbers: Numbers) -> Tokens:
        """Tokens of prompts."""
        return self._prompt_tokens[self.traced_of(numbers)]

    # -- lengths -------------------------------------------------------------------------------------------------------

    def firsts(self, numbers: Numbers, stream: int) -> Tokens:
        """Lengths of the first draws of prompts; shape (prompts, FIRST, width)."""
        chunks = numbers // _CHUNK
        lengths = np.empty((len(numbers), FIRST, self.width), dtype=np.int32)
        for chunk in sorted(set(chunks.tolist())):
            in_chunk = chunks == chunk
            lengths[in_chunk] = self._chunk(chunk, stream)[numbers[in_chunk] % _CHUNK]
        return lengths

    def _chunk(self, chunk: int, stream: int) -> Tokens:
        if (chunk, stream) not in self._chunks:
            indices = self.traced_of(np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK))
            picks = _chunk_picks((self.seed, 2, stream, chunk), self._count, (_CHUNK, FIRST, self.width))
            self._chunks[chunk, stream] = self.model.lengths_of(indices, picks).astype(np.int32)
        return self._chunks[chunk, stream]

    def row(self, number: int, stream: int, occurrence: int) -> Tokens:
        """Lengths of the samples of one draw; shape (width,)."""
        if occurrence < FIRST:
            row: Tokens = self._chunk(number // _CHUNK, stream)[number % _CHUNK, occurrence]
            return row
        late: Tokens = self.later(number, stream, occurrence, occurrence + 1)[0]
        return late

    def later(self, number: int, stream: int, first: int, end: int) -> Tokens:
        """Lengths of the draws `first` to `end - 1` of a prompt; `first` is at least FIRST. Shape (draws, width)."""
        blocks = range((first - FIRST) // _BLOCK, (end - 1 - FIRST) // _BLOCK + 1)
        lengths = [self._late_block(number, stream, block) for block in blocks]
        begin = FIRST + blocks.start * _BLOCK
        return (lengths[0] if len(lengths) == 1 else np.concatenate(lengths))[first - begin : end - begin]

    def _late_block(self, number: int, stream: int, block: int) -> Tokens:
        if (number, stream, block) not in self._late:
            picks = _late_picks((self.seed, 3, stream, number, block), self._count, (1, _BLOCK, self.width))
            lengths = self.model.lengths_of(self.traced_of(np.array([number])), picks)
            self._late[number, stream, block] = lengths[0].astype(np.int32)
        return self._late[number, stream, block]

    def first(self, prompt: str, group_size: int) -> int:
        """Sum of the lengths of the prompt's first draw in stream 0: the control that bias is measured against."""
        return int(self.row(prompt_parts(prompt)[0], 0, 0)[:group_size].sum(dtype=np.int64))

    # -- rewards -------------------------------------------------------------------------------------------------------

    def rewards(self, numbers: Numbers, stream: Numbers | int, occurrences: Numbers) -> NDArray[np.float64]:
        """Rewards of the samples of draws, picked from the traced prompt's; shape (draws, width).

        A sample's reward depends on its name only: independent of its length given the prompt.
        """
        traced = self.traced_of(numbers)
        picks = (self._mixed(numbers, stream, occurrences, 0) >> np.uint64(8)) % self._reward_counts[traced][:, None]
        rewards_of_draws: NDArray[np.float64] = self._rewards[traced[:, None], picks]
        return rewards_of_draws

    def reward_draws(self, numbers: Numbers, stream: Numbers | int, occurrences: Numbers) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1) that pick the seconds of each sample's reward, shape (draws, width)."""
        uniform: NDArray[np.float64] = self._mixed(numbers, stream, occurrences, 1013904223) / 2.0**32
        return uniform

    def prompt_draws(self, numbers: Numbers) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1) that pick what a prompt's reward executions have in common, shape (prompts,)."""
        zeros = np.zeros_like(numbers)
        uniform: NDArray[np.float64] = self._mixed(numbers, 0, zeros, 2027808484)[:, 0] / 2.0**32
        return uniform

    def _mixed(self, numbers: Numbers, stream: Numbers | int, occurrences: Numbers, salt: int) -> NDArray[np.uint64]:
        """32 random bits by sample; shape (draws, width)."""
        # A cheap hash is enough here, and a generator for each draw would cost more than the simulation.
        whole = np.uint64((1 << 32) - 1)
        draws = numbers * 2654435761 + stream * 40503 + occurrences * 97 + self.seed + salt
        samples = np.arange(self.width, dtype=np.uint64) * np.uint64(2246822519)
        mixed = (draws.astype(np.uint64)[:, None] + samples) & whole
        for _ in range(2):
            mixed = ((mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519)) & whole
        return mixed ^ (mixed >> np.uint64(16))


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
