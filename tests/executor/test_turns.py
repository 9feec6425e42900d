"""How plans take turns and how runs end: what their traces say, what is checkpointed, and what signals ask for."""

import asyncio
import os
import signal
from collections import Counter
from types import SimpleNamespace

import pytest

from rlplan.executor import turns as turns_module
from rlplan.executor.prepare import Options, PlanSwitch
from rlplan.executor.turns import take_turns
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

from ..rounds.driver import keyed_lengths, prompt_ids
from ..rounds.driver import steps as rounds_of
from .virtual_loop import now_s, played

SILENT = RunFailed("engine 0 was silent for 120 s")


class FakeRun:
    """A run whose steps are done at once, until one fails or hangs; `died_at`: steps in which its trainer dies once."""

    evaluator = None

    def __init__(self, name="fake", fails_at=None, hangs_at=None, updating=False, **ends):
        self.name, self.fails_at, self.hangs_at, self.round_can_be_left = name, fails_at, hangs_at, not updating
        self.step_number, self.events, self.saved, self.begun, self.hung = 0, [], [], [], asyncio.Event()
        self.checkpoint_fault, self.models = None, []
        self.checkpoints = SimpleNamespace(notes=[], last_model=self.last_model, model_written=self.model_written)
        self.schedule = SimpleNamespace(next_kind=lambda: "short", deferred=(), draining=False)
        self.dies_in_checkpoint, self.disk_full, self.died_at, self.skips = (
            ends.get(key, 0) for key in ("dies_in_checkpoint", "disk_full", "died_at", "skips")
        )

    async def step(self):
        if self.step_number + 1 == self.fails_at:
            raise SILENT
        if self.step_number + 1 == self.hangs_at:
            self.hung.set()
            await asyncio.sleep(60)
        if self.step_number + 1 == self.died_at:
            self.died_at, self.step_number = 0, 0
            return None
        self.step_number += 1
        return SimpleNamespace(step=self.step_number, metrics={"skipped": self.skips == self.step_number})

    def progress(self):
        return None

    def checkpoint_due(self, every):
        return self.step_number % every == 0

    async def begin_checkpoint(self):
        self.begun.append(self.step_number)

    async def checkpoint(self):
        if self.dies_in_checkpoint:
            self.dies_in_checkpoint -= 1
            self.step_number = 1  # what a trainer's death does: back at the last checkpoint
        elif self.disk_full:
            self.checkpoint_fault = "the disk has 0.00 GB free"
            self.checkpoints.notes.append("no checkpoint")
        else:
            self.saved.append(self.step_number)

    async def model_written(self):
        pass

    async def last_model(self):
        self.models.append(self.step_number)

    rescue = checkpoint

    def event(self, event, /, **fields):
        self.events.append({"event": event, **fields})


class Watcher:
    """`told` has what a person is told."""

    def __init__(self):
        self.told = []

    def round_begins(self, name, kind, step, progress):
        self.told.append((name, kind, step))

    def step_done(self, name, record):
        self.told.append((name, record.step))

    def note(self, text):
        self.told.append(text)


@pytest.fixture(autouse=True)
def steps_of_the_fake(monkeypatch):
    monkeypatch.setattr(turns_module, "step", lambda run: run.step())


def turns(*runs, watcher=None, leaving=None, **options):
    return played(take_turns(runs, Options(**{"steps": 3} | options), watcher or Watcher(), leaving))


def test_runs_take_turns_and_end_finished():
    watcher, asked = Watcher(), []
    a, b = FakeRun("a"), FakeRun("b")
    b.step_number = 2  # it was resumed

    async def between_steps(note):
        asked.append(note)

    leaving = SimpleNamespace(between_steps=between_steps)
    assert turns(a, b, watcher=watcher, leaving=leaving, checkpoint_every=2) is True
    assert [told for told in watcher.told if len(told) == 3] == [
        ("a", "short", 1), ("b", "short", 3), ("a", "short", 2), ("a", "short", 3),
    ]  # fmt: skip
    assert [told for told in watcher.told if len(told) == 2] == [("a", 1), ("b", 3), ("a", 2), ("a", 3)]
    for run, begun in ((a, [2]), (b, [])):
        assert run.events == [{"event": "end", "step": 3, "finished": True}]
        assert run.saved == run.models == [3] and run.begun == begun
    assert len(asked) == 4


