"""The trainer ranks of one run as Ray actors: one `Trainer` each, driven in lockstep.

Invariants:
- the ranks live and die together: where one is gone, hangs or got out of step, all are ended, and the caller is told by
  `TrainerDied` whatever the others say of their broken collectives;
- each rank is asked for a sign of life once a second, also while it starts or trains: a rank that hangs is named within
  `stall_s`, not when a step's deadline has passed;
- a group that was started again holds the model as it was constructed; the caller loads a checkpoint next.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import ray

from ...plans.yaml.errors import RunFailed
from ..actors import ACTOR_OPTIONS, end_actor, retrieved, track
from ..engines.guard import guard_group
from ..faults import ActorFailed, Fault, InfrastructureFailed, classify, reason
from ..supervision import BORN_S, CALL_DEADLINE_S, PULSE_S, LastHeard, Supervisor, silent_seconds
from .samples import TrainSample
from .trainer_config import TrainerConfig, UpdateSettings
from .trainer_rank import Trainer

STEP_DEADLINE_S = 3600.0
WRITE_DEADLINE_S = 7200.0  # nobody waits for it but the next checkpoint
# When a collective fails on one rank, the death of another may be told a moment later.
OTHERS_S = 2.0
Result = TypeVar("Result")

# Threads of their own in each rank: a rank that trains can answer, and write what it has staged.
PULSE_GROUP, WRITER_GROUP = "pulse", "writer"


class TrainerDied(ActorFailed):
    """A rank is gone, and with it the state since the last checkpoint; ends the run only if it cannot recover."""


class TrainerRank(Trainer):
    """A trainer that is constructed by a call of its own, so that its actor gives signs of life meanwhile."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def construct(self) -> int:
        """Construct the trainer; returns the number of its parameters."""
        super().__init__(*self._arguments)
        return self.parameters()


