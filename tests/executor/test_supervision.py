"""Who is silent, who is started again, how often, and what an error means; all without engines."""

import asyncio
import errno
import pickle

import pytest
import ray
import torch

from rlplan.executor.processes.actors import UnawaitedCalls, within
from rlplan.executor.processes.faults import (
    ActorFailed,
    ErrorClass,
    InfrastructureFailed,
    classify,
    device_error,
    device_words,
    failure,
    out_of_memory,
    reason,
)
from rlplan.executor.processes.supervision import (
    PAUSE_S,
    STARTS_IN_A_ROW,
    TRIES,
    LastHeard,
    Patience,
    RestartBudget,
    Supervisor,
    again_while_it_passes,
    silent_seconds,
    together,
)
from rlplan.plans.yaml.errors import InputError, RunFailed

from .virtual_loop import now_s, played

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:9122: Connection closed by peer"
)


ECC = "CUDA error: uncorrectable ECC error encountered"
CUDA_FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
EngineDeadError = type("EngineDeadError", (Exception,), {})  # vLLM's


def in_task(cause):
    return ray.exceptions.RayTaskError("Trainer.step", f"Traceback ...\n{cause!r}", cause).as_instanceof_cause()


def in_constructor(text):
    return ray.exceptions.RayActorError("id", f"The actor died because of an error in its creation task\n{text}", True)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ray.exceptions.ActorDiedError(), ErrorClass.ACTOR),
        (ray.exceptions.ActorUnavailableError("m", b"0" * 16), ErrorClass.ACTOR),
        (ray.exceptions.OutOfMemoryError("killed by the memory monitor"), ErrorClass.ACTOR),
        (in_task(RuntimeError(GLOO)), ErrorClass.ACTOR),
        (in_task(type("DistBackendError", (RuntimeError,), {})("NCCL communicator was aborted")), ErrorClass.ACTOR),
        (in_task(ActorFailed("engine", "vLLM's core process died")), ErrorClass.ACTOR),
        (in_constructor(GLOO), ErrorClass.ACTOR),
        (TimeoutError(), ErrorClass.ACTOR),
        (ConnectionResetError(), ErrorClass.ACTOR),
        (in_task(torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")), ErrorClass.ACTOR),
        (
            in_task(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`")),
            ErrorClass.ACTOR,
        ),
        (in_task(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")), ErrorClass.ACTOR),
        (in_task(RuntimeError("NCCL error in: NCCLUtils.cpp:94, unhandled cuda error")), ErrorClass.ACTOR),
        (in_task(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")), ErrorClass.ACTOR),
        (in_task(torch.OutOfMemoryError(CUDA_FULL)), ErrorClass.ACTOR),
        (in_task(MemoryError()), ErrorClass.ACTOR),
        (
            in_task(Exception(f"Call to collective_rpc method failed: Worker failed with error '{ECC}'")),
            ErrorClass.ACTOR,
        ),
        (in_task(EngineDeadError("EngineCore encountered an issue. See stack trace (above)")), ErrorClass.ACTOR),
        (
            in_constructor(f"torch.AcceleratorError: {ECC}\nCUDA kernel errors might be reported later"),
            ErrorClass.ACTOR,
        ),
        (in_constructor(f"KeyError: 'x'\nDuring handling of it:\nRuntimeError: {ECC}"), ErrorClass.ACTOR),
        (OSError(errno.ENOSPC, "No space left on device"), ErrorClass.INFRASTRUCTURE),
        (in_task(RuntimeError("I/O error: No space left on device (os error 28)")), ErrorClass.INFRASTRUCTURE),
        (ray.exceptions.ObjectStoreFullError("full"), ErrorClass.INFRASTRUCTURE),
        (InfrastructureFailed("disk"), ErrorClass.INFRASTRUCTURE),
        (in_task(ValueError("a group of 3, not 4")), ErrorClass.FATAL),
        (in_task(ValueError("the response says: Connection closed by peer")), ErrorClass.FATAL),
        (in_task(RuntimeError("CUDA Error: out of memory at csrc/cumem_allocator.cpp:62")), ErrorClass.ACTOR),
        (in_task(RuntimeError("Application timeout caused pair closure")), ErrorClass.ACTOR),
        (in_task(RuntimeError("NCCL communicator was aborted on rank 3.")), ErrorClass.ACTOR),
        (in_task(AssertionError("a CUDA error: of no rank")), ErrorClass.FATAL),
        (in_constructor(f"  # {ECC}\nAssertionError: no CUDA error: may pass here"), ErrorClass.FATAL),
        (in_constructor("ValueError: unknown algorithm 'x'"), ErrorClass.FATAL),
        (FileNotFoundError(errno.ENOENT, "model"), ErrorClass.FATAL),
        (RunFailed("off-policy"), ErrorClass.FATAL),
        (InputError("no such key"), ErrorClass.FATAL),
    ],
)
def test_an_error_has_one_class_wherever_it_comes_from(error, fault):
    assert classify(error) is fault
    assert classify(failure(error, "whom")) is fault


def test_texts_tell_memory_that_ran_out_from_other_device_errors():
    for text in (
        CUDA_FULL,
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`",
        "MemoryError: ",
    ):
        assert out_of_memory(text) and device_error(text)
    assert device_error(ECC) and not out_of_memory(ECC)
    log = f"ERROR [core.py:9] torch.AcceleratorError: {ECC}\nERROR [core.py:9] EngineCore encountered an issue.\nbye\n"
    assert device_words(log) == ECC and device_words("EngineCore encountered an issue.") == ""


def test_an_errors_reason_is_one_line_and_names_its_process():
    failed = pickle.loads(pickle.dumps(ActorFailed("engine 1", "its core process died")))
    assert str(failed) == "engine 1: its core process died" and isinstance(failed, RunFailed)
    assert reason(in_task(failed)) == "its core process died" and failure(failed, "whom") is failed
    assert reason(in_task(ValueError("a\n  b"))) == "ValueError: a b"
    assert reason(RuntimeError("first\n last \n")) == "last" and reason(RuntimeError()) == "RuntimeError"
    assert str(failure(OSError(errno.ENOSPC, "No space"), "rank 1")) == "rank 1: [Errno 28] No space"
    assert str(failure(TimeoutError("late"), "rank 1")) == "rank 1: late"


def test_a_restart_budget_is_per_hour_and_not_per_life():
    budget = RestartBudget(3)
    assert [budget.take(now) for now in (0, 1000, 2000, 3000)] == [True, True, True, False]
    assert budget.take(3600) and not budget.take(3700), "the first is an hour ago, the second is not"
    assert [budget.take(4000 * k) for k in range(2, 40)] == [True] * 38, "a long run outlives any number of deaths"


def test_silence_counts_what_was_looked_at_so_a_stopped_observer_blames_nobody():
    last = LastHeard(0.0)
    assert [last.look(0.5), last.look(1.0)] == [0.5, 1.0]
    assert last.look(1000.0) == 2.0, "the observer was away, and counts one look"
    last.heard(1000.5)
    assert last.look(1001.0) == 0.5


def test_an_answer_is_waited_for_until_the_silence_is_too_long():
    async def waited(answers_s):
        call, began = asyncio.ensure_future(asyncio.sleep(answers_s)), now_s()
        return await silent_seconds(call, LastHeard(began), 3.0), now_s() - began

    assert played(waited(2.9)) == (None, pytest.approx(2.9)) and played(waited(50.0)) == (3.0, 3.0)


class Fragile:
    """Fails its first starts with these errors; one takes 10 s."""

    name = "fragile"

    def __init__(self, *errors):
        self.errors, self.launched, self.discarded = list(errors), 0, 0

    async def find_node(self):
        await asyncio.sleep(1000)  # for room

    async def launch(self):
        self.launched += 1
        await asyncio.sleep(10)
        if self.errors:
            raise self.errors.pop(0)

    async def discard(self):
        self.discarded += 1


DIED = ActorFailed("fragile", "killed")


def test_a_process_that_dies_while_it_starts_is_started_again_after_pauses():
    async def body():
        actor, keeper, began = Fragile(DIED, DIED), Supervisor(None, now_s), now_s()
        assert keeper.start_deadline_s("fragile") == 1800.0 and keeper.failures("fragile") == 0
        await keeper.start(actor)
        assert (actor.launched, actor.discarded, keeper.failures("fragile")) == (3, 2, 2)
        assert now_s() - began == pytest.approx(3 * 1010 + PAUSE_S * (1 + 2))
        assert keeper.start_deadline_s("fragile") == 120.0, "by its seconds without the wait for room"
        actor.errors = [DIED]
        await keeper.replace(actor, "killed")
        assert (actor.launched, actor.discarded) == (5, 4)
        assert keeper.failures("fragile") == 3, "one was more than an hour ago"

    played(body())


def test_a_start_that_the_run_made_fail_is_not_tried_again():
    for error, expected in ((ValueError("no such dtype"), RunFailed), (InputError("no such function"), InputError)):
        actor = Fragile(error)
        with pytest.raises(expected, match="no such"):
            played(Supervisor().start(actor))
        assert (actor.launched, actor.discarded) == (1, 1)


def test_a_start_that_keeps_failing_ends_with_its_reason_and_leaves_nothing():
    actor = Fragile(*[DIED] * 9)
    with pytest.raises(RunFailed, match="fragile did not start: killed"):
        played(Supervisor().start(actor))
    assert actor.launched == actor.discarded == STARTS_IN_A_ROW


def test_deaths_beyond_the_hours_budget_end_the_run():
    now = [0.0]
    keeper = Supervisor(Patience(restarts_per_hour=2), lambda: now[0])

    def die(at_s):
        now[0] = at_s
        played(keeper.replace(Fragile(), "killed"))
        return keeper.mean_s_between_failures("fragile")

    assert keeper.mean_s_between_failures("fragile") == 3600.0
    assert [die(60.0), die(200.0)] == [60.0, 100.0]
    with pytest.raises(RunFailed, match="fragile was started again 2 times within an hour, which is the limit; last"):
        die(300.0)
    assert die(3700.0) == 1800.0, "an hour later there is a new one"


def test_what_the_infrastructure_refuses_is_tried_again_for_a_while():
    def outcome(*errors):
        left = list(errors)

        async def call():
            if left:
                raise left.pop(0)
            return now_s()

        return played(again_while_it_passes(call)) - 1000.0

    full = InfrastructureFailed("disk full")
    assert outcome(*[full] * 3) == 1 + 2 + 4 and outcome(*[full] * (TRIES - 1)) == 31
    with pytest.raises(InfrastructureFailed, match="disk full"):
        outcome(*[full] * TRIES)
    with pytest.raises(ActorFailed):
        outcome(DIED)


def test_a_start_is_waited_for_as_long_as_starts_take_here():
    patience = Patience()
    assert [patience.start_deadline_s(took_s) for took_s in (0.0, 10.0, 40.0, 1000.0)] == [1800, 120, 200, 1800]
    assert Patience(stall_s=5.0).start_deadline_s(10.0) == 120.0, "machines are busy, patience or not"
    assert Patience(stall_s=300.0).start_deadline_s(10.0) == 300.0


def test_a_start_that_fails_cancels_those_beside_it():
    async def body():
        ended = []

        async def waits():
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(now_s())

        async def fails():
            await asyncio.sleep(1)
            raise DIED

        with pytest.raises(ActorFailed):
            await together(waits(), fails())
        assert ended == [1001.0]

    played(body())


def test_calls_that_nobody_waits_for_tell_their_errors_but_no_death():
    async def body():
        calls, heard = UnawaitedCalls(), []

        async def fails(error, seconds=1.0):
            await asyncio.sleep(seconds)
            raise error

        for error in (DIED, RunFailed("refused"), ValueError("wrong")):
            calls.begin(fails(error), heard.append)
        calls.begin(fails(ValueError("unheard"), 50.0))
        await calls.settle(10.0)
        assert [str(error) for error in heard] == ["refused", "wrong"] and len(calls) == 1 and now_s() == 1010.0
        await calls.settle(None)
        assert len(calls) == 0 and now_s() == 1050.0
        with pytest.raises(ActorFailed, match="engine: no answer within 3 s"):
            await within(3.0, asyncio.sleep(9), "engine")
        assert await within(3.0, asyncio.sleep(1, "answer"), "engine") == "answer"

    played(body())
