"""Synthetic prompts with common random numbers: the same prompt drawn the k-th time has the same lengths in every
candidate, so candidates are compared on the same luck.

A synthetic prompt's id names its number and its stream: "s000012.0". Blocks of consecutive numbers hold every traced
prompt once, in random order, as an epoch does. A stream is an independent future of the same prompt: short rounds draw
from stream 0 and long rounds, simulated apart, from a stream of their own, since a deferred prompt is drawn afresh.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..rounds.events import SampleKey
from .length_model import LengthModel
from .simulator import Lengths

_CHUNK = 256  # prompts whose first occurrences are drawn at once
_FIRST = 4  # occurrences of a prompt that are drawn with its chunk; later ones are rare and drawn in blocks
_BLOCK = 16


def prompt_name(number: int, stream: int) -> str:
    """Id of a synthetic prompt."""
    return f"s{number:07d}.{stream}"


def _parts(prompt: str) -> tuple[int, int]:
    number, stream = prompt[1:].split(".")
    return int(number), int(stream)


class Draws:
    """All the luck of a solve. Everything is a function of (model, seed, width) and the name of what is asked for.

    Args:
        width: samples of a draw that have lengths; the largest over-issue.
    """

    def __init__(self, model: LengthModel, seed: int, width: int) -> None:
        self.model = model
        self.seed = seed
        self.width = width
        self._orders: list[NDArray[np.int64]] = []
        self._chunks: dict[tuple[int, int], list[list[list[int]]]] = {}
        self._late: dict[tuple[int, int, int], list[list[int]]] = {}
        self._tokens_of: dict[str, int] = {}
        self._prompt_tokens = [int(t) for t in model.prompt_tokens]

    def traced(self, number: int) -> int:
        """Index of the traced prompt behind a synthetic one."""
        block, place = divmod(number, len(self.model.prompt_ids))
        while len(self._orders) <= block:
            rng = np.random.default_rng([self.seed, 1, len(self._orders)])
            self._orders.append(rng.permutation(len(self.model.prompt_ids)).astype(np.int64))
        return int(self._orders[block][place])

    def row(self, number: int, stream: int, occurrence: int) -> list[int]:
        """Lengths of the samples of one draw."""
        if occurrence < _FIRST:
            chunk, place = divmod(number, _CHUNK)
            if (chunk, stream) not in self._chunks:
                indices = np.array([self.traced(n) for n in range(chunk * _CHUNK, (chunk + 1) * _CHUNK)])
                rng = np.random.default_rng([self.seed, 2, stream, chunk])
                self._chunks[chunk, stream] = self.model.draw_many(indices, (_FIRST, self.width), rng).tolist()
            return self._chunks[chunk, stream][place][occurrence]
        block, place = divmod(occurrence - _FIRST, _BLOCK)
        if (number, stream, block) not in self._late:
            rng = np.random.default_rng([self.seed, 3, stream, number, block])
            drawn = self.model.draw_many(np.array([self.traced(number)]), (_BLOCK, self.width), rng)
            self._late[number, stream, block] = drawn[0].tolist()
        return self._late[number, stream, block][place]

    def first(self, prompt: str, group_size: int) -> int:
        """Sum of the lengths of the prompt's first draw in stream 0: the control that bias is measured against."""
        return sum(self.row(_parts(prompt)[0], 0, 0)[:group_size])

    def prompt_tokens(self, prompt: str) -> int:
        """Tokens of a prompt."""
        known = self._tokens_of.get(prompt)
        if known is None:
            known = self._tokens_of[prompt] = self._prompt_tokens[self.traced(_parts(prompt)[0])]
        return known

    def reward(self, key: SampleKey, prompt: str) -> float:
        """A reward of the traced prompt, picked by the sample's name. Independent of its length given the prompt."""
        number, stream = _parts(prompt)
        rewards = self.model.rewards[self.traced(number)]
        # A cheap hash is enough here, and a generator for each sample would cost more than the simulation.
        mixed = (number * 2654435761 + stream * 40503 + key.draw * 97 + key.sample * 2246822519 + self.seed) % (1 << 32)
        mixed = ((mixed ^ (mixed >> 15)) * 2246822519) % (1 << 32)
        return rewards[(mixed >> 8) % len(rewards)]


def _no_reward(key: SampleKey, prompt: str) -> float:
    return 0.0


class RoundLuck:
    """The lengths of one simulation: counts how often it has drawn each prompt.

    `rewards_matter` only under dynamic sampling; elsewhere all rewards are 0, which no machine looks at.
    """

    def __init__(self, draws: Draws, rewards_matter: bool) -> None:
        self._draws = draws
        self._rewards_matter = rewards_matter
        self._occurrences: dict[str, int] = {}
        self._rows: dict[int, list[int]] = {}

    def begin(self) -> None:
        """A new round begins: draw numbers start again."""
        self._rows = {}

    def natural(self, key: SampleKey, prompt: str) -> int:
        """Length of a sample, which the job's cap may have cut."""
        row = self._rows.get(key.draw)
        if row is None:
            occurrence = self._occurrences.get(prompt, 0)
            self._occurrences[prompt] = occurrence + 1
            number, stream = _parts(prompt)
            row = self._rows[key.draw] = self._draws.row(number, stream, occurrence)
        return row[key.sample]

    def drawn(self, draw: int) -> list[int]:
        """The uncut lengths of a draw of the round that was begun last."""
        return self._rows[draw]

    def lengths(self) -> Lengths:
        """What the simulator takes."""
        return Lengths(
            natural=self.natural,
            prompt_tokens=self._draws.prompt_tokens,
            reward=self._draws.reward if self._rewards_matter else _no_reward,
            cap_tokens=self._draws.model.cap_tokens,
            expected_tokens=self._draws.model.mean_tokens,
        )
