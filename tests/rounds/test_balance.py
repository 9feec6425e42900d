"""The balancer: least loaded, deterministic, and its books agree with who runs where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.balance import Balancer, PrefixSharing, shared_tokens

# Whole numbers, so that sums are exact and the books can be compared with ==.
tokens = st.integers(0, 500).map(float)
ops = st.lists(st.tuples(st.sampled_from(["assign", "release"]), st.integers(0, 30), tokens), max_size=60)


@given(engines=st.integers(1, 5), todo=ops, alive=st.none() | st.sets(st.integers(0, 4), min_size=1))
def test_each_sample_goes_to_the_least_loaded_living_engine_and_the_books_agree(
    engines: int, todo: list[tuple[str, int, float]], alive: set[int] | None
) -> None:
    balancer = Balancer(engines)
    choice = [e for e in range(engines) if alive is None or e in alive]
    running: dict[int, tuple[int, float]] = {}
    for what, key, expected in todo:
        if what == "release":
            balancer.release(key)  # unknown keys too
            running.pop(key, None)
        elif choice and key not in running:
            least = min(balancer.load(e) for e in choice)
            engine = balancer.assign(key, expected, alive)
            running[key] = (engine, expected)
            assert engine == next(e for e in choice if balancer.load(e) - expected * (e == engine) == least)
        for e in range(engines):
            assert balancer.load(e) == sum(t for at, t in running.values() if at == e)
            assert balancer.running(e) == [k for k, (at, _) in running.items() if at == e]


@given(engines=st.integers(1, 6), expected=st.lists(st.integers(1, 500).map(float), max_size=60))
def test_engines_never_differ_by_more_than_one_sample(engines: int, expected: list[float]) -> None:
    balancer = Balancer(engines)
    for key, load in enumerate(expected):
        balancer.assign(key, load)
    loads = [balancer.load(e) for e in range(engines)]
    assert sum(loads) == sum(expected)
    assert max(loads) - min(loads) <= max(expected, default=0)


def test_ties_go_to_the_lowest_engine() -> None:
    balancer = Balancer(3)
    assert [balancer.assign(key, 7.0) for key in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_expected_tokens_weigh_and_not_the_number_of_samples() -> None:
    balancer = Balancer(2)
    assert [balancer.assign(key, load) for key, load in enumerate([9.0, 2.0, 2.0, 2.0, 2.0, 2.0])] == [0, 1, 1, 1, 1, 1]


def test_a_dead_engine_gets_nothing_and_with_none_alive_there_is_an_error() -> None:
    balancer = Balancer(3)
    assert [balancer.assign(key, 5.0, alive={1, 2}) for key in range(4)] == [1, 2, 1, 2]
    with pytest.raises(ValueError, match="no engine is alive"):
        balancer.assign("x", 5.0, alive=set())
    assert balancer.load(0) == 0 and balancer.running(1) == [0, 2]


def test_without_engines_there_is_nothing_to_balance() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        Balancer(0)


def test_a_sample_is_not_assigned_twice() -> None:
    """Its first load would never be released."""
    balancer = Balancer(2)
    balancer.assign("a", 5.0)
    with pytest.raises(AssertionError, match="already runs"):
        balancer.assign("a", 5.0)
    assert balancer.load(0) + balancer.load(1) == 5


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_whole_blocks_are_shared_and_the_last_token_never_is() -> None:
    assert [shared_tokens(tokens, 16) for tokens in (1, 15, 16, 17, 32, 33)] == [0, 0, 0, 16, 16, 32]
    assert [shared_tokens(tokens, 128) for tokens in (128, 129, 256, 257)] == [0, 128, 128, 256]
    assert shared_tokens(1, 1) == 0


def test_samples_stay_with_their_prompt_until_the_engine_is_ahead_by_what_the_prompt_is_worth() -> None:
    balancer = Balancer(3, PrefixSharing(block_tokens=16, tokens_per_sample=16))
    # 33 tokens share 32, which are worth two samples: the third goes there on a tie, and then the next engine is had.
    assert [balancer.assign(("p", k), 5.0, None, "p", 33) for k in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    # A prompt without a whole block goes to the least loaded, whoever has it.
    assert [balancer.assign(("q", k), 5.0, None, "q", 16) for k in range(2)] == [2, 0]


def test_without_sharing_and_for_prompts_worth_less_than_a_sample_they_are_spread() -> None:
    for sharing in (None, PrefixSharing(16, 17)):
        balancer = Balancer(3, sharing)
        assert [balancer.assign(k, 5.0, None, "p", 17) for k in range(6)] == [0, 1, 2, 0, 1, 2]


@given(
    engines=st.integers(1, 5),
    todo=st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 4)), max_size=80),
    worth=st.integers(1, 7),
)
def test_no_engine_gets_ahead_by_more_than_the_prompt_is_worth(
    engines: int, todo: list[tuple[bool, int, int]], worth: int
) -> None:
    balancer = Balancer(engines, PrefixSharing(block_tokens=8, tokens_per_sample=8))
    running: set[int] = set()
    for ends, key, prompt in todo:
        if ends:
            balancer.release(key)
            running.discard(key)
        elif key not in running:
            before = [balancer.load(e) for e in range(engines)]
            engine = balancer.assign(key, 1.0, None, str(prompt), 8 * worth + 1)
            running.add(key)
            assert before[engine] <= min(before) + worth
    assert sum(balancer.load(e) for e in range(engines)) == len(running)


def test_a_dead_engine_holds_no_prompts() -> None:
    balancer = Balancer(2, PrefixSharing(16, 16))
    assert [balancer.assign(k, 1.0, None, "p", 65) for k in range(3)] == [0, 0, 0]
    for key in range(3):
        balancer.release(key)
    balancer.assign("other", 1.0, {0}, "q", 1)
    balancer.forget(0)
    assert balancer.assign(3, 1.0, None, "p", 65) == 1
