"""What a lever of the plan (streaming, a tail, drafts, balance, a group's units) may do to a round in progress.

A round is opened, each of its levers hooks in (`RoundLever.begin`), and it is driven to its end (live_round.py). While
the round goes on, no lever acts by itself: it sends the round a message (`OpenRound.tell`), and the round handles its
messages one after another.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ...rounds.balancing.longest_first import Balance, LongestFirst
from ...rounds.balancing.placement import SamplePlacement
from ...rounds.drafts.run_ahead import RunAhead
from ...rounds.hand_over import HandOver
from ...rounds.machines.round import Round
from ..engines.engine_handle import EngineHandle, EngineNews
from ..engines.messages import Request
from ..memory.device_turns import TurnsOf
from ..processes.actors import UnawaitedCalls
from ..processes.faults import ActorFailed
from .sample_ledger import SampleLedger

Releases = list[tuple[int, list[str]]]
"""Requests that engines are to give back, by number of the engine in its round."""


class LeverDecision(NamedTuple):
    """Message of a lever that can decide now: when the round handles it, it calls `releases` for the decision."""

    releases: Callable[[], Releases]


class SamplesAhead:
    """Samples of one round that are decoded ahead, as drafts for rounds to come (rounds/drafts/run_ahead.py).

    They are no samples of the round: its machine and its ledger know nothing of them, nothing of them is scored or
    trained, and the round's end stops those that still decode.

    Args:
        rule: decides.
        ledger: of the round, whose prompts, tag, temperature and sampling rules they share.
        most_tokens: of a response.
    """

    def __init__(self, rule: RunAhead, ledger: SampleLedger, most_tokens: int) -> None:
        self._rule, self._ledger, self._most_tokens = rule, ledger, most_tokens
        self._decoding: dict[str, int] = {}
        self.prompt_of: dict[str, str] = {}
        """By id of a request: its prompt."""

    def fill(self, running: Mapping[int, int], finished: int) -> list[tuple[int, Request]]:
        """By engine, samples of the round that decode on it, and whether any has `finished`; returns what is to begin,
        each with its engine."""
        if finished:
            self._rule.sample_finished()
        begun = []
        for engine, prompt in self._rule.fill(running):
            name = f"{self._ledger.tag}/ahead.{len(self.prompt_of)}"
            self.prompt_of[name], self._decoding[name] = prompt, engine
            request = Request(
                name, self._ledger.prompts[prompt].tokens, self._most_tokens,
                temperature=self._ledger.temperature, prompt_id=prompt, rules=self._ledger.rules,
            )  # fmt: skip
            begun.append((engine, request))
        return begun

    def heard(self, request_id: str) -> None:
        """A request has ended; ids that are none of these are ignored."""
        engine = self._decoding.pop(request_id, None)
        if engine is not None:
            self._rule.ended(engine)

    def lose(self, engine: int) -> None:
        """An engine is gone, and what it decoded ahead with it."""
        for name in [name for name, place in self._decoding.items() if place == engine]:
            self.heard(name)

    def stop(self) -> dict[int, list[str]]:
        """The requests to abort at the round's end, by engine."""
        aborts: dict[int, list[str]] = {}
        for name, engine in self._decoding.items():
            aborts.setdefault(engine, []).append(name)
        self._decoding.clear()
        return aborts


Prepare = Callable[[EngineHandle, Iterable[Request], UnawaitedCalls, Callable[[Exception], None]], None]
"""Calls an engine with all that it must know before it decodes requests; the last argument hears errors."""


@dataclass
class OpenRound:
    """A round that begins, as its levers see it; those that have something to do set a hook.

    Attributes:
        machine: decides on samples.
        engines: those of its tail are the last; elsewhere an engine is its index here.
        ledger: of its samples.
        version: of the weights that decode it.
        tell: has the round hear of engines, of a decision, or of the error that ends it.
        spreads: whether engines that come in mid-round are to get samples of the others; else its placement sees to it.
        change: changes its engines.
        on_ready: hears each draw that is certain to be trained.
        prepare: is called before requests go to an engine.
        ahead: samples of rounds to come, for engines with places to spare.
    """

    machine: Round
    engines: list[EngineHandle]
    ledger: SampleLedger
    version: str
    tell: Callable[[EngineNews | Exception | LeverDecision], None]
    spreads: bool = True
    change: EngineChange | None = None
    on_ready: Callable[[int], None] | None = None
    prepare: Prepare | None = None
    ahead: SamplesAhead | None = None


