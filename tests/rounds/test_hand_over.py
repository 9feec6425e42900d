"""The decision to hand engines over to training, or a round's tail to other engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.schema.levers import RoundHandOver, RoundTail
from rlplan.rounds.hand_over import HandOver, free_replicas


@given(
    samples=st.integers(1, 200), engines=st.integers(2, 9), share=st.floats(0.01, 0.99), room=st.integers(0, 400),
    growth=st.integers(0, 9),
)  # fmt: skip
def test_engines_are_freed_once_and_only_if_the_rest_fits(samples, engines, share, room, growth):
    machine = HandOver(RoundHandOver(engines=engines - 1, at_finished=share, growth_tokens=growth), samples, engines)
    decisions: list[bool] = []
    for finished in range(1, samples + 1):
        running = samples - finished
        if machine.sample_finished():
            freed = machine.decide(3 * running, running, room)
            decisions.append(freed)
            assert finished >= share * samples - 1e-9
            spare = 0.9 * room if decisions[:-1] else room  # after a refusal a tenth must be spare
            assert freed == (running * (3 + growth) <= spare)
        machine.check_invariants()
    # A share of all samples is always reached, and then nothing runs and everything fits.
    assert decisions and decisions.count(True) <= 1 and True not in decisions[:-1]


@pytest.mark.parametrize(
    "spec", [RoundHandOver(engines=1, at_finished=0.5), RoundTail(engines=1, tp=2, at_finished=0.5)]
)
def test_it_looks_again_at_the_next_milestone(spec):
    machine = HandOver(spec, 100, 2)
    asked = []
    for finished in range(1, 101):
        if machine.sample_finished():
            asked.append(finished)
            machine.decide(90, 1, {50: 89, 55: 99, 60: 100}[finished])
    assert asked == [50, 55, 60], "what hardly fits after it did not is not believed"
    assert machine.freed


def test_what_must_fit_is_the_memory_of_the_engines_that_decode_on():
    for spec, stay in (
        (RoundHandOver(engines=1, at_finished=0.1, growth_tokens=5), 3),
        (RoundTail(engines=2, tp=2, at_finished=0.1, growth_tokens=5), 2),
    ):
        for over in (0, 1):
            machine = HandOver(spec, 10, 4)
            assert machine.stay == stay and machine.sample_finished()
            assert machine.decide(stay * 100 - 3 * 5 + over, 3, 100) == (not over)


def test_replicas_are_free_if_no_staying_engine_is_on_their_devices():
    ranks = [f"{node}.{device}" for node in "ab" for device in range(4)]
    assert free_replicas(ranks, 2, ["a.0", "a.1", "a.2", "a.3"]) == (2, 3)
    assert free_replicas(ranks, 4, ["a.3"]) == (1,)
    assert free_replicas(ranks, 8, ["b.3"]) == ()
    assert free_replicas(ranks, 1, []) == tuple(range(8))


def test_a_decision_that_is_not_due_is_an_error():
    with pytest.raises(AssertionError, match="no decision is due"):
        HandOver(RoundHandOver(engines=1, at_finished=0.5), 100, 2).decide(0, 0, 1)


def test_a_hand_over_leaves_an_engine():
    with pytest.raises(ValueError, match="one must go on decoding"):
        HandOver(RoundHandOver(engines=2, at_finished=0.5), 8, 2)
