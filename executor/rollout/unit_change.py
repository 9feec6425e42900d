"""Nodes that a round's job gets from its co-execution group, or gives up, while the round goes on; the group decides.

A rollout may begin on fewer nodes than planned, because another job's tail still decodes on the others, and get these
later. At the planned share of its samples it reports that its tail is reached (rounds/hand_over.py). The group may then
give nodes to another job: their samples go on on the nodes that are kept, their tokens kept. When it gives nodes back,
their engines get samples of the others. For a more urgent job it takes all nodes: the round is paused, and its samples
wait, their tokens kept. A node, or what of it is shared out at once, is a unit (plans/schema/groups_plan.py).
Invariants:
- an engine gets samples only while the job holds all units that the engine is on;
- the tail is reported once, and once more after a pause, in which the group may not have heard it; and only if what
  runs then fits into the KV of the engines that would decode on;
- the round's clock stands from when a pause is clear until an engine decodes again;
- `PhaseUnits.released` is called once for each time that units were taken, when nothing decodes on them any more;
- one change follows another: the round hears of a change only when nothing decodes any more on what the last one took.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from ...plans.yaml.errors import RunFailed
from ...rounds.hand_over import HandOver
from ...rounds.step_order import to_giving
from ..engines.engine_handle import EngineHandle
from ..memory.device_turns import DeviceTurns, TurnsOf
from ..processes.actors import UnawaitedCalls
from ..processes.faults import failure
from .engine_change import GiveAll, TakeOver
from .round_lever import EngineChange, LeverDecision, OpenRound, Releases


class HeldUnits(Protocol):
    """The units that a phase holds, and since when."""

    @property
    def units(self) -> tuple[int, ...]:
        """Its units; none while it is paused."""

    @property
    def since_s(self) -> float:
        """Since which second."""


class PhaseUnits(Protocol):
    """A job's side of its group (groups/permit_actor.py)."""

    async def holding(self, since_s: float = -1.0) -> HeldUnits | None:
        """The phase that runs; waits a while for other units than since `since_s`. Raises RunFailed."""

    async def tail(self) -> None:
        """The tail is reached. Raises RunFailed."""

    async def released(self, since_s: float) -> None:
        """Nothing decodes on what was taken until `since_s`. Raises RunFailed."""


class UnitsTail(NamedTuple):
    """The tail of a round in a group, as `HandOver` asks for it (`PlannedEngineChange`): it is reached at a share of
    the samples that the workload states, and the group then may take the units of all but `staying` engines."""

    staying: int
    at_finished: float
    growth_tokens: int = 0

    def stay(self, engines: int) -> int:
        """How many of the round's engines decode on."""
        return self.staying


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

    def tail_of(self, engines: Sequence[EngineHandle]) -> UnitsTail | None:
        """When the tail of a round on these engines is reached; None: never."""
        kept = frozenset(sorted(self.all_units)[: self.keep])
        leaving = sum(not self.of_engine[engine.name] <= kept for engine in engines)
        if self.at_finished is None or not self.keep or not 0 < leaving < len(engines):
            return None
        return UnitsTail(len(engines) - leaving, self.at_finished)


