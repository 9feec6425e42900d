"""Watch over an engine's processes: whether its start makes progress, and whether vLLM's core and ranks run and answer.

vLLM's start blocks its actor, which tells nothing then. Progress of a start is CPU time of the processes that the actor
started (vLLM's core and ranks): those that compile, load or wait for a lock use some, however slow the machine; those
that wait for a peer that is gone use none. One stopped process counts as no progress, since its peers may spin while
they wait for it. Before there are such processes, an answer of the actor is a sign of life.

Later vLLM reports a dead core only to requests and calls; an idle engine would notice it only at its next weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil

from ..placement.guard import guard_pid
from ..processes.actors import track
from ..processes.faults import ActorFailed, device_words
from ..processes.host import output_file
from ..processes.supervision import BORN_S, PULSE_S, LastHeard, silent_seconds

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
                raise ActorFailed(self._name, f"vLLM's core process died{root_cause()}") from error
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


START_GROUP = "start"
"""Ray's concurrency group, a thread of its own, in which an actor answers while it starts."""

USED_S = 0.05  # CPU seconds that show progress; a process that waits in vain uses less within any stall timeout


LOG_BYTES = 2**18  # the end of a log, in which vLLM's core writes why it dies


def root_cause() -> str:
    """What the log of this process and of those that it started says of a device that failed, as `; its log says:
    WORDS`; "" if nothing. vLLM's own errors only say that there is something in the log."""
    if (log := output_file()) is None:
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        words = device_words(file.read().decode(errors="replace"))
    return f"; its log says: {words}" if words else ""


class Children(NamedTuple):
    """The processes below an actor: how many, the CPU seconds that they used so far, whether one of them is stopped."""

    processes: int
    used_s: float
    stopped: bool


def look_at_children() -> Children:
    """All processes below this one, without its guard."""
    processes, used_s, stopped = 0, 0.0, False
    for child in psutil.Process().children():
        if child.pid == guard_pid():
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (child, *child.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    processes, used_s = processes + 1, used_s + times.user + times.system
                    stopped = stopped or process.status() == psutil.STATUS_STOPPED
    return Children(processes, used_s, stopped)


async def watch_start(ask: Callable[[], Any], stall_s: float) -> str:
    """Returns why a start is stuck; does not return while it makes progress.

    `ask` makes a Ray call of `look_at_children` in the actor. If that call fails, the actor is gone: this then waits
    until it is cancelled, and the call that starts the actor says why.
    """
    silence, patience_s, seen_s = LastHeard(time.monotonic()), max(stall_s, BORN_S), 0.0
    while True:
        call = track(ask())
        silent_s = await silent_seconds(call, silence, patience_s)
        if silent_s is not None:
            return f"no sign of life for {silent_s:.0f} s while it started"
        if call.cancelled() or call.exception() is not None:
            await asyncio.Event().wait()
        children: Children = call.result()
        moved_s = abs(children.used_s - seen_s)  # less than before: one of the processes has ended
        if not children.processes or (moved_s >= USED_S and not children.stopped):
            silence.heard(time.monotonic())
            seen_s = children.used_s
        elif (silent_s := silence.look(time.monotonic())) >= stall_s:
            return f"its processes did nothing for {silent_s:.0f} s while it started"
        patience_s = stall_s
        await asyncio.sleep(PULSE_S)
