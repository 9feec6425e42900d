"""What a round decided for its engines, on its way to them.

Invariants:
- calls of one engine are carried out in the order in which they are made here: an abort never overtakes its submit;
- an engine that hangs holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ..engines.engine_handle import EngineHandle
from ..engines.messages import Request
from .round_messages import Weights


class EngineSends:
    """Calls to the engines of one round, which are numbered in their order.

    `max_num_seqs`: samples that an engine decodes at a time; None: as many as it was built for. `failed` hears the
    error of a call.
    """

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        weights: Weights,
        max_num_seqs: int | None,
        failed: Callable[[Exception, str], None],
    ) -> None:
        self._engines, self._version, self._max_num_seqs = engines, weights.version, max_num_seqs
        self._failed = failed
        self._calls: set[asyncio.Task[None]] = set()

    def submit(self, placed: Iterable[tuple[int, Request]]) -> None:
        """Have engines decode requests, each with the number of its engine; those of one engine go together."""
        batches: dict[int, list[Request]] = {}
        for number, request in placed:
            batches.setdefault(number, []).append(request)
        for number, requests in batches.items():
            self._send(self._engines[number].submit(requests, self._version, self._max_num_seqs), "submit")

    def abort(self, batches: Mapping[int, list[str]]) -> None:
        """Stop requests, by engine."""
        for number, requests in batches.items():
            self._send(self._engines[number].abort(requests), "abort")

    def release(self, number: int, requests: list[str]) -> None:
        """Have an engine give requests back."""
        self._send(self._engines[number].release(requests), "release")

    def _send(self, call: Coroutine[Any, Any, None], name: str) -> None:
        spawn(self._calls, self._sent(call), name)

    async def _sent(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except Exception as error:  # noqa: BLE001 - the fleet reports a death, and the samples are issued again
            self._failed(error, "rollout")

    async def settle(self, patience_s: float | None) -> None:
        """Wait until all is sent, `patience_s` at most; what was not keeps its turn before what is sent next."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=patience_s)


def spawn(tasks: set[asyncio.Task[None]], body: Coroutine[Any, Any, None], name: str) -> None:
    """Start a task that is kept in `tasks` until it ends."""
    task = asyncio.create_task(body, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
