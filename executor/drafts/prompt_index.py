"""What is known of one prompt while a round decodes: its responses of earlier, and those that decode now.

The samples of a prompt that decode now (siblings) grow with every step. Ordering their suffixes anew at every token
would cost more than it gives, so that is done when an eighth has come to them: each token is ordered nine times on the
way, whatever the length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from .draft_chain import LIVE
from .suffix_text import SuffixText, Tokens, suffix_text

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
        """The source (plans/phrases/draft_sources.py) of a token of a sample's draft, by its origin (draft_chain)."""
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
