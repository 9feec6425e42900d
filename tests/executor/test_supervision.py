"""Who is silent, who is started again, how often, and what an error means; all without engines."""

from __future__ import annotations

import asyncio
import errno
import pickle

import pytest

pytest.importorskip("ray")

import ray

from rlplan.executor.faults import ActorFailed, Fault, InfrastructureFailed, classify, failure, reason
from rlplan.executor.rewards.functions import PolicyError, PolicyTimeout
from rlplan.executor.supervision import (
    STARTS_IN_A_ROW,
    LastHeard,
    Patience,
    RestartBudget,
    Supervisor,
    again_while_it_passes,
)
from rlplan.plans.yaml.errors import InputError, RunFailed

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:9122: Connection closed by peer"
)


def in_task(cause):
    return ray.exceptions.RayTaskError("Trainer.step", f"Traceback ...\n{cause!r}", cause).as_instanceof_cause()


def in_constructor(text):
    return ray.exceptions.RayActorError("id", f"The actor died because of an error in its creation task\n{text}", True)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (PolicyError("no brackets"), Fault.POLICY),
        (PolicyTimeout("slow"), Fault.POLICY),
        (ray.exceptions.ActorDiedError(), Fault.ACTOR),
        (ray.exceptions.ActorUnavailableError("m", b"0" * 16), Fault.ACTOR),
        (ray.exceptions.OutOfMemoryError("killed by the memory monitor"), Fault.ACTOR),
        (in_task(RuntimeError(GLOO)), Fault.ACTOR),
        (in_task(type("DistBackendError", (RuntimeError,), {})("NCCL communicator was aborted")), Fault.ACTOR),
        (in_task(ActorFailed("engine", "vLLM's core process died")), Fault.ACTOR),
        (in_constructor(GLOO), Fault.ACTOR),
        (TimeoutError(), Fault.ACTOR),
        (ConnectionResetError(), Fault.ACTOR),
        (OSError(errno.ENOSPC, "No space left on device"), Fault.INFRASTRUCTURE),
        (in_task(RuntimeError("I/O error: No space left on device (os error 28)")), Fault.INFRASTRUCTURE),
        (ray.exceptions.ObjectStoreFullError("full"), Fault.INFRASTRUCTURE),
        (InfrastructureFailed("disk"), Fault.INFRASTRUCTURE),
        (in_task(ValueError("a group of 3, not 4")), Fault.FATAL),
        (in_task(ValueError("the response says: Connection closed by peer")), Fault.FATAL),
        (in_constructor("ValueError: unknown algorithm 'x'"), Fault.FATAL),
        (FileNotFoundError(errno.ENOENT, "model"), Fault.FATAL),
        (RunFailed("off-policy"), Fault.FATAL),
        (InputError("no such key"), Fault.FATAL),
    ],
)
def test_an_error_has_one_class_wherever_it_comes_from(error, fault):
    assert classify(error) is fault
    if fault is not Fault.POLICY:
        assert classify(failure(error, "whom")) is fault


def test_an_actors_failure_survives_the_way_from_its_process_with_its_reason():
    failed = pickle.loads(pickle.dumps(ActorFailed("engine 1", "its core process died")))
    assert str(failed) == "engine 1: its core process died" and isinstance(failed, RunFailed)
    assert reason(in_task(failed)) == "its core process died"


def test_a_restart_budget_is_per_hour_and_not_per_life():
    budget = RestartBudget(3)
    assert [budget.take(now) for now in (0, 1000, 2000, 3000)] == [True, True, True, False]
    assert budget.take(3601) and not budget.take(3700), "the first is over an hour ago, the second is not"
    assert [budget.take(4000 * k) for k in range(2, 40)] == [True] * 38, "a long run outlives any number of deaths"


def test_silence_counts_what_was_looked_at_so_a_stopped_observer_blames_nobody():
    last = LastHeard(0.0)
    assert [last.look(0.5), last.look(1.0)] == [0.5, 1.0]
    assert last.look(1000.0) == 2.0, "the observer was away, and counts one look"
    last.heard(1000.5)
    assert last.look(1001.0) == 0.5


