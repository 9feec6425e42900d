"""A number of mistakes of every kind, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

from .document_mistakes import document_mistakes
from .file_mistakes import file_mistakes, stdout_mistakes, target_mistakes
from .mistake import Mistake
from .option_mistakes import option_mistakes, word_mistakes
from .row_mistakes import row_mistakes
from .size_mistakes import size_mistakes

DRAWN: tuple[tuple[Callable[[random.Random], Iterator[Mistake]], int], ...] = (
    (document_mistakes, 4), (row_mistakes, 2), (file_mistakes, 2), (target_mistakes, 1), (option_mistakes, 3),
)  # fmt: skip
"""Kinds of random mistakes, and how many of each are drawn in a turn."""


def listed_mistakes() -> list[Mistake]:
    """The mistakes that are written down in these modules, each once."""
    return [*size_mistakes(), *word_mistakes(), *stdout_mistakes()]


def mistakes(count: int, seed: int) -> list[Mistake]:
    """`count` mistakes: at most half of them from `listed_mistakes`, evenly spaced; the others are random."""
    listed = listed_mistakes()
    step = max(1, -(-len(listed) // max(1, count // 2)))
    drawn = listed[::step]
    rng = random.Random(seed)
    sources = [(source(random.Random(rng.randrange(2**31))), share) for source, share in DRAWN]
    while len(drawn) < count:
        for source, share in sources:
            drawn += islice(source, share)
    return drawn[:count]
