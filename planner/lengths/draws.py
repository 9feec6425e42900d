"""Synthetic prompts with common random numbers: the same prompt drawn the k-th time has the same lengths in every
candidate, so candidates are compared on the same luck.

A synthetic prompt's id names its number and its stream: "s000012.0". Blocks of consecutive numbers hold every traced
prompt once, in random order, as an epoch does. A stream is an independent future of the same prompt: short rounds draw
from stream 0 and long rounds, simulated apart, from a stream of their own, since a deferred prompt is drawn afresh.

Luck reaches the compiled twin as arrays and the reference by the sample; both read the same tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...rounds.machines.events import SampleKey
from ..simulate.reference_round import Lengths
from .length_model import LengthModel

_CHUNK = 256  # prompts whose first occurrences are drawn at once
FIRST = 4  # occurrences of a prompt that are drawn with its chunk; later ones are rare and drawn in blocks
_BLOCK = 16

Tokens = NDArray[np.int32]
Numbers = NDArray[np.int64]


def prompt_name(number: int, stream: int) -> str:
    """Id of a synthetic prompt."""
    return f"s{number:07d}.{stream}"


def prompt_parts(prompt: str) -> tuple[int, int]:
    """(number, stream) of a synthetic prompt."""
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
        self._order = np.empty(0, dtype=np.int64)
        self._chunks: dict[tuple[int, int], Tokens] = {}
        self._late: dict[tuple[int, int, int], Tokens] = {}
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
        prompts = len(self.model.prompt_ids)
        blocks = int(numbers.max()) // prompts + 1 if len(numbers) else 0
        if len(self._order) < blocks * prompts:
            known = len(self._order) // prompts
            # Twice as many as asked for, so that a count that creeps up costs little.
            more = [np.random.default_rng([self.seed, 1, b]).permutation(prompts) for b in range(known, 2 * blocks)]
            self._order = np.concatenate([self._order, *more])
        return self._order[numbers]

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
        found = np.empty((len(numbers), FIRST, self.width), dtype=np.int32)
        for chunk in sorted(set(chunks.tolist())):
            mine = chunks == chunk
            found[mine] = self._chunk(chunk, stream)[numbers[mine] % _CHUNK]
        return found

    def _chunk(self, chunk: int, stream: int) -> Tokens:
        if (chunk, stream) not in self._chunks:
            indices = self.traced_of(np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK))
            rng = np.random.default_rng([self.seed, 2, stream, chunk])
            drawn = self.model.draw_many(indices, (FIRST, self.width), rng)
            self._chunks[chunk, stream] = drawn.astype(np.int32)
        return self._chunks[chunk, stream]

    def row(self, number: int, stream: int, occurrence: int) -> Tokens:
        """Lengths of the samples of one draw; shape (width,)."""
        if occurrence < FIRST:
            row: Tokens = self._chunk(number // _CHUNK, stream)[number % _CHUNK, occurrence]
            return row
        block, place = divmod(occurrence - FIRST, _BLOCK)
        if (number, stream, block) not in self._late:
            rng = np.random.default_rng([self.seed, 3, stream, number, block])
            drawn = self.model.draw_many(self.traced_of(np.array([number])), (_BLOCK, self.width), rng)
            self._late[number, stream, block] = drawn[0].astype(np.int32)
        late: Tokens = self._late[number, stream, block][place]
        return late

    def first(self, prompt: str, group_size: int) -> int:
        """Sum of the lengths of the prompt's first draw in stream 0: the control that bias is measured against."""
        return int(self.row(prompt_parts(prompt)[0], 0, 0)[:group_size].sum(dtype=np.int64))

    # -- rewards -------------------------------------------------------------------------------------------------------

    def rewards(self, numbers: Numbers, stream: int, occurrences: Numbers) -> NDArray[np.float64]:
        """Rewards of the samples of draws, picked from the traced prompt's; shape (draws, width).

        A sample's reward depends on its name only: independent of its length given the prompt.
        """
        traced = self.traced_of(numbers)
        picks = (self._mixed(numbers, stream, occurrences, 0) >> np.uint64(8)) % self._reward_counts[traced][:, None]
        found: NDArray[np.float64] = self._rewards[traced[:, None], picks]
        return found

    def reward_luck(self, numbers: Numbers, stream: int, occurrences: Numbers) -> NDArray[np.float64]:
        """How long the rewards of the samples of draws take: uniform in [0, 1), shape (draws, width)."""
        found: NDArray[np.float64] = self._mixed(numbers, stream, occurrences, 1013904223) / 2.0**32
        return found

    def prompt_luck(self, numbers: Numbers) -> NDArray[np.float64]:
        """What the rewards of prompts have in common, in any draw: uniform in [0, 1), shape (prompts,)."""
        zeros = np.zeros_like(numbers)
        found: NDArray[np.float64] = self._mixed(numbers, 0, zeros, 2027808484)[:, 0] / 2.0**32
        return found

    def _mixed(self, numbers: Numbers, stream: int, occurrences: Numbers, salt: int) -> NDArray[np.uint64]:
        """32 random bits by sample; shape (draws, width)."""
        # A cheap hash is enough here, and a generator for each draw would cost more than the simulation.
        whole = np.uint64((1 << 32) - 1)
        draws = numbers * 2654435761 + stream * 40503 + occurrences * 97 + self.seed + salt
        samples = np.arange(self.width, dtype=np.uint64) * np.uint64(2246822519)
        mixed = (draws.astype(np.uint64)[:, None] + samples) & whole
        for _ in range(2):
            mixed = ((mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519)) & whole
        return mixed ^ (mixed >> np.uint64(16))


