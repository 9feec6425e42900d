"""What a round decided for its engines, on its way to them.

Invariants:
- calls of one engine are carried out in the order in which they are made here: an abort never overtakes its submit;
- an engine that hangs holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ..actors import UnawaitedCalls
from ..engines.engine_handle import EngineHandle
from ..engines.messages import Request
from .drafts.drafted_round import DraftedRound
from .round_messages import Weights


class EngineSends:
    """Calls to the engines of one round, which are numbered in their order.

    `max_num_seqs`: samples that an engine decodes at a time; None: as many as it was built for. `drafts`: what engines
    are told of prompts before these decode; None: they never draft. `failed` hears the error of a call, unless its
    engine died: the fleet tells it, and the samples are issued again.
    """

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        weights: Weights,
        max_num_seqs: int | None,
        drafts: DraftedRound | None,
        failed: Callable[[Exception], None],
    ) -> None:
        self._engines, self._version, self._max_num_seqs = engines, weights.version, max_num_seqs
        self._drafts, self._failed = drafts, failed
        self._calls = UnawaitedCalls()

    def submit(self, placed: Iterable[tuple[int, Request]]) -> None:
        """Have engines decode requests, each with the number of its engine; those of one engine go together."""
        batches: dict[int, list[Request]] = {}
        for number, request in placed:
            batches.setdefault(number, []).append(request)
        for number, requests in batches.items():
            if self._drafts is not None:
                self._drafts.prepare(self._engines[number], requests, self._calls, self._failed)
            self._begin(self._engines[number].submit(requests, self._version, self._max_num_seqs))

    def abort(self, batches: Mapping[int, list[str]]) -> None:
        """Stop requests, by engine."""
        for number, requests in batches.items():
            self._begin(self._engines[number].abort(requests))

    def release(self, number: int, requests: list[str]) -> None:
        """Have an engine give requests back."""
        self._begin(self._engines[number].release(requests))

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        self._calls.begin(call, self._failed)

    async def settle(self, patience_s: float | None) -> None:
        """Wait until all is sent, `patience_s` at most; what was not keeps its turn before what is sent next."""
        await self._calls.settle(patience_s)
