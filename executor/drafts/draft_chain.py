"""The draft of one sample: what followed its last tokens before, token by token, as long as it is likely enough.

Two texts are asked, what is known of the prompt from earlier and what its samples decode now. Of each next token there
are two candidates: what most often followed the longest context that occurs at all, and what most often followed the
longest that occurs `SUPPORTED` times. Which is likelier, and how likely, says a table of how often such drafts were
accepted before (rounds/drafts/acceptance.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ...rounds.drafts.acceptance import CONTEXT, cell_of
from .suffix_text import suffix_range

SUPPORTED = 4
"""Occurrences from which a share of them is an estimate."""

SAMPLED = 32
"""Occurrences of a context that are looked at, evenly spaced in the order of what follows them: a stratified sample."""

MOST_FOLLOWERS = 2 * SAMPLED


@njit(cache=True, nogil=True)
def _occurrences(earlier: Any, live: Any, context: Any, end: int, length: int) -> int:
    first, last = suffix_range(earlier[0], earlier[1], context, end, length)
    count = last - first
    first, last = suffix_range(live[0], live[1], context, end, length)
    return count + last - first


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _add_followers(
    text: Any, context: Any, end: int, length: int, tokens: Any, weights: Any, used: int
) -> tuple[int, int]:
    """Add what followed the context in one text to the lists of tokens and weights; returns how many tokens these have
    then, and the occurrences of the context."""
    first, last = suffix_range(text[0], text[1], context, end, length)
    count = last - first
    taken = min(count, SAMPLED)
    for number in range(taken):
        place = text[1][first + number * count // taken]
        behind = place + length
        if behind >= len(text[0]) or text[0][behind] < 0:
            continue
        token = text[0][behind]
        weight = text[3][np.searchsorted(text[2], place, side="right") - 1] * count / taken
        for known in range(used):
            if tokens[known] == token:
                weights[known] += weight
                break
        else:
            tokens[used] = token
            weights[used] = weight
            used += 1
    return used, count


@njit(cache=True, nogil=True)
def draft_chain(
    earlier: Any, live: Any, context: Any, end: int, rates: Any, most: int, least_chance: float, drafted: Any, cells: Any
) -> int:
    """Draft what may follow `context[:end]`; returns the number of tokens.

    Args:
        earlier, live: SuffixText, either may be empty.
        context: int32 with room for `most` tokens behind `end`; holds the draft there afterwards.
        rates: of accepted drafts, by cell, float64.
        most: tokens at most.
        least_chance: a token is drafted if the chance that it and all before it are accepted is at least this.
        drafted, cells: int32 [most]; filled with the tokens, and with the cell of the table that each belongs to.
    """
    tokens, weights = np.empty(MOST_FOLLOWERS, np.int32), np.empty(MOST_FOLLOWERS, np.float64)
    chance = 1.0
    for number in range(most):
        best_rate, best_token, best_cell, before = 0.0, -1, 0, 0
        for least in (1, SUPPORTED):
            length = _longest(earlier, live, context, end, least)
            if length == 0 or length == before:
                continue
            before = length
            used, count = _add_followers(earlier, context, end, length, tokens, weights, 0)
            used, of_live = _add_followers(live, context, end, length, tokens, weights, used)
            if used == 0:
                continue
            likeliest, total = 0, 0.0
            for known in range(used):
                total += weights[known]
                if weights[known] > weights[likeliest]:
                    likeliest = known
            cell = cell_of(length, count + of_live, weights[likeliest] / total)
            if rates[cell] > best_rate:
                best_rate, best_token, best_cell = rates[cell], tokens[likeliest], cell
        chance *= best_rate
        if best_token < 0 or chance < least_chance:
            return number
        drafted[number], cells[number] = best_token, best_cell
        context[end] = best_token
        end += 1
    return most
