"""Weight sync: a trainer's weights go to the engines of a round, in pieces or else by a file, and are verified.

Invariants:
- an engine holds a version only if it received all of that version's bytes: the version travels with the bytes;
- an engine that joins a round later gets the weights of that round, or none: once the trainer may change its weights
  (`retire`), nobody is sent them under the old version any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ..engines.engine_handle import EngineHandle
from ..engines.fleet import Fleet
from ..faults import ActorFailed
from ..supervision import again_while_it_passes
from ..trainer.trainer_group import TrainerGroup, while_trainer_lives
from .by_broadcast import ByBroadcast
from .transfer import Sent, WayClosed


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
