"""When the next checkpoint of a run is due."""

from __future__ import annotations

from rlplan.executor.records.run_checkpoints import Cadence


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_checkpoints_come_as_often_as_deaths_and_their_own_cost_call_for():
    clock = Clock()
    cadence = Cadence(clock)
    assert not cadence.due(90.0), "nothing is due before a first one has shown its cost"
    cadence.saved(0.5)
    due = []
    for clock.now in range(200):
        due.append((cadence.due(3600.0), cadence.due(90.0)))
    # sqrt(2 x 0.5 s x 3600 s) = 60 s, and with four deaths in six minutes sqrt(2 x 0.5 s x 90 s) = 9.5 s
    assert [seconds.index(True) for seconds in zip(*due, strict=True)] == [60, 10]
