"""The balancer: least loaded, deterministic, and its books agree with who runs where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.schema.levers import RoundPrefix
from rlplan.rounds.balancing.placement import Balancer, ByLoad, ToPlace, shared_tokens
from rlplan.rounds.machines.events import SampleKey

# Whole numbers, so that sums are exact and the books can be compared with ==.
tokens = st.integers(0, 500).map(float)
ops = st.lists(st.tuples(st.sampled_from(["assign", "release"]), st.integers(0, 30), tokens), max_size=60)


@given(engines=st.integers(1, 5), todo=ops, alive=st.none() | st.sets(st.integers(0, 4), min_size=1))
def test_each_sample_goes_to_the_least_loaded_living_engine(engines, todo, alive):
    balancer = Balancer(engines)
    choice = [e for e in range(engines) if alive is None or e in alive]
    running: dict[int, tuple[int, float]] = {}
    for what, key, expected in todo:
        if what == "release":
            balancer.release(key)  # unknown keys too
            running.pop(key, None)
        elif choice and key not in running:
            before = {e: balancer.load(e) for e in choice}
            engine = balancer.assign(key, expected, alive)
            running[key] = (engine, expected)
            assert engine == min(choice, key=lambda e: (before[e], e))
        for e in range(engines):
            assert balancer.load(e) == sum(t for at, t in running.values() if at == e)
            assert balancer.running(e) == [k for k, (at, _) in running.items() if at == e]


def test_expected_tokens_weigh_and_not_the_number_of_samples():
    balancer = Balancer(2)
    assert [balancer.assign(key, load) for key, load in enumerate([9.0, 2.0, 2.0, 2.0, 2.0, 2.0])] == [0, 1, 1, 1, 1, 1]


def test_what_cannot_be_assigned_is_an_error():
    balancer = Balancer(3)
    assert [balancer.assign(key, 5.0, alive={1, 2}) for key in range(4)] == [1, 2, 1, 2]
    with pytest.raises(ValueError, match="no engine is alive"):
        balancer.assign("x", 5.0, alive=set())
    with pytest.raises(AssertionError, match="already runs"):
        balancer.assign(0, 5.0)  # its first load would never be released
    assert [balancer.load(e) for e in range(3)] == [0, 10, 10]
    with pytest.raises(ValueError, match="at least one engine"):
        Balancer(0)


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_whole_blocks_are_shared_and_the_last_token_never_is():
    assert [shared_tokens(tokens, 16) for tokens in (1, 15, 16, 17, 32, 33)] == [0, 0, 0, 16, 16, 32]
    assert [shared_tokens(tokens, 128) for tokens in (128, 129, 256, 257)] == [0, 128, 128, 256]
    assert shared_tokens(1, 1) == 0


def test_samples_stay_with_their_prompt_for_what_it_is_worth():
    balancer = Balancer(3, RoundPrefix(block_tokens=16, tokens_per_sample=16))
    # 33 tokens share 32, which are worth two samples: the third goes there on a tie, and then the next engine is had.
    assert [balancer.assign(("p", k), 5.0, None, "p", 33) for k in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    # A prompt without a whole block goes to the least loaded, whoever has it.
    assert [balancer.assign(("q", k), 5.0, None, "q", 16) for k in range(2)] == [2, 0]


@pytest.mark.parametrize("sharing", [None, RoundPrefix(block_tokens=16, tokens_per_sample=17)])
def test_prompts_that_are_not_worth_a_sample_are_spread(sharing):
    balancer = Balancer(3, sharing)
    assert [balancer.assign(k, 5.0, None, "p", 17) for k in range(6)] == [0, 1, 2, 0, 1, 2]


@given(
    engines=st.integers(1, 5),
    todo=st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 4)), max_size=80),
    worth=st.integers(1, 7),
)
def test_no_engine_gets_ahead_by_more_than_the_prompt_is_worth(engines, todo, worth):
    balancer = Balancer(engines, RoundPrefix(block_tokens=8, tokens_per_sample=8))
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


def test_a_dead_engine_holds_no_prompts():
    balancer = Balancer(2, RoundPrefix(block_tokens=16, tokens_per_sample=16))
    assert [balancer.assign(k, 1.0, None, "p", 65) for k in range(3)] == [0, 0, 0]
    for key in range(3):
        balancer.release(key)
    balancer.assign("other", 1.0, {0}, "q", 1)
    balancer.forget(0)
    assert balancer.assign(3, 1.0, None, "p", 65) == 1


def test_by_load_every_sample_starts_at_once_on_a_living_engine():
    placement = ByLoad(2, RoundPrefix(block_tokens=16, tokens_per_sample=16))
    keys = [SampleKey(0, sample) for sample in range(4)]
    for key in keys:
        placement.add(ToPlace(key, "p", 33, 100))
    placement.remove(keys[3])
    assert placement.place(set()) == []
    assert placement.place({0, 1}) == [(keys[0], 0), (keys[1], 0), (keys[2], 0)], "its prompt is worth two samples"
    assert placement.place({0, 1}) == [] and placement.running(0) == keys[:3] and placement.running(1) == []
    placement.ended(keys[0], 50)
    placement.remove(keys[1])
    placement.forget(0)
    placement.add(ToPlace(keys[2], "p", 33, 100, kept=7))  # released to move on
    assert placement.running(0) == [] and placement.place({1}) == [(keys[2], 1)]
