"""How runs end: what their traces say, what is checkpointed, and what signals ask for."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from rlplan.executor import turns as turns_module
from rlplan.executor.prepare import Options
from rlplan.executor.turns import take_turns
from rlplan.plans.yaml.errors import RunFailed


class FakeRun:
    """A run whose steps are done at once, until one fails."""

    name = "fake"

    class schedule:
        @staticmethod
        def next_kind():
            return "short"

    def __init__(self, fails_at=None, dies_in_checkpoint=0, disk_full=False, hangs_at=None, updating=False):
        self.step_number, self.fails_at, self.events, self.saved = 0, fails_at, [], []
        self.dies_in_checkpoint, self.disk_full = dies_in_checkpoint, disk_full
        self.hangs_at, self.round_can_be_left, self.hung = hangs_at, not updating, asyncio.Event()
        self.checkpoint_fault, self.checkpoints = None, SimpleNamespace(notes=[])

    async def step(self):
        if self.step_number + 1 == self.fails_at:
            raise RunFailed("engine 0 was silent for 120 s")
        if self.step_number + 1 == self.hangs_at:
            self.hung.set()
            await asyncio.sleep(0.3 if not self.round_can_be_left else 60)
        self.step_number += 1
        return SimpleNamespace(step=self.step_number, metrics={})

    def progress(self):
        return None

    def checkpoint_due(self, every):
        return self.step_number % every == 0

    async def checkpoint(self):
        if self.dies_in_checkpoint:
            self.dies_in_checkpoint -= 1
            self.step_number = 1  # what a trainer's death does: back at the last checkpoint
        elif self.disk_full:
            self.checkpoint_fault = "the disk has 0.00 GB free"
        else:
            self.saved.append(self.step_number)

    rescue = begin_checkpoint = checkpoint

    def event(self, event, /, **fields):
        self.events.append({"event": event, **fields})


class Watcher:
    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.fixture(autouse=True)
def steps_of_the_fake(monkeypatch):
    monkeypatch.setattr(turns_module, "step", lambda run: run.step())


def turns(*runs):
    return asyncio.run(take_turns(runs, Options(steps=3), Watcher()))


def test_a_run_that_came_as_far_as_it_should_ends_finished():
    run = FakeRun()
    assert turns(run) is True
    assert run.events == [{"event": "end", "step": 3, "finished": True}] and run.saved == [3]


def test_a_failure_is_the_reason_of_the_end_in_every_run_that_took_turns():
    runs = FakeRun(), FakeRun(fails_at=2)
    with pytest.raises(RunFailed, match="silent"):
        turns(*runs)
    reason = "engine 0 was silent for 120 s"
    assert [run.events for run in runs] == [
        [{"event": "end", "step": 2, "finished": False, "reason": reason}],
        [{"event": "end", "step": 1, "finished": False, "reason": reason}],
    ]
    assert [run.saved for run in runs] == [[2], [1]], "a healthy trainer's state is saved all the same"


def test_a_trainer_that_dies_in_the_final_checkpoint_does_not_end_the_run_as_done():
    run = FakeRun(dies_in_checkpoint=1)
    assert turns(run) is True
    assert run.step_number == 3 and run.saved == [3], "the lost steps are trained again"


def test_a_final_checkpoint_that_cannot_be_written_fails_the_run():
    run = FakeRun(disk_full=True)
    with pytest.raises(RunFailed, match="not saved"):
        turns(run)
    assert run.events[-1]["finished"] is False


def interrupted(run, signals, **options):
    """What `take_turns` returns if signals come, 50 ms apart, while the run hangs in a step."""

    async def body():
        async def send():
            await run.hung.wait()
            for number in signals:
                os.kill(os.getpid(), number)
                await asyncio.sleep(0.05)

        sender = asyncio.create_task(send())
        try:
            return await asyncio.wait_for(take_turns([run], Options(steps=3, **options), Watcher()), 20)
        finally:
            sender.cancel()

    return asyncio.run(body())


@pytest.mark.parametrize(
    ("signals", "options"),
    [
        ((signal.SIGTERM, signal.SIGTERM), {}),
        ((signal.SIGINT, signal.SIGTERM), {}),
        ((signal.SIGTERM,), {"grace_s": 0.1}),
    ],
)
def test_a_second_signal_or_the_grace_period_leaves_the_round_and_saves_what_was_trained(signals, options):
    run = FakeRun(hangs_at=2)
    assert interrupted(run, signals, **options) is False
    assert run.saved == [1] and run.events == [{"event": "end", "step": 1, "finished": False}]


@pytest.mark.parametrize("last_step", [2, 3])
def test_a_run_that_a_signal_ends_fails_if_what_was_trained_cannot_be_saved(last_step):
    run = FakeRun(hangs_at=last_step, disk_full=True, updating=True)
    with pytest.raises(RunFailed, match=r"0\.00 GB free.*not saved"):
        interrupted(run, (signal.SIGTERM,))
    (end,) = run.events
    assert (end["step"], end["finished"]) == (last_step, False) and "0.00 GB free" in end["reason"]


def test_an_update_that_has_begun_is_finished_before_the_run_is_left():
    run = FakeRun(hangs_at=2, updating=True)
    assert interrupted(run, (signal.SIGTERM, signal.SIGTERM)) is False
    assert run.saved == [2]
