"""Groups of trainer ranks that lose one, and runs whose trainer dies; the ranks are fakes, all else is real."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import ray

from rlplan.executor.faults import InfrastructureFailed
from rlplan.executor.supervision import Patience, Supervisor
from rlplan.executor.trainer import trainer_group as trainers
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig
from rlplan.executor.trainer.trainer_group import TrainerDied, TrainerGroup, while_trainer_lives
from rlplan.plans.schema.sections.algorithm import Algorithm
from rlplan.plans.yaml.errors import RunFailed

from ..engines.engine_fakes import Ref

CLOSED = RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:9122: Connection closed by peer")
FULL = OSError(28, "No space left on device")


def raised_in_task(error):
    return ray.exceptions.RayTaskError("Trainer.step", f"Traceback ...\n{error!r}", error).as_instanceof_cause()


class Method:
    def __init__(self, rank, name):
        self._rank, self._name = rank, name

    def options(self, concurrency_group):
        return self

    def remote(self, *arguments):
        return Ref(self._rank.call(self._name))


class FakeRank:
    """Answers at once, but for what `fate` says of a method: an error, or seconds until the answer."""

    def __init__(self, number, fate):
        self.number, self.fate = number, fate

    def __getattr__(self, name):
        return Method(self, name)

    async def call(self, name):
        fate = self.fate.get(name, 0.0)
        if isinstance(fate, Exception):
            await asyncio.sleep(0.01 * self.number)
            raise fate
        await asyncio.sleep(fate)
        return self.number


class Group(TrainerGroup):
    """A group over fake ranks; `fates` are of each rank, in the first launch and in those that follow."""

    def __init__(self, *launches, patience=None):
        async def pause(seconds):
            return None

        supervisor = Supervisor(patience or Patience(stall_s=0.6), pause=pause)
        config = TrainerConfig("", Algorithm(name="grpo", learning_rate=0.1), 1, 2, 1.0, Divisors(1.0, 1.0, 1))
        super().__init__("run", replace(config, ranks=len(launches[0])), supervisor, spawn=self._fakes)
        self.launches, self.ended = list(launches), []

    def _fakes(self, config, seats):
        fates = self.launches.pop(0) if len(self.launches) > 1 else self.launches[0]
        return [FakeRank(number, fate) for number, fate in enumerate(fates)]


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    found = []
    monkeypatch.setattr(trainers, "end_actor", found.append)
    monkeypatch.setattr(trainers, "OTHERS_S", 0.3)
    monkeypatch.setattr(trainers.ray, "put", lambda groups: groups)
    return found


def outcome(group, call=lambda group: group.step([])):
    async def body():
        await group.start()
        try:
            return await call(group)
        finally:
            await group.close()

    return asyncio.run(asyncio.wait_for(body(), 20))


DEAD = ray.exceptions.ActorDiedError()


@pytest.mark.parametrize(
    "fates",
    [
        [{"step": raised_in_task(CLOSED)}, {"step": DEAD}],  # the survivor tells first
        [{"step": raised_in_task(RuntimeError("what no table knows"))}, {"step": DEAD}],
        [{"step": 60.0}, {"step": DEAD}],  # the survivor waits for ever
        [{"step": raised_in_task(CLOSED)}, {"step": 60.0}],
    ],
)
def test_the_death_of_one_rank_of_two_is_told_as_a_death_whatever_the_survivor_says(fates, ended):
    with pytest.raises(TrainerDied, match="trainer run: step: "):
        outcome(Group(fates))
    assert {rank.number for rank in ended} == {0, 1}, "the survivor is ended too"


def test_a_fault_that_a_rank_finds_in_its_work_ends_the_run_with_its_words():
    refused = raised_in_task(ValueError("a group of 3, not 4"))
    with pytest.raises(RunFailed, match=r"trainer run failed in step: ValueError: a group of 3, not 4") as fault:
        outcome(Group([{"step": refused}, {"step": 60.0}]))
    assert not isinstance(fault.value, TrainerDied)


def test_a_rank_that_gives_no_sign_of_life_is_named_while_a_step_has_an_hour():
    async def call(group):
        group._ranks[1].fate["pid"] = 60.0
        return await group.step([])

    began = time.monotonic()
    with pytest.raises(TrainerDied, match="no sign of life of rank 1 of 2"):
        outcome(Group([{"step": 60.0}, {"step": 60.0}]), call)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_of_which_all_ranks_tell_is_no_death_and_the_group_goes_on(ranks, ended):
    async def call(group):
        with pytest.raises(InfrastructureFailed, match=r"could not do write_staged.*No space left"):
            await group.write("folder")
        assert not ended
        return await group.step([])

    assert outcome(Group([{"write_staged": raised_in_task(FULL)} for _ in range(ranks)]), call) == 0


def test_a_full_disk_in_which_a_rank_is_left_waiting_for_the_others_costs_the_group():
    full = raised_in_task(FULL)
    with pytest.raises(TrainerDied, match="No space left"):
        outcome(Group([{"export_weights": full}, {"export_weights": 60.0}]), lambda group: group.export("w"))


def test_a_rank_that_hangs_while_the_group_starts_is_named_and_costs_another_start(monkeypatch):
    monkeypatch.setattr(trainers, "BORN_S", 0.6)
    group = Group([{"construct": 60.0}, {"construct": 60.0, "pid": 60.0}], [{}, {}])
    assert outcome(group) == 0 and group.supervisor.failures("trainer run") == 1


def test_a_rank_that_dies_while_the_group_starts_costs_another_start_and_not_the_run():
    group = Group([{"construct": 0.0}, {"construct": DEAD}], [{}, {}])
    assert outcome(group) == 0 and group.supervisor.failures("trainer run") == 1


def test_a_death_between_calls_is_known_before_the_next_one():
    async def call(group):
        group._ranks[1].fate["pid"] = DEAD
        with pytest.raises(TrainerDied, match="rank 1 of 2"):
            await asyncio.wait_for(group.lost(), 5)
        with pytest.raises(TrainerDied):
            await group.step([])
        group.launches = [[{}, {}]]
        await group.restart("killed")
        return await group.step([])

    assert outcome(Group([{}, {}]), call) == 0


def test_a_trainer_killed_four_times_in_six_minutes_and_in_its_own_recovery_does_not_end_the_run(monkeypatch):
    """`load` kills the trainer in the first recovery; the run comes back to its checkpoint each time."""
    from rlplan.executor import loop
    from rlplan.executor.memory.no_turns import no_turns
    from rlplan.executor.records.run_checkpoints import RunCheckpoints
    from rlplan.executor.run import TrainingRun
    from rlplan.executor.weights.sync import WeightSync

    async def killed(run):
        raise TrainerDied("trainer run", "killed")

    monkeypatch.setattr(loop, "_step", killed)

    class Run(TrainingRun):
        def __init__(self, trainer):
            self.name, self.step_number, self.events = "run", 0, []
            self.trainer, self.trainer_restarts, self.turns, self.permits = trainer, 0, no_turns(), None
            fleet: Any = SimpleNamespace(supervisor=trainer.supervisor)
            self.weights = WeightSync(trainer, fleet, Path("unused"))
            self.checkpoints = RunCheckpoints(Path(), trainer, self.event)
            self.loads = 0

        def event(self, event, /, **fields):
            self.events.append(event)

        async def _load(self):
            self.loads += 1
            if self.loads == 1:
                raise TrainerDied("trainer run", "killed while it loaded")
            return {}

    async def call(group):
        run = Run(group)
        assert [await loop.step(run) for _ in range(4)] == [None] * 4
        return run

    run = outcome(Group([{}]), call)
    assert run.events == ["restart", "restart", "resume"] + ["restart", "resume"] * 3


def test_a_round_is_left_when_the_trainer_dies_beside_it():
    left = []

    async def rollout():
        try:
            await asyncio.sleep(60)
        finally:
            left.append("the round stopped its samples")

    async def call(group):
        group._ranks[0].fate["pid"] = DEAD
        await while_trainer_lives(group, rollout())

    began = time.monotonic()
    with pytest.raises(TrainerDied):
        outcome(Group([{}]), call)
    assert left and time.monotonic() - began < 5.0
