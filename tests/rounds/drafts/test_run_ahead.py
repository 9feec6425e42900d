"""Samples that are decoded ahead: only where places are to spare, each prompt once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.drafts.run_ahead import RunAhead


def test_nothing_is_decoded_ahead_before_the_round_begins_to_end():
    rule = RunAhead(["a", "b", "c"], sequences=4)
    assert rule.fill({0: 0, 1: 3}) == []
    rule.sample_finished()
    assert rule.fill({1: 3, 0: 3}) == [(0, "a"), (1, "b")]
    assert rule.fill({1: 3}) == [], "its place is taken, and an engine that is not told of gets nothing"
    rule.ended(1)
    assert rule.fill({0: 3, 1: 3}) == [(1, "c")], "one that ended leaves its place"
    rule.ended(1)
    with pytest.raises(AssertionError, match="more samples ahead ended"):
        rule.ended(1)


def test_no_sequences_are_no_places_to_fill():
    with pytest.raises(ValueError, match="at least"):
        RunAhead(["a"], sequences=0)
    assert RunAhead(["a"], sequences=1).fill({0: 0}) == []


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from("abcdefgh"), max_size=12),
    st.integers(1, 4),
    st.lists(st.dictionaries(st.integers(0, 2), st.integers(0, 5), max_size=3), max_size=8),
)
def test_engines_are_filled_up_to_their_places_with_each_prompt_once(prompts, sequences, rounds):
    rule = RunAhead(prompts, sequences)
    rule.sample_finished()
    begun, ahead, places = [], {}, 0
    for running in rounds:
        for engine, prompt in rule.fill(running):
            begun.append(prompt)
            ahead[engine] = ahead.get(engine, 0) + 1
            assert running[engine] + ahead[engine] <= sequences
        places += sum(max(0, sequences - samples - ahead.get(engine, 0)) for engine, samples in running.items())
    different = list(dict.fromkeys(prompts))
    assert begun == different[: len(begun)]
    assert not places or begun == different, "places stay empty only where no prompt is left"
