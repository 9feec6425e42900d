"""A round of a plan on another trainer's engines: the machine's actions become requests, and their ends its events.

Every decision (whom to issue, when to stop, what to abort or defer) is the machine's. A long round of `exact` asks for
a sample in two requests, up to the cutoff and on from there: the second continues the first one's tokens under the same
weights, so the sample is distributed as one request's.

Invariants:
- when `drive_round` returns or raises, no request of the round is under way;
- events reach the machine in the order in which requests end; a request that was aborted sends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..plans.yaml.errors import InputError
from ..rounds.machines.events import (
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
from ..rounds.machines.round import Round

S = TypeVar("S")
"""A framework's own object of a sample: prompt, tokens, log-probabilities."""


class EngineGone(Exception):
    """The engine died before the sample ended; nothing that the response caused. The sample is drawn again."""


@dataclass(frozen=True, slots=True)
class DecodedSample(Generic[S]):
    """What an engine has decoded of a sample: response `tokens` in all, and whether the request's limit ended it."""

    sample: S
    tokens: int
    truncated: bool


class Decode(Protocol[S]):
    """Decodes a sample of `issue.prompt` to at most `max_tokens` response tokens in all.

    `before`: what an earlier request has decoded of it, to be continued. A call that is cancelled has its request
    aborted. Raises EngineGone; an InputError ends the round, any other error counts as a failure of the infrastructure.
    """

    def __call__(
        self, issue: Issue, before: DecodedSample[S] | None, max_tokens: int
    ) -> Awaitable[DecodedSample[S]]: ...


async def drive_round(
    machine: Round, decode: Decode[S], score: Callable[[S], Awaitable[float]]
) -> dict[SampleKey, DecodedSample[S]]:
    """Run a round to its end; returns what was decoded, by sample, aborted ones left out. `machine.done` holds then.

    `score`: the reward of a finished sample; where the trainer computes rewards after the rollout, and neither dynamic
    sampling nor a race looks at them, any constant.
    """
    return await _Driver(machine, decode, score).run()


class _Driver(Generic[S]):
    def __init__(self, machine: Round, decode: Decode[S], score: Callable[[S], Awaitable[float]]) -> None:
        self._machine, self._decode, self._score = machine, decode, score
        self._tasks: dict[SampleKey, asyncio.Task[None]] = {}
        self._aborted: set[asyncio.Task[None]] = set()  # cancelled, and not yet over
        self._events: asyncio.Queue[Event | InputError] = asyncio.Queue()
        self._decoded: dict[SampleKey, DecodedSample[S]] = {}

    async def run(self) -> dict[SampleKey, DecodedSample[S]]:
        try:
            self._apply(self._machine.start())
            while not self._machine.done:
                if not self._tasks and self._events.empty():
                    raise AssertionError("the round is not done, and no request of it is under way")
                actions = self._handle(await self._events.get())
                while not self._events.empty():
                    actions += self._handle(self._events.get_nowait())
                self._apply(actions)
        finally:
            for key in list(self._tasks):
                self._cancel(key)
            await asyncio.gather(*self._aborted, return_exceptions=True)
        return self._decoded

    def _handle(self, event: Event | InputError) -> list[Action]:
        if isinstance(event, InputError):
            raise event
        return self._machine.handle(event)

    def _cancel(self, key: SampleKey) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            self._aborted.add(task)
            task.add_done_callback(self._aborted.discard)
            task.cancel()

    def _apply(self, actions: list[Action]) -> None:
        aborted = {action.key for action in actions if isinstance(action, Abort)}
        for key in aborted:
            self._decoded.pop(key, None)
            self._cancel(key)
        for action in actions:
            if action.key in aborted:
                continue
            if isinstance(action, Issue):
                self._begin(action.key, self._decoding(action))
            elif isinstance(action, Score):
                self._begin(action.key, self._scoring(action.key))

    def _begin(self, key: SampleKey, work: Awaitable[Event]) -> None:
        async def carried() -> None:
            event: Event | InputError
            try:
                event = await work
            except InputError as error:
                event = error
            except EngineGone:
                event = Lost(key)
            except Exception as error:  # noqa: BLE001 - the machine counts failures, and reports their reason
                event = Failed(key, f"{type(error).__name__}: {error}")
            self._events.put_nowait(event)

        task = asyncio.ensure_future(carried())
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._tasks.pop(key, None) if self._tasks.get(key) is done else None)

    async def _decoding(self, issue: Issue) -> Event:
        decoded: DecodedSample[S] | None = None
        if issue.cutoff_tokens is not None and issue.cutoff_tokens < issue.max_tokens:
            decoded = await self._decode(issue, None, issue.cutoff_tokens)
            if decoded.truncated:
                self._events.put_nowait(ReachedCutoff(issue.key))
        if decoded is None or decoded.truncated:
            decoded = await self._decode(issue, decoded, issue.max_tokens)
        self._decoded[issue.key] = decoded
        return Finished(issue.key, decoded.tokens, decoded.truncated)

    async def _scoring(self, key: SampleKey) -> Event:
        return Scored(key, await self._score(self._decoded[key].sample))
