"""Whether an engine that is starting gets anywhere. vLLM's start blocks its actor, so nothing else is heard of it.

Told by the CPU time of the processes that the actor started (vLLM's core and ranks): those that compile, load or wait
for a lock use some, however slow the machine; one that is stopped, or waits for a peer that is gone, uses none.
Before there are such processes, an answer is a sign of life: the actor itself runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil

from .guard import guard_pid
from .supervision import LOOK_S, PULSE_S, LastHeard, track

START_GROUP = "start"
"""Ray's concurrency group, a thread of its own, in which an actor answers while it starts."""

USED_S = 0.05  # CPU seconds that show progress; a process that waits in vain uses less within any stall timeout
BORN_S = 120.0  # before its first answer an actor's process must come up, for which a busy host takes long


def cpu_seconds_of_children() -> float | None:
    """CPU seconds that the processes below this one have used so far, the guard's excepted; None: there are none."""
    total, any_lives = 0.0, False
    for child in psutil.Process().children():
        if child.pid == guard_pid():
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (child, *child.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total, any_lives = total + times.user + times.system, True
    return total if any_lives else None


async def watch_start(ask: Callable[[], Any], stall_s: float) -> str:
    """Returns why a start got stuck; never, if it does not.

    `ask` makes a Ray call whose answer is that of `cpu_seconds_of_children`. Ends with a failed call too: whoever waits
    for the start is told why by the start itself, and cancels this.
    """
    silence, patience_s, seen_s = LastHeard(time.monotonic()), max(stall_s, BORN_S), 0.0
    while True:
        call = track(ask())
        while not call.done():
            await asyncio.wait({call}, timeout=LOOK_S)
            if not call.done() and (silent_s := silence.look(time.monotonic())) >= patience_s:
                return f"no sign of life for {silent_s:.0f} s while it started"
        if call.cancelled() or call.exception() is not None:
            await asyncio.Event().wait()
        used_s = call.result()
        if used_s is None or abs(used_s - seen_s) >= USED_S:  # less than before: one of the processes has ended
            silence.heard(time.monotonic())
            seen_s = used_s or 0.0
        elif (silent_s := silence.look(time.monotonic())) >= stall_s:
            return f"its processes did nothing for {silent_s:.0f} s while it started"
        patience_s = stall_s
        await asyncio.sleep(PULSE_S)