class RoundLuck:
    """The lengths of one simulation by the reference: counts how often it has drawn each prompt.

    `rewards_matter` only under dynamic sampling; elsewhere all rewards are 0, which no machine looks at.
    """

    def __init__(self, draws: Draws, rewards_matter: bool) -> None:
        self._draws = draws
        self._rewards_matter = rewards_matter
        self._occurrences: dict[str, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._rewards: dict[int, list[float]] = {}
        self._reward_luck: dict[int, list[float]] = {}

    def begin(self) -> None:
        """A new round begins: draw numbers start again."""
        self._rows = {}
        self._rewards = {}
        self._reward_luck = {}

    def natural(self, key: SampleKey, prompt: str) -> int:
        """Length of a sample, which the job's cap may have cut."""
        row = self._rows.get(key.draw)
        if row is None:
            occurrence = self._occurrences.get(prompt, 0)
            self._occurrences[prompt] = occurrence + 1
            number, stream = prompt_parts(prompt)
            row = self._rows[key.draw] = self._draws.row(number, stream, occurrence).tolist()
            if self._rewards_matter:
                drawn = self._draws.rewards(np.array([number]), stream, np.array([occurrence]))
                self._rewards[key.draw] = drawn[0].tolist()
            taken = self._draws.reward_luck(np.array([number]), stream, np.array([occurrence]))
            self._reward_luck[key.draw] = taken[0].tolist()
        return row[key.sample]

    def _reward(self, key: SampleKey, prompt: str) -> float:
        return self._rewards[key.draw][key.sample] if self._rewards_matter else 0.0

    def reward_luck(self, key: SampleKey) -> float:
        """How long the reward of a sample that was issued takes, in [0, 1)."""
        return self._reward_luck[key.draw][key.sample]

    def lengths(self) -> Lengths:
        """What the reference takes."""
        return Lengths(
            natural=self.natural,
            prompt_tokens=self._draws.prompt_tokens,
            reward=self._reward,
            cap_tokens=self._draws.model.cap_tokens,
            expected_tokens=self._draws.model.mean_tokens,
        )
