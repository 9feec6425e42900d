"""What is known of one prompt while a round decodes: its responses of earlier, and those that decode now, each a text
whose suffixes are in order (a suffix array), so that what followed a context before is found at once.

A text takes 8 bytes a token: the token and its place in the order. Suffixes are ordered by their first `ORDERED`
tokens, by prefix doubling (Manber and Myers 1993), which is as far as any query looks.

The samples of a prompt that decode now (siblings) grow with every step. Ordering their suffixes anew at every token
would cost more than it gives, so that is done when an eighth has come to them: each token is ordered nine times on the
way, whatever the length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .draft_chain import LIVE
from .draft_messages import Tokens

BREAK = -1
"""Stands behind each response: no context holds it, so that no match and no draft goes over the end of one."""

ORDERED = 32
"""Tokens by which suffixes are ordered: more than a context and a draft that is looked up have together."""


class SuffixText(NamedTuple):
    """Responses one after another, each with a `BREAK` behind it.

    Attributes:
        tokens: int32 [n].
        order: int32 [n]; the beginnings of all suffixes, in their order.
        starts: int32 [responses]; where each response begins.
        weights: float32 [responses]; what a response counts beside others, above 0.
    """

    tokens: Tokens
    order: Tokens
    starts: Tokens
    weights: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self[:])


def suffix_text(responses: list[Tokens], weights: list[float]) -> SuffixText:
    """Index responses, each an int32 array of tokens, with what each counts."""
    ends = np.array([BREAK], np.int32)
    parts = [part for response in responses for part in (response, ends)]
    tokens = np.concatenate(parts).astype(np.int32, copy=False) if parts else np.empty(0, np.int32)
    lengths = np.array([len(response) + 1 for response in responses], np.int64)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    return SuffixText(tokens, suffix_order(tokens), starts, np.array(weights, np.float32))


def suffix_order(tokens: Tokens) -> Tokens:
    """The beginnings of all suffixes, ordered by their first `ORDERED` tokens at least; int32 [n]."""
    size = len(tokens)
    if size == 0:
        return np.empty(0, np.int32)
    ranks = tokens.astype(np.int64) + 2  # 0 stands behind the end
    length = 1
    while True:
        behind = np.zeros(size, np.int64)
        behind[:-length] = ranks[length:]
        keys = ranks * (int(ranks.max()) + 1) + behind
        order = np.argsort(keys)
        in_order = keys[order]
        steps = np.concatenate(([1], (np.diff(in_order) != 0).astype(np.int64)))
        length *= 2
        if length >= ORDERED or steps.all() or length >= size:
            return order.astype(np.int32)
        ranks = np.empty(size, np.int64)
        ranks[order] = np.cumsum(steps)


BRIDGE = 8
"""Tokens of the prompt that stand before each response, so that the first token of a response has a context."""

UNORDERED, UNORDERED_SHARE = 64, 1.0 / 8.0
"""Tokens that may have come since suffixes were ordered, or this share of those that are ordered."""

EMPTY = suffix_text([], [])

COMMON_TOKENS = 32_768
"""Tokens of responses to any prompt that an engine keeps: enough for what responses have in common, and an order that
is made in milliseconds."""


class PromptIndex:
    """Texts of one prompt.

    Args:
        prompt: its tokens, int32.
        earlier: its responses before this round, int32 each, without the prompt.
        weights: what each of these counts.
        ahead: how many of the last of these were decoded for drafts alone.
    """

    def __init__(
        self, prompt: Tokens, earlier: Sequence[Tokens] = (), weights: Sequence[float] = (), ahead: int = 0
    ) -> None:
        self._bridge = prompt[-BRIDGE:]
        self._earlier_texts, self._weights = list(earlier), list(weights)
        self._first_ahead = len(earlier) - ahead
        self._earlier: SuffixText | None = None
        self._streams: dict[str, Tokens] = {}
        self._live, self._ordered, self._grown = EMPTY, 0, 0
        self._live_samples: list[str] = []

    def tell(self, sample: str, response: Tokens) -> None:
        """The response of a sample so far, int32; it only ever grows."""
        self._grown += len(response) - len(self._streams.get(sample, ()))
        self._streams[sample] = response

    def told(self, sample: str) -> int:
        """Tokens that are known of a sample that decodes or has ended in this round."""
        return len(self._streams.get(sample, ()))

    def responses(self) -> dict[str, Tokens]:
        """All responses of this round, as far as they were told."""
        return self._streams

    @property
    def earlier(self) -> SuffixText:
        """The responses before this round; their suffixes are ordered when they are first asked for."""
        if self._earlier is None:
            self._earlier = suffix_text([self._text(response) for response in self._earlier_texts], self._weights)
            self._earlier_texts = []
        return self._earlier

    @property
    def live(self) -> SuffixText:
        """The responses of this round, but for the last tokens."""
        if self._grown > max(UNORDERED, UNORDERED_SHARE * self._ordered):
            self._live_samples = list(self._streams)
            texts = [self._text(response) for response in self._streams.values()]
            self._live = suffix_text(texts, [1.0] * len(texts))
            self._ordered, self._grown = len(self._live), 0
        return self._live

    def source(self, sample: str, origin: int) -> str:
        """The source (plans/phrases/sentences.py) of a token of a sample's draft, by its origin (draft_chain)."""
        if origin >= LIVE:
            return "own" if self._live_samples[origin - LIVE] == sample else "sibling"
        return "ahead" if origin >= self._first_ahead else "earlier"

    @property
    def nbytes(self) -> int:
        """Bytes of all texts and their order."""
        waiting = sum(response.nbytes for response in self._earlier_texts)
        streams = sum(response.nbytes for response in self._streams.values())
        return waiting + streams + self._live.nbytes + (0 if self._earlier is None else self._earlier.nbytes)

    def _text(self, response: Tokens) -> Tokens:
        return np.concatenate((self._bridge, response)).astype(np.int32, copy=False)


class CommonText:
    """The last responses of an engine, to whatever prompt: where nothing of a prompt itself is known, they may be."""

    def __init__(self) -> None:
        self._responses: deque[Tokens] = deque()
        self._tokens, self._new = 0, 0
        self._text = EMPTY

    def add(self, response: Tokens) -> None:
        """A response that has ended, int32."""
        self._responses.append(response)
        self._tokens += len(response)
        self._new += len(response)
        while self._tokens > COMMON_TOKENS:
            self._tokens -= len(self._responses.popleft())

    @property
    def text(self) -> SuffixText:
        """Them, but for the latest."""
        if self._new > max(UNORDERED, UNORDERED_SHARE * len(self._text)):
            self._text, self._new = suffix_text(list(self._responses), [1.0] * len(self._responses)), 0
        return self._text
