"""Units of a running group for those of a new plan: who stays keeps its nodes, and no number means two nodes."""

import pytest

from rlplan.executor.groups.group_change import live_seat, live_units
from rlplan.rounds.permits.permit_events import Seat


def seats(**jobs):
    return {job: Seat(job, (tuple(rollout), tuple(train)), (3.0, 1.0)) for job, (rollout, train) in jobs.items()}


NODES = [(0,), (1,), (2,)]


def test_a_job_that_stays_keeps_its_units_numbers():
    assert live_units({}, seats(a=([0], [2])), NODES, (), 0) == NODES, "of a group that starts, the plan's own"
    running, planned = seats(a=([4], [5])), seats(a=([1], [2]), b=([0], [2]))
    live = live_units(running, planned, NODES, ["a"], 7)
    assert live == [(7,), (4,), (5,)]
    assert live_seat(planned["b"], NODES, live).units == ((7,), (5,))
    assert live_seat(planned["a"], NODES, live).units == running["a"].units
    assert live_units({}, planned, [(0, 1), (2,)], (), 7) == [(7, 8), (9,)]


def test_jobs_that_would_meet_on_other_nodes_are_refused():
    running, planned = seats(a=([0], [1]), b=([2], [3])), seats(a=([0], [2]), b=([1], [2]))
    with pytest.raises(ValueError, match="a, b: other nodes than those that it has"):
        live_units(running, planned, NODES, ["a", "b"], 4)
    with pytest.raises(ValueError, match="a: fewer nodes than they have"):
        live_units(seats(a=([0, 1], [2])), seats(a=([0], [2])), NODES, ["a"], 4)