class RoundLever:
    """A lever in one round; it overrides what it has something to do in. `engines`: further ones that it may use."""

    engines: Sequence[EngineHandle] = ()

    def placement(self, engines: int) -> SamplePlacement | None:
        """What decides which samples start, and on which of so many engines; None: it leaves that to others."""
        return None

    def begin(self, opened: OpenRound) -> None:
        """The round begins; levers are asked in the order of their list."""

    def over(self) -> None:
        """The round's machine is done; comes before anything else is awaited."""

    async def end(self, opened: OpenRound) -> None:
        """The round is done, and nothing of it decodes."""

    def abandon(self) -> None:
        """The round is left, or has failed."""

    async def close(self, patience_s: float | None) -> None:
        """The round is over, be it done or left; engines are waited for so many seconds at most (None: as long as it
        takes)."""

    async def trained(self) -> list[int]:
        """Draws of the round whose gradients are summed already, by number. Raises TrainerDied, RunFailed."""
        return []

    def report(self, run: TurnsOf, moved: int) -> None:
        """Write into the run's trace what was done; `moved`: samples of the round that went on on another engine."""


async def tokens_held(engines: Iterable[EngineHandle]) -> dict[str, int]:
    """Tokens at most that each request on engines holds; none of one that is away: its samples are drawn again."""

    async def held(engine: EngineHandle) -> dict[str, int]:
        try:
            return await engine.held_tokens() if engine.alive else {}
        except ActorFailed:
            return {}

    answers = await asyncio.gather(*map(held, engines))
    return {name: tokens for each in answers for name, tokens in each.items()}


class EngineChange(RoundLever, ABC):
    """A lever that has engines of its round stop or begin to decode while the round goes on.

    Args:
        decision: says, by what runs, whether and when; None: never.

    Attributes:
        decided_s: when it was decided, in seconds from the round's start; None: not yet.
    """

    def __init__(self, decision: HandOver | None) -> None:
        self.decided_s: float | None = None
        self._decision, self._asking = decision, False
        self._round: OpenRound | None = None

    def begin(self, opened: OpenRound) -> None:
        """The round asks this lever about its engines from now on."""
        opened.change, self._round = self, opened

    @property
    def _opened(self) -> OpenRound:
        assert self._round is not None, "the round has not begun"
        return self._round

    @property
    @abstractmethod
    def out(self) -> frozenset[int]:
        """Engines that nobody waits for."""

    @property
    def closed(self) -> frozenset[int]:
        """Engines that get no samples now."""
        return self.out

    @property
    def paused(self) -> bool:
        """Whether no engine of the round may decode."""
        return len(self.out) == len(self._opened.engines)

    @property
    @abstractmethod
    def under_way(self) -> bool:
        """Whether samples without an engine wait for new ones."""

    def resumed(self, number: int) -> Releases:
        """An engine is up and has the weights; returns what others are to release for it."""
        return []

    def look(self) -> None:
        """Something may have ended."""

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
        """Ask the engines what they hold."""
        engines = self._opened.engines
        tokens = await tokens_held([engine for number, engine in enumerate(engines) if number not in self.closed])
        return LeverDecision(partial(self._decide, tokens))

    def _decide(self, held: Mapping[str, int]) -> Releases:
        """Whether engines stop decoding, by the tokens that requests hold which have not ended meanwhile."""
        assert self._decision is not None
        self._asking = False
        if self.paused:  # asked before; it is due again with the next sample
            return []
        running = self._opened.ledger.running_tokens(held)
        if not self._decision.decide(sum(running), len(running), self._capacity()):
            return []
        self.decided_s = self._opened.ledger.now_s()
        return self._decided()

    @abstractmethod
    def _capacity(self) -> int:
        """KV tokens of one engine that decodes on; -1 if the change may not be made now."""

    def _kv_of_each(self, staying: Iterable[EngineHandle]) -> int:
        """KV tokens of the engines that decode on, divided by how many the plan has of them. Each engine counts as the
        smallest; one that was given up has none. -1 while one of the others is away, or if all were given up."""
        assert self._decision is not None
        left = [engine for engine in staying if not engine.given_up]
        if not left or not all(engine.alive for engine in left):
            return -1
        return min(engine.facts.kv_capacity_tokens for engine in left) * len(left) // self._decision.stay

    @abstractmethod
    def _decided(self) -> Releases:
        """It is decided; returns the requests to release, by engine."""


class BalancedRound(RoundLever):
    """Samples start longest expected first, at most `at_once` on an engine at a time."""

    def __init__(self, balance: Balance, at_once: int) -> None:
        self._balance, self._at_once = balance, at_once
        self._prompts: Sequence[str] = ()

    def placement(self, engines: int) -> SamplePlacement:
        """By what was recorded of the round's prompts."""
        return LongestFirst(engines, self._balance, self._at_once)

    def begin(self, opened: OpenRound) -> None:
        """Know whose samples these are."""
        self._prompts = opened.machine.taken

    def report(self, run: TurnsOf, moved: int) -> None:
        """How many of the round's prompts were known."""
        known = sum(prompt in self._balance.recorded.expected for prompt in self._prompts)
        run.event("balanced", step=run.step_number + 1, prompts=len(self._prompts), known=known)
