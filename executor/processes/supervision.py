"""Supervision of actors: how long an actor is silent, which are started again, how often, and when a run gives up.

Engines, groups of trainer ranks and reward workers are started and replaced here and nowhere else. Invariants:
- an actor is replaced at most `restarts_per_hour` times within any hour (a long run may outlive many faults, a crash
  loop may not go on); a start that fails by a fault of its process counts like a death;
- after STARTS_IN_A_ROW failed starts in a row an actor is given up with the last reason: the fault is then not a
  passing one;
- a start that fails for any other reason is not tried again;
- an engine or a reward worker that is given up ends the run only if it was the last one; a trainer does at once;
- silence is counted in looks: if the observer itself was held up (a stopped laptop, a busy host), the time without a
  look counts as one look at most, so no actor is replaced for an absence of the observer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ...plans.yaml.errors import InputError, RunFailed
from .faults import ErrorClass, classify, reason

FIRST_START_S = 1800.0  # what the first start may take: weights of hundreds of GB over a network, kernels to compile
QUICK_START_S = 120.0  # and what any other may always take, for machines are busy
BORN_S = 120.0  # in which an actor's process may be silent while it comes up and imports: a busy host takes long
START_FACTOR = 5.0  # or so often what the longest took, if that is more
CALL_DEADLINE_S = 600.0
STARTS_IN_A_ROW = 4
PAUSE_S = 0.5  # before a second try, and longer before each that follows
LOOK_S = 0.5  # how often an observer looks whether something was heard
PULSE_S = 1.0  # how often an actor that has nothing else to say is asked for a sign of life
HOUR_S = 3600.0
TRIES = 6  # of a call that failed by the infrastructure; the pauses between them sum up to half a minute

Result = TypeVar("Result")


@dataclass(slots=True)
class Patience:
    """How much silence and how many restarts a run accepts; `stall_s`: seconds in which an actor may be silent.

    A sign of life costs an engine one pass through vLLM's core between two engine steps, and a trainer rank a moment of
    Python, so `stall_s` must exceed the longest engine step (a prefill) and the longest hold of Python's lock.
    """

    stall_s: float = 120.0
    restarts_per_hour: int = 12

    def start_deadline_s(self, longest_s: float) -> float:
        """Seconds that a start may take where one took `longest_s` (0: none was seen yet)."""
        if not longest_s:
            return FIRST_START_S
        return min(max(START_FACTOR * longest_s, QUICK_START_S, self.stall_s), FIRST_START_S)


class LastHeard:
    """For how long one actor has been silent. All times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._looked = now
        self._silent_s = 0.0

    def heard(self, now: float) -> None:
        """Note a sign of life."""
        self._looked, self._silent_s = now, 0.0

    def look(self, now: float) -> float:
        """Seconds of silence up to this look."""
        self._silent_s += min(now - self._looked, 2 * LOOK_S)
        self._looked = now
        return self._silent_s


async def silent_seconds(call: asyncio.Future[Any], silence: LastHeard, patience_s: float) -> float | None:
    """Wait for the answer to a call: None when it is there, or the seconds of silence once they reach `patience_s`."""
    while not call.done():
        await asyncio.wait({call}, timeout=LOOK_S)
        silent_s = silence.look(time.monotonic())
        if not call.done() and silent_s >= patience_s:
            return silent_s
    return None


class RestartBudget:
    """At most `most` restarts within any hour."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()

    def take(self, now: float) -> bool:
        """Use up one restart; False if the hour has none left."""
        if self.used(now) >= self._most:
            return False
        self._times.append(now)
        return True

    def used(self, now: float) -> int:
        """Restarts of the last hour."""
        while self._times and self._times[0] <= now - HOUR_S:
            self._times.popleft()
        return len(self._times)


class GivenUp(RunFailed):
    """An actor is not started any more, since its process died again and again."""


class Supervised(Protocol):
    """What can be started and replaced: a process, or several that cannot go on without each other."""

    @property
    def name(self) -> str:
        """What errors call it; its budget goes by this name."""

    async def find_node(self) -> None:
        """Find where it is to run; waits as long as no node has room. Raises RunFailed or InputError."""

    async def launch(self) -> None:
        """Start it there, with no state but that of its construction. May raise anything."""

    async def discard(self) -> None:
        """End what is left of it, even if it is busy. Does not raise."""


class Supervisor:
    """Starts and replaces the actors of a run."""

    def __init__(
        self,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self.patience = patience or Patience()
        self._clock, self._pause = clock, pause
        self._budgets: dict[str, RestartBudget] = {}
        self._longest_start_s: dict[str, float] = {}
        self._began = clock()

    async def start(self, actor: Supervised) -> None:
        """Start an actor; a start in which its process dies is tried again. Raises RunFailed (GivenUp if its process
        died each time) or InputError."""
        attempt = 0
        while True:
            try:
                await actor.find_node()
                began = self._clock()  # a wait for room is no slow start
                await actor.launch()
                took_s = self._clock() - began
                self._longest_start_s[actor.name] = max(took_s, self._longest_start_s.get(actor.name, 0.0))
                return
            except Exception as error:  # any error: it is classified, and the rest of the try is ended
                await actor.discard()
                attempt += 1
                if isinstance(error, InputError):
                    raise
                passes = classify(error) in (ErrorClass.ACTOR, ErrorClass.INFRASTRUCTURE)
                if not passes or attempt == STARTS_IN_A_ROW:
                    end = GivenUp if passes else RunFailed
                    raise end(f"{actor.name} did not start: {reason(error)}") from error
                self._spend(actor.name, reason(error))
            await self._pause(PAUSE_S * attempt)

    async def replace(self, actor: Supervised, why: str) -> None:
        """End what is left of an actor and start it anew under its name. Raises RunFailed or InputError."""
        await actor.discard()
        self._spend(actor.name, why)
        await self.start(actor)

    def start_deadline_s(self, name: str) -> float:
        """Seconds that the next start of an actor may take, by what its starts have taken so far."""
        return self.patience.start_deadline_s(self._longest_start_s.get(name, 0.0))

    def failures(self, name: str) -> int:
        """How often an actor was started again within the last hour."""
        return self._budgets[name].used(self._clock()) if name in self._budgets else 0

    def mean_s_between_failures(self, name: str) -> float:
        """Mean seconds between the restarts of an actor in the last hour; an hour if there were none."""
        watched_s = min(self._clock() - self._began, HOUR_S)
        count = self.failures(name)
        return watched_s / count if count else HOUR_S

    def _spend(self, name: str, why: str) -> None:
        most = self.patience.restarts_per_hour
        if not self._budgets.setdefault(name, RestartBudget(most)).take(self._clock()):
            raise GivenUp(f"{name} was started again {most} times within an hour, which is the limit; last: {why}")


async def together(*starts: Coroutine[Any, Any, Any]) -> None:
    """Wait for several starts. If one fails, the others are cancelled and its error is raised."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def again_while_it_passes(
    call: Callable[[], Awaitable[Result]], pause: Callable[[float], Awaitable[Any]] = asyncio.sleep
) -> Result:
    """What `call` returns; after an infrastructure fault it is called again, `TRIES` times in all."""
    for attempt in range(1, TRIES + 1):
        try:
            return await call()
        except RunFailed as error:
            if classify(error) is not ErrorClass.INFRASTRUCTURE or attempt == TRIES:
                raise
        await pause(2.0 ** (attempt - 1))
    raise AssertionError("unreachable")
