"""Groups of a round that are trained while its other samples still decode; rounds/group_queue.py decides which, when.

Invariants:
- gradients are added up, and no weight changes: samples that still decode are of the weights that the round began with;
- a group is offered when its round is certain to train it, with all its rewards, and is trained once: `taken` says
  which the update after the round must leave out;
- when `close` returns, the trainer trains nothing of the round any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ...rounds.group_queue import GroupQueue
from ..trainer.samples import TrainSample
from ..trainer.trainer_config import UpdateSettings
from ..trainer.trainer_group import TrainerGroup


class Portion(NamedTuple):
    """Groups that a trainer took at once: when, in seconds since the stream was made, how many, and their tokens."""

    began_s: float
    ended_s: float
    groups: int
    tokens: int


class GroupStream:
    """The stream of one round.

    Args:
        trainer: adds up the gradients.
        update: how it computes.
        replicas: those of the trainer that take part, by number.
        prepare: has the devices of these ready.
    """

    def __init__(
        self,
        trainer: TrainerGroup,
        update: UpdateSettings,
        replicas: Sequence[int],
        prepare: Callable[[], Awaitable[object]],
    ) -> None:
        self.portions: list[Portion] = []
        self.replicas = tuple(replicas)
        self.begun_s: float | None = None
        """When the devices were free, in seconds since the stream was made; None: never."""
        self.failed: Callable[[BaseException], None] | None = None
        """Told at once if the trainer fails, while the round still decodes; `close` raises the error as well."""
        self._trainer, self._update, self._prepare = trainer, update, prepare
        self._queue = GroupQueue(update.micro_batch_tokens * len(self.replicas))
        self._groups: dict[int, list[TrainSample]] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._began = time.perf_counter()

    @property
    def taken(self) -> list[int]:
        """Draws that the trainer took, by number."""
        return self._queue.taken

    def offer(self, draw: int, group: list[TrainSample]) -> None:
        """A draw that is certain to be trained, with all its samples."""
        self._groups[draw] = group
        self._queue.offer(draw, sum(sample.tokens for sample in group))
        self._news.set()

    def begin(self) -> None:
        """The devices are free: train from now on."""
        if self._task is None:
            self.begun_s = time.perf_counter() - self._began
            self._task = asyncio.create_task(self._run(), name=f"groups for {self._trainer.name}")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.failed is not None:
            self.failed(error)

    async def _run(self) -> None:
        await self._prepare()
        self._queue.begin()
        while True:
            draws = self._queue.take()
            if not draws:
                if self._queue.over:
                    return
                self._news.clear()
                await self._news.wait()
                continue
            groups = [self._groups.pop(draw) for draw in draws]
            began_s = time.perf_counter() - self._began
            await self._trainer.stream(groups, self._update, self.replicas, first=not self.portions)
            ended_s = time.perf_counter() - self._began
            tokens = sum(sample.tokens for group in groups for sample in group)
            self.portions.append(Portion(began_s, ended_s, len(groups), tokens))
            self._queue.trained()
            self._queue.check_invariants()

    def round_over(self) -> None:
        """The round is over: what still waits is trained with all devices, after the round."""
        self._queue.end()
        self._news.set()

    async def close(self) -> None:
        """Wait for what the trainer has taken of a round that is over. Raises TrainerDied, RunFailed."""
        self.round_over()
        if self._task is not None:
            await self._task

    def abandon(self) -> None:
        """The round is left: what was added up is void."""
        self._queue.end()
        if self._task is not None:
            self._task.cancel()
