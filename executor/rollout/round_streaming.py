"""Groups of a round that are trained while its other samples still decode: on devices that engines hand over, or on the
trainer's own; rounds/group_queue.py decides which groups, and when.

Invariants:
- gradients are added up, and no weight changes: samples that still decode are of the weights that the round began with;
- a group is offered when its round is certain to train it, with all its rewards, and is trained once: `taken` says
  which the update after the round must leave out;
- when `trained` returns, the trainer trains nothing of the round any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from ...rounds.group_queue import GroupQueue
from ...rounds.hand_over import HandOver, free_replicas
from ...rounds.machines.events import SampleKey
from ...rounds.step_order import to_streaming
from ..engines.engine_handle import EngineHandle
from ..memory.device_holds import trainer_name
from ..memory.device_turns import DeviceTurns, TurnsOf
from ..processes.faults import failure
from ..trainer.train_samples import TrainSample
from ..trainer.trainer_config import UpdateSettings
from ..trainer.trainer_group import TrainerDied, TrainerGroup
from .engine_change import LeavingEngines
from .round_lever import OpenRound


class Portion(NamedTuple):
    """Groups that a trainer took at once: when, in seconds since streaming was made, how many, and their tokens."""

    began_s: float
    ended_s: float
    groups: int
    tokens: int


class RoundStreaming(LeavingEngines):
    """The streaming of one round.

    Args:
        trainer: adds up the gradients.
        update: how it computes.
        replicas: those of the trainer that take part, by number.
        prepare: has the devices of these ready.
        decision: when engines are freed for it; None: the trainer has devices of its own, and begins at once.
        could: whether the devices have room for the trainer beside the engines that stay.
        freed: names of the engines that are handed over.
    """

    def __init__(
        self,
        trainer: TrainerGroup,
        update: UpdateSettings,
        replicas: Sequence[int],
        prepare: Callable[[], Awaitable[object]],
        decision: HandOver | None = None,
        could: Callable[[], bool] = lambda: True,
        freed: tuple[str, ...] = (),
    ) -> None:
        super().__init__(decision)
        self.portions: list[Portion] = []
        self.replicas, self.freed = tuple(replicas), freed
        self.begun_s: float | None = None
        """When the devices were free, in seconds since this was made; None: never."""
        self._trainer, self._update, self._prepare, self._could = trainer, update, prepare, could
        self._queue = GroupQueue(update.micro_batch_tokens * len(self.replicas))
        self._groups: dict[int, Sequence[TrainSample]] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._began = time.perf_counter()

    @property
    def taken(self) -> list[int]:
        """Draws that the trainer took, by number."""
        return self._queue.taken

    def begin(self, opened: OpenRound) -> None:
        """Draws are offered as they become certain; engines are handed over, or training begins at once."""
        machine, samples, self._round = opened.machine, opened.ledger.samples, opened

        def offer(number: int) -> None:
            trained = machine.trained_samples(machine.draws[number])
            self.offer(number, [samples[SampleKey(number, sample)] for sample in trained])

        opened.on_ready = offer
        if self._decision is None:
            self.start()
        else:
            numbers, stay = range(len(opened.engines)), self._decision.stay
            self.begin_with(opened, numbers[stay:], numbers[:stay])

    def _allowed(self) -> bool:
        return self._could()

    def _released(self) -> None:
        self.start()

    def offer(self, draw: int, group: Sequence[TrainSample]) -> None:
        """A draw that is certain to be trained, with all its samples."""
        self._groups[draw] = group
        self._queue.offer(draw, sum(sample.tokens for sample in group))
        self._news.set()

    def start(self) -> None:
        """The devices are free: train from now on."""
        if self._task is None:
            self.begun_s = time.perf_counter() - self._began
            self._task = asyncio.create_task(self._run(), name=f"groups for {self._trainer.name}")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the round at once if the trainer fails while it decodes; of one that died the run takes care."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TrainerDied):
            self._opened.tell(failure(error, "trainer"))

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

    def over(self) -> None:
        """The round is over: what still waits, or became ready with its end, is trained with all devices after it."""
        self._queue.end()
        self._news.set()

    async def trained(self) -> list[int]:
        """Draws that the trainer took, which it has trained then. Raises TrainerDied, RunFailed."""
        self.over()
        if self._task is not None:
            await self._task
        return self.taken

    def abandon(self) -> None:
        """The round is left: what was added up is void."""
        self._queue.end()
        if self._task is not None:
            self._task.cancel()

    def report(self, run: TurnsOf, moved: int) -> None:
        """What happened; seconds from the round's start."""
        portions, begun_s = self.portions, self.begun_s
        run.event(
            "streamed",
            step=run.step_number + 1,
            begun_s=None if begun_s is None else round(begun_s, 6),
            freed=list(self.freed),
            replicas=list(self.replicas),
            groups=sum(portion.groups for portion in portions),
            tokens=sum(portion.tokens for portion in portions),
            moved=moved,
            portions=[[round(p.began_s, 6), round(p.ended_s, 6), p.groups] for p in portions],
        )


def round_streaming(
    run: TurnsOf,
    engines: Sequence[EngineHandle],
    decision: HandOver | None,
    update: UpdateSettings,
    trainer: TrainerGroup,
    turns: DeviceTurns,
) -> RoundStreaming | None:
    """The streaming of a run's round on `engines`; None if no replica of the trainer would be on freed devices.

    `decision`: when engines are handed over; None: the trainer has devices of its own.
    """
    stay = len(engines) if decision is None else decision.stay
    name, places = trainer_name(run.name), turns.ledger.places
    busy = [device for engine in engines[:stay] for device in places[engine.name]]
    replicas = free_replicas(places.get(name, ()), trainer.config.tp * trainer.config.sp, busy)
    if not replicas:
        return None
    freed = tuple(engine.name for engine in engines[stay:])

    order = partial(to_streaming, trainer=name, freed=freed)
    could, prepare = partial(turns.could, run, order), partial(turns.in_round, run, order, freed)
    return RoundStreaming(trainer, update, replicas, prepare, decision, could, freed)
