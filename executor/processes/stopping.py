"""How an operator stops a run by SIGINT and SIGTERM.

The first signal asks to stop at the round's end, with a checkpoint. A second one, or `grace_s` seconds after the first,
asks to leave the round: the state of the last step's end is checkpointed, and what the round has sampled is dropped. A
third signal does what it does by default: it ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class StopRequests:
    """The stops that signals have asked for so far."""

    at_round_end: asyncio.Event = field(default_factory=asyncio.Event)
    immediately: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.contextmanager
def stop_requests(grace_s: float | None = None) -> Iterator[StopRequests]:
    """Take the signals over while the block runs; call it on the event loop."""
    requests = StopRequests()
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def restore() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def received() -> None:
        nonlocal timer
        if requests.at_round_end.is_set():
            requests.immediately.set()
            restore()
            return
        requests.at_round_end.set()
        if grace_s is not None:
            timer = loop.call_later(grace_s, requests.immediately.set)

    for number in SIGNALS:
        loop.add_signal_handler(number, received)
    try:
        yield requests
    finally:
        restore()
        if timer is not None:
            timer.cancel()
