"""The Ray actor that gives the permits of a co-execution group, and a job's side of it.

Ray starts the actor again when it dies; it then reads its journal and goes on (live_permits.py). A job asks for a turn
again and again, each time for a few seconds, so that every wait has an end and a new actor is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import PHASES, PhaseName, Seat
from ..placement.live_nodes import on_node
from ..processes.actors import track
from .live_permits import LivePermits
from .member_state import HeldTurn

NAMESPACE = "rlplan"
"""Ray's namespace of the actor, in which drivers of other processes find it by name."""

ASK_S = 5.0
"""Seconds after which a request for a turn is answered with "not yet"."""

ACTOR_S = 60.0
"""Seconds within which an actor that died must be there again."""

CALL_S = ASK_S + 15.0
"""Seconds after which a call is given up, and made again."""

PAUSE_S = 0.2


class GroupState(NamedTuple):
    """A group as it is now: seconds since it began; by job the turns that run or are paused, and how often each arrived
    (negative: it has ended); when `wake` is due (None: not before another event)."""

    now_s: float
    held: dict[str, dict[str, Any]]
    arrivals: dict[str, int]
    wake_s: float | None


class PermitActor:
    """See the module. Its methods are LivePermits' own, but for `turn` and `holding`, which wait.

    `clock`: seconds. It calls `wake` itself when it is due on a clock that goes as fast as any; whoever gives it a
    faster one calls `wake` too.
    """

    def __init__(
        self,
        group: str,
        permit_rule: str,
        seats: Sequence[Seat],
        journal: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._permits = LivePermits(group, permit_rule, seats, Path(journal), clock)
        self._changed = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    async def ready(self, job: str, process: str) -> int:
        """A process of a job is ready for its first rollout; returns the number of its arrival."""
        with self._change():
            return self._permits.ready(job, process)

    async def turn(self, job: str, arrival: int, turn: int) -> bool:
        """Whether a turn may run; waits up to ASK_S for it, unless it was paused and its job is to say `cleared`."""
        self._set_alarm()  # of an actor that was started again, nobody else may have said anything yet
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                while not (self._permits.given(job, arrival, turn) or self._permits.is_to_clear(job, arrival, turn)):
                    await self._changed.wait()
        return self._permits.given(job, arrival, turn)

    async def done(self, job: str, arrival: int, turn: int) -> None:
        """A turn is over."""
        with self._change():
            self._permits.done(job, arrival, turn)

    async def tail(self, job: str, arrival: int, turn: int) -> None:
        """A rollout has the planned share of its responses."""
        with self._change():
            self._permits.tail(job, arrival, turn)

    async def cleared(self, job: str, arrival: int, turn: int, since_s: float) -> None:
        """A job has left the units that were taken from its turn until `since_s`."""
        with self._change():
            self._permits.cleared(job, arrival, turn, since_s)

    async def holding(self, job: str, arrival: int, turn: int, since_s: float) -> HeldTurn | None:
        """A turn with its units now; None: it does not run. Waits up to ASK_S for other units than since `since_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                while (held := self._permits.holding(job, arrival, turn)) is not None and held.since_s <= since_s:
                    await self._changed.wait()
        return self._permits.holding(job, arrival, turn)

    async def leave(self, job: str, process: str) -> None:
        """A process of a job has ended."""
        with self._change():
            self._permits.leave(job, process)

    async def take_seat(self, seat: Seat) -> None:
        """A job gets a seat in the group, or other seconds for its own."""
        with self._change():
            self._permits.take_seat(seat)

    async def give_up(self, job: str) -> None:
        """A job is in the group no more."""
        with self._change():
            self._permits.give_up(job)

    async def state(self) -> GroupState:
        """The group as it is now."""
        held = {job: turn._asdict() for job, turn in self._permits.held.items()}
        return GroupState(self._permits.now_s(), held, self._permits.arrivals, self._permits.wake_s)

    async def wake(self) -> None:
        """`wake_s` of the state may have come."""
        self._wake()

    @contextlib.contextmanager
    def _change(self) -> Any:
        try:
            yield
        finally:
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        wake_s = self._permits.wake_s
        loop = asyncio.get_running_loop()
        self._alarm = None if wake_s is None else loop.call_later(max(0.0, wake_s - self._permits.now_s()), self._wake)

    def _wake(self) -> None:
        self._permits.wake()
        self._tell()


def start_permits(
    name: str,
    group: str,
    permit_rule: str,
    seats: Sequence[Seat],
    journal: Path,
    clock: Callable[[], float] = time.time,
) -> Any:
    """Start the actor of a group on this node, which has its journal; it ends with the process that started it."""
    remote: Any = ray.remote(PermitActor)
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1, "max_task_retries": 0}
    options |= on_node(ray.get_runtime_context().get_node_id())
    return remote.options(**options, max_concurrency=100).remote(
        group, permit_rule, list(seats), str(journal.resolve()), clock
    )


async def ask(actor: Callable[[], Any], method: str, *arguments: Any) -> Any:
    """Call the actor of a group; while it is started again the call is repeated, which does no harm.

    `actor` finds it. Raises RunFailed if it does not come back, or refuses.
    """
    began = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(CALL_S):
                return await track(getattr(actor(), method).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"permits of the group: {error.cause}") from error
        except (ray.exceptions.RayActorError, ValueError, TimeoutError) as error:  # ValueError: no actor of this name
            if time.monotonic() - began > ACTOR_S:
                raise RunFailed(f"the actor that gives permits is gone for {ACTOR_S:.0f} s: {error}") from error
        await asyncio.sleep(PAUSE_S)


class MemberPermits:
    """A job's turns in its group: `ready()` once, then `begin` and `end` around each phase, at the end `leave()`.

    Args:
        actor_name: Ray's name of the actor.
        job: its name.
        process: name of its process, which no other process ever has.

    Invariants:
    - a job decodes and trains only in a turn that the actor gave, and says when it is over;
    - a job that begins a phase out of order (its trainer died, nothing was to be trained) gives the turns between back.
    """

    def __init__(self, actor_name: str, job: str, process: str) -> None:
        self.waited_s = 0.0
        """Seconds that the last `begin` waited."""
        self.before_end: Callable[[], Awaitable[None]] | None = None
        """Frees the devices of the turn that is held; it is told to be over only after that."""
        self._actor_name, self._job, self._process = actor_name, job, process
        self._arrival, self._turn, self._held = 0, 0, False

    async def ready(self) -> None:
        """The job is ready for its first rollout. Raises RunFailed."""
        self._arrival, self._turn, self._held = await self._ask("ready", self._process), 0, False

    async def begin(self, phase: PhaseName) -> None:
        """Wait for the turn of a phase. Raises RunFailed."""
        began = time.perf_counter()
        while not (self._held and PHASES[self._turn % 2] == phase):
            if self._held:
                await self.end()
            while not self._held:
                self._held = await self._ask("turn", self._arrival, self._turn)
                held = None if self._held else await self.holding()
                if held is not None and not held.units:  # it was given and paused before this process heard of it
                    await self.cleared(held.since_s)
        self.waited_s = time.perf_counter() - began

    async def end(self) -> None:
        """The turn is over; nothing happens if there is none. Raises RunFailed."""
        if self._held:
            if self.before_end is not None:
                await self.before_end()
            await self._ask("done", self._arrival, self._turn)
            self._turn, self._held = self._turn + 1, False

    async def tail(self) -> None:
        """The rollout has the planned share of its responses. Raises RunFailed."""
        await self._ask("tail", self._arrival, self._turn)

    async def holding(self, since_s: float = -1.0) -> HeldTurn | None:
        """The turn that runs with the units that it has now, at once or once they are others than since `since_s`;
        after a few seconds as they are. None: none runs. Raises RunFailed."""
        return HeldTurn(*held) if (held := await self._ask("holding", self._arrival, self._turn, since_s)) else None

    async def cleared(self, since_s: float) -> None:
        """What was taken from the rollout until `since_s` (`HeldTurn.since_s`) is free now: nothing of the job computes
        there. Raises RunFailed."""
        await self._ask("cleared", self._arrival, self._turn, since_s)

    @property
    def phase(self) -> PhaseName | None:
        """The phase whose turn is held."""
        return PHASES[self._turn % 2] if self._held else None

    async def leave(self) -> None:
        """The job has ended. Raises RunFailed."""
        await self._ask("leave", self._process)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        return await ask(lambda: ray.get_actor(self._actor_name, NAMESPACE), method, self._job, *arguments)


@contextlib.asynccontextmanager
async def membership(permits: MemberPermits | None) -> AsyncIterator[None]:
    """Within the block a job is in its group; None: it is in none."""
    if permits is None:
        yield
        return
    await permits.ready()
    try:
        yield
    finally:
        with contextlib.suppress(RunFailed):  # then the group's driver hears of the end of this process
            await permits.leave()
