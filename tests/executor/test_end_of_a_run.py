"""Every run that ends says in its trace how, unless it is killed."""

from __future__ import annotations

import asyncio

import pytest

from rlplan.executor.execute import Options, _turns
from rlplan.plans.errors import RunFailed


class FakeRun:
    """A run whose steps are done at once, until one fails."""

    name = "fake"

    class schedule:
        @staticmethod
        def next_kind():
            return "short"

    def __init__(self, fails_at=None):
        self.step_number, self.fails_at, self.events, self.checkpoints = 0, fails_at, [], 0

    async def step(self):
        if self.step_number + 1 == self.fails_at:
            raise RunFailed("engine 0 was silent for 120 s")
        self.step_number += 1
        return object()

    async def checkpoint(self):
        self.checkpoints += 1

    def event(self, event, /, **fields):
        self.events.append({"event": event, **fields})


class Watcher:
    def __getattr__(self, name):
        return lambda *arguments: None


def turns(*runs):
    return asyncio.run(_turns(runs, Options(steps=3), Watcher(), None))


def test_a_run_that_came_as_far_as_it_should_ends_finished():
    run = FakeRun()
    assert turns(run) is True
    assert run.events == [{"event": "end", "step": 3, "finished": True}] and run.checkpoints == 1


def test_a_failure_is_the_reason_of_the_end_in_every_run_that_took_turns():
    runs = FakeRun(), FakeRun(fails_at=2)
    with pytest.raises(RunFailed, match="silent"):
        turns(*runs)
    reason = "engine 0 was silent for 120 s"
    assert [run.events for run in runs] == [
        [{"event": "end", "step": 2, "finished": False, "reason": reason}],
        [{"event": "end", "step": 1, "finished": False, "reason": reason}],
    ]
