"""The units that a round holds of its job's co-execution group, from its beginning to its end.

A rollout may begin without units that another job's tail still keeps, and get them later; in its own tail it may have
to give units away, and all of them while it is paused for a more urgent job. The actor of the group says so, and hears
when the tail is reached and when what was taken is clear. One change follows another: nothing of a change is told to
the round before all that the last one took is clear.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ....plans.schema.levers import RoundHandOver
from ....plans.yaml.errors import RunFailed
from ....rounds.hand_over import HandOver
from ....rounds.step_order import to_giving
from ...actors import UnawaitedCalls
from ...engines.engine_handle import EngineBack, EngineHandle, EngineNews
from ...faults import Fault, classify, failure
from ...memory.device_turns import DeviceTurns
from ...memory.turns_took import TurnsOf
from ..round_samples import RolloutSample
from ..sample_ledger import SampleLedger
from .take_over import GiveAll, TakeOver
from .unit_change import UnitChange, UnitHooks, UnitsChanged


class HeldUnits(Protocol):
    """What a turn holds since when."""

    @property
    def units(self) -> tuple[int, ...]:
        """Its units; none while it is paused."""

    @property
    def since_s(self) -> float:
        """Since which second."""


class TurnUnits(Protocol):
    """A job's side of its group (groups/permit_actor.py)."""

    async def holding(self, since_s: float = -1.0) -> HeldUnits | None:
        """The turn that runs; waits a while for other units than since `since_s`. Raises RunFailed."""

    async def tail(self) -> None:
        """The tail is reached. Raises RunFailed."""

    async def cleared(self, since_s: float) -> None:
        """Nothing decodes on what was taken until `since_s`. Raises RunFailed."""


@dataclass(frozen=True)
class EngineUnits:
    """Where a job's engines are in its group.

    Attributes:
        of_engine: units of each engine's node.
        keep: units that a tail keeps; 0: it keeps all.
        at_finished: share of a round's samples after whose end the tail is reached; None: it is never said.
        pauses: whether its rollout may be paused.
    """

    of_engine: Mapping[str, frozenset[int]]
    keep: int = 0
    at_finished: float | None = None
    pauses: bool = False

    @property
    def all_units(self) -> frozenset[int]:
        """Units of all its engines."""
        return frozenset().union(*self.of_engine.values())

    def tail_of(self, engines: Sequence[EngineHandle]) -> RoundHandOver | None:
        """When the tail of a round on these engines is reached; None: never."""
        kept = frozenset(sorted(self.all_units)[: self.keep])
        leaving = sum(not self.of_engine[engine.name] <= kept for engine in engines)
        if self.at_finished is None or not self.keep or not 0 < leaving < len(engines):
            return None
        return RoundHandOver(engines=leaving, at_finished=max(self.at_finished, 0.01))  # the least share of a plan


