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
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ray

from ...plans.schema.predicted import Predicted
from ...plans.yaml.errors import RunFailed
from ...rounds.device_ledger import MOMENTS, PARAMETERS
from ..placement.actor_placer import ActorPlacement, ActorPlacer, Blame
from ..placement.guard import guard_group
from ..placement.live_nodes import free_address, on_node
from ..processes.actors import ACTOR_OPTIONS, end_actor, retrieved, track, visible_gpus
from ..processes.faults import ActorFailed, ErrorClass, InfrastructureFailed, classify, reason
from ..processes.host import without_collection
from ..processes.supervision import (
    BORN_S,
    CALL_DEADLINE_S,
    PULSE_S,
    LastHeard,
    Supervisor,
    again_while_it_passes,
    silent_seconds,
)
from .manifest import damage
from .train_samples import Groups, ReplicaShare, shares
from .trainer_config import TrainerConfig, UpdateSettings

# Threads of their own in each rank: a rank that trains can answer, and write what it has staged.
PULSE_GROUP, WRITER_GROUP = "pulse", "writer"


class TrainerRank:
    """The actor of a rank. Its `Trainer`, which imports all of torch, is made by a call: the actor gives signs of life
    meanwhile, and the driver, which only names this class, does without those imports.

    Methods of the trainer that the driver calls (TRAINER_METHODS) are methods of the actor.
    """

    def __init__(self, config: TrainerConfig, rank: int) -> None:
        self._arguments = (config, rank)
        self._trainer: Any = None

    def meeting_point(self) -> str:
        """Where ranks may meet on the node of this one."""
        return free_address()

    def construct(self, init_method: str | None) -> tuple[int, int, float]:
        """Construct the trainer; `init_method` says where ranks meet. Returns the number of its parameters, of those
        that are trained, and what a pair of tokens costs, by which the driver shares out samples."""
        with without_collection():
            from .trainer_rank import Trainer

        self._trainer = Trainer(*self._arguments, init_method)
        trainer = self._trainer
        return int(trainer.parameters()), int(trainer.trained_parameters()), float(trainer.pairs)

    def damage(self, manifests: Sequence[str]) -> str | None:
        """The first fault of the files that these manifests name; None if there is none."""
        return next((fault for path in manifests if (fault := damage(Path(path))) is not None), None)

    def pid(self) -> int:
        """Process id of this rank; told while it is constructed, too."""
        return os.getpid()


TRAINER_METHODS = (
    "step", "stream", "time_update", "export_weights", "transfer", "place", "peak_bytes", "stage", "write_staged",
    "load",
)  # fmt: skip


def _of_trainer(name: str) -> Callable[..., Any]:
    def method(self: TrainerRank, *arguments: Any) -> Any:
        assert self._trainer is not None, f"{name} before construct"
        return getattr(self._trainer, name)(*arguments)

    method.__name__ = name
    return method


for _name in TRAINER_METHODS:  # Ray calls methods that the class has
    setattr(TrainerRank, _name, _of_trainer(_name))


def spawn_ranks(config: TrainerConfig, placements: Sequence[ActorPlacement]) -> list[Any]:
    """New actors of all ranks, on their nodes; on any node if there are none."""
    # Ray's stubs do not know this option.
    threads, ranks = {PULSE_GROUP: 1, WRITER_GROUP: 1}, []
    remote: Any = ray.remote(concurrency_groups=threads)(TrainerRank)  # type: ignore[call-overload]
    for rank in range(config.ranks):
        own, options = config, dict[str, Any](ACTOR_OPTIONS)
        placed = placements[rank] if placements else None
        if placed is not None:
            beside = sum(other.node_id == placed.node_id for other in placements)
            own = replace(config, threads=max(placed.node_cores // beside, 1))
            options |= on_node(placed.node_id)
        options["runtime_env"] = {"env_vars": _environment(own, placed)}
        ranks.append(remote.options(**options).remote(own, rank))
    for rank, actor in enumerate(ranks):
        actor.__ray_call__.remote(_guard, placements[rank].stays_on if placements else ())
    return ranks


def _guard(rank: TrainerRank, stays_on: tuple[int, ...]) -> None:
    """Start the guard process of a rank; runs in the rank, which from now on keeps to these cores, if any."""
    guard_group()
    if stays_on:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread.name), stays_on)


