"""Samples that are balanced by history: who starts, where, in which order, and who moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.balancing.balance_spec import BalanceSpec
from rlplan.rounds.balancing.length_estimates import Expected, Recorded
from rlplan.rounds.balancing.longest_first import Balance, LongestFirst
from rlplan.rounds.balancing.placement import ToPlace
from rlplan.rounds.machines.events import SampleKey

SPEC = BalanceSpec(0.01, 1e-3, 1e-7, 100_000, 0.05, 1e-5)
LIMIT = 1000


def recorded(**tokens: float) -> Recorded:
    return Recorded({name: Expected(mean, mean) for name, mean in tokens.items()}, 0.5)


def placement(engines: int = 2, at_once: int = 4, spec: BalanceSpec = SPEC, **tokens: float) -> LongestFirst:
    return LongestFirst(engines, Balance(spec, recorded(**tokens)), at_once)


def add(to: LongestFirst, prompt: str, draw: int, samples: int = 1) -> list[SampleKey]:
    keys = [SampleKey(draw, sample) for sample in range(samples)]
    for key in keys:
        to.add(ToPlace(key, prompt, 10, LIMIT))
    return keys


def test_the_longest_expected_samples_start_first_and_others_wait_for_a_place() -> None:
    machine = placement(1, 2, a=10, b=300, c=50)
    for draw, prompt in enumerate("abc"):
        add(machine, prompt, draw)
    assert machine.place({0}) == [(SampleKey(1, 0), 0), (SampleKey(2, 0), 0)]
    assert machine.place({0}) == []
    machine.ended(SampleKey(2, 0), 40)
    assert machine.place({0}) == [(SampleKey(0, 0), 0)]


def test_a_sample_starts_where_it_would_end_soonest_and_not_where_fewest_are() -> None:
    machine = placement(2, 8, long=900, short=20)
    add(machine, "long", 0)
    add(machine, "short", 1, samples=3)
    placed = dict(machine.place({0, 1}))
    assert placed[SampleKey(0, 0)] == 0
    assert {placed[SampleKey(1, sample)] for sample in range(3)} == {1}


def test_the_first_sample_of_an_unknown_prompt_starts_first_and_its_siblings_follow_what_it_shows() -> None:
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


def test_siblings_of_a_sample_that_outgrew_its_history_are_expected_to_be_as_long() -> None:
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


def test_running_samples_move_to_an_engine_that_has_none_and_keep_their_target() -> None:
    machine = placement(2, 4, a=800)
    keys = add(machine, "a", 0, samples=4)
    assert [engine for _, engine in machine.place({0, 1})] == [0, 1, 0, 1]
    for key in keys[1::2]:
        machine.ended(key, 100)
    assert machine.to_relieve({0, 1})
    released = machine.relieve({0, 1}, {key: 100 for key in keys[0::2]})
    assert released == [(keys[0], 0)], "one of two, so that each engine has one"
    machine.add(ToPlace(keys[0], "a", 10, LIMIT, kept=100))
    assert machine.place({0, 1}) == [(keys[0], 1)]
    assert (machine.moved, machine.moved_tokens) == (1, 110)
    assert not machine.to_relieve({0, 1})


def test_nothing_moves_where_a_move_takes_longer_than_it_saves() -> None:
    dear = BalanceSpec(0.01, 1e-3, 1e-7, 100_000, move_s=30.0, move_s_per_token=1e-5)
    machine = placement(2, 4, dear, a=800)
    keys = add(machine, "a", 0, samples=4)
    machine.place({0, 1})
    for key in keys[1::2]:
        machine.ended(key, 100)
    assert machine.relieve({0, 1}, {key: 100 for key in keys[0::2]}) == []
    assert not machine.to_relieve({0, 1}), "the same engine does not ask again"


def test_a_sample_whose_target_died_goes_where_there_is_room() -> None:
    machine = placement(2, 4, a=800)
    keys = add(machine, "a", 0, samples=4)
    machine.place({0, 1})
    for key in keys[1::2]:
        machine.ended(key, 100)
    [(key, _)] = machine.relieve({0, 1}, {key: 100 for key in keys[0::2]})
    machine.forget(1)
    machine.add(ToPlace(key, "a", 10, LIMIT, kept=100))
    assert machine.place({0}) == [(key, 0)]


def test_no_engine_and_no_place_are_no_placement() -> None:
    for engines, at_once in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one"):
            placement(engines, at_once)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 5))
def test_each_sample_is_in_one_place_and_every_one_ends_whatever_happens(seed: int, engines: int, at_once: int) -> None:
    rng = random.Random(seed)
    history = {str(prompt): rng.uniform(1, 400) for prompt in range(6) if rng.random() < 0.6}
    machine = LongestFirst(engines, Balance(SPEC, recorded(**history)), at_once)
    left: dict[SampleKey, ToPlace] = {}
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
        machine.check_invariants()
        if not left:
            break
        assert running, "samples wait although an engine is empty"
        key = rng.choice(sorted(running))
        event = rng.random()
        if event < 0.6:
            machine.ended(key, rng.randint(1, LIMIT))
            del running[key], left[key]
        elif event < 0.7:
            machine.remove(key)
            del running[key], left[key]
        elif machine.to_relieve(alive):
            tokens = {other: rng.randint(0, LIMIT - 1) for other in running}
            for moved, source in machine.relieve(alive, tokens):
                assert running.pop(moved) == source
                machine.add(ToPlace(moved, left[moved].prompt, 10, LIMIT, kept=tokens[moved]))
    assert not left


@given(st.integers(0, 10_000))
def test_the_same_calls_give_the_same_answers(seed: int) -> None:
    def placed() -> list[tuple[SampleKey, int]]:
        rng = random.Random(seed)
        machine = LongestFirst(3, Balance(SPEC, recorded(**{str(p): rng.uniform(1, 400) for p in range(8)})), 3)
        for draw in range(8):
            add(machine, str(draw), draw, samples=2)
        result = []
        while started := machine.place({0, 1, 2}):
            result += started
            machine.ended(started[0][0], rng.randint(1, LIMIT))
        return result

    assert placed() == placed()
