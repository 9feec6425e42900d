"""The balancer: least loaded, deterministic, and its books agree with who runs where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.balance import Balancer

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
