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
def test_groups_are_taken_in_order_in_portions_within_the_budget(tokens, budget, opens, pace):
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
    assert portions or opens >= len(tokens)
    queue.end()
    assert queue.take() == []


def test_nothing_is_taken_before_devices_are_there_or_while_training():
    queue = GroupQueue(400)
    queue.offer(3, 60)
    assert queue.take() == []
    queue.begin()
    assert queue.take() == [3]
    for draw, tokens in ((1, 40), (7, 60), (5, 20)):
        queue.offer(draw, tokens)
    assert queue.take() == []
    queue.trained()
    assert queue.take() == [1, 7], "just a quarter of the micro-batches"
    queue.trained()
    assert queue.take() == [5]


def test_what_no_round_does_is_an_error():
    queue = GroupQueue(1)
    queue.offer(0, 5)
    with pytest.raises(AssertionError, match="offered twice"):
        queue.offer(0, 5)
    with pytest.raises(AssertionError, match="nothing was taken"):
        queue.trained()
    with pytest.raises(ValueError, match="at least one token"):
        GroupQueue(0)
    for broken, match in (
        ({"taken": [0, 0]}, "taken twice"), ({"_waiting": []}, "vanished"), ({"busy": True}, "busy with nothing"),
    ):  # fmt: skip
        queue = GroupQueue(1)
        queue.offer(0, 5)
        vars(queue).update(broken)
        with pytest.raises(AssertionError, match=match):
            queue.check_invariants()