class TrainerGroup:
    """The ranks of one model. All calls go to every rank; what they return is rank 0's."""

    def __init__(self, name: str, config: TrainerConfig, supervisor: Supervisor | None = None) -> None:
        self.name = f"trainer {name}"
        self.supervisor = supervisor or Supervisor()
        self._config = config
        self._ranks: list[Any] = []
        self._pulses: list[asyncio.Task[None]] = []
        self._gone: asyncio.Future[None] | None = None
        self.parameters = 0
        """Parameters of the policy; known once started."""
        self.lives = 0
        """How often the ranks were started: what was agreed with them before is void."""

    async def start(self) -> None:
        """Start the ranks; a start that a rank does not survive is tried again. Raises RunFailed."""
        await self.supervisor.start(self)

    async def restart(self, why: str) -> None:
        """Replace all ranks; the caller loads a checkpoint next. Raises RunFailed."""
        await self.supervisor.replace(self, why)

    async def launch(self) -> None:
        """One try of a start, for the supervisor. Raises RunFailed."""
        self._gone = retrieved(asyncio.get_running_loop().create_future())
        self.lives += 1
        self._ranks = self._spawn()
        self._pulses = [
            asyncio.create_task(self._watch(rank, actor), name=f"watch of rank {rank} of {self.name}")
            for rank, actor in enumerate(self._ranks)
        ]
        self.parameters = int(await self._all("construct", self.supervisor.start_deadline_s(self.name)))

    def _spawn(self) -> list[Any]:
        """New actors of all ranks."""
        method = f"tcp://127.0.0.1:{_free_port()}" if self._config.ranks > 1 else None
        # Spinning threads would take the cores from each other and from whoever shares the machine.
        environment = {
            "OMP_NUM_THREADS": str(self._config.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self._config.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""  # torch would choose a GPU that is there for the ranks' mesh
        # Ray's stubs do not know this option.
        threads = {PULSE_GROUP: 1, WRITER_GROUP: 1}
        remote: Any = ray.remote(concurrency_groups=threads)(TrainerRank)  # type: ignore[call-overload]
        options = {**ACTOR_OPTIONS, "runtime_env": {"env_vars": environment}}
        ranks = [remote.options(**options).remote(self._config, rank, method) for rank in range(self._config.ranks)]
        for actor in ranks:
            actor.__ray_call__.remote(_guard)
        return ranks

    async def _watch(self, rank: int, actor: Any) -> None:
        silence, patience_s = LastHeard(time.monotonic()), max(self.supervisor.patience.stall_s, BORN_S)
        name = f"rank {rank} of {self._config.ranks}"
        while True:
            call = track(actor.pid.options(concurrency_group=PULSE_GROUP).remote())
            silent_s = await silent_seconds(call, silence, patience_s)
            if silent_s is not None:
                self._lose(f"no sign of life of {name} for {silent_s:.0f} s")
                return
            error = call.exception()
            if error is not None:
                self._lose(f"{name}: {reason(error)}")
                return
            silence.heard(time.monotonic())
            patience_s = self.supervisor.patience.stall_s
            await asyncio.sleep(PULSE_S)

    def _lose(self, why: str) -> TrainerDied:
        """End all ranks: a group without one of them cannot go on."""
        died = TrainerDied(self.name, why)
        if self._gone is not None and not self._gone.done():
            self._gone.set_exception(died)
        self._kill()
        return died

    async def lost(self) -> None:
        """Wait for the group's death and raise TrainerDied; never returns."""
        assert self._gone is not None, "lost() before start()"
        await asyncio.shield(self._gone)

    async def _all(self, method: str, deadline_s: float, *arguments: Any, thread: str | None = None) -> Any:
        """What rank 0 returns; `thread` names the ranks' thread, None the one that trains."""
        return (await self.each(method, deadline_s, *arguments, thread=thread))[0]

    async def each(self, method: str, deadline_s: float, *arguments: Any, thread: str | None = None) -> list[Any]:
        """What a method of the ranks returns, rank by rank. Raises TrainerDied, InfrastructureFailed, RunFailed."""
        gone = self._gone
        assert gone is not None, f"{method} before start()"
        if gone.done():
            gone.result()
        methods = [getattr(rank, method) for rank in self._ranks]
        if thread is not None:
            methods = [each.options(concurrency_group=thread) for each in methods]
        calls = [track(each.remote(*arguments)) for each in methods]
        waits: set[asyncio.Future[Any]] = set(calls)
        left_s, began = deadline_s, time.monotonic()
        while waits and left_s > 0 and not gone.done() and not _errors(calls):
            await asyncio.wait({*waits, gone}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            waits = {call for call in calls if not call.done()}
            left_s = deadline_s - (time.monotonic() - began)
        if not waits and not _errors(calls):
            return [call.result() for call in calls]
        if _errors(calls) and waits:
            await asyncio.wait(waits, timeout=OTHERS_S)
        errors = _errors(calls)
        if not errors and not gone.done():
            raise self._lose(f"no answer to {method} within {deadline_s:.0f} s")
        raise self._call_failure(method, errors, gone, all_answered=all(call.done() for call in calls))

    def _call_failure(
        self, method: str, errors: list[BaseException], gone: asyncio.Future[None], all_answered: bool
    ) -> RunFailed:
        """The error of the group, where calls of `method` to its ranks ended with `errors`."""
        if gone.done() and isinstance(seen := gone.exception(), TrainerDied):
            return seen
        # First the rank that is gone, then the ranks that report its death.
        errors = sorted(errors, key=lambda error: not isinstance(error, ray.exceptions.RayActorError))
        faults = [classify(error) for error in errors]
        # Ranks that have not answered are in the middle of a collective, which none can take up again.
        if Fault.ACTOR in faults:
            return self._lose(f"{method}: {reason(errors[faults.index(Fault.ACTOR)])}")
        if Fault.INFRASTRUCTURE in faults:
            why = reason(errors[faults.index(Fault.INFRASTRUCTURE)])
            if not all_answered:
                return self._lose(f"{method}: {why}")
            return InfrastructureFailed(f"{self.name} could not do {method}: {why}")
        if not all_answered:
            self._lose(f"{method}: {reason(errors[0])}")
        return RunFailed(f"{self.name} failed in {method}: {reason(errors[0])}")

    async def step(self, groups: list[list[TrainSample]], update: UpdateSettings | None = None) -> dict[str, float]:
        """One optimizer step, by other settings if they are given; returns the trainer's metrics."""
        reference = ray.put(groups)
        metrics: dict[str, float] = await self._all("step", STEP_DEADLINE_S, reference, update)
        return metrics

    async def export(self, path: Path, version: str | None = None, checksums: bool = True) -> dict[str, str]:
        """Write the weights as safetensors, with `version` in the file; returns the checksum of each tensor, if asked
        for."""
        sums: dict[str, str] = await self._all("export_weights", CALL_DEADLINE_S, str(path), version, checksums)
        return sums

    async def stage(self) -> int:
        """Copy model and optimizer state to the ranks' host memory; returns the bytes of rank 0's copy.

        May not be called while `write` runs.
        """
        staged: int = await self._all("stage", CALL_DEADLINE_S)
        return staged

    async def write(self, folder: Path) -> None:
        """Write what was staged; `step` and `export` may be called meanwhile. Raises TrainerDied as they do."""
        await self._all("write_staged", WRITE_DEADLINE_S, str(folder), thread=WRITER_GROUP)

    async def load(self, folder: Path) -> None:
        """Read model and optimizer state."""
        await self._all("load", STEP_DEADLINE_S, str(folder))

    async def pids(self) -> list[int]:
        """Process ids of the ranks; they answer even while they train."""
        calls = [rank.pid.options(concurrency_group=PULSE_GROUP).remote() for rank in self._ranks]
        return list(await asyncio.gather(*(track(call) for call in calls)))

    def mean_s_between_failures(self) -> float:
        """Mean seconds between the deaths of the ranks in the last hour; an hour if there were none."""
        return self.supervisor.mean_s_between_failures(self.name)

    async def discard(self) -> None:
        """End what is left of the ranks."""
        for pulse in self._pulses:
            pulse.cancel()
        await asyncio.gather(*self._pulses, return_exceptions=True)
        self._pulses = []
        self._kill()

    def _kill(self) -> None:
        for rank in self._ranks:
            with contextlib.suppress(ray.exceptions.RayError):
                end_actor(rank)

    async def close(self) -> None:
        """End the ranks."""
        await self.discard()
        self._ranks = []


async def while_trainer_lives(trainer: TrainerGroup, wait: Coroutine[Any, Any, Result]) -> Result:
    """Await `wait` and return its result; if the trainer dies meanwhile, cancel `wait` and raise TrainerDied."""
    task = asyncio.ensure_future(wait)
    death = asyncio.ensure_future(trainer.lost())
    try:
        await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            death.result()
        return await task
    finally:
        task.cancel()
        death.cancel()
        await asyncio.gather(task, death, return_exceptions=True)


def _guard(trainer: Trainer) -> None:
    """Start the guard process of a rank; runs in the rank."""
    guard_group()


def _errors(calls: list[asyncio.Future[Any]]) -> list[BaseException]:
    return [error for call in calls if call.done() and (error := call.exception()) is not None]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
