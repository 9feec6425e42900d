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
- `released` is called once for each time that units were taken, when nothing decodes on them any more;
- one change follows another: the round hears of a change only when nothing decodes any more on what the last one took.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from ...plans.yaml.errors import RunFailed
from ...rounds.hand_over import HandOver
from ...rounds.step_order import to_giving
from ..engines.engine_handle import EngineBack, EngineHandle
from ..memory.device_turns import DeviceTurns, TurnsOf
from ..processes.actors import UnawaitedCalls
from ..processes.faults import ErrorClass, classify, failure
from .engine_change import GiveAll, TakeOver, tokens_held
from .round_lever import LeverDecision, OpenRound, Releases, RoundLever
from .round_samples import RolloutResult
from .sample_ledger import SampleLedger


class UnitHooks(NamedTuple):
    """What hears of it: the tail is reached, taken units are clear, these engines are to come."""

    tail_reached: Callable[[], None]
    released: Callable[[], None]
    coming: Callable[[list[EngineHandle]], None]


class UnitChange:
    """The changes of one round's engines.

    Args:
        engines: of the round; elsewhere an engine is its index here.
        units: of each engine.
        held: units that the job holds when the round begins.
        keep: how many of them its tail would keep, the first ones; 0: all.
        decision: when the tail is reached; None: it is never said.
        spreads: whether engines that come get samples of the others from here; else the placement sees to it.

    Attributes:
        reported_s: when the tail was said, in seconds from the round's start; None: it was not.
        refused: whether it was not said at some milestone since what ran did not fit.
        changes: (seconds from the round's start, names of the engines that decode on, none in a pause) of each change.
        paused_s: seconds for which the round stood.
    """

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        units: Sequence[frozenset[int]],
        held: frozenset[int],
        keep: int,
        decision: HandOver | None,
        ledger: SampleLedger,
        hooks: UnitHooks,
        *,
        spreads: bool,
    ) -> None:
        self.reported_s: float | None = None
        self.changes: list[tuple[float, list[str]]] = []
        self.paused_s = 0.0
        self._engines, self._units, self._held, self._keep = engines, units, held, keep
        self._decision, self._ledger, self._hooks, self._spreads = decision, ledger, hooks, spreads
        self._asking = False
        self._coming: set[int] = set()  # and cannot decode yet
        self._came: set[int] = set()  # and have no samples of the others yet
        self.to_release = False
        """Whether units were taken on which something may still decode."""

    @property
    def out(self) -> frozenset[int]:
        """Engines on units that the job does not hold."""
        return frozenset(number for number, units in enumerate(self._units) if not units <= self._held)

    @property
    def closed(self) -> frozenset[int]:
        """Engines that get no samples now."""
        return self.out | self._coming

    @property
    def paused(self) -> bool:
        """Whether the job holds the units of no engine."""
        return len(self.out) == len(self._engines)

    @property
    def under_way(self) -> bool:
        """Whether samples wait for engines that are to come: in a pause, and until the first engine is back after it;
        else others decode meanwhile."""
        return len(self.out | self._came) == len(self._engines)

    @property
    def refused(self) -> bool:
        """See the class."""
        return self._decision is not None and self._decision.refused

    def scored(self, count: int) -> bool:
        """So many more samples went to be scored; whether to `ask` the engines now."""
        if self._decision is None:
            return False
        due = [self._decision.sample_finished() for _ in range(count)]
        if not any(due) or self._asking or self.paused:
            return False
        self._asking = True
        return True

    async def ask(self) -> LeverDecision:
        """Ask the engines what they hold. The tail has the KV tokens of those that it would keep, shared out among the
        planned number of them; none (-1) if one of them is away."""
        assert self._decision is not None
        kept = frozenset(sorted(self._held)[: self._keep])
        staying = [engine for engine, units in zip(self._engines, self._units, strict=True) if units <= kept]
        tokens = await tokens_held([engine for number, engine in enumerate(self._engines) if number not in self.out])
        capacity = -1
        if staying and all(engine.alive for engine in staying):
            capacity = sum(engine.facts.kv_capacity_tokens for engine in staying) // self._decision.stay
        return LeverDecision(partial(self._decide, tokens, capacity))

    def _decide(self, held: dict[str, int], capacity: int) -> Releases:
        """Report the tail if what is held fits; no request is released before the group takes units."""
        assert self._decision is not None
        self._asking = False
        if self.paused:  # asked before; it is due again with the next sample
            return []
        running = self._ledger.running_tokens(held)
        if self._decision.decide(sum(running), len(running), capacity):
            self.reported_s = self._ledger.now_s()
            self._hooks.tail_reached()
        return []

    @property
    def names_out(self) -> list[str]:
        """Names of the engines on units that the job does not hold."""
        return [self._engines[number].name for number in sorted(self.out)]

    def changed(self, units: frozenset[int]) -> Releases:
        """The job holds these units from now on; returns the requests to release, by engine."""
        if units == self._held:
            return []
        before, paused = self.out, self.paused
        self.to_release |= not self._held <= units
        self._held = units
        leaving, coming = self.out - before, before - self.out
        self._coming, self._came = (self._coming | coming) - leaving, (self._came | coming) - leaving
        decoding = [engine.name for number, engine in enumerate(self._engines) if number not in self.out]
        self.changes.append((self._ledger.now_s(), decoding))
        if paused and coming and self.reported_s is not None:
            self._hooks.tail_reached()
        if coming:
            self._hooks.coming([self._engines[number] for number in sorted(coming)])
        return [(number, self._ledger.requests_on(number)) for number in sorted(leaving)]

    def come(self, engines: Sequence[EngineHandle]) -> None:
        """What led these engines to decoding is over: those that live and have the weights can decode."""
        self._coming -= {number for number, engine in enumerate(self._engines) if engine in engines}

    def resumed(self, number: int) -> Releases:
        """An engine is up and has the weights; returns requests that others release for it, if it came with units."""
        self.paused_s += self._ledger.go_on()
        if number not in self._came:
            return []
        self._came.discard(number)
        up = [other for other, engine in enumerate(self._engines) if other not in self.out and engine.alive]
        if not self._spreads or not up:
            return []
        fair = -(-sum(self._ledger.running(set(up)).values()) // len(up))
        return [(other, self._ledger.requests_on(other)[fair:]) for other in up]

    def look(self) -> None:
        """Tell it if nothing decodes any more on units that were taken."""
        if self.to_release and not any(self._ledger.has_running(number) for number in self.out):
            self.to_release = False
            self._hooks.released()
            if self.paused:
                self._ledger.stand()

    def over(self, units: frozenset[int]) -> None:
        """The round is over; of the units that it held, the job holds these yet."""
        self.paused_s += self._ledger.go_on()
        self.to_release |= not self._held <= units
        self._held &= units


class HeldUnits(Protocol):
    """What a turn holds since when."""

    @property
    def units(self) -> tuple[int, ...]:
        """Its units; none while it is paused."""

    @property
    def since_s(self) -> float:
        """Since which second."""


class PhaseUnits(Protocol):
    """A job's side of its group (groups/permit_actor.py)."""

    async def holding(self, since_s: float = -1.0) -> HeldUnits | None:
        """The turn that runs; waits a while for other units than since `since_s`. Raises RunFailed."""

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


class RoundUnits(RoundLever):
    """The units of one round of a run.

    `samples`, which are to be trained, is set before `begin`. `here`: engines on the units that it begins with, at
    least one. `paused_s`: after `close`, seconds for which the round stood since it was paused.
    """

    def __init__(
        self,
        run: TurnsOf,
        permits: PhaseUnits,
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

    def begin(self, opened: OpenRound) -> None:
        """The round has all its engines, of which those on units that the job holds decode."""

        def failed(error: Exception) -> None:
            opened.tell(failure(error, "permits of the group"))

        def coming(engines: list[EngineHandle]) -> None:
            taking = TakeOver(self._run, engines, self._turns, self._give_all)
            self._taking.append(taking)
            self._calls.begin(self._take_over(taking, engines, opened))

        engines, keep = opened.engines, self._where.keep
        spec = self._where.tail_of(engines)
        decision = None if spec is None else HandOver(spec, self.samples, len(engines))
        hooks = UnitHooks(
            lambda: self._calls.begin(self._permits.tail(), failed),
            lambda: self._calls.begin(self._clear(self._held.since_s), failed),
            coming,
        )
        units, held = [self._where.of_engine[engine.name] for engine in engines], frozenset(self._held.units)
        change = UnitChange(engines, units, held, keep, decision, opened.ledger, hooks, spreads=opened.spreads)
        opened.change = self._change = change
        if change.out:
            self._calls.begin(self._give(), failed)  # none of them is started meanwhile
        self._watch = asyncio.create_task(self._follow(opened, failed), name=f"units of {opened.version}")

    async def _follow(self, opened: OpenRound, failed: Callable[[Exception], None]) -> None:
        assert self._change is not None
        try:
            while (held := await self._permits.holding(self._held.since_s)) is not None:
                if held.since_s > self._held.since_s:
                    takes = not frozenset(self._held.units) <= frozenset(held.units)
                    self._held = held
                    self._clear_said.clear()
                    opened.tell(LeverDecision(partial(self._change.changed, frozenset(held.units))))
                    if takes:
                        await self._clear_said.wait()
        except RunFailed as error:
            failed(error)

    async def _take_over(self, taking: TakeOver, engines: list[EngineHandle], opened: OpenRound) -> None:
        assert self._change is not None
        try:
            async with self._moving:
                if taking.over or not await taking.carry_out(opened.version):
                    return
                self._change.come(engines)
        except Exception as error:  # noqa: BLE001 - a trainer that died ends the round by itself
            if classify(error) is not ErrorClass.ACTOR:
                opened.tell(failure(error, "engines that got their units back"))
            return
        for engine in engines:
            if engine.alive:
                opened.tell(EngineBack(engine))

    async def _give(self) -> None:
        """Leave the devices of engines on units that the job does not hold."""
        assert self._change is not None
        names = self._change.names_out
        await self._turns.in_round(self._run, partial(to_giving, engines=names), names)

    async def _clear(self, since_s: float) -> None:
        assert self._change is not None
        if self._change.paused:
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
        if self._change is None:
            return
        held: HeldUnits | None = self._held
        if self._where.pauses or self._change.reported_s is not None:
            with contextlib.suppress(RunFailed):  # then the next word to the actor says so
                held = await self._permits.holding()  # units may have been taken of which the round has not heard
        held = self._held if held is None else held
        self._change.over(frozenset(held.units))
        self.paused_s = self._change.paused_s
        if self._change.to_release:
            self._calls.begin(self._clear(held.since_s))
            await self._calls.settle(patience_s)

    def report(self, run: TurnsOf, result: RolloutResult) -> None:
        """What happened; seconds from the round's start."""
        change = self._change
        if change is None or (change.reported_s is None and not change.refused and not change.changes):
            return
        run.event(
            "units",
            step=run.step_number + 1,
            tail_s=None if change.reported_s is None else round(change.reported_s, 6),
            fits=change.reported_s is not None or not change.refused,
            began=[engine.name for engine in self.here],
            changes=[[round(at_s, 6), names] for at_s, names in change.changes],
            paused_s=round(self.paused_s, 6),
            moved=result.moved,
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
    """The units of the round that a run begins on `engines`, in its turn; waits until it holds those of one of them.
    Raises RunFailed."""
    held = await units_held(permits, lambda held: bool(_on(engines, where, held)))
    if held is None:
        raise RunFailed("the group has taken the turn of this rollout away")
    return RoundUnits(run, permits, where, engines, held, turns, give_all)


async def units_held(permits: PhaseUnits, enough: Callable[[HeldUnits], bool]) -> HeldUnits | None:
    """Wait until a rollout of which nothing runs yet holds enough units; None: its turn is gone. Raises RunFailed."""
    since_s = -1.0
    while (held := await permits.holding(since_s)) is not None:
        if enough(held):
            return held
        if not held.units and held.since_s > since_s:
            await permits.released(held.since_s)
        since_s = held.since_s
    return None
