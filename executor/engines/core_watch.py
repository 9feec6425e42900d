"""Watch over vLLM's core and ranks, inside an engine's actor: whether they run, and when they last answered.

vLLM reports a dead core only to requests and calls; an idle engine would notice it only at its next weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..faults import ActorFailed
from ..supervision import PULSE_S

WATCH_S = 0.2  # how often the actor looks whether the core is gone

IDLE_RANKS_S = 20.0
"""How often the ranks of an engine that does not decode are asked: vLLM's ranks spin for a second after each call."""


class CoreWatch:
    """Watches the core of one vLLM `AsyncLLM`; `died` is called once, when the core or one of its ranks is gone.

    `decodes` tells whether the engine has requests.
    """

    def __init__(self, name: str, engine: Any, died: Callable[[str], None], decodes: Callable[[], bool]) -> None:
        self._name, self._engine, self._died, self._decodes = name, engine, died, decodes
        self._task: asyncio.Task[None] | None = None
        self._pulsed = False

    def start(self) -> None:
        """Begin to watch, on the running event loop."""
        self._task = asyncio.create_task(self._watch(), name=f"watch of the core of {self._name}")

    def take_pulse(self) -> bool:
        """Whether core and ranks have answered since the last call of this method."""
        pulsed, self._pulsed = self._pulsed, False
        return pulsed

    def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()

    @contextlib.contextmanager
    def deaths(self) -> Iterator[None]:
        """Within the block, turn an error that the core's death caused into ActorFailed."""
        try:
            yield
        except Exception as error:
            if self._engine.errored:
                raise ActorFailed(self._name, "vLLM's core process died") from error
            raise

    async def _watch(self) -> None:
        """Notice the core's death, and ask for a sign of life once a second.

        While the engine decodes, the question goes through core and ranks between two engine steps, so an answer shows
        that all of them run. While it idles, most questions go to the core only: asked every second, ranks would spin
        without end and take the CPU from engines that decode. A question without an answer is not repeated: the driver
        counts the silence.
        """
        pulse: asyncio.Task[Any] | None = None
        asked_s, ranks_asked_s = -PULSE_S, time.monotonic()
        try:
            while not self._engine.errored:
                if pulse is not None and pulse.done():
                    self._pulsed = self._pulsed or pulse.exception() is None
                    pulse = None
                if pulse is None and time.monotonic() - asked_s >= PULSE_S:
                    asked_s = time.monotonic()
                    if self._decodes() or asked_s - ranks_asked_s >= IDLE_RANKS_S:
                        ranks_asked_s = asked_s
                        pulse = asyncio.create_task(self._engine.collective_rpc("pulse"))
                    else:
                        pulse = asyncio.create_task(self._engine.is_sleeping())
                await asyncio.sleep(WATCH_S)
            self._died("its core process died")
        finally:
            if pulse is not None:
                pulse.cancel()
                await asyncio.gather(pulse, return_exceptions=True)
