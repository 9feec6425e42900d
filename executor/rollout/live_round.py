"""A round in progress: the machine's actions become engine and reward calls, and what happens becomes its events.

Every decision (what to issue, when to stop, what to abort or defer) is the machine's; a live round only carries
messages. Invariants:
- when `stop` returns, nothing of the round decodes and no reward of it is pending;
- only `drive` decides, and calls of one engine are carried out in the order in which it made them: an abort never
  overtakes its submit; an engine that hangs holds up no other;
- the samples of an engine that stops decoding in mid-round go on elsewhere, tokens kept (engine_change.py);
- the samples of an engine that is gone (dead, silent, or alive without decoding) are drawn again. Its replacement is
  the fleet's matter and goes on beside the round, which it joins when it is up; the round's end does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from ...plans.yaml.errors import RunFailed
from ...rounds.machines.events import (
    Abort,
    Action,
    Event,
    Failed,
    Finished,
    Issue,
    Lost,
    ReachedCutoff,
    SampleKey,
    Score,
    Scored,
)
from ..engines.engine_handle import EngineBack, EngineDied, EngineEvents, EngineGivenUp, EngineHandle, EngineNews
from ..engines.messages import EngineEvent, Request
from ..processes.actors import UnawaitedCalls
from ..processes.faults import failure
from ..processes.supervision import LOOK_S
from .round_lever import LeverDecision, OpenRound, Releases
from .round_samples import RolloutResult
from .round_scoring import SampleRewards

GiveWeights = Callable[[EngineHandle, str], Awaitable[None]]
"""Gives weights of that version to an engine. Raises ActorFailed if the engine is gone, or RunFailed."""


LOSSES = 2  # of each sample of a prompt on the average, until further ones count as failures of the prompt

Message = EngineNews | Exception | Scored | Failed | LeverDecision
Inbox = asyncio.Queue[Message]


class LiveRound:
    """One round on its engines: `drive` it to its end, then `stop` it; all messages for it go to `inbox`.

    `opened`: the round, into which its levers have hooked. `max_num_seqs`: samples that an engine decodes at a time
    (None: as many as it was built for); `stall_s`: seconds without any message after which the round fails if nobody
    owes it one.
    """

    def __init__(
        self,
        opened: OpenRound,
        give_weights: GiveWeights,
        rewards: SampleRewards,
        inbox: Inbox,
        *,
        max_num_seqs: int | None,
        stall_s: float,
    ) -> None:
        self._round, self._machine, self._engines, self._ledger = opened, opened.machine, opened.engines, opened.ledger
        self._give_weights, self._rewards, self._inbox, self._stall_s = give_weights, rewards, inbox, stall_s
        self._max_num_seqs = max_num_seqs
        self._sends, self._joins = UnawaitedCalls(), UnawaitedCalls()
        self._joined: dict[str, int] = {}  # the life in which an engine was given weights in the round
        self._restarts: list[str] = []
        self._lost, self._lost_of = Counter[str](), Counter[str]()  # samples that vLLM gave up, by reason and by prompt
        self._ready = 0  # of the machine's ready draws, how many were told
        self._looked_s = 0.0

    # -- messages in ---------------------------------------------------------------------------------------------------

    async def drive(self) -> RolloutResult:
        """Carry messages until the machine says that the round is done. Raises RunFailed."""
        for engine in self._engines:
            if engine.alive and engine.version != self._round.version:  # it came back after the weights were sent
                self._inbox.put_nowait(EngineBack(engine))
        self._apply(self._machine.start())
        self._start()
        while not self._machine.done:
            messages = [await self._next_message()]
            while not self._inbox.empty():
                messages.append(self._inbox.get_nowait())
            actions: list[Action] = []
            for message in messages:
                for event in self._translate(message):
                    actions.extend(self._machine.handle(event))
            self._apply(actions)
            self._start()
            self._look()
            if self._round.change is not None:
                self._round.change.look()
            if self._round.ahead is not None and not self._machine.done:
                running = self._ledger.running(self._alive())
                self._submit(self._round.ahead.fill(running, self._ledger.progress.finished))
        ended_s = self._ledger.now_s()
        rollout_s = self._ledger.last_decode_s or ended_s
        return RolloutResult(rollout_s, max(ended_s - rollout_s, 0.0), self._ledger.samples, self._restarts, self._lost)

    async def _next_message(self) -> Message:
        silent_s = 0.0
        while True:
            try:
                async with asyncio.timeout(LOOK_S):  # wait_for of 3.11 drops a cancellation that comes with a message
                    return await self._inbox.get()
            except TimeoutError:
                silent_s += LOOK_S
            self._look()
            if silent_s >= self._stall_s and self._inbox.empty() and not self._awaited():
                raise RunFailed(f"no event for {silent_s:.0f} s, and nobody is left to wait for")

    def _look(self) -> None:
        """Check that each engine with samples decodes."""
        if self._ledger.now_s() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._ledger.now_s()
        for index, engine in enumerate(self._engines):
            if self._ledger.has_running(index):
                engine.watch_progress()

    def _awaited(self) -> bool:
        """Whether any engine, load or reward still owes a message; each of them has its own deadline."""
        decoding = any(engine.alive and self._ledger.has_running(i) for i, engine in enumerate(self._engines))
        out, under_way = (
            (frozenset(), False)
            if self._round.change is None
            else (self._round.change.out, self._round.change.under_way)
        )
        engines = [engine for index, engine in enumerate(self._engines) if index not in out]
        replaced = not all(engine.alive or engine.given_up for engine in engines)
        return decoding or self._rewards.pending or bool(self._joins) or replaced or under_way

    def _translate(self, message: Message) -> list[Event]:
        """The machine's events for a message; none for a message that is out of date."""
        match message:
            case EngineEvents(_, events):
                return [event for news in events if (event := self._heard(news)) is not None]
            case EngineDied():
                return self._lose(message)
            case EngineBack():
                self._welcome(message)
                return []
            case EngineGivenUp():
                out = frozenset() if self._round.change is None else self._round.change.out
                if all(engine.given_up for index, engine in enumerate(self._engines) if index not in out):
                    raise message.error
                return []
            case Scored() | Failed():
                return [message]
            case LeverDecision():
                self._release(message.releases())
                return []
            case _:
                raise message

    def _heard(self, news: EngineEvent) -> Event | None:
        key = self._ledger.key_of(news.request_id)
        if key is None:
            if self._round.ahead is not None and news.name in ("finished", "lost"):
                self._round.ahead.heard(news.request_id)
            return None
        if news.name == "cutoff":
            return ReachedCutoff(key)
        if news.name == "released":
            return self._move(news, key)
        if news.name == "lost":
            return self._redraw(news.reason, key)
        self._ledger.finish(news, self._round.version)
        return Finished(key, len(self._ledger.samples[key].response_tokens), news.truncated)

    def _redraw(self, reason: str, key: SampleKey) -> Event:
        """A sample that vLLM gave up is drawn again; where that happens to a prompt again and again, it counts as a
        failure, of which a prompt has so many at most."""
        self._ledger.drop(key)
        self._lost[reason] += 1
        prompt = self._ledger.samples[key].prompt_id
        self._lost_of[prompt] += 1
        if self._lost_of[prompt] <= LOSSES * self._machine.group_size:
            return Lost(key)
        return Failed(key, f"vLLM ended {self._lost_of[prompt]} of its samples with {reason!r}")

    def _move(self, news: EngineEvent, key: SampleKey) -> Event | None:
        """A sample that an engine gave back goes on elsewhere, or waits for new engines; with neither, it is lost."""
        if not self._alive() and (self._round.change is None or not self._round.change.under_way):
            self._ledger.drop(key)
            return Lost(key)
        self._ledger.release(news, self._round.version)
        return None

    def _alive(self) -> set[int]:
        """The engines that can take samples, by number."""
        version, closed = self._round.version, self._closed
        return {i for i, e in enumerate(self._engines) if e.alive and e.version == version and i not in closed}

    @property
    def _closed(self) -> frozenset[int]:
        return frozenset() if self._round.change is None else self._round.change.closed

    def _release(self, releases: Releases) -> None:
        """Have engines give requests back."""
        for number, requests in releases:
            if requests:
                self._send(self._engines[number].release(requests))

    def _lose(self, death: EngineDied) -> list[Event]:
        """The samples of a dead engine are lost; its replacement is on its way."""
        if death.engine not in self._engines:
            self._restarts.append(f"{death.engine.name}: {death.reason} (it had no part in this round)")
            return []
        lost = self._ledger.lose(self._engines.index(death.engine))
        if self._round.ahead is not None:
            self._round.ahead.lose(self._engines.index(death.engine))
        self._restarts.append(f"{death.engine.name}: {death.reason} ({len(lost)} samples lost)")
        return [Lost(key) for key in lost]

    def _welcome(self, back: EngineBack) -> None:
        """An engine of this round is up again: it gets the weights; then it may be given what waits for an engine."""
        number = self._engines.index(back.engine) if back.engine in self._engines else None
        if number is None or number in self._closed or not back.engine.alive:
            return
        if back.engine.version == self._round.version:
            if self._round.change is not None:
                self._release(self._round.change.resumed(number))
        elif self._joined.get(back.engine.name) != back.engine.lives:
            self._joined[back.engine.name] = back.engine.lives
            self._joins.begin(self._join(back.engine), partial(self._fail, back.engine.name))

    async def _join(self, engine: EngineHandle) -> None:
        """Not ended with the round: a load that has begun is carried out, and the next one waits for its turn."""
        await self._give_weights(engine, self._round.version)
        self._inbox.put_nowait(EngineBack(engine))

    async def _ask(self, decision: Awaitable[LeverDecision]) -> None:
        self._inbox.put_nowait(await decision)

    def _fail(self, process: str, error: Exception) -> None:
        """End the round with the error of a call; of a process that died the fleet tells."""
        self._inbox.put_nowait(failure(error, process))

    # -- actions out ---------------------------------------------------------------------------------------------------

    def _apply(self, actions: list[Action]) -> None:
        """Carry out actions; a sample that is issued and aborted among them never reaches an engine."""
        dropped = {action.key for action in actions if isinstance(action, Abort)}
        aborts = self._abort([action.key for action in actions if isinstance(action, Abort)])
        for action in actions:
            if isinstance(action, Issue) and action.key not in dropped:
                self._ledger.issue(action)
        for action in actions:
            if isinstance(action, Score) and action.key not in dropped:
                self._rewards.score(self._ledger.request_id(action.key), self._ledger.samples[action.key])
        self._stop_requests(aborts)
        if self._round.on_ready is not None:
            for draw in self._machine.ready[self._ready :]:
                self._round.on_ready(draw)
            self._ready = len(self._machine.ready)
        finished = sum(isinstance(action, Score) for action in actions)
        if self._round.change is not None and self._round.change.scored(finished):
            self._joins.begin(self._ask(self._round.change.ask()), partial(self._fail, "rollout"))

    def _abort(self, keys: list[SampleKey]) -> dict[int, list[str]]:
        """Give up samples and their rewards; the requests that are to be stopped, by engine."""
        aborts: dict[int, list[str]] = {}
        for key in keys:
            if key not in self._ledger.samples:
                continue
            decoding = self._ledger.abort(key)
            if decoding is not None:
                engine, request_id = decoding
                aborts.setdefault(engine, []).append(request_id)
            self._rewards.cancel(self._ledger.request_id(key))
        return aborts

    def _start(self) -> None:
        """Samples that wait start on engines that are alive, as far as they are to start now; engines that have few
        are offered others'."""
        self._submit(self._ledger.start(self._alive()))

    def _submit(self, placed: Iterable[tuple[int, Request]]) -> None:
        """Have engines decode requests, each with the number of its engine; those of one engine go together."""
        batches: dict[int, list[Request]] = {}
        for number, request in placed:
            batches.setdefault(number, []).append(request)
        for number, requests in batches.items():
            if self._round.prepare is not None:
                self._round.prepare(self._engines[number], requests, self._sends, partial(self._fail, "rollout"))
            self._send(self._engines[number].submit(requests, self._round.version, self._max_num_seqs))

    def _stop_requests(self, batches: Mapping[int, list[str]]) -> None:
        """Stop requests, by engine."""
        for number, requests in batches.items():
            self._send(self._engines[number].abort(requests))

    def _send(self, call: Coroutine[Any, Any, None]) -> None:
        """Call an engine. Of one that died the fleet tells, and its samples are drawn again; others end the round."""
        self._sends.begin(call, partial(self._fail, "rollout"))

    async def stop(self, patience_s: float | None = None) -> None:
        """Stop all that still runs of the round. Replacements of engines go on.

        With `patience_s`, engines are waited for so many seconds at most. What was sent to them keeps its turn.
        """
        self._stop_requests(self._abort(self._ledger.decoding()))
        if self._round.ahead is not None:
            self._stop_requests(self._round.ahead.stop())
        # All that will be sent is sent by now: only the decisions of `drive` send.
        await self._sends.settle(patience_s)
