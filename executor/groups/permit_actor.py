"""The Ray actor that gives the permits of a co-execution group, and the client by which a job asks it.

Ray starts the actor again when it dies; it then reads its journal and goes on (live_permits.py). A job asks for a
permit again every few seconds, so that every call ends and the job finds a new actor.
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
from ...rounds.permits.permit_events import PHASES, PhaseName, PlacedJob
from ..placement.guard import STOPPED_S, guarded
from ..placement.live_nodes import on_node
from ..processes.actors import track
from .live_permits import LivePermits
from .member_state import HeldPhase

NAMESPACE = "rlplan"
"""Ray's namespace of the actor, in which drivers of other processes find it by name."""

ASK_S = 5.0
"""Seconds after which a request for a permit is answered with "not yet"."""

ACTOR_S = 2.0 * STOPPED_S
"""Seconds that a job waits for an actor that died, or that is stopped until its guard ends it."""

CALL_S = ASK_S + 15.0
"""Seconds after which a call is given up, and made again."""

PAUSE_S = 0.2


class GroupState(NamedTuple):
    """A group as it is now.

    Attributes:
        now_s: seconds since it began.
        held: by job, the fields of its phase that runs or is paused (`HeldPhase`).
        arrivals: by job, how often it arrived; negative: its last process has ended.
        wake_s: when `wake` is due; None: not before another event.
    """

    now_s: float
    held: dict[str, dict[str, Any]]
    arrivals: dict[str, int]
    wake_s: float | None


class PermitActor:
    """See the module.

    `clock`: seconds. The actor calls `wake` itself when it is due by a real clock; with a faster clock the caller does.
    """

    def __init__(
        self,
        group: str,
        permit_rule: str,
        jobs: Sequence[PlacedJob],
        journal: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._permits = LivePermits(group, permit_rule, jobs, Path(journal), clock)
        self._changed = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    async def report(self, what: str, *arguments: Any) -> Any:
        """Call the method of `LivePermits` that is named `what`, then wake all who wait for a change."""
        try:
            return getattr(self._permits, what)(*arguments)
        finally:
            self._wake_waiting()

    async def granted(self, job: str, arrival: int, number: int) -> bool:
        """Whether a phase may run; waits up to ASK_S for it, unless its job has to call `released` first."""
        permits, phase = self._permits, (job, arrival, number)
        self._set_alarm()  # of an actor that was started again, no other call may have come yet
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                while not (permits.granted(*phase) or permits.must_release(*phase)):
                    await self._changed.wait()
        return permits.granted(*phase)

    async def holding(self, job: str, arrival: int, number: int, since_s: float) -> HeldPhase | None:
        """A phase with its units of now; None: it does not run. Waits up to ASK_S for other units than since
        `since_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                while (held := self._permits.holding(job, arrival, number)) is not None and held.since_s <= since_s:
                    await self._changed.wait()
        return self._permits.holding(job, arrival, number)

    async def state(self) -> GroupState:
        """The group as it is now."""
        held = {job: phase._asdict() for job, phase in self._permits.held.items()}
        return GroupState(self._permits.now_s(), held, self._permits.arrivals, self._permits.wake_s)

    async def wake(self) -> None:
        """Call this when the time `GroupState.wake_s` has come."""
        self._wake()

    def _wake_waiting(self) -> None:
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
        self._wake_waiting()


def start_permits(
    name: str,
    group: str,
    permit_rule: str,
    jobs: Sequence[PlacedJob],
    journal: Path,
) -> Any:
    """Start the actor of a group on this node, which has its journal; it ends with the process that started it."""
    remote: Any = ray.remote(guarded(PermitActor))
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1, "max_task_retries": 0}
    options |= on_node(ray.get_runtime_context().get_node_id())
    return remote.options(**options, max_concurrency=100).remote(group, permit_rule, list(jobs), str(journal.resolve()))


async def ask(actor: Callable[[], Any], method: str, *arguments: Any) -> Any:
    """Call a method of the actor of a group; while Ray starts the actor again, the call is repeated.

    `actor` returns its handle. Raises RunFailed if the actor does not come back, or refuses.
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
    """A job's permits in its group: `ready()` once, then `begin` and `end` around each phase, at the end `leave()`.

    Args:
        actor_name: Ray's name of the actor.
        job: its name.
        process: name of its process, which no other process ever has.

    Invariants:
    - a job decodes and trains only with a permit of the actor, and reports the end of each phase;
    - a job that begins a phase out of order (its trainer died, nothing was to be trained) ends the phases between.
    """

    def __init__(self, actor_name: str, job: str, process: str) -> None:
        self.waited_s = 0.0
        """Seconds that the last `begin` waited."""
        self.before_end: Callable[[], Awaitable[None]] | None = None
        """Frees the devices of the phase that runs; its end is reported only after that."""
        self._actor_name, self._job, self._process = actor_name, job, process
        self._arrival, self._number, self._held = 0, 0, False

    async def ready(self) -> None:
        """The job is ready for its first rollout. Raises RunFailed."""
        self._arrival, self._number, self._held = await self._report("ready", self._process), 0, False

    async def begin(self, phase: PhaseName) -> None:
        """Wait for the permit of a phase. Raises RunFailed."""
        began = time.perf_counter()
        while not (self._held and PHASES[self._number % 2] == phase):
            if self._held:
                await self.end()
            while not self._held:
                self._held = await self._ask("granted", self._arrival, self._number)
                held = None if self._held else await self.holding()
                if held is not None and not held.units:  # it was granted and paused before this process knew of it
                    await self.released(held.since_s)
        self.waited_s = time.perf_counter() - began

    async def end(self) -> None:
        """End the phase that runs, if there is one. Raises RunFailed."""
        if self._held:
            if self.before_end is not None:
                await self.before_end()
            await self._report("done", self._arrival, self._number)
            self._number, self._held = self._number + 1, False

    async def tail(self) -> None:
        """Report that the rollout has the planned share of its responses. Raises RunFailed."""
        await self._report("tail", self._arrival, self._number)

    async def holding(self, since_s: float = -1.0) -> HeldPhase | None:
        """The phase that runs with its units of now; None: none runs. Waits a few seconds for other units than since
        `since_s`. Raises RunFailed."""
        held = await self._ask("holding", self._arrival, self._number, since_s)
        return HeldPhase(*held) if held else None

    async def released(self, since_s: float) -> None:
        """Report that nothing of the job computes any more on the units that were taken from the rollout until
        `since_s` (`HeldPhase.since_s`). Raises RunFailed."""
        await self._report("released", self._arrival, self._number, since_s)

    @property
    def phase(self) -> PhaseName | None:
        """The phase that runs; None: none."""
        return PHASES[self._number % 2] if self._held else None

    async def leave(self) -> None:
        """Report that the job has ended. Raises RunFailed."""
        await self._report("leave", self._process)

    async def _report(self, what: str, *arguments: Any) -> Any:
        return await ask(self._actor, "report", what, self._job, *arguments)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        return await ask(self._actor, method, self._job, *arguments)

    def _actor(self) -> Any:
        return ray.get_actor(self._actor_name, NAMESPACE)


@contextlib.asynccontextmanager
async def membership(permits: MemberPermits | None) -> AsyncIterator[None]:
    """Within the block a job is in its group; `permits` is None for a job without a group."""
    if permits is None:
        yield
        return
    await permits.ready()
    try:
        yield
    finally:
        with contextlib.suppress(RunFailed):  # then the group's driver reports the end of this process
            await permits.leave()