class Fragile:
    """Fails its first starts with these errors."""

    name = "fragile"

    def __init__(self, *errors):
        self.errors, self.launched, self.discarded = list(errors), 0, 0

    async def seat(self):
        return None

    async def launch(self):
        self.launched += 1
        if self.errors:
            raise self.errors.pop(0)

    async def discard(self):
        self.discarded += 1


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def supervisor(per_hour=12, clock=None):
    async def pause(seconds):
        return None

    return Supervisor(Patience(restarts_per_hour=per_hour), clock or Clock(), pause)


DIED = ActorFailed("fragile", "killed")


def test_a_process_that_dies_while_it_starts_is_started_again_at_the_first_start_and_as_a_replacement():
    actor, keeper = Fragile(DIED, DIED), supervisor()
    asyncio.run(keeper.start(actor))
    assert (actor.launched, actor.discarded, keeper.failures("fragile")) == (3, 2, 2)
    actor.errors = [DIED]
    asyncio.run(keeper.replace(actor, "killed"))
    assert (actor.launched, keeper.failures("fragile")) == (5, 4)


def test_a_start_that_fails_for_a_fault_of_the_run_is_not_tried_again():
    for error, expected in ((ValueError("no such dtype"), RunFailed), (InputError("no such function"), InputError)):
        actor = Fragile(error)
        with pytest.raises(expected, match="no such"):
            asyncio.run(supervisor().start(actor))
        assert (actor.launched, actor.discarded) == (1, 1)


def test_a_start_that_keeps_failing_ends_with_its_reason_and_leaves_nothing():
    actor = Fragile(*[DIED] * 9)
    with pytest.raises(RunFailed, match="fragile did not start: killed"):
        asyncio.run(supervisor().start(actor))
    assert actor.launched == actor.discarded == STARTS_IN_A_ROW


def test_deaths_beyond_the_hours_budget_end_the_run_and_an_hour_later_there_is_a_new_one():
    clock = Clock()
    keeper = supervisor(per_hour=2, clock=clock)

    def die(now):
        clock.now = now
        asyncio.run(keeper.replace(Fragile(), "killed"))

    die(0)
    die(100)
    with pytest.raises(RunFailed, match="fragile was started again 2 times within an hour, which is the limit; last"):
        die(200)
    die(3700)
    assert keeper.failures("fragile") == 1


def test_what_the_infrastructure_refuses_is_tried_again_for_a_while_and_nothing_else_is():
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)

    def outcome(*errors):
        left = list(errors)

        async def call():
            if left:
                raise left.pop(0)
            return "done"

        return asyncio.run(again_while_it_passes(call, pause))

    assert outcome(*[InfrastructureFailed("disk full")] * 3) == "done" and pauses == [1, 2, 4]
    with pytest.raises(InfrastructureFailed, match="disk full"):
        outcome(*[InfrastructureFailed("disk full")] * 99)
    with pytest.raises(ActorFailed):
        outcome(DIED)


def test_a_start_is_waited_for_as_long_as_starts_take_here_once_that_is_known():
    patience = Patience()
    assert patience.start_deadline_s(0.0) == 1800.0
    assert patience.start_deadline_s(10.0) == 120.0 and patience.start_deadline_s(40.0) == 200.0
    assert patience.start_deadline_s(1000.0) == 1800.0
    assert Patience(stall_s=5.0).start_deadline_s(10.0) == 120.0, "machines are busy, patience or not"


def test_deaths_of_the_last_hour_say_how_long_one_may_expect_to_live():
    clock = Clock()
    keeper = supervisor(clock=clock)
    assert keeper.mean_s_between_failures("fragile") == 3600.0
    for clock.now in (60.0, 120.0, 240.0, 360.0):
        asyncio.run(keeper.replace(Fragile(), "killed"))
    assert keeper.mean_s_between_failures("fragile") == 90.0
