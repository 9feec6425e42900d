"""The way by a file on shared storage: rank 0 gathers the model and writes it, and all engines read it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from ..engines.engine_handle import EngineHandle
from ..faults import ActorFailed
from ..supervision import again_while_it_passes
from ..trainer.trainer_group import TrainerGroup
from .ways import Sent, WayClosed


class ByFile:
    """Weights go through the safetensors file at `path`, which names their version; `may_send` is asked before each
    time that it is written."""

    def __init__(self, trainer: TrainerGroup, path: Path, may_send: Callable[[], bool] = lambda: True) -> None:
        self._trainer, self._path, self._may_send = trainer, path, may_send
        self._written = (0, "")  # in which life of the trainer, which version

    async def send(self, engines: Sequence[EngineHandle], version: str, checked: bool) -> Sent:
        """Have all engines load the file at once, which is written if it holds another version or checksums are asked
        for; raises as `ByBroadcast.send` does."""
        expected: dict[str, str] = {}
        if checked or self._written != (self._trainer.lives, version):
            expected = await self._write(version, checked)
        answers = await asyncio.gather(
            *(engine.load(str(self._path), version, checked) for engine in engines), return_exceptions=True
        )
        received = {}
        for engine, answer in zip(engines, answers, strict=True):
            if isinstance(answer, ActorFailed):  # its replacement has begun; the fleet tells of it
                continue
            if isinstance(answer, BaseException):
                raise answer
            received[engine.name] = answer
        return Sent("file", self._path.stat().st_size, expected, received)

    async def _write(self, version: str, checked: bool) -> dict[str, str]:
        def export() -> Awaitable[dict[str, str]]:
            if not self._may_send():
                raise WayClosed("the trainer goes on to the next weights", lasting=False)
            return self._trainer.export(self._path, version, checked)

        self._written = (0, "")
        sums = await again_while_it_passes(export)
        self._written = (self._trainer.lives, version)
        return sums