class RunOfRounds(FakeRun):
    """A run whose schedule is a real one, of mode exact; `trained`: how often each prompt was."""

    def __init__(self, name="run", state=None, step_number=0, **ends):
        super().__init__(name, **ends)
        self.schedule = Schedule(RoundSpec("exact", 4, 3, 40, 6, 3, cutoff_tokens=25, copies=2), prompt_ids(40), 1)
        if state is not None:
            self.schedule.restore(state)
        self.step_number, self.trained, self.kinds, self.saved_state = step_number, Counter(), [], None
        self.rounds = rounds_of(self.schedule, keyed_lengths(1))

    async def step(self):
        if self.step_number + 1 == self.died_at:
            self.died_at, self.step_number = 0, 1
            self.schedule.restore(self.saved_state)
            return None
        taken = next(self.rounds)
        self.kinds.append(taken.run.machine.kind)
        self.trained.update(taken.outcome.prompts[Fate.TRAINED])
        record = await super().step()
        if self.step_number == 1:
            self.saved_state = self.schedule.state()
        return record


def owing():
    """A step after which more than one prompt waits for a long round."""
    run = RunOfRounds()
    while len(run.schedule.deferred) < 2 or run.step_number < 4:
        played(run.step())
    return run.step_number


def test_long_rounds_train_what_is_owed_once_all_steps_are_done():
    steps, run, watcher = owing(), RunOfRounds(), Watcher()
    assert turns(run, watcher=watcher, steps=steps)
    begun = next(event for event in run.events if event["event"] == "drain")
    assert begun["step"] == steps and begun["prompts"] > 1 and begun["rounds"] == run.step_number - steps
    assert not run.schedule.deferred and set(run.kinds[steps:]) == {"long"}
    assert run.events[-1] == {"event": "end", "step": run.step_number, "finished": True}
    note = next(place for place, told in enumerate(watcher.told) if "--no-drain" in told)
    assert watcher.told[note + 1] == ("run", "long", steps + 1), "it is told before the round begins"
    left = RunOfRounds()
    assert turns(left, steps=steps, drain_queue=False) and left.step_number == steps and left.schedule.deferred


def test_a_drain_is_resumed_and_more_steps_go_on_after_it():
    steps, whole, first = owing(), RunOfRounds(), RunOfRounds()
    turns(whole, steps=steps)
    turns(first, steps=steps, drain_queue=False)  # killed where the drain begins
    state = first.schedule.state()
    again = RunOfRounds(state=state, step_number=steps)
    assert turns(again, steps=steps) and first.trained + again.trained == whole.trained
    further = RunOfRounds(state=whole.schedule.state(), step_number=whole.step_number)
    assert turns(further, steps=whole.step_number + 20) and "short" in further.kinds
    both = whole.trained + further.trained
    assert set(both) == set(prompt_ids(40)) and max(both.values()) - min(both.values()) <= 1, "no epoch lost its place"


def test_a_trainer_that_dies_in_a_drain_goes_back_to_short_rounds():
    steps, whole = owing(), RunOfRounds()
    turns(whole, steps=steps)
    run = RunOfRounds(died_at=steps + 1)
    assert turns(run, steps=steps) and run.step_number == whole.step_number
    assert run.kinds == whole.kinds[:steps] + whole.kinds[1:], "steps since the checkpoint are taken again as they were"


def test_a_watcher_hears_of_deaths_skipped_steps_and_faults():
    watcher = Watcher()
    run = FakeRun(died_at=2, skips=3)
    run.checkpoints.notes.append("checkpoint set aside")
    assert turns(run, watcher=watcher)
    notes = [told for told in watcher.told if isinstance(told, str)]
    assert notes == [
        "fake: checkpoint set aside", "fake: trainer died; back at step 0",
        "fake: step 3 was skipped; its weights are those before it",
    ]  # fmt: skip


def test_a_failure_is_the_reason_of_the_end_in_every_run():
    runs = FakeRun(), FakeRun(fails_at=2)
    with pytest.raises(RunFailed, match="silent"):
        turns(*runs)
    end = {"event": "end", "finished": False, "reason": str(SILENT)}
    assert [run.events for run in runs] == [[end | {"step": 2}], [end | {"step": 1}]]
    assert [run.saved for run in runs] == [[2], [1]], "a healthy trainer's state is saved all the same"


def test_a_trainer_that_dies_in_the_final_checkpoint_trains_on():
    run = FakeRun(dies_in_checkpoint=1)
    assert turns(run) is True
    assert run.step_number == 3 and run.saved == [3], "the lost steps are trained again"


