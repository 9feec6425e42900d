"""Units of a running group for those of a new plan: who stays keeps its nodes, and no number means two nodes."""

from __future__ import annotations

import pytest

from rlplan.executor.groups.moves.live_units import live_seat, live_units
from rlplan.rounds.permits.permit_events import Seat


def seat(job, rollout, train):
    return Seat(job, (tuple(rollout), tuple(train)), (3.0, 1.0))


NODES = [(0,), (1,), (2,)]


def test_the_nodes_of_a_group_that_starts_have_the_plans_own_numbers():
    assert live_units({}, {"a": seat("a", [0], [2])}, NODES, (), 0) == NODES


def test_a_job_that_stays_keeps_its_numbers_and_nodes_that_are_new_get_fresh_ones():
    running = {"a": seat("a", [4], [5])}
    planned = {"a": seat("a", [1], [2]), "b": seat("b", [0], [2])}
    live = live_units(running, planned, NODES, ["a"], 7)
    assert live == [(7,), (4,), (5,)]
    assert live_seat(planned["b"], NODES, live).units == ((7,), (5,))
    assert live_seat(planned["a"], NODES, live).units == running["a"].units


def test_jobs_that_would_meet_on_other_nodes_are_refused():
    running = {"a": seat("a", [0], [1]), "b": seat("b", [2], [3])}
    planned = {"a": seat("a", [0], [2]), "b": seat("b", [1], [2])}
    with pytest.raises(ValueError, match="a, b: other nodes than those that it has"):
        live_units(running, planned, NODES, ["a", "b"], 4)
    with pytest.raises(ValueError, match="a: fewer nodes than they have"):
        live_units({"a": seat("a", [0, 1], [2])}, {"a": seat("a", [0], [2])}, NODES, ["a"], 4)
