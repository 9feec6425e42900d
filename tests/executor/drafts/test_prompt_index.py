"""What is known of one prompt while a round decodes: suffixes in order, and drafts of what followed, beside slow
references."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.drafts.draft_chain import LIVE, SUPPORTED, ChainRoom, draft_chain
from rlplan.executor.drafts.draft_chain import suffix_range as compiled_range
from rlplan.executor.drafts.prompt_index import (
    BREAK,
    BRIDGE,
    COMMON_TOKENS,
    ORDERED,
    UNORDERED,
    CommonText,
    PromptIndex,
    suffix_order,
    suffix_text,
)
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


def tokens(*values):
    return np.array(values, np.int32)


PROMPT = np.arange(100, 120, dtype=np.int32)


def test_a_responses_first_token_has_the_prompts_end_as_context():
    index = PromptIndex(PROMPT, [tokens(1, 2, 3)], [1.0])
    text = index.earlier.tokens.tolist()
    assert text == [*PROMPT[-BRIDGE:].tolist(), 1, 2, 3, -1]


def test_what_was_told_is_ordered_once_enough_has_come():
    index = PromptIndex(PROMPT)
    assert len(index.live) == 0 and len(index.earlier) == 0
    index.tell("a", tokens(*range(UNORDERED)))
    assert len(index.live) == 0, "so few tokens are not worth an order"
    index.tell("a", tokens(*range(UNORDERED + 1)))
    assert index.live.tokens.tolist()[BRIDGE:-1] == list(range(UNORDERED + 1))
    assert (index.told("a"), index.told("b")) == (UNORDERED + 1, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=40))
def test_live_text_lacks_a_bounded_part_of_what_was_told(told):
    index, streams = PromptIndex(PROMPT), {}
    for sample, more in told:
        streams[sample] = [*streams.get(sample, []), *range(more)]
        index.tell(sample, tokens(*streams[sample]))
        live = index.live
        all_told = sum(map(len, streams.values()))
        ordered = len(live) - len(live.starts) * (BRIDGE + 1)
        assert all_told - ordered <= max(UNORDERED, len(live) / 8)
        for start, name in zip(live.starts.tolist(), streams, strict=False):
            text = live.tokens[start + BRIDGE :].tolist()
            response = text[: text.index(-1)]
            assert response == streams[name][: len(response)]
    assert {name: text.tolist() for name, text in index.responses().items()} == streams


def test_a_draft_knows_its_source():
    index = PromptIndex(PROMPT, [tokens(1), tokens(2), tokens(3)], [1.0, 1.0, 1.0], ahead=1)
    assert [index.source("a", origin) for origin in range(3)] == ["earlier", "earlier", "ahead"]
    for sample in "ab":
        index.tell(sample, tokens(*range(UNORDERED)))
    assert len(index.live.starts) == 2
    assert [index.source("b", LIVE + number) for number in range(2)] == ["sibling", "own"]


def test_bytes_are_those_of_all_texts_before_and_after_their_order():
    index = PromptIndex(PROMPT, [tokens(*range(50))], [1.0])
    assert index.nbytes == 50 * 4
    length = len(index.earlier)
    assert index.nbytes == 8 * length + 4 + 4  # tokens, order, one start, one weight
    index.tell("a", tokens(*range(10)))
    assert index.nbytes == 8 * length + 8 + 40


def test_the_common_text_forgets_the_oldest_responses_first():
    common = CommonText()
    long = COMMON_TOKENS // 2 - 1
    for value in (1, 2, 3):
        common.add(np.full(long, value, np.int32))
    assert set(common.text.tokens.tolist()) == {2, 3, -1}
    common.add(tokens(9))
    assert 9 not in common.text.tokens, "so little is not worth an order"