def test_a_final_checkpoint_that_cannot_be_written_fails_the_run():
    run, watcher = FakeRun(disk_full=True), Watcher()
    with pytest.raises(RunFailed, match=r"fake: the disk has 0\.00 GB free; what was trained since is not saved"):
        turns(run, watcher=watcher)
    assert run.events[-1]["finished"] is False and "fake: no checkpoint" in watcher.told


def interrupted(run, signals, watcher=None, **options):
    """What `take_turns` returns if signals come, a second apart, while the run hangs in a step; and when."""

    async def body():
        async def send():
            await run.hung.wait()
            for number in signals:
                os.kill(os.getpid(), number)
                await asyncio.sleep(1)

        began, sender = now_s(), asyncio.create_task(send())
        try:
            done = await take_turns([run], Options(steps=3, **options), watcher or Watcher())
            return done, now_s() - began
        finally:
            sender.cancel()

    return played(body())


@pytest.mark.parametrize(
    ("signals", "options", "after_s"),
    [
        ((signal.SIGTERM, signal.SIGTERM), {}, 1.0),
        ((signal.SIGINT, signal.SIGTERM), {}, 1.0),
        ((signal.SIGTERM,), {"grace_s": 7.0}, 7.0),
    ],
)
def test_a_second_signal_or_the_grace_period_leaves_the_round(signals, options, after_s):
    run, watcher = FakeRun(hangs_at=2), Watcher()
    assert interrupted(run, signals, watcher, **options) == (False, pytest.approx(after_s))
    assert (run.saved, run.models, run.events) == ([1], [], [{"event": "end", "step": 1, "finished": False}])
    assert "fake: left the round of step 2" in watcher.told


@pytest.mark.parametrize("last_step", [2, 3])
def test_a_run_that_a_signal_ends_fails_if_it_cannot_be_saved(last_step):
    run = FakeRun(hangs_at=last_step, disk_full=True)
    with pytest.raises(RunFailed, match=r"0\.00 GB free.*not saved"):
        interrupted(run, (signal.SIGTERM,))
    (end,) = run.events
    assert (end["step"], end["finished"]) == (last_step, False) and "0.00 GB free" in end["reason"]


def test_an_update_that_has_begun_is_finished_before_the_run_is_left():
    run = FakeRun(hangs_at=2, updating=True)
    assert interrupted(run, (signal.SIGTERM, signal.SIGTERM)) == (False, pytest.approx(60.0))
    assert run.saved == [2]


# -- another plan ------------------------------------------------------------------------------------------------------


class Asked:
    """Asks for another plan after a step, once."""

    def __init__(self, after):
        self.after, self.refused = after, []

    async def between_steps(self, run):
        if run.step_number != self.after:
            return None
        self.after = None
        return PlanSwitch(SimpleNamespace(plan_path="second.yaml"), SimpleNamespace(), "request 1")

    def refuse(self, run, refusal):
        self.refused.append(refusal)


def test_a_run_that_changes_its_plan_leaves_a_checkpoint_and_no_end():
    run, asked = FakeRun(), Asked(after=2)
    switch = played(take_turns([run], Options(steps=5), Watcher(), plans=asked))
    assert (switch.request_id, run.step_number, run.saved, run.events) == ("request 1", 2, [2], [])
    assert not asked.refused and run.models == []


def test_a_run_that_cannot_be_saved_goes_on_as_before():
    run, asked = FakeRun(disk_full=1), Asked(after=2)
    with pytest.raises(RunFailed, match=r"the disk has 0.00 GB free"):
        played(take_turns([run], Options(steps=3), Watcher(), plans=asked))
    (refusal,) = asked.refused
    assert refusal.reason == "no checkpoint could be written: the disk has 0.00 GB free"
    assert (run.step_number, refusal.request_id, refusal.plan) == (3, "request 1", "second.yaml")


def test_a_run_that_is_stopped_while_it_changes_its_plan_is_stopped():
    run, asked = FakeRun(), Asked(after=2)
    saved = run.checkpoint

    async def checkpoint():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        await saved()

    run.checkpoint = checkpoint
    assert asyncio.run(take_turns([run], Options(steps=5), Watcher(), plans=asked)) is False
    assert [refusal.reason for refusal in asked.refused] == ["the run was stopped"] and run.step_number == 2


def test_a_plan_that_comes_with_the_last_step_is_not_taken():
    run, asked = FakeRun(), Asked(after=3)
    assert played(take_turns([run], Options(steps=3), Watcher(), plans=asked)) is True
