"""Training of a round's groups beside its rollout: on devices that engines hand over, or on the trainer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...rounds.hand_over import HandOver, free_replicas
from ...rounds.machines.events import SampleKey
from ...rounds.machines.round import Round
from ...rounds.step_order import to_streaming
from ..engines.engine_handle import EngineHandle
from ..memory.device_holds import trainer_name
from ..memory.device_turns import DeviceTurns, TurnsOf
from ..trainer.trainer_config import UpdateSettings
from ..trainer.trainer_group import TrainerGroup
from .changes.engine_change import EngineChange
from .group_stream import GroupStream
from .round_samples import RolloutSample, train_group
from .sample_ledger import SampleLedger


@dataclass(frozen=True)
class RoundStreaming:
    """The streaming of one round.

    Attributes:
        stream: trains groups.
        hand_over: decides when engines are freed for it; None: the trainer has devices of its own, and begins at once.
        allowed: whether the devices have room for the trainer beside the engines that stay.
        freed: names of the engines that are handed over.
    """

    stream: GroupStream
    hand_over: HandOver | None
    allowed: Callable[[], bool]
    freed: tuple[str, ...] = ()

    def offer_from(self, machine: Round, samples: Mapping[SampleKey, RolloutSample]) -> Callable[[int], None]:
        """What is to be called with each draw of the round that is certain to be trained."""

        def offer(number: int) -> None:
            draw = machine.draws[number]
            rewards = {SampleKey(number, sample): draw.rewards[sample] for sample in machine.trained_samples(draw)}
            self.stream.offer(number, train_group(draw.prompt, rewards, samples))

        return offer

    def begin(self, engines: Sequence[EngineHandle], ledger: SampleLedger) -> EngineChange | None:
        """The round begins on `engines`; returns what hands some of them over."""
        if self.hand_over is None:
            self.stream.begin()
            return None
        numbers = list(range(len(engines)))
        staying, leaving = numbers[: self.hand_over.stay], numbers[self.hand_over.stay :]
        return EngineChange(self.hand_over, engines, ledger, leaving, staying, self.allowed, self.stream.begin)

    def tell(self, run: TurnsOf, samples: Iterable[RolloutSample]) -> None:
        """Write into the run's trace what happened; seconds from the round's start."""
        portions, begun_s = self.stream.portions, self.stream.begun_s
        run.event(
            "streamed",
            step=run.step_number + 1,
            begun_s=None if begun_s is None else round(begun_s, 6),
            freed=list(self.freed),
            replicas=list(self.stream.replicas),
            groups=sum(portion.groups for portion in portions),
            tokens=sum(portion.tokens for portion in portions),
            moved=sum(sample.moves > 0 for sample in samples),
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
    stream = GroupStream(trainer, update, replicas, lambda: turns.in_round(run, order, freed))
    return RoundStreaming(stream, decision, lambda: turns.could(run, order), freed)
