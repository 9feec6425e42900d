"""Watch over an engine that starts: whether it makes progress. vLLM's start blocks its actor, which tells nothing then.

Progress is CPU time of the processes that the actor started (vLLM's core and ranks): those that compile, load or wait
for a lock use some, however slow the machine; those that wait for a peer that is gone use none. One stopped process
counts as no progress, since its peers may spin while they wait for it. Before there are such processes, an answer of
the actor is a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from ..actors import track
from ..placement.guard import guard_pid
from ..supervision import BORN_S, PULSE_S, LastHeard, silent_seconds

START_GROUP = "start"
"""Ray's concurrency group, a thread of its own, in which an actor answers while it starts."""

USED_S = 0.05  # CPU seconds that show progress; a process that waits in vain uses less within any stall timeout


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
