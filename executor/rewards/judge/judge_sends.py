"""Calls to engines that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ...faults import Fault, classify


class Sends:
    """Calls that are under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, call: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None = None) -> None:
        """Make a call. `failed` hears of an error but that its engine died, which the engine tells."""
        task = asyncio.create_task(self._made(call, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _made(self, call: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None) -> None:
        try:
            await call
        except Exception as error:  # noqa: BLE001 - whatever it is, `failed` hears of it
            if failed is not None and classify(error) is not Fault.ACTOR:
                failed(error)

    async def end(self, seconds: float) -> None:
        """Wait so long for calls that are under way."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
