"""One engine as the driver sees it: its actor, its pump, and its replacement when it is gone.

Invariants:
- an engine has exactly one pump that polls it, for as long as its actor lives, so no event is ever read by a caller
  that has gone, and silence is noticed engine by engine, whether it decodes or not and whatever the others say;
- an engine that dies, hangs or stays silent is replaced under the same name, at once and beside whatever goes on; its
  pending calls end with `ActorFailed`, and calls that were made to it never reach its successor;
- calls to one engine are carried out in the order in which they were made: an abort never overtakes its submit, and
  weights that nobody needs any more are loaded before the next ones and not after.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray

from ...plans.yaml.errors import InputError, RunFailed
from ..faults import ActorFailed, Fault, classify, failure, reason
from ..supervision import ACTOR_OPTIONS, CALL_DEADLINE_S, LOOK_S, LastHeard, Supervisor, end_actor, track
from .engine import EngineConfig, EngineEvent, Request, RolloutEngine
from .start_watch import START_GROUP, watch_start

POLL_S = 1.0  # shorter than any patience: what a poll does not tell is silence
CLOSE_S = 20.0
PROGRESS_S = 120.0  # in which an engine that has samples must decode `ALIVE_TOKENS` of one of them
LOAD_BYTES_PER_S = 20e6  # slower than any disk or network that weights are sent over


class EngineDied(NamedTuple):
    """Told at once when an engine is gone; its replacement starts by itself."""

    engine: EngineHandle
    reason: str


class Listener(Protocol):
    """Who is told what engines do; all calls come on the event loop."""

    def on_events(self, engine: EngineHandle, events: list[EngineEvent]) -> None:
        """What a poll returned."""

    def on_death(self, death: EngineDied) -> None:
        """An engine is gone."""

    def on_back(self, engine: EngineHandle) -> None:
        """Its replacement is up, and holds no weights yet."""

    def on_given_up(self, engine: EngineHandle, error: Exception) -> None:
        """There will be no replacement."""


class _Life:
    """What belongs to one process under an engine's name, and ends with it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody has seen it
        self.turn = asyncio.Lock()  # first come, first served
        self.core_calls = 0  # in progress; they keep the core from answering
        self.heard = LastHeard(time.monotonic())
        self.progress = LastHeard(time.monotonic())
        self.pump: asyncio.Task[None] | None = None

    def end(self, error: Exception) -> None:
        if not self.gone.done():
            self.gone.set_exception(error)


def spawn_engine(config: EngineConfig) -> Any:
    """A new actor for an engine."""
    environment = {"env_vars": config.environment()}
    # Ray's stubs do not know this option.
    remote: Any = ray.remote(concurrency_groups={START_GROUP: 1})(RolloutEngine)  # type: ignore[call-overload]
    return remote.options(**ACTOR_OPTIONS, max_concurrency=8, runtime_env=environment).remote(config)


