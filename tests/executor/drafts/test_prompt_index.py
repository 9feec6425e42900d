"""What is known of one prompt while a round decodes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.drafts.draft_chain import LIVE
from rlplan.executor.drafts.prompt_index import BRIDGE, COMMON_TOKENS, UNORDERED, CommonText, PromptIndex


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
