"""Which groups a trainer takes while others still decode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.group_queue import PORTION, GroupQueue


@given(
    tokens=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    budget=st.integers(1, 2000),
    opens=st.integers(0, 40),
    pace=st.integers(1, 5),
)
def test_each_group_is_taken_at_most_once_in_order_and_in_portions_within_the_budget(
    tokens: list[int], budget: int, opens: int, pace: int
) -> None:
    queue = GroupQueue(budget)
    portions: list[list[int]] = []
    for number, size in enumerate(tokens):
        if number == opens:
            queue.begin()
        queue.offer(number, size)
        if chosen := queue.take():
            portions.append(chosen)
        if queue.busy and number % pace == 0:
            queue.trained()
        queue.check_invariants()
    assert [number for portion in portions for number in portion] == queue.taken == sorted(queue.taken)
    for portion in portions:
        assert len(portion) == 1 or sum(tokens[number] for number in portion) <= max(1, PORTION * budget)
    if opens >= len(tokens):
        assert not portions
    queue.end()
    assert queue.take() == []


def test_nothing_is_taken_before_the_devices_are_there_or_while_the_trainer_is_busy() -> None:
    queue = GroupQueue(400)
    queue.offer(3, 60)
    assert queue.take() == []
    queue.begin()
    assert queue.take() == [3]
    queue.offer(1, 40)
    queue.offer(7, 50)
    queue.offer(5, 20)
    assert queue.take() == []
    queue.trained()
    assert queue.take() == [1, 7]
    queue.trained()
    assert queue.take() == [5]


def test_a_group_that_is_offered_twice_is_an_error() -> None:
    queue = GroupQueue(100)
    queue.offer(0, 5)
    with pytest.raises(AssertionError, match="offered twice"):
        queue.offer(0, 5)
    with pytest.raises(ValueError, match="at least one token"):
        GroupQueue(0)