class EngineHandle:
    """One engine of the fleet. `spawn` and `end` make and kill its actor."""

    def __init__(
        self,
        config: EngineConfig,
        listener: Listener,
        supervisor: Supervisor,
        spawn: Callable[[EngineConfig], Any] = spawn_engine,
        end: Callable[[Any], None] = end_actor,
    ) -> None:
        self.config = config
        self.alive = False
        self.version = ""
        self.facts: dict[str, Any] = {}
        self._listener = listener
        self._supervisor = supervisor
        self._spawn, self._end = spawn, end
        self._life: _Life | None = None
        self._repair: asyncio.Task[None] | None = None
        self._given_up: RunFailed | InputError | None = None
        self._longest_start_s = 0.0

    @property
    def name(self) -> str:
        """What errors and traces call it, whichever process bears the name."""
        return self.config.name

    # -- life and death ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine; a start that its process does not survive is tried again. Raises RunFailed."""
        await self._supervisor.start(self)

    async def launch(self) -> None:
        """One try of a start, for the supervisor. Raises RunFailed."""
        began = time.monotonic()
        life = self._life = _Life(self._spawn(self.config))
        deadline_s = self._supervisor.patience.start_deadline_s(self._longest_start_s)
        watch = asyncio.create_task(self._watch_start(life), name=f"watch of the start of {self.name}")
        try:
            self.facts = await self._ask(life, life.actor.start.remote(), deadline_s, "start")
        finally:
            watch.cancel()
        self._longest_start_s = max(self._longest_start_s, time.monotonic() - began)
        self.alive, self.version = True, ""
        life.heard = LastHeard(time.monotonic())
        life.pump = asyncio.create_task(self._run_pump(life), name=f"pump {self.name}")

    async def _watch_start(self, life: _Life) -> None:
        def ask() -> Any:
            return life.actor.look_at_children.options(concurrency_group=START_GROUP).remote()

        life.end(ActorFailed(self.name, await watch_start(ask, self._supervisor.patience.stall_s)))

    async def discard(self) -> None:
        """End what is left of the engine's process."""
        life, self._life, self.alive = self._life, None, False
        if life is None:
            return
        life.end(ActorFailed(self.name, "it was ended"))
        if life.pump is not None and life.pump is not asyncio.current_task():
            life.pump.cancel()
            await asyncio.gather(life.pump, return_exceptions=True)
        with contextlib.suppress(ray.exceptions.RayError):
            self._end(life.actor)

    def fail(self, why: str) -> None:
        """The engine is gone or of no use: kill it, and start another under its name beside what goes on."""
        if not self.alive or self._life is None:
            return
        self.alive = False
        self._life.end(ActorFailed(self.name, why))
        with contextlib.suppress(ray.exceptions.RayError):
            self._end(self._life.actor)
        self._listener.on_death(EngineDied(self, why))
        self._repair = asyncio.create_task(self._replace(why), name=f"replacement of {self.name}")

    async def _replace(self, why: str) -> None:
        try:
            await self._supervisor.replace(self, why)
        except Exception as error:  # noqa: BLE001 - whoever needs the engine next must be told, whatever it is
            self._given_up = error if isinstance(error, InputError) else failure(error, self.name)
            self._listener.on_given_up(self, self._given_up)
        else:
            self._listener.on_back(self)

    def check(self) -> None:
        """Raises RunFailed if the engine could not be replaced."""
        if self._given_up is not None:
            raise self._given_up

    async def ready(self) -> None:
        """Wait until the engine is up. Raises RunFailed if it could not be replaced."""
        while not self.alive:
            self.check()
            await asyncio.wait({self.repair})

    @property
    def repair(self) -> asyncio.Task[None]:
        """The replacement that is under way, or the last one."""
        assert self._repair is not None, f"{self.name} was never started"
        return self._repair

    async def close(self) -> None:
        """Stop the engine; what does not stop in time is killed."""
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.gather(self._repair, return_exceptions=True)
        life, was_alive, self.alive = self._life, self.alive, False
        if life is not None and was_alive:
            await asyncio.wait({track(life.actor.close.remote())}, timeout=CLOSE_S)
        await self.discard()

    # -- what it says --------------------------------------------------------------------------------------------------

    async def _run_pump(self, life: _Life) -> None:
        while not life.gone.done():
            call = track(life.actor.poll.remote(POLL_S))
            while not call.done():
                await asyncio.wait({call, life.gone}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if life.gone.done() or (not call.done() and self._too_silent(life)):
                    return
            try:
                events = call.result()
            except Exception as error:  # noqa: BLE001 - an engine that cannot be polled is of no use, whatever it says
                self.fail(reason(error))
                return
            now = time.monotonic()
            if events or life.core_calls:
                life.heard.heard(now)
            elif self._too_silent(life):
                return
            told = [event for event in events if event.kind != "pulse"]
            if told:
                life.progress.heard(now)
                self._listener.on_events(self, told)

    def _too_silent(self, life: _Life) -> bool:
        silent_s = life.heard.look(time.monotonic())
        if silent_s < self._supervisor.patience.stall_s:
            return False
        self.fail(f"no sign of life for {silent_s:.0f} s")
        return True

    def watch_progress(self) -> None:
        """To be called every `LOOK_S` while the engine has samples: one that lives and does not decode is replaced."""
        if self._life is not None and self.alive:
            still_s = self._life.progress.look(time.monotonic())
            if still_s >= max(PROGRESS_S, self._supervisor.patience.stall_s):
                self.fail(f"decoded nothing for {still_s:.0f} s")

    # -- calls ---------------------------------------------------------------------------------------------------------

    def load(self, path: str, version: str, checksums: bool) -> Coroutine[Any, Any, dict[str, str]]:
        """Load weights; returns tensor checksums if asked for. Raises ActorFailed if the engine is gone."""

        async def body() -> dict[str, str]:
            deadline_s = self._supervisor.patience.stall_s + Path(path).stat().st_size / LOAD_BYTES_PER_S
            sums: dict[str, str] = await self._core_call("load_weights", (path, version, checksums), deadline_s, life)
            if life is self._life:
                self.version = version
            return sums

        life = self._life
        return body()

    def submit(self, requests: list[Request], version: str, at_once: int | None = None) -> Coroutine[Any, Any, None]:
        """Start decoding on this engine, at most `at_once` requests at a time (None: all that it was built for).

        Raises ActorFailed if it is gone: the samples are lost then.
        """
        return self._in_turn("submit", (requests, version, at_once), self._life)

    def abort(self, request_ids: list[str]) -> Coroutine[Any, Any, None]:
        """Stop requests. Raises ActorFailed if the engine is gone: there is nothing to stop then."""
        return self._in_turn("abort", (request_ids,), self._life)

    async def live_checksum(self) -> str:
        """Digest of the parameters as the kernels hold them."""
        return str(await self._core_call("live_checksum", (), CALL_DEADLINE_S, self._life))

    async def sleep(self) -> None:
        """Free accelerator memory for training (CUDA)."""
        await self._core_call("sleep", (), CALL_DEADLINE_S, self._life)

    async def wake(self) -> None:
        """Undo `sleep`; weights must be loaded next."""
        await self._core_call("wake", (), CALL_DEADLINE_S, self._life)

    async def _core_call(self, method: str, arguments: tuple[Any, ...], deadline_s: float, life: _Life | None) -> Any:
        """A call that keeps vLLM's core from giving signs of life."""
        if life is None:
            raise ActorFailed(self.name, "it is being replaced")
        life.core_calls += 1
        try:
            return await self._in_turn(method, arguments, life, deadline_s)
        finally:
            life.core_calls -= 1
            life.heard.heard(time.monotonic())

    async def _in_turn(
        self, method: str, arguments: tuple[Any, ...], life: _Life | None, deadline_s: float | None = None
    ) -> Any:
        if life is None:
            raise ActorFailed(self.name, "it is being replaced")
        async with life.turn:
            if life.gone.done():
                life.gone.result()
            life.progress.heard(time.monotonic())
            call = getattr(life.actor, method).remote(*arguments)
            return await self._ask(life, call, deadline_s or self._supervisor.patience.stall_s, method)

    async def _ask(self, life: _Life, call: Any, deadline_s: float, what: str) -> Any:
        answer = track(call)
        await asyncio.wait({answer, life.gone}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            try:
                return answer.result()
            except Exception as error:
                failed = failure(error, self.name)
                if life is self._life and classify(failed) is Fault.ACTOR:
                    self.fail(reason(failed))
                raise failed from error
        if life.gone.done():
            life.gone.result()
        why = f"no answer to {what} within {deadline_s:.0f} s"
        if life is self._life:
            self.fail(why)
        raise ActorFailed(self.name, why)
