"""The draft of one sample: what followed its last tokens before, token by token, as long as it is likely enough.

Two texts are asked, what is known of the prompt from earlier and what its samples decode now. Of each next token there
are two candidates: what most often followed the longest context that occurs at all, and what most often followed the
longest that occurs `SUPPORTED` times. Which is likelier, and how likely, says a table of how often such drafts were
accepted before (rounds/drafts/acceptance.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...rounds.compiled.numba_options import compiled, entry, sources_digest
from ...rounds.drafts import acceptance
from ...rounds.drafts.acceptance import CONTEXT, cell_of

SUPPORTED = 4
"""Occurrences from which a share of them is an estimate."""

SAMPLED = 32
"""Occurrences of a context that are looked at, evenly spaced in the order of what follows them: a stratified sample."""

MOST_FOLLOWERS = 2 * SAMPLED

LIVE = 1 << 24
"""Added to the number of a response in an origin where the response is of this round."""


class ChainRoom(NamedTuple):
    """Arrays that a chain is written to, int32, and such that it works with.

    Attributes:
        drafted, cells, origins: [tokens]; the tokens, the cell of the table that each belongs to, and the number of a
            response in which it followed the context, `LIVE` added to those of this round.
        tokens, weights, first: [MOST_FOLLOWERS].
    """

    drafted: NDArray[np.int32]
    cells: NDArray[np.int32]
    origins: NDArray[np.int32]
    tokens: NDArray[np.int32]
    weights: NDArray[np.float64]
    first: NDArray[np.int32]

    @classmethod
    def of(cls, tokens: int) -> ChainRoom:
        """Room for drafts of so many tokens."""
        drafted, cells, origins = (np.empty(tokens, np.int32) for _ in range(3))
        followers, first = np.empty(MOST_FOLLOWERS, np.int32), np.empty(MOST_FOLLOWERS, np.int32)
        return cls(drafted, cells, origins, followers, np.empty(MOST_FOLLOWERS), first)


@compiled
def suffix_range(tokens: Any, order: Any, context: Any, end: int, length: int) -> tuple[int, int]:
    """The part of the text's `order` (prompt_index.py) whose suffixes begin with the last `length` tokens, `ORDERED` at
    most, of `context[:end]`: (first, behind the last); empty if there is none."""
    size = len(tokens)
    begin = end - length
    first = 0
    for bound in range(2):  # the first suffix that is not below the context, then the first that is above it
        low, high = first, size
        while low < high:
            middle = (low + high) // 2
            at = order[middle]
            sign = 0
            for offset in range(length):
                token = tokens[at + offset] if at + offset < size else -2
                wanted = context[begin + offset]
                if token != wanted:
                    sign = -1 if token < wanted else 1
                    break
            if sign < 0 or (bound == 1 and sign == 0):
                low = middle + 1
            else:
                high = middle
        if bound == 0:
            first = low
        else:
            return first, low
    return first, first


@compiled
def _occurrences(earlier: Any, live: Any, context: Any, end: int, length: int) -> int:
    first, last = suffix_range(earlier[0], earlier[1], context, end, length)
    count = int(last - first)
    first, last = suffix_range(live[0], live[1], context, end, length)
    return count + int(last - first)


@compiled
def _longest(earlier: Any, live: Any, context: Any, end: int, least: int) -> int:
    """Tokens of the longest context before `end` that occurs `least` times; 0 if none does."""
    low, high = 0, min(CONTEXT, end)
    while low < high:  # a context that occurs so often contains shorter ones that do
        middle = (low + high + 1) // 2
        if _occurrences(earlier, live, context, end, middle) >= least:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def _add_followers(
    text: Any, context: Any, end: int, length: int, tokens: Any, weights: Any, origins: Any, used: int, origin: int
) -> tuple[int, int]:
    """Add what followed the context in one text to the lists of tokens, weights and origins (the response of the first
    occurrence, `origin` added); returns how many tokens these have then, and the occurrences of the context."""
    first, last = suffix_range(text[0], text[1], context, end, length)
    count = last - first
    taken = min(count, SAMPLED)
    for number in range(taken):
        place = text[1][first + number * count // taken]
        behind = place + length
        if behind >= len(text[0]) or text[0][behind] < 0:
            continue
        token = text[0][behind]
        response = np.searchsorted(text[2], place, side="right") - 1
        weight = text[3][response] * count / taken
        for known in range(used):
            if tokens[known] == token:
                weights[known] += weight
                break
        else:
            tokens[used], weights[used], origins[used] = token, weight, origin + response
            used += 1
    return used, count


@compiled
def _draft(
    earlier: Any, live: Any, context: Any, end: int, rates: Any, most: int, least_chance: float, room: Any
) -> int:
    drafted, cells, origins, tokens, weights, first = room
    chance = 1.0
    for number in range(most):
        best_rate, best_token, best_cell, best_origin, before = 0.0, -1, 0, 0, 0
        for least in (1, SUPPORTED):
            length = _longest(earlier, live, context, end, least)
            if length == 0 or length == before:
                continue
            before = length
            used, count = _add_followers(earlier, context, end, length, tokens, weights, first, 0, 0)
            used, of_live = _add_followers(live, context, end, length, tokens, weights, first, used, LIVE)
            if used == 0:
                continue
            likeliest, total = 0, 0.0
            for known in range(used):
                total += weights[known]
                if weights[known] > weights[likeliest]:
                    likeliest = known
            cell = cell_of(length, count + of_live, weights[likeliest] / total)
            if rates[cell] > best_rate:
                best_rate, best_token, best_cell, best_origin = rates[cell], tokens[likeliest], cell, first[likeliest]
        chance *= best_rate
        if best_token < 0 or chance < least_chance:
            return number
        drafted[number], cells[number], origins[number] = best_token, best_cell, best_origin
        context[end] = best_token
        end += 1
    return most


def _make_entry(digest: str) -> Any:
    def draft_chain(
        earlier: Any, live: Any, context: Any, end: int, rates: Any, most: int, least_chance: float, room: Any
    ) -> int:
        # numba keeps machine code under this file's time and what its functions close over: the digest is of all files.
        assert len(digest) > 0
        return int(_draft(earlier, live, context, end, rates, most, least_chance, room))

    return entry(draft_chain)


draft_chain = _make_entry(sources_digest(Path(__file__), Path(str(acceptance.__file__))))
"""(earlier, live, context, end, rates, most, least_chance, room) -> tokens of a draft of what follows `context[:end]`.

earlier, live: SuffixText, either may be empty. context: int32 with room for `most` tokens behind `end`; holds the draft
there afterwards. rates: of accepted drafts, by cell, float64. most: tokens at most. least_chance: a token is drafted if
the chance that it and all before it are accepted is at least this. room: ChainRoom, whose first three arrays are
filled."""
