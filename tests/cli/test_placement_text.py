"""Who runs where, as `rlplan execute --show-placement` prints it."""

from __future__ import annotations

import pytest

from rlplan.cli.shared.placement_text import placement_data, placement_lines, spans
from rlplan.executor.placement.seats import Room, place


@pytest.mark.parametrize(
    ("numbers", "said"), [([], ""), ([4], "4"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7"), ([5, 6], "5-6")]
)
def test_runs_of_numbers_are_named_by_their_ends(numbers, said):
    assert spans(numbers) == said


def test_each_node_says_which_devices_engines_and_ranks_have_and_which_workers_it_runs():
    placed = place(
        Room("h20", 2, 8, 10), {4: ["a", "b", "c"]}, {"math": 3}, 3, Room("h800", 1, 8, 10)
    )  # the trainers' pool follows
    assert placement_lines(placed, ["10.0.0.7", None]) == [
        "node 0 of pool h20: 10.0.0.7",
        "  devices 0-3: engine a",
        "  devices 4-7: engine b",
        "node 1 of pool h20",
        "  devices 0-3: engine c",
        "  3 reward workers: 0-2",
        "node 2 of pool h800",
        "  devices 0-2: trainer math, ranks 0-2",
    ]
    first, second, third = placement_data(placed, [])
    assert first == {
        "node": 0, "pool": "h20", "address": None, "engines": {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}, "trainers": {},
        "reward_workers": [],
    }  # fmt: skip
    assert third["trainers"] == {"math": {0: [0], 1: [1], 2: [2]}} and second["engines"] == {"c": [0, 1, 2, 3]}