class RoundUnits(EngineChange):
    """The units of one round of a run.

    `samples`, which are to be trained, is set before `begin`. `here`: engines on the units that it begins with, at
    least one. `paused_s`: seconds for which the round stood, all of them after `close`. `decided_s`: when the tail was
    reported.
    """

    def __init__(
        self,
        run: TurnsOf,
        permits: PhaseUnits,
        where: EngineUnits,
        engines: Sequence[EngineHandle],
        phase: HeldUnits,
        turns: DeviceTurns,
        give_all: GiveAll,
    ) -> None:
        super().__init__(None)
        self.samples, self.paused_s = 0, 0.0
        self.here = _on(engines, where, phase)
        self._run, self._permits, self._where, self._turns, self._give_all = run, permits, where, turns, give_all
        self._phase = phase  # as the group told it last
        self._held = frozenset(phase.units)  # as the round has heard of it
        self._changes: list[tuple[float, list[str]]] = []  # when, and the engines that decode from then on
        self._coming: set[int] = set()  # and cannot decode yet
        self._came: set[int] = set()  # and have no samples of the others yet
        self._to_release = False  # whether units were taken on which something may still decode
        self._watch: asyncio.Task[None] | None = None
        self._taking: list[TakeOver] = []
        self._moving = asyncio.Lock()  # engines come, or go to sleep
        self._clear_said = asyncio.Event()
        self._calls = UnawaitedCalls()

    # -- the round's questions -----------------------------------------------------------------------------------------

    def begin(self, opened: OpenRound) -> None:
        """The round has all its engines, of which those on units that the job holds decode."""
        super().begin(opened)
        spec = self._where.tail_of(opened.engines)
        self._decision = None if spec is None else HandOver(spec, self.samples, len(opened.engines))
        if self.out:
            self._call(self._give())  # none of them is started meanwhile
        self._watch = asyncio.create_task(self._follow(), name=f"units of {opened.version}")

    def _units(self, engine: EngineHandle) -> frozenset[int]:
        return self._where.of_engine[engine.name]

    @property
    def out(self) -> frozenset[int]:
        """Engines on units that the job does not hold."""
        engines = self._opened.engines
        return frozenset(number for number, engine in enumerate(engines) if not self._units(engine) <= self._held)

    @property
    def closed(self) -> frozenset[int]:
        """Engines that get no samples now."""
        return self.out | self._coming

    @property
    def under_way(self) -> bool:
        """Whether samples wait for engines that are to come: in a pause, and until the first engine is back after it;
        else others decode meanwhile."""
        return len(self.out | self._came) == len(self._opened.engines)

    def _capacity(self) -> int:
        kept = frozenset(sorted(self._held)[: self._where.keep])
        return self._kv_of_each(engine for engine in self._opened.engines if self._units(engine) <= kept)

    def _decided(self) -> Releases:
        """Report the tail; no request is released before the group takes units."""
        self._call(self._permits.tail())
        return []

    def _changed(self, units: frozenset[int]) -> Releases:
        """The job holds these units from now on; returns the requests to release, by engine."""
        if units == self._held:
            return []
        engines, ledger, before, paused = self._opened.engines, self._opened.ledger, self.out, self.paused
        self._to_release |= not self._held <= units
        self._held = units
        leaving, coming = self.out - before, before - self.out
        self._coming, self._came = (self._coming | coming) - leaving, (self._came | coming) - leaving
        decoding = [engine.name for number, engine in enumerate(engines) if number not in self.out]
        self._changes.append((ledger.now_s(), decoding))
        if paused and coming and self.decided_s is not None:
            self._call(self._permits.tail())
        if coming:
            self._take_over(sorted(coming))
        return [(number, ledger.requests_on(number)) for number in sorted(leaving)]

    def resumed(self, number: int) -> Releases:
        """An engine is up and has the weights; returns requests that others release for it, if it came with units."""
        ledger = self._opened.ledger
        self.paused_s += ledger.go_on()
        if number not in self._came:
            return []
        self._came.discard(number)
        engines = enumerate(self._opened.engines)
        up = [other for other, engine in engines if other not in self.out and engine.alive]
        if not self._opened.spreads or not up:
            return []
        fair = -(-sum(ledger.running(set(up)).values()) // len(up))
        return [(other, ledger.requests_on(other)[fair:]) for other in up]

    def look(self) -> None:
        """Tell the group if nothing decodes any more on units that were taken."""
        if self._to_release and not any(map(self._opened.ledger.has_running, self.out)):
            self._to_release = False
            self._call(self._clear(self._phase.since_s))
            if self.paused:
                self._opened.ledger.stand()

    # -- the group -----------------------------------------------------------------------------------------------------

    def _call(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a call whose error ends the round."""
        self._calls.begin(call, self._failed)

    def _failed(self, error: Exception) -> None:
        self._opened.tell(failure(error, "permits of the group"))

    async def _follow(self) -> None:
        try:
            while (phase := await self._permits.holding(self._phase.since_s)) is not None:
                if phase.since_s > self._phase.since_s:
                    takes = not frozenset(self._phase.units) <= frozenset(phase.units)
                    self._phase = phase
                    self._clear_said.clear()
                    self._opened.tell(LeverDecision(partial(self._changed, frozenset(phase.units))))
                    if takes:
                        await self._clear_said.wait()
        except RunFailed as error:
            self._failed(error)

    def _take_over(self, numbers: Sequence[int]) -> None:
        """Begin to lead engines to decoding that the job holds the units of again."""
        engines = [self._opened.engines[number] for number in numbers]
        taking = TakeOver(self._run, engines, self._turns, self._give_all)
        self._taking.append(taking)
        self._calls.begin(self._bring_up(taking, numbers))

    async def _bring_up(self, taking: TakeOver, numbers: Sequence[int]) -> None:
        def come() -> None:
            self._coming.difference_update(numbers)

        async with self._moving:
            await taking.bring_up(self._opened, come, "engines that got their units back")

    async def _give(self) -> None:
        """Leave the devices of engines on units that the job does not hold."""
        names = [self._opened.engines[number].name for number in sorted(self.out)]
        await self._turns.in_round(self._run, partial(to_giving, engines=names), names)

    async def _clear(self, since_s: float) -> None:
        if self.paused:
            self._end_taking()
        async with self._moving:
            await self._give()
        await self._permits.released(since_s)
        self._clear_said.set()

    def _end_taking(self) -> None:
        for taking in self._taking:
            taking.over = True

    async def close(self, patience_s: float | None) -> None:
        """The round is over, and nothing of it decodes: what it still has to say is said."""
        self._end_taking()
        if self._watch is not None:
            self._watch.cancel()
        await self._calls.settle(patience_s)
        if self._round is None:
            return
        phase: HeldUnits | None = None
        if self._where.pauses or self.decided_s is not None:
            with contextlib.suppress(RunFailed):  # then the next word to the actor says so
                phase = await self._permits.holding()  # units may have been taken of which the round has not heard
        phase = self._phase if phase is None else phase
        self.paused_s += self._opened.ledger.go_on()
        self._to_release |= not self._held <= frozenset(phase.units)
        self._held &= frozenset(phase.units)
        if self._to_release:
            self._calls.begin(self._clear(phase.since_s))
            await self._calls.settle(patience_s)

    def report(self, run: TurnsOf, moved: int) -> None:
        """What happened; seconds from the round's start."""
        refused = self._decision is not None and self._decision.refused  # what ran did not fit, at some milestone
        if self.decided_s is None and not refused and not self._changes:
            return
        run.event(
            "units",
            step=run.step_number + 1,
            tail_s=None if self.decided_s is None else round(self.decided_s, 6),
            fits=self.decided_s is not None or not refused,
            began=[engine.name for engine in self.here],
            changes=[[round(at_s, 6), names] for at_s, names in self._changes],
            paused_s=round(self.paused_s, 6),
            moved=moved,
        )


def _on(engines: Sequence[EngineHandle], where: EngineUnits, held: HeldUnits) -> list[EngineHandle]:
    units = frozenset(held.units)
    return [engine for engine in engines if where.of_engine[engine.name] <= units]


async def round_units(
    run: TurnsOf,
    permits: PhaseUnits,
    where: EngineUnits,
    engines: Sequence[EngineHandle],
    turns: DeviceTurns,
    give_all: GiveAll,
) -> RoundUnits:
    """The units of the round that a run begins on `engines`, in its phase; waits until it holds those of one of them.
    Raises RunFailed."""
    held = await units_held(permits, lambda held: bool(_on(engines, where, held)))
    if held is None:
        raise RunFailed("the group has ended the phase of this rollout")
    return RoundUnits(run, permits, where, engines, held, turns, give_all)


async def units_held(permits: PhaseUnits, enough: Callable[[HeldUnits], bool]) -> HeldUnits | None:
    """Wait until a rollout of which nothing runs yet holds enough units; None: its phase is over. Raises RunFailed."""
    since_s = -1.0
    while (held := await permits.holding(since_s)) is not None:
        if enough(held):
            return held
        if not held.units and held.since_s > since_s:
            await permits.released(held.since_s)
        since_s = held.since_s
    return None
