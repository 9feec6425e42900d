"""One process under an engine's name: calls to its actor, what it says, and for how long it has been silent.

Invariants:
- calls are carried out in the order in which they were made: an abort never overtakes its submit, and weights that
  nobody needs any more are loaded before the next ones and not after;
- one pump polls the process for as long as it lives, so no event is read by a caller that has gone, and silence is
  noticed process by process, whether it decodes or not and whatever the others say;
- when the process is gone, its pending calls end with `ActorFailed`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import ray

from ..actors import ACTOR_OPTIONS, retrieved, track
from ..faults import ActorFailed, Fault, classify, failure, reason
from ..placement.live_nodes import on_node
from ..supervision import LOOK_S, LastHeard, Patience
from .engine import RolloutEngine
from .messages import EngineConfig, EngineEvent
from .start_watch import START_GROUP
from .vllm_options import environment

POLL_S = 1.0  # shorter than any patience: what a poll does not tell is silence
PROGRESS_S = 120.0  # in which an engine that has samples must decode `ALIVE_TOKENS` of one of them


def spawn_engine(config: EngineConfig) -> Any:
    """A new actor for an engine."""
    # Ray's stubs do not know this option.
    remote: Any = ray.remote(concurrency_groups={START_GROUP: 1})(RolloutEngine)  # type: ignore[call-overload]
    options = {**ACTOR_OPTIONS, "max_concurrency": 8, "runtime_env": {"env_vars": environment(config)}}
    options |= on_node(config.node_id)
    return remote.options(**options).remote(config)


class EngineProcess:
    """An engine's actor from its start to its end. `failed(process, why)` hears once it is gone or of no use."""

    def __init__(self, name: str, actor: Any, patience: Patience, failed: Callable[[EngineProcess, str], None]) -> None:
        self.actor = actor
        self._name = name
        self._patience = patience
        self._failed = failed
        self._gone: asyncio.Future[None] = retrieved(asyncio.get_running_loop().create_future())
        self._turn = asyncio.Lock()  # first come, first served
        self._core_calls = 0  # in progress; they keep vLLM's core from answering
        self._silence = LastHeard(time.monotonic())
        self._stillness = LastHeard(time.monotonic())
        self._pump: asyncio.Task[None] | None = None

    def end(self, why: str) -> None:
        """Note that the process is gone: pending calls raise ActorFailed."""
        if not self._gone.done():
            self._gone.set_exception(ActorFailed(self._name, why))

    # -- what it says --------------------------------------------------------------------------------------------------

    def start_pump(self, tell: Callable[[list[EngineEvent]], None]) -> None:
        """Begin to poll for events, pass them to `tell`, and watch for silence."""
        self._silence.heard(time.monotonic())
        self._pump = asyncio.create_task(self._run_pump(tell), name=f"pump {self._name}")

    async def stop_pump(self) -> None:
        """Stop polling."""
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    async def _run_pump(self, tell: Callable[[list[EngineEvent]], None]) -> None:
        while not self._gone.done():
            call = track(self.actor.poll.remote(POLL_S))
            while not call.done():
                await asyncio.wait({call, self._gone}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if self._gone.done() or (not call.done() and self._too_silent()):
                    return
            try:
                events = call.result()
            except Exception as error:  # noqa: BLE001 - an engine that cannot be polled is replaced, whatever the error
                self._failed(self, reason(error))
                return
            now = time.monotonic()
            if events or self._core_calls:
                self._silence.heard(now)
            elif self._too_silent():
                return
            news = [event for event in events if event.name != "pulse"]
            if news:
                self._stillness.heard(now)
                tell(news)

    def _too_silent(self) -> bool:
        silent_s = self._silence.look(time.monotonic())
        if silent_s < self._patience.stall_s:
            return False
        self._failed(self, f"no sign of life for {silent_s:.0f} s")
        return True

    def watch_progress(self) -> None:
        """Fail the process if it answers and does not decode; call it every `LOOK_S` while the engine has samples."""
        still_s = self._stillness.look(time.monotonic())
        if still_s >= max(PROGRESS_S, self._patience.stall_s):
            self._failed(self, f"decoded nothing for {still_s:.0f} s")

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def call(self, method: str, arguments: tuple[Any, ...], deadline_s: float | None = None) -> Any:
        """Call a method of the actor after all earlier calls; returns its result. Default deadline: the patience."""
        async with self._turn:
            if self._gone.done():
                self._gone.result()
            self._stillness.heard(time.monotonic())
            call = getattr(self.actor, method).remote(*arguments)
            return await self.answer(call, deadline_s or self._patience.stall_s, method)

    async def core_call(self, method: str, arguments: tuple[Any, ...], deadline_s: float) -> Any:
        """Call a method during which vLLM's core gives no signs of life; returns its result."""
        self._core_calls += 1
        try:
            return await self.call(method, arguments, deadline_s)
        finally:
            self._core_calls -= 1
            self._silence.heard(time.monotonic())

    async def answer(self, call: Any, deadline_s: float, method: str) -> Any:
        """The answer to a Ray call of `method`. Raises RunFailed; ActorFailed if the process is gone or too slow."""
        answer = track(call)
        await asyncio.wait({answer, self._gone}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            try:
                return answer.result()
            except Exception as error:
                failed = failure(error, self._name)
                if classify(failed) is Fault.ACTOR:
                    self._failed(self, reason(failed))
                raise failed from error
        if self._gone.done():
            self._gone.result()
        why = f"no answer to {method} within {deadline_s:.0f} s"
        self._failed(self, why)
        raise ActorFailed(self._name, why)