def _environment(config: TrainerConfig, placed: ActorPlacement | None) -> dict[str, str]:
    """Environment of a rank."""
    environment = {
        "OMP_NUM_THREADS": str(config.threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads would take cores from each other and from other processes
        "TOKENIZERS_PARALLELISM": "false",
    }
    if config.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # torch would choose a GPU that is there for the ranks' mesh
    elif placed is not None and placed.gpus:
        environment |= visible_gpus(placed.gpus)
    return environment


STEP_DEADLINE_S = 3600.0
NODE_PATIENCE_S = 600.0  # for a node in place of one that was lost
WRITE_DEADLINE_S = 7200.0  # nobody waits for it but the next checkpoint
DISK_BYTES_PER_S = 20e6  # slower than any disk that all ranks share
OTHERS_S = 2.0  # when a rank fails, what others say of it may be told a moment later
Result = TypeVar("Result")
PREDICTED_FACTOR = 5.0  # a call that takes so often what the plan predicts hangs, unless the deadlines above are longer


class TrainerDied(ActorFailed):
    """A rank is gone, and with it the state since the last checkpoint; ends the run only if it cannot recover.

    `late`: it did not die by itself, but was ended since it did not answer by a deadline."""

    late = False


class PredictedCalls(NamedTuple):
    """Seconds that a plan predicts of calls to the ranks: an update, a rollout and the update after it, getting weights
    to engines, staging a checkpoint; and bytes of a checkpoint. 0: nothing is predicted."""

    update_s: float = 0.0
    step_s: float = 0.0
    sync_s: float = 0.0
    stage_s: float = 0.0
    checkpoint_bytes: float = 0.0

    @staticmethod
    def of(predicted: Predicted) -> PredictedCalls:
        """Those of a plan's longest kind of round."""
        rounds = [each for _, each in predicted.rounds.kinds]
        saved = predicted.checkpoint
        return PredictedCalls(
            max(each.train_s.p95 for each in rounds),
            max(each.step_s.p95 for each in rounds),
            max(each.sync_s for each in rounds),
            0.0 if saved is None else saved.stood_s,
            0.0 if saved is None else saved.bytes,
        )


class TrainerGroup:
    """The ranks of one model. All calls go to every rank; what they return is rank 0's.

    `placer` says where the ranks of the plan `name` run, each time that they are started; None: on any node.
    `node_patience_s`: how long a start waits for a node with room. `spawn` makes the ranks' actors.
    """

    def __init__(
        self,
        name: str,
        config: TrainerConfig,
        supervisor: Supervisor | None = None,
        placer: ActorPlacer | None = None,
        node_patience_s: float = NODE_PATIENCE_S,
        spawn: Callable[[TrainerConfig, Sequence[ActorPlacement]], list[Any]] = spawn_ranks,
    ) -> None:
        self.name = f"trainer {name}"
        self._plan, self._placer, self._node_patience_s, self._spawn = name, placer, node_patience_s, spawn
        self._places: list[ActorPlacement] = []
        self.supervisor = supervisor or Supervisor()
        self.config = config
        self._ranks: list[Any] = []
        self._pulses: list[asyncio.Task[None]] = []
        self._gone: asyncio.Future[None] | None = None
        self._blame = Blame()  # of this life
        self._constructed = False  # until then ranks import, and a busy host takes long for it
        self.parameters, self.trained_parameters, self._pairs = 0, 0, 0.0
        """Parameters of the policy, those that are trained, and costs of a pair of tokens; known once started."""
        self.lives = 0
        """How often the ranks were started: what was agreed with them before is void."""
        self.predicted = PredictedCalls()
        """What the plan in force predicts; deadlines are never shorter than `PREDICTED_FACTOR` times that."""

    async def start(self) -> None:
        """Start the ranks; a start that a rank does not survive is tried again. Raises RunFailed."""
        await self.supervisor.start(self)

    async def restart(self, why: str) -> None:
        """Replace all ranks; the caller loads a checkpoint next. Raises RunFailed."""
        await self.supervisor.replace(self, why)

    async def find_node(self) -> None:
        """Find the node and device of each rank. Raises RunFailed if a node is missing for too long."""
        if self._placer is not None:
            self._places = await self._placer.ranks(self._plan, self._node_patience_s)

    async def launch(self) -> None:
        """One try of a start, for the supervisor. Raises RunFailed."""
        self._gone, self._blame = retrieved(asyncio.get_running_loop().create_future()), Blame()
        self._constructed = False
        self.lives += 1
        self._ranks = self._spawn(self.config, self._places)
        self._pulses = [
            asyncio.create_task(self._watch(rank, actor), name=f"watch of rank {rank} of {self.name}")
            for rank, actor in enumerate(self._ranks)
        ]
        deadline_s = self.supervisor.start_deadline_s(self.name)
        method = None
        if self.config.ranks > 1:
            points = await self._all("meeting_point", deadline_s)  # rank 0's is where they meet
            method = f"tcp://{points}/{secrets.token_hex(16)}"  # a nonce, which ranks of another start lack
        self.parameters, self.trained_parameters, self._pairs = await self._all("construct", deadline_s, method)
        self._constructed = True

    async def _watch(self, rank: int, actor: Any) -> None:
        silence, born_s = LastHeard(time.monotonic()), max(self.supervisor.patience.stall_s, BORN_S)
        name = f"rank {rank} of {self.config.ranks}"
        while True:
            call = track(actor.pid.options(concurrency_group=PULSE_GROUP).remote())
            patience_s = self.supervisor.patience.stall_s if self._constructed else born_s
            silent_s = await silent_seconds(call, silence, patience_s)
            if silent_s is not None:
                why = f"no sign of life of {name} for {silent_s:.0f} s"
                break
            if (error := call.exception()) is not None:
                why = f"{name}: {reason(error)}"
                break
            silence.heard(time.monotonic())
            await asyncio.sleep(PULSE_S)
        self._blame.gone.add(rank)
        await asyncio.sleep(OTHERS_S)
        self._lose(why, self._blame.rank)

    def _lose(self, why: str, rank: int | None = None, *, late: bool = False) -> TrainerDied:
        """End all ranks: a group without one of them cannot go on. `rank`: the one that failed, where that is known."""
        died = TrainerDied(self.name, why)
        died.late = late
        if self._gone is not None and not self._gone.done():
            self._gone.set_exception(died)
            if rank is not None and self._placer is not None:
                self._placer.rank_failed(self._plan, rank, why)
        self._kill()
        return died

    async def lost(self) -> None:
        """Wait for the group's death and raise TrainerDied; never returns."""
        assert self._gone is not None, "lost() before start()"
        await asyncio.shield(self._gone)

    async def _all(
        self, method: str, deadline_s: float, *arguments: Any, own: Sequence[Any] = (), thread: str | None = None
    ) -> Any:
        """What rank 0 returns; `thread` names the ranks' thread, None the one that trains."""
        return (await self.each(method, deadline_s, *arguments, own=own, thread=thread))[0]

    async def each(
        self, method: str, deadline_s: float, *arguments: Any, own: Sequence[Any] = (), thread: str | None = None
    ) -> list[Any]:
        """What a method of the ranks returns, rank by rank; `own`: each rank's first argument, which is before those of
        all ranks. Raises TrainerDied, InfrastructureFailed, RunFailed."""
        gone = self._gone
        assert gone is not None, f"{method} before start()"
        if gone.done():
            gone.result()
        methods = [getattr(rank, method) for rank in self._ranks]
        if thread is not None:
            methods = [each.options(concurrency_group=thread) for each in methods]
        calls = [track(each.remote(*own[rank : rank + 1], *arguments)) for rank, each in enumerate(methods)]
        for rank, call in enumerate(calls):
            call.add_done_callback(partial(self._blame.hear, rank))
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
            raise self._lose(f"no answer to {method} within {deadline_s:.0f} s", late=True)
        raise self._call_failure(method, errors, gone, self._blame.rank, all_answered=all(c.done() for c in calls))

    def _call_failure(
        self, method: str, errors: list[BaseException], gone: asyncio.Future[None], rank: int | None, all_answered: bool
    ) -> RunFailed:
        """The error of the group, where calls of `method` to its ranks ended with `errors`; `rank` is gone."""
        if gone.done() and isinstance(seen := gone.exception(), TrainerDied):
            return seen
        # First the rank that is gone, then the ranks that report its death.
        errors = sorted(errors, key=lambda error: not _is_death(error))
        faults = [classify(error) for error in errors]
        # Ranks that have not answered are in the middle of a collective, which none can take up again.
        if ErrorClass.ACTOR in faults:
            return self._lose(f"{method}: {reason(errors[faults.index(ErrorClass.ACTOR)])}", rank)
        if ErrorClass.INFRASTRUCTURE in faults:
            why = reason(errors[faults.index(ErrorClass.INFRASTRUCTURE)])
            if not all_answered:
                return self._lose(f"{method}: {why}")
            return InfrastructureFailed(f"{self.name} could not do {method}: {why}")
        if not all_answered:
            self._lose(f"{method}: {reason(errors[0])}")
        return RunFailed(f"{self.name} failed in {method}: {reason(errors[0])}")

    async def step(
        self,
        groups: Groups,
        update: UpdateSettings | None = None,
        *,
        streamed: bool = False,
        begins: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """One optimizer step, by other settings if they are given; returns the trainer's metrics. `streamed`: other
        groups of the step were given to `stream`. `begins` is called when the samples are where the ranks read them,
        and before any rank changes."""
        own = await self._shares(groups, update)
        begins()
        metrics: dict[str, float] = await self._all(
            "step", self._within_s(self.predicted.update_s), update, streamed, own=own
        )
        return metrics

    async def stream(
        self, groups: Groups, update: UpdateSettings, replicas: Sequence[int] | None, first: bool
    ) -> float:
        """Add the gradients of groups of the coming step, on some replicas (None: all); returns seconds on rank 0."""
        own = await self._shares(groups, update, replicas)
        # No update's seconds have those of what is streamed, which goes on beside the rollout.
        deadline_s = self._within_s(self.predicted.step_s)
        return float(await self._all("stream", deadline_s, update, replicas, first, own=own))

    async def time_update(self, groups: Groups, update: UpdateSettings) -> float:
        """Seconds on rank 0 of the gradients of a step that is not taken; no state of the trainer changes."""
        own = await self._shares(groups, update)
        return float(await self._all("time_update", self._within_s(self.predicted.update_s), update, own=own))

    @staticmethod
    def _within_s(predicted_s: float, least_s: float | None = None) -> float:
        """The deadline of a call: `least_s`, a step's if None, or longer where the plan predicts a long one."""
        return max(STEP_DEADLINE_S if least_s is None else least_s, PREDICTED_FACTOR * predicted_s)

    @property
    def queue_s(self) -> float:
        """The deadline of a call that may have to wait until the ranks have taken a step."""
        return self._within_s(self.predicted.step_s) + self._within_s(self.predicted.sync_s, CALL_DEADLINE_S)

    async def _shares(
        self, groups: Groups, update: UpdateSettings | None, replicas: Sequence[int] | None = None
    ) -> list[ray.ObjectRef[ReplicaShare]]:
        """By rank: its replica's share of the groups, which ranks of one node read where it lies. Raises
        InfrastructureFailed if Ray's store, and the disk behind it, stay full."""
        budget = (update or self.config.update).micro_batch_tokens
        made = await asyncio.to_thread(shares, groups, self.config, budget, self._pairs, replicas)

        async def put() -> list[ray.ObjectRef[ReplicaShare]]:
            try:
                return [ray.put(share) for share in made]
            except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
                raise InfrastructureFailed(
                    f"{self.name}: Ray's object store has no room for the samples of the step, nor has the disk behind "
                    "it; free some, or start Ray with a larger --object-store-memory"
                ) from error

        stored = await again_while_it_passes(put)
        return [share for share in stored for _ in range(self.config.sp * self.config.tp)]

    async def export(self, path: Path, version: str | None = None, checksums: bool = True) -> dict[str, str]:
        """Write the weights as safetensors, with `version` in the file; returns the checksum of each tensor, if asked
        for."""
        sums: dict[str, str] = await self._all(
            "export_weights", self._within_s(self.predicted.sync_s, CALL_DEADLINE_S), str(path), version, checksums
        )
        return sums

    async def place(self, on_device: Mapping[str, float]) -> int:
        """Have the ranks keep the parts that `on_device` names on their devices, and the others in host memory.

        Parts are `trainer_parameters` and `trainer_optimizer` (of no bytes: in host memory). Returns bytes that rank 0
        moved; on a CPU nothing moves.
        """
        here = (bool(on_device.get(part)) for part in (PARAMETERS, MOMENTS))
        return int(await self._all("place", self._within_s(self.predicted.sync_s, CALL_DEADLINE_S), *here))

    async def peak_bytes(self) -> int:
        """The most memory that any rank held since this was asked last: of its GPU, or resident in its host."""
        return int(max(await self.each("peak_bytes", CALL_DEADLINE_S)))

    async def stage(self) -> int:
        """Copy model and optimizer state to the ranks' host memory; returns the bytes of rank 0's copy.

        May not be called while `write` runs.
        """
        return int(await self._all("stage", self._within_s(self.predicted.stage_s, CALL_DEADLINE_S)))

    async def write(self, folder: Path) -> None:
        """Write what was staged; `step` and `export` may be called meanwhile. Raises TrainerDied as they do."""
        deadline_s = max(WRITE_DEADLINE_S, self.predicted.checkpoint_bytes / DISK_BYTES_PER_S)
        await self._all("write_staged", deadline_s, str(folder), thread=WRITER_GROUP)

    async def damage(self, folder: Path) -> str | None:
        """The first fault of the files of a checkpoint's folder, as text; None if they are as they were written. Each
        rank reads a share of them, its own where there are as many ranks as wrote them."""
        manifests = sorted(map(str, folder.glob("manifest-*.json")), key=lambda name: (len(name), name))
        own = [manifests[rank :: self.config.ranks] for rank in range(self.config.ranks)]
        faults = await self.each("damage", WRITE_DEADLINE_S, own=own)
        return next((fault for fault in faults if fault is not None), None)

    async def load(self, folder: Path) -> None:
        """Read model and optimizer state."""
        deadline_s = max(STEP_DEADLINE_S, self.predicted.checkpoint_bytes / DISK_BYTES_PER_S)
        await self._all("load", deadline_s, str(folder))

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


def _is_death(error: BaseException) -> bool:
    return isinstance(error, ray.exceptions.RayActorError)


def _errors(calls: list[asyncio.Future[Any]]) -> list[BaseException]:
    return [error for call in calls if call.done() and (error := call.exception()) is not None]
