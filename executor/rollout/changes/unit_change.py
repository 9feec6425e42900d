"""Engines of a round whose job gets other units of its co-execution group in mid-round; the group decides which.

At the planned share of its samples the round says that its tail is reached (rounds/hand_over.py). When the group then
gives units to another job, their samples go on on the units that are kept, their tokens kept; when it gives units back,
their engines get samples of the others. When the group takes all units, the round is paused: its samples wait, their
tokens kept, until it gives units back. Invariants:
- an engine gets samples only while the job holds all units that the engine is on;
- the tail is said once, and once more after a pause, in which the group may not have heard it; and only if what runs
  then fits into the KV of the engines that would decode on;
- the round's seconds stand from when a pause is clear until an engine decodes again;
- `cleared` is told, once for each time that units were taken, when nothing decodes on them any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....rounds.hand_over import HandOver
from ...engines.engine_handle import EngineHandle
from ..sample_ledger import SampleLedger
from .engine_change import Held, held_tokens, running_tokens


class UnitsChanged(NamedTuple):
    """The units that the job holds from now on."""

    units: frozenset[int]


class UnitHooks(NamedTuple):
    """What hears of it: the tail is reached, taken units are clear, these engines are to come."""

    said: Callable[[], None]
    cleared: Callable[[], None]
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
        said_s: when the tail was said, in seconds from the round's start; None: it was not.
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
        self.said_s: float | None = None
        self.changes: list[tuple[float, list[str]]] = []
        self.paused_s = 0.0
        self._engines, self._units, self._held, self._keep = engines, units, held, keep
        self._decision, self._ledger, self._hooks, self._spreads = decision, ledger, hooks, spreads
        self._asking = False
        self._coming: set[int] = set()  # and cannot decode yet
        self._came: set[int] = set()  # and have no samples of the others yet
        self.to_clear = False
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

    async def ask(self) -> Held:
        """What the engines hold, and the KV tokens of those that the tail would keep, shared out among the planned
        number of them; -1 if one of them is away."""
        assert self._decision is not None
        kept = frozenset(sorted(self._held)[: self._keep])
        staying = [engine for engine, units in zip(self._engines, self._units, strict=True) if units <= kept]
        answers = await asyncio.gather(*(held_tokens(e) for n, e in enumerate(self._engines) if n not in self.out))
        capacity = -1
        if staying and all(engine.alive for engine in staying):
            capacity = sum(engine.facts.kv_capacity_tokens for engine in staying) // self._decision.stay
        return Held({name: tokens for held in answers for name, tokens in held.items()}, capacity)

    def decide(self, held: Held) -> list[tuple[int, list[str]]]:
        """Say the tail if what is held fits; no request is released before the group takes units."""
        assert self._decision is not None
        self._asking = False
        if self.paused:  # asked before; it is due again with the next sample
            return []
        running = running_tokens(held, self._ledger)
        if self._decision.decide(sum(running), len(running), held.capacity_tokens):
            self.said_s = self._ledger.now_s()
            self._hooks.said()
        return []

    @property
    def names_out(self) -> list[str]:
        """Names of the engines on units that the job does not hold."""
        return [self._engines[number].name for number in sorted(self.out)]

    def changed(self, units: frozenset[int]) -> list[tuple[int, list[str]]]:
        """The job holds these units from now on; returns the requests to release, by engine."""
        if units == self._held:
            return []
        before, paused = self.out, self.paused
        self.to_clear |= not self._held <= units
        self._held = units
        leaving, coming = self.out - before, before - self.out
        self._coming, self._came = (self._coming | coming) - leaving, (self._came | coming) - leaving
        decoding = [engine.name for number, engine in enumerate(self._engines) if number not in self.out]
        self.changes.append((self._ledger.now_s(), decoding))
        if paused and coming and self.said_s is not None:
            self._hooks.said()
        if coming:
            self._hooks.coming([self._engines[number] for number in sorted(coming)])
        return [(number, self._ledger.requests_on(number)) for number in sorted(leaving)]

    def come(self, engines: Sequence[EngineHandle]) -> None:
        """What led these engines to decoding is over: those that live and have the weights can decode."""
        self._coming -= {number for number, engine in enumerate(self._engines) if engine in engines}

    def resumed(self, number: int) -> list[tuple[int, list[str]]]:
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
        if self.to_clear and not any(self._ledger.has_running(number) for number in self.out):
            self.to_clear = False
            self._hooks.cleared()
            if self.paused:
                self._ledger.stand()

    def over(self, units: frozenset[int]) -> None:
        """The round is over; of the units that it held, the job holds these yet."""
        self.paused_s += self._ledger.go_on()
        self.to_clear |= not self._held <= units
        self._held &= units
