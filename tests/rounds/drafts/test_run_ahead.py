"""Samples that are decoded ahead: only where places are to spare, each prompt once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.drafts.run_ahead import RunAhead


def test_nothing_is_decoded_ahead_before_a_sample_of_the_round_has_ended():
    rule = RunAhead(["a", "b"], sequences=4)
    assert rule.fill({0: 0, 1: 3}) == []
    rule.sample_finished()
    assert rule.fill({0: 3, 1: 3}) == [(0, "a"), (1, "b")]


def test_an_engine_that_is_not_told_of_gets_nothing():
    rule = RunAhead(["a", "b", "c"], sequences=2)
    rule.sample_finished()
    assert rule.fill({1: 1}) == [(1, "a")]


def test_no_sequences_are_no_places_to_fill():
    with pytest.raises(ValueError, match="at least"):
        RunAhead(["a"], sequences=0)


@given(
    st.lists(st.sampled_from("abcdefgh"), max_size=12),
    st.integers(1, 4),
    st.lists(st.dictionaries(st.integers(0, 2), st.integers(0, 5), max_size=3), max_size=8),
)
def test_engines_are_filled_no_further_than_planned_and_no_prompt_is_drawn_twice(prompts, sequences, rounds):
    rule = RunAhead(prompts, sequences)
    rule.sample_finished()
    begun, ahead = [], {}
    for running in rounds:
        for engine, prompt in rule.fill(running):
            begun.append(prompt)
            ahead[engine] = ahead.get(engine, 0) + 1
            assert running[engine] + ahead[engine] <= sequences
    assert len(set(begun)) == len(begun)
    assert begun == list(dict.fromkeys(prompts))[: len(begun)]


def test_a_sample_ahead_that_ends_leaves_its_place():
    rule = RunAhead(["a", "b"], sequences=1)
    rule.sample_finished()
    assert rule.fill({0: 0}) == [(0, "a")]
    assert rule.fill({0: 0}) == []
    rule.ended(0)
    assert rule.fill({0: 0}) == [(0, "b")]
