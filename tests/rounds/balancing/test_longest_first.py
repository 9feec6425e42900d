"""Samples that are balanced by history: who starts, where and in which order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.balancing.length_estimates import PAST, Expected, LengthEstimates, Recorded
from rlplan.rounds.balancing.longest_first import ROOM, Balance, LongestFirst
from rlplan.rounds.balancing.placement import ToPlace
from rlplan.rounds.machines.events import SampleKey
from tests.rounds.driver import round_balance

SPEC = round_balance(0.01, 1e-3, 1e-7, 100_000)
LIMIT = 1000


def recorded(**tokens):
    return Recorded({name: Expected(mean, mean) for name, mean in tokens.items()}, 0.5)


def placement(engines=2, at_once=4, spec=SPEC, **tokens):
    return LongestFirst(engines, Balance(spec, recorded(**tokens)), at_once)


def add(to, prompt, draw, samples=1):
    keys = [SampleKey(draw, sample) for sample in range(samples)]
    for key in keys:
        to.add(ToPlace(key, prompt, 10, LIMIT))
    return keys


def test_the_longest_expected_samples_start_first():
    machine = placement(1, 2, a=10, b=300, c=50)
    for draw, prompt in enumerate("abc"):
        add(machine, prompt, draw)
    assert machine.place({0}) == [(SampleKey(1, 0), 0), (SampleKey(2, 0), 0)] and machine.running(0) == [(1, 0), (2, 0)]
    assert machine.place({0}) == [], "others wait for a place"
    machine.ended(SampleKey(2, 0), 40)
    assert machine.place({0}) == [(SampleKey(0, 0), 0)]
    with pytest.raises(AssertionError, match="waits already"):
        add(machine, "a", 7, samples=1)
        add(machine, "a", 7, samples=1)


def test_a_sample_starts_where_it_would_end_soonest():
    machine = placement(2, 8, long=900, short=20)
    add(machine, "long", 0)
    add(machine, "short", 1, samples=3)
    placed = dict(machine.place({0, 1}))
    assert placed[SampleKey(0, 0)] == 0
    assert {placed[SampleKey(1, sample)] for sample in range(3)} == {1}, "not where fewest are"


def test_memory_is_kept_for_half_of_what_a_sample_will_hold():
    needs = round(10 + ROOM * 400)
    for capacity, start in ((2 * needs, 2), (2 * needs - 1, 1), (1, 1)):
        machine = placement(
            1,
            8,
            round_balance(0.01, 1e-3, 1e-7, capacity),
            a=400,
        )
        add(machine, "a", 0, samples=3)
        assert len(machine.place({0})) == start, "an engine without a sample has room for any"
        machine.remove(SampleKey(0, 0))
        assert len(machine.place({0})) == 1, "its memory is free again"


def test_the_first_sample_of_an_unknown_prompt_starts_first():
    machine = placement(1, 2, known=400)
    add(machine, "known", 0)
    add(machine, "new", 1, samples=3)
    add(machine, "other", 2, samples=2)
    assert [key for key, _ in machine.place({0})] == [SampleKey(1, 0), SampleKey(2, 0)], "the probes"
    machine.ended(SampleKey(1, 0), 600)
    machine.ended(SampleKey(2, 0), 5)
    # Siblings of a probe that took 600 tokens come before a prompt of 400, those of one that took 5 after it.
    assert [key for key, _ in machine.place({0})] == [SampleKey(1, 1), SampleKey(1, 2)]
    machine.ended(SampleKey(1, 1), 600)
    assert [key for key, _ in machine.place({0})] == [SampleKey(0, 0)]


def test_siblings_of_a_sample_that_outgrew_its_history_are_as_long():
    machine = placement(1, 1, grown=50, other=100)
    add(machine, "grown", 0, samples=2)
    add(machine, "other", 1, samples=2)
    assert machine.place({0}) == [(SampleKey(1, 0), 0)]
    machine.ended(SampleKey(1, 0), 100)
    machine.remove(SampleKey(1, 1))
    assert machine.place({0}) == [(SampleKey(0, 0), 0)]
    machine.ended(SampleKey(0, 0), 500)
    add(machine, "other", 2)
    assert machine.place({0}) == [(SampleKey(0, 1), 0)], "500 tokens are more than the other prompt's 100"


@pytest.mark.parametrize(("engines", "at_once"), [(0, 1), (1, 0)])
def test_no_engine_and_no_place_are_no_placement(engines, at_once):
    assert placement(1, 1).place({0}) == []
    with pytest.raises(ValueError, match="at least one"):
        placement(engines, at_once)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 5))
def test_whatever_happens_every_sample_ends_and_is_in_one_place(seed, engines, at_once):
    def run():
        rng = random.Random(seed)
        history = {str(prompt): rng.uniform(1, 400) for prompt in range(6) if rng.random() < 0.6}
        machine = LongestFirst(engines, Balance(SPEC, recorded(**history)), at_once)
        left, placed = {}, []
        for draw in range(6):
            for sample in range(rng.randint(1, 4)):
                key = SampleKey(draw, sample)
                left[key] = ToPlace(key, str(draw), 10, LIMIT)
                machine.add(left[key])
        alive, running = set(range(engines)), {}
        for _ in range(2000):
            for key, engine in machine.place(alive):
                assert key in left and key not in running and engine in alive
                running[key] = engine
                placed.append((key, engine))
            machine.check_invariants()
            if not left:
                break
            assert running, "samples wait although an engine is empty"
            key = rng.choice(sorted(running))
            if rng.random() < 0.8:
                machine.ended(key, rng.randint(1, LIMIT))
            else:
                machine.remove(key)
            del running[key], left[key]
        assert not left
        return placed

    assert run() == run(), "the same calls give the same answers"


# -- estimates ---------------------------------------------------------------------------------------------------------


def test_a_prompt_is_expected_to_be_as_long_as_recorded_or_seen():
    estimates = LengthEstimates({"a": Expected(120.0, 100.0)})
    assert estimates.of("a", LIMIT) == (120, 100) and estimates.of("a", 50) == (50, 50)
    assert not estimates.seen("a", 100) and estimates.seen("a", 101) and not estimates.seen("a", 101)
    assert estimates.of("a", LIMIT) == (120, 101)
    assert estimates.ended("a", 300) and estimates.of("a", LIMIT) == (300, 300)
    assert LengthEstimates({"z": Expected(0.1, 0.1)}).of("z", LIMIT) == (1, 1), "a sample has a token at least"


def test_a_prompt_without_history_reaches_its_limit_until_one_was_seen():
    estimates = LengthEstimates({})
    assert not estimates.knows("b") and estimates.of("b", LIMIT) == (LIMIT, LIMIT)
    assert estimates.room("b", LIMIT) == 0.0, "nothing has ended"
    estimates.ended("a", 60)
    estimates.ended("a", 20)
    assert estimates.room("b", LIMIT) == 40.0 and estimates.room("b", 30) == 30.0
    assert estimates.room("a", LIMIT) == 60.0
    assert estimates.knows("a") and estimates.seen("b", 7) and estimates.of("b", LIMIT) == (7, 7)


def test_what_a_running_sample_has_before_it_is_never_nothing():
    estimates = LengthEstimates({"a": Expected(120.0, 100.0)})
    assert estimates.left("a", LIMIT, 20) == (100, 80)
    assert estimates.left("a", LIMIT, 99) == (21, PAST * 99)
    assert estimates.left("a", LIMIT, 119) == (1, PAST * 119)
    assert estimates.left("a", LIMIT, 200) == (50, 50), "it has outgrown what was expected"
    assert estimates.left("a", 210, 200) == (10, 10)
    assert estimates.left("new", LIMIT, 30) == (30, 30), "as many as it has"
