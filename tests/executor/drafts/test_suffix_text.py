"""Suffixes in order, and drafts of what followed, beside slow references."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.drafts.draft_chain import LIVE, SUPPORTED, ChainRoom, draft_chain
from rlplan.executor.drafts.draft_chain import suffix_range as compiled_range
from rlplan.executor.drafts.prompt_index import BREAK, ORDERED, suffix_order, suffix_text
from rlplan.rounds.drafts.acceptance import CELLS, CONTEXT, first_rates
from rlplan.rounds.drafts.acceptance import cell_of as compiled_cell

# Compiled functions that only compiled ones call have no entry for Python.
suffix_range, cell_of = compiled_range.py_func, compiled_cell.py_func

TOKENS = st.lists(st.integers(BREAK, 3), max_size=120).map(lambda tokens: np.array(tokens, np.int32))
RESPONSE = st.lists(st.integers(0, 2), max_size=40).map(lambda tokens: np.array(tokens, np.int32))
RESPONSES = st.lists(RESPONSE, max_size=5)


def key(tokens, begin):
    """A suffix up to ORDERED tokens; the end sorts before all tokens."""
    return tuple(tokens[begin : begin + ORDERED].tolist())


@given(TOKENS)
def test_suffixes_are_in_the_order_of_their_first_tokens(tokens):
    order = suffix_order(tokens)
    assert sorted(order.tolist()) == list(range(len(tokens)))
    keys = [key(tokens, begin) for begin in order]
    assert keys == sorted(keys)


def test_a_long_text_of_one_token_is_ordered_far_enough():
    order = suffix_order(np.zeros(5000, np.int32))
    keys = [min(5000 - begin, ORDERED) for begin in order.tolist()]
    assert keys == sorted(keys)


@settings(deadline=None)
@given(RESPONSES, st.lists(st.integers(0, 2), min_size=1, max_size=20), st.data())
def test_the_range_of_a_context_holds_exactly_its_occurrences(responses, context, data):
    length = data.draw(st.integers(1, min(len(context), CONTEXT)))
    text = suffix_text(responses, [1.0] * len(responses))
    wanted = context[-length:]
    first, last = suffix_range(text.tokens, text.order, np.array(context, np.int32), len(context), length)
    found = sorted(text.order[first:last].tolist())
    whole = text.tokens.tolist()
    assert found == [at for at in range(len(whole)) if whole[at : at + length] == wanted]


def slow_draft(earlier, live, context, rates, most, least_chance):
    """As draft_chain, by looking at every place of every text."""
    texts = [(earlier, 0), (live, LIVE)]

    def followers(length):
        weights, places, count = defaultdict(float), {}, 0
        for text, origin in texts:
            whole = text.tokens.tolist()
            places_in_order = [p for p in text.order.tolist() if whole[p : p + length] == context[-length:]]
            count += len(places_in_order)
            for place in places_in_order:
                if place + length < len(whole) and whole[place + length] >= 0:
                    response = int(np.searchsorted(text.starts, place, side="right")) - 1
                    weights[whole[place + length]] += float(text.weights[response])
                    places.setdefault(whole[place + length], origin + response)
        return weights, places, count

    context, drafted, chance = list(context), [], 1.0
    while len(drafted) < most:
        best = (0.0, -1, 0, 0)
        tried = set()
        for least in (1, SUPPORTED):
            lengths = [n for n in range(1, min(CONTEXT, len(context)) + 1) if followers(n)[2] >= least]
            if not lengths or lengths[-1] in tried:
                continue
            tried.add(lengths[-1])
            weights, places, count = followers(lengths[-1])
            if not weights:
                continue
            token = max(weights, key=lambda each: weights[each])  # of equals the one that was found first
            cell = cell_of(lengths[-1], count, weights[token] / sum(weights.values()))
            if rates[cell] > best[0]:
                best = (rates[cell], token, cell, places[token])
        chance *= best[0]
        if best[1] < 0 or chance < least_chance:
            break
        drafted.append(best[1:])
        context.append(best[1])
    return drafted


FEW = st.lists(st.lists(st.integers(0, 2), max_size=8).map(lambda tokens: np.array(tokens, np.int32)), max_size=3)
"""Responses with few enough occurrences of a context that none is left out by sampling."""


@settings(deadline=None, max_examples=60)
@given(
    FEW, FEW, st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 6), st.sampled_from([0.0, 0.1, 0.4]),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_draft_is_what_a_slow_look_at_every_place_gives(earlier, live, context, most, least_chance, chance):
    before = suffix_text(earlier, [1.0, 2.0, 0.5][: len(earlier)])
    now = suffix_text(live, [1.0] * len(live))
    rates = first_rates()
    rates[[chance.randrange(CELLS) for _ in range(20)]] = 0.9
    room, end = ChainRoom.of(most), len(context)
    buffer = np.zeros(end + most, np.int32)
    buffer[:end] = context
    count = draft_chain(before, now, buffer, end, rates, most, least_chance, room)
    got = [tuple(int(array[place]) for array in room[:3]) for place in range(count)]
    assert got == slow_draft(before, now, context, rates, most, least_chance)


def test_no_draft_goes_over_the_end_of_a_response():
    text = suffix_text([np.array([1, 2, 3], np.int32), np.array([7, 8, 9], np.int32)], [1.0, 1.0])
    nothing, room = suffix_text([], []), ChainRoom.of(4)
    buffer = np.array([1, 2, 0, 0, 0, 0], np.int32)
    assert draft_chain(text, nothing, buffer, 2, np.ones(CELLS), 4, 0.0, room) == 1
    assert room.drafted[0] == 3 and room.origins[0] == 0


@pytest.mark.parametrize("least_chance", [0.1, 0.6])
def test_a_draft_ends_where_it_is_no_longer_likely_enough(least_chance):
    text = suffix_text([np.arange(1, 30, dtype=np.int32)], [1.0])
    nothing, room = suffix_text([], []), ChainRoom.of(8)
    buffer = np.zeros(12, np.int32)
    buffer[:2] = [1, 2]
    count = draft_chain(text, nothing, buffer, 2, np.full(CELLS, 0.8), 8, least_chance, room)
    assert 0.8**count >= least_chance > 0.8 ** (count + 1) or count == 8
