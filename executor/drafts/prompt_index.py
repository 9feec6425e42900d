"""What is known of one prompt while a round decodes: its responses of earlier, and those that decode now.

The samples of a prompt that decode now (siblings) grow with every step. Ordering their suffixes anew at every token
would cost more than it gives, so that is done when an eighth has come to them: each token is ordered nine times on the
way, whatever the length.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from .suffix_text import SuffixText, Tokens, suffix_text

BRIDGE = 8
"""Tokens of the prompt that stand before each response, so that the first token of a response has a context."""

UNORDERED, UNORDERED_SHARE = 64, 1.0 / 8.0
"""Tokens that may have come since suffixes were ordered, or this share of those that are ordered."""

EMPTY = suffix_text([], [])


class PromptIndex:
    """Texts of one prompt.

    Args:
        prompt: its tokens, int32.
        earlier: its responses before this round, int32 each, without the prompt.
        weights: what each of these counts.
    """

    def __init__(self, prompt: Tokens, earlier: Sequence[Tokens] = (), weights: Sequence[float] = ()) -> None:
        self._bridge = prompt[-BRIDGE:]
        self._earlier_texts, self._weights = list(earlier), list(weights)
        self._earlier: SuffixText | None = None
        self._streams: dict[Hashable, Tokens] = {}
        self._live, self._ordered, self._grown = EMPTY, 0, 0

    def tell(self, sample: Hashable, response: Tokens) -> None:
        """The response of a sample so far, int32; it only ever grows."""
        self._grown += len(response) - len(self._streams.get(sample, ()))
        self._streams[sample] = response

    def told(self, sample: Hashable) -> int:
        """Tokens that are known of a sample that decodes or has ended in this round."""
        return len(self._streams.get(sample, ()))

    def responses(self) -> dict[Hashable, Tokens]:
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
            texts = [self._text(response) for response in self._streams.values()]
            self._live = suffix_text(texts, [1.0] * len(texts))
            self._ordered, self._grown = len(self._live), 0
        return self._live

    def _text(self, response: Tokens) -> Tokens:
        return np.concatenate((self._bridge, response)).astype(np.int32, copy=False)