class RoundUnits:
    """The units of one round of a run.

    `samples`, which are to be trained, is set before `begin`. `here`: engines on the units that it begins with, at
    least one. `paused_s`: after `close`, seconds for which the round stood since it was paused.
    """

    def __init__(
        self,
        run: TurnsOf,
        permits: TurnUnits,
        where: EngineUnits,
        engines: Sequence[EngineHandle],
        held: HeldUnits,
        turns: DeviceTurns,
        give_all: GiveAll,
    ) -> None:
        self.samples, self.paused_s = 0, 0.0
        self._run, self._permits, self._where, self._turns, self._give_all = run, permits, where, turns, give_all
        self._held = held
        self.here = _on(engines, where, held)
        self._change: UnitChange | None = None
        self._watch: asyncio.Task[None] | None = None
        self._taking: list[TakeOver] = []
        self._moving = asyncio.Lock()  # engines come, or go to sleep
        self._clear_said = asyncio.Event()
        self._calls = UnawaitedCalls()

    def begin(
        self,
        engines: Sequence[EngineHandle],
        ledger: SampleLedger,
        version: str,
        tell: Callable[[EngineNews | UnitsChanged], None],
        spreads: bool,
    ) -> UnitChange:
        """The round begins by weights `version`; returns what changes its engines. `tell` hears of other units, of
        engines that have come, and the error if the actor is gone."""

        def failed(error: Exception) -> None:
            tell(failure(error, "permits of the group"))

        def coming(engines: list[EngineHandle]) -> None:
            taking = TakeOver(self._run, engines, self._turns, self._give_all)
            self._taking.append(taking)
            self._calls.begin(self._take_over(taking, engines, version, tell))

        spec = self._where.tail_of(engines)
        decision = None if spec is None else HandOver(spec, self.samples, len(engines))
        hooks = UnitHooks(
            lambda: self._calls.begin(self._permits.tail(), failed),
            lambda: self._calls.begin(self._clear(self._held.since_s), failed),
            coming,
        )
        units = [self._where.of_engine[engine.name] for engine in engines]
        held, keep = frozenset(self._held.units), self._where.keep
        self._change = UnitChange(engines, units, held, keep, decision, ledger, hooks, spreads=spreads)
        if self._change.out:
            self._calls.begin(self._give(), failed)  # none of them is started meanwhile
        self._watch = asyncio.create_task(self._follow(tell, failed), name=f"units of {version}")
        return self._change

    async def _follow(self, tell: Callable[[UnitsChanged], None], failed: Callable[[Exception], None]) -> None:
        try:
            while (held := await self._permits.holding(self._held.since_s)) is not None:
                if held.since_s > self._held.since_s:
                    takes = not frozenset(self._held.units) <= frozenset(held.units)
                    self._held = held
                    self._clear_said.clear()
                    tell(UnitsChanged(frozenset(held.units)))
                    if takes:
                        await self._clear_said.wait()
        except RunFailed as error:
            failed(error)

    async def _take_over(
        self, taking: TakeOver, engines: list[EngineHandle], version: str, tell: Callable[[EngineNews], None]
    ) -> None:
        assert self._change is not None
        try:
            async with self._moving:
                if taking.over or not await taking.carry_out(version):
                    return
                self._change.come(engines)
        except Exception as error:  # noqa: BLE001 - a trainer that died ends the round by itself
            if classify(error) is not Fault.ACTOR:
                tell(failure(error, "engines that got their units back"))
            return
        for engine in engines:
            if engine.alive:
                tell(EngineBack(engine))

    async def _give(self) -> None:
        """Leave the devices of engines on units that the job does not hold."""
        assert self._change is not None
        names = self._change.names_out
        await self._turns.in_round(self._run, lambda holders, states, _: to_giving(holders, states, names), names)

    async def _clear(self, since_s: float) -> None:
        assert self._change is not None
        if self._change.paused:
            self._end_taking()
        async with self._moving:
            await self._give()
        await self._permits.cleared(since_s)
        self._clear_said.set()

    def _end_taking(self) -> None:
        for taking in self._taking:
            taking.over = True

    async def close(self, patience_s: float | None = None) -> None:
        """The round is over, and nothing of it decodes: what it still has to say is said."""
        self._end_taking()
        if self._watch is not None:
            self._watch.cancel()
        await self._calls.settle(patience_s)
        if self._change is None:
            return
        held: HeldUnits | None = self._held
        if self._where.pauses or self._change.said_s is not None:
            with contextlib.suppress(RunFailed):  # then the next word to the actor says so
                held = await self._permits.holding()  # units may have been taken of which the round has not heard
        held = self._held if held is None else held
        self._change.over(frozenset(held.units))
        self.paused_s = self._change.paused_s
        if self._change.to_clear:
            self._calls.begin(self._clear(held.since_s))
            await self._calls.settle(patience_s)

    def tell(self, run: TurnsOf, samples: Iterable[RolloutSample]) -> None:
        """Write into the run's trace what happened; seconds from the round's start."""
        change = self._change
        if change is None or (change.said_s is None and not change.refused and not change.changes):
            return
        run.event(
            "units",
            step=run.step_number + 1,
            tail_s=None if change.said_s is None else round(change.said_s, 6),
            fits=change.said_s is not None or not change.refused,
            began=[engine.name for engine in self.here],
            changes=[[round(at_s, 6), names] for at_s, names in change.changes],
            paused_s=round(self.paused_s, 6),
            moved=sum(sample.moves > 0 for sample in samples),
        )


def _on(engines: Sequence[EngineHandle], where: EngineUnits, held: HeldUnits) -> list[EngineHandle]:
    units = frozenset(held.units)
    return [engine for engine in engines if where.of_engine[engine.name] <= units]


async def round_units(
    run: TurnsOf,
    permits: TurnUnits,
    where: EngineUnits,
    engines: Sequence[EngineHandle],
    turns: DeviceTurns,
    give_all: GiveAll,
) -> RoundUnits:
    """The units of the round that a run begins on `engines`, in its turn; waits until it holds those of one of them.
    Raises RunFailed."""
    held = await units_held(permits, lambda held: bool(_on(engines, where, held)))
    if held is None:
        raise RunFailed("the group has taken the turn of this rollout away")
    return RoundUnits(run, permits, where, engines, held, turns, give_all)


async def units_held(permits: TurnUnits, enough: Callable[[HeldUnits], bool]) -> HeldUnits | None:
    """Wait until a rollout of which nothing runs yet holds enough units; None: its turn is gone. Raises RunFailed."""
    since_s = -1.0
    while (held := await permits.holding(since_s)) is not None:
        if enough(held):
            return held
        if not held.units and held.since_s > since_s:
            await permits.cleared(held.since_s)
        since_s = held.since_s
    return None
