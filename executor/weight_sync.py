"""Weight sync: a trainer's weights go to the engines of a round, in pieces or else by a file, and are verified.

In pieces, trainer ranks put what they hold of a bucket where engines load it, bucket by bucket. The driver leads: it
has the ranks send bucket i + 1 while engines load bucket i, from memory of two buckets. So parties wait for each other
only in the group of slots `nccl`, which has a deadline.

Invariants:
- an engine holds a version only if it received all of that version's bytes: the version travels with the bytes;
- an engine that joins a round later gets the weights of that round, or none: once the trainer may change its weights
  (`retire`), nobody is sent them under the old version any more, and no bucket is sent;
- an engine that dies or does not answer within `stall_s` and a bucket's time is left out and replaced; the others go on
  (of `nccl` they begin again); a trainer rank that does is `TrainerDied`;
- nobody uses what was received of a transfer that did not come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from .engines.engine_handle import LOAD_BYTES_PER_S, EngineHandle
from .engines.fleet import Fleet
from .processes.actors import retrieved
from .processes.faults import ActorFailed
from .processes.supervision import again_while_it_passes
from .trainer.trainer_group import TrainerDied, TrainerGroup, while_trainer_lives
from .weights.bucket_memory import TransferBroken
from .weights.bucket_plan import ITEM_BYTES, Bucket, buckets_of
from .weights.transfer import Answer, Holdings, Sent, SlotsName, Transfer, WayClosed, choose

BUCKET_BYTES = 128 * 10**6


class ByBroadcast:
    """Transfers from one trainer. `may_send` is asked before each bucket. Other slots than `host` that break though no
    engine died are given up for good."""

    def __init__(
        self,
        trainer: TrainerGroup,
        stall_s: float,
        may_send: Callable[[], bool] = lambda: True,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._trainer, self._stall_s, self._may_send, self._bucket_bytes = trainer, stall_s, may_send, bucket_bytes
        self._broke: str | None = None
        """What went wrong with slots other than `host`."""
        self._layout: tuple[int, tuple[Bucket, ...], list[Holdings]] | None = None
        self._meeting: tuple[Any, str] = None, ""
        """For whom rank 0 made what they meet in (`Transfer.meeting`), and that."""

    async def send(self, engines: Sequence[EngineHandle], version: str, checked: bool, from_host: bool = False) -> Sent:
        """Send the trainer's weights as `version` to engines, all at once; `from_host`: through host memory.

        An engine that dies is left out; the fleet replaces it. Raises WayClosed, TrainerDied, and RunFailed if an
        engine was sent another version.
        """
        buckets, held = await self._planned()
        nbytes = ITEM_BYTES[held[0].dtype] * sum(math.prod(source.shape) for each in buckets for source in each.sources)
        expected: dict[str, str] = {}
        if checked:
            expected = (await self._trainer.each("transfer", self._trainer.queue_s, "checksums"))[0]
        calls = _Calls(engines, self._stall_s)
        while left := calls.living():
            slots, reason = self._choice(left, held, from_host)
            # Who waits in the group gives up before it is taken for one that hangs.
            told = Transfer(version, slots, held[0].dtype, buckets, checked, deadline_s=self._stall_s / 2,
                            adapter_scale=held[0].adapter_scale)  # fmt: skip
            try:
                return Sent("broadcast", nbytes, expected, await self._attempt(told, calls), slots, reason)
            except TransferBroken as broken:
                self._meeting = None, ""
                if calls.living() != left:
                    continue  # that was why
                if slots == "host":
                    raise WayClosed(f"the transfer broke off: {broken}") from broken
                self._broke = f"{slots} broke: {broken}"
        return Sent("broadcast", nbytes, expected, {})

    def _choice(self, engines: list[EngineHandle], held: list[Holdings], host: bool) -> tuple[SlotsName, str | None]:
        """Where weights lie for these engines, and why not in a better place. Raises WayClosed if there is none."""
        one_node = len({*(each.node for each in held), *(engine.facts.node for engine in engines)}) == 1
        devices = [device for e in engines for device in (e.facts.devices or ("",) * e.config.tp)]
        slots, reason = choose([each.device for each in held], devices, one_node)
        if host or self._broke:
            slots, reason = "host", None if host else self._broke
        if slots == "host" and not one_node:
            raise WayClosed(f"{reason or 'weights go through host memory'}; nodes share none")
        return slots, reason

    async def _planned(self) -> tuple[tuple[Bucket, ...], list[Holdings]]:
        """The buckets of the model, and what each trainer rank says of itself. Raises WayClosed."""
        lives = self._trainer.lives
        if self._layout is None or self._layout[0] != lives:
            held: list[Holdings] = await self._trainer.each("transfer", self._trainer.queue_s, "holdings")
            obstacle = next((each.obstacle for each in held if each.obstacle is not None), None)
            wanted, found = sum(math.prod(s.shape) for s in held[0].sources), sum(each.elements for each in held)
            if obstacle is not None or wanted != found:
                raise WayClosed(obstacle or f"the trainer's ranks say that they hold {found} of {wanted} weights")
            self._layout = lives, buckets_of(held[0].sources, ITEM_BYTES[held[0].dtype], self._bucket_bytes), held
        return self._layout[1:]

    async def _attempt(self, told: Transfer, calls: _Calls) -> dict[str, dict[str, str]]:
        """Checksums by engine of one transfer, without those that died. Raises TransferBroken."""
        in_group = told.slots == "nccl"
        try:
            told = await self._with_places(told, calls.left)
            begins = await self._of_ranks("begin", told)
            told = told._replace(handles={device: made for _, handles in begins for device, made in handles.items()})
            found = next((version for version, _ in begins if version != told.version), told.version)
            begun = loading = calls.start("begin_weights", told, found)
            if in_group:
                await begun
            for index, bucket in enumerate(told.buckets):
                if not in_group:
                    await self._of_ranks("send", index)
                    await begun
                    if not calls.left:
                        return {}
                before, loading = loading, calls.start("load_bucket", index, nbytes=bucket.nbytes)
                if in_group:  # engines take part in what the ranks send
                    await self._of_ranks("send", index)
                await before  # its memory is that of the next bucket
            await loading
            return await calls.all("finish_weights", told.version)
        except TransferBroken:
            await asyncio.gather(*calls.begun, return_exceptions=True)  # who hangs is told apart from who waits for it
            raise
        finally:
            if told.slots != "host":
                with contextlib.suppress(TrainerDied):
                    await self._trainer.each("transfer", self._trainer.queue_s, "end")

    async def _of_ranks(self, method: str, *arguments: Any) -> list[Any]:
        """What the trainer's ranks answer. Raises TransferBroken, and WayClosed if the trainer may have changed its
        weights."""
        if not self._may_send():
            raise WayClosed("the trainer goes on to the next weights")
        return [
            answer.taken() for answer in await self._trainer.each("transfer", self._trainer.queue_s, method, *arguments)
        ]

    async def _with_places(self, told: Transfer, engines: list[EngineHandle]) -> Transfer:
        """`told` with what engine ranks find their memory by. Raises TransferBroken if there is none."""
        if told.slots == "ipc":
            return told._replace(handles={device: "" for engine in engines for device in engine.facts.devices})
        members = [(engine.name, engine.lives, engine.config.tp) for engine in engines if told.slots == "nccl"]
        wanted = told.slots, self._trainer.lives, members
        if self._meeting[0] != wanted:
            self._meeting = wanted, (await self._of_ranks("meet", told.slots, told.largest))[0]
        names = tuple(name for name, _, tp in members for _ in range(tp))
        return told._replace(meeting=self._meeting[1], members=names)


class _Calls:
    """Calls to the engines of one transfer, of which `left` has those that have not died."""

    def __init__(self, engines: Sequence[EngineHandle], stall_s: float) -> None:
        self.left, self._stall_s = list(engines), stall_s
        self._lives = {engine: engine.lives for engine in engines}
        self.begun: list[asyncio.Future[Any]] = []

    def living(self) -> list[EngineHandle]:
        """Those of `left` that have not been replaced, nor are about to be."""
        self.left = [engine for engine in self.left if engine.alive and engine.lives == self._lives[engine]]
        return self.left

    def start(self, method: str, *arguments: Any, nbytes: int = 0) -> asyncio.Future[dict[str, Any]]:
        """Begin a call to all engines, which nobody has to wait for if the transfer ends."""
        self.begun.append(retrieved(asyncio.ensure_future(self.all(method, *arguments, nbytes=nbytes))))
        return self.begun[-1]

    async def all(self, method: str, *arguments: Any, nbytes: int = 0) -> dict[str, Any]:
        """The answers of all engines by name; those that died are left out, their replacement has begun.

        Raises TransferBroken if one of them tells why the transfer broke off, RunFailed as the engines do.
        """
        deadline_s = self._stall_s + nbytes / LOAD_BYTES_PER_S
        asked = self.living()
        calls = (engine.transfer(method, arguments, deadline_s) for engine in asked)
        found: dict[str, Answer] = {}
        for engine, answer in zip(asked, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, ActorFailed):
                self.left = [other for other in self.left if other is not engine]
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[engine.name] = answer
        return {name: answer.taken() for name, answer in found.items()}


class ByFile:
    """The way by the safetensors file at `path` on shared storage: rank 0 gathers the model and writes it, with its
    version, and all engines read it. `may_send` is asked before each time that it is written."""

    def __init__(self, trainer: TrainerGroup, path: Path, may_send: Callable[[], bool] = lambda: True) -> None:
        self._trainer, self._path, self._may_send = trainer, path, may_send
        self._written = (0, "")  # in which life of the trainer, which version

    async def send(self, engines: Sequence[EngineHandle], version: str, checked: bool) -> Sent:
        """Have all engines load the file at once, which is written if it holds another version or checksums are asked
        for; raises as `ByBroadcast.send` does."""
        expected: dict[str, str] = {}
        if checked or self._written != (self._trainer.lives, version):
            self._written = (0, "")
            expected = await again_while_it_passes(lambda: self._export(version, checked))
            self._written = (self._trainer.lives, version)
        loads = (engine.load(str(self._path), version, checked) for engine in engines)
        received = {}
        for engine, answer in zip(engines, await asyncio.gather(*loads, return_exceptions=True), strict=True):
            if isinstance(answer, ActorFailed):  # its replacement has begun; the fleet tells of it
                continue
            if isinstance(answer, BaseException):
                raise answer
            received[engine.name] = answer
        return Sent("file", self._path.stat().st_size, expected, received)

    def _export(self, version: str, checked: bool) -> Awaitable[dict[str, str]]:
        if not self._may_send():
            raise WayClosed("the trainer goes on to the next weights")
        return self._trainer.export(self._path, version, checked)


class WeightSync:
    """The weights of one trainer on their way to the engines of a fleet; `path` is where a file goes, if one does;
    `from_host`: they lie in host memory, and no memory of the trainer's GPUs is used: they are another job's."""

    def __init__(self, trainer: TrainerGroup, fleet: Fleet, path: Path, *, from_host: bool = False) -> None:
        self._trainer, self._fleet, self._from_host = trainer, fleet, from_host
        self._version: str | None = None
        """What the trainer has in hand; None: it may change."""
        self._lock = asyncio.Lock()  # one transfer at a time
        self._file = ByFile(trainer, path, lambda: self._version is not None)
        stall_s = fleet.supervisor.patience.stall_s
        self._broadcast = ByBroadcast(trainer, stall_s, lambda: self._version is not None)

    async def sync(
        self,
        engines: Sequence[EngineHandle],
        version: str,
        checked: bool,
        none_left: Callable[[], Coroutine[Any, Any, Any]] | None = None,
    ) -> Sent:
        """Send the trainer's weights as `version` to every engine that is up, at least one; others join when they are.

        If none is, `none_left` makes room for one, and has the trainer ready again. Raises TrainerDied, RunFailed.
        """
        async with self._lock:
            self._version = version
            while True:
                if none_left is not None and not any(engine.alive for engine in engines):
                    await while_trainer_lives(self._trainer, none_left())
                up = await while_trainer_lives(self._trainer, self._fleet.some_ready(engines))
                sent = await self._send(up, version, checked)
                if sent.received:
                    return sent

    async def _send(self, up: Sequence[EngineHandle], version: str, checked: bool, *, late: bool = False) -> Sent:
        """Send on the best way; to `late` engines through host memory, as others may decode, with no room on GPUs."""
        try:
            return await self._broadcast.send(up, version, checked, from_host=late or self._from_host)
        except WayClosed as closed:
            return (await self._file.send(up, version, checked))._replace(reason=str(closed))

    def retire(self) -> None:
        """The trainer may change its weights from now on, up to the next `sync`."""
        self._version = None

    async def join(self, engine: EngineHandle, version: str) -> None:
        """Send the round's weights to an engine that came back. Raises ActorFailed if it died or came too late."""
        await self.join_all([engine], version)

    async def join_all(self, engines: Sequence[EngineHandle], version: str) -> None:
        """Send the round's weights to engines that came later, to all at once. Raises ActorFailed if they came too
        late, or one of them died; the others have them then."""
        async with self._lock:
            if self._version != version:
                raise ActorFailed(engines[0].name, f"the round of {version} was over before it had weights")
            try:
                sent = await self._send(engines, version, False, late=True)
            except WayClosed as closed:
                raise ActorFailed(engines[0].name, str(closed)) from closed
        for engine in engines:
            if engine.name not in sent.received:
                raise ActorFailed(engine.name, "it died as it received weights")
