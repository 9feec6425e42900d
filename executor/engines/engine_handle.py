"""One engine as the driver sees it: it starts, takes calls, and is replaced under its name when it is gone; and each
process that bears the name: calls to its actor, what it says, and for how long it has been silent.

Invariants:
- an engine that dies, hangs or stays silent is replaced under the same name, at once, while all else goes on;
- calls that were made to the process that is gone end with `ActorFailed`, and never reach its successor;
- calls are carried out in the order in which they were made: an abort never overtakes its submit, and weights that
  nobody needs any more are loaded before the next ones and not after;
- one pump polls the process for as long as it lives, so no event is read by a caller that has gone, and silence is
  noticed process by process, whether it decodes or not and whatever the others say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray

from ...plans.facts.executable import PROGRESS_S
from ...plans.yaml.errors import InputError, RunFailed
from ..drafts.draft_messages import DraftReport, PromptHistory
from ..placement.actor_placer import ActorPlacer
from ..placement.live_nodes import on_node
from ..processes.actors import ACTOR_OPTIONS, end_actor, retrieved, track
from ..processes.faults import (
    ActorFailed,
    ErrorClass,
    MemoryRanOut,
    Recurrences,
    classify,
    failure,
    fatal_text,
    out_of_memory,
    reason,
)
from ..processes.supervision import CALL_DEADLINE_S, LOOK_S, GivenUp, LastHeard, Patience, Supervisor
from ..weights.transfer import Answer
from .engine import RolloutEngine
from .engine_watch import START_GROUP, watch_start
from .messages import RECEIVE, EngineConfig, EngineEvent, EngineFacts, Request
from .vllm_options import environment

log = logging.getLogger(__name__)

POLL_S = 1.0  # shorter than any patience: what a poll does not tell is silence
CLOSE_S = 20.0
LOAD_BYTES_PER_S = 20e6  # slower than any disk or network that weights are sent over


def spawn_engine(config: EngineConfig) -> Any:
    """A new actor for an engine."""
    # Ray's stubs do not know this option.
    remote: Any = ray.remote(concurrency_groups={START_GROUP: 1})(RolloutEngine)  # type: ignore[call-overload]
    options = {**ACTOR_OPTIONS, "max_concurrency": 8, "runtime_env": {"env_vars": environment(config)}}
    return remote.options(**options, **on_node(config.node_id)).remote(config)


class EngineProcess:
    """An engine's actor from its start to its end. `failed(process, why)` hears once it is gone or of no use."""

    def __init__(self, name: str, actor: Any, patience: Patience, failed: Callable[[EngineProcess, str], None]) -> None:
        self.actor, self._name, self._patience, self._failed = actor, name, patience, failed
        self._gone: asyncio.Future[None] = retrieved(asyncio.get_running_loop().create_future())
        self._turn = asyncio.Lock()  # first come, first served
        self._core_calls = 0  # in progress; they keep vLLM's core from answering
        self._silence, self._stillness = LastHeard(time.monotonic()), LastHeard(time.monotonic())
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
            if news := [event for event in events if event.name != "pulse"]:
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
                if classify(failed) is ErrorClass.ACTOR:
                    self._failed(self, reason(failed))
                raise failed from error
        if self._gone.done():
            self._gone.result()
        why = f"no answer to {method} within {deadline_s:.0f} s"
        self._failed(self, why)
        raise ActorFailed(self._name, why)


class EngineEvents(NamedTuple):
    """What a poll of an engine returned."""

    engine: EngineHandle
    events: list[EngineEvent]


class EngineDied(NamedTuple):
    """An engine is gone; its replacement starts by itself."""

    engine: EngineHandle
    reason: str


class EngineBack(NamedTuple):
    """An engine is up that was away: it has been replaced, has received weights, or is new in the round."""

    engine: EngineHandle


class EngineGivenUp(NamedTuple):
    """An engine could not be started, for this reason, and is not tried again: who uses it goes on with the others."""

    engine: EngineHandle
    error: RunFailed | InputError


EngineNews = EngineEvents | EngineDied | EngineBack | EngineGivenUp | RunFailed
"""What an engine tells; RunFailed: the end of the run."""


class EngineHandle:
    """One engine of the fleet. `tell` hears its news, on the event loop; `spawn` and `end` make and kill its actor.

    `placer` says where it runs, each time that it is started; None: on any node, on the cores of its configuration.
    """

    def __init__(
        self,
        config: EngineConfig,
        tell: Callable[[EngineNews], None],
        supervisor: Supervisor,
        spawn: Callable[[EngineConfig], Any] = spawn_engine,
        end: Callable[[Any], None] = end_actor,
        placer: ActorPlacer | None = None,
    ) -> None:
        self.config, self._placer = config, placer
        self.alive, self.version = False, ""
        self._sent = ""  # the version that it was sent last
        self._deaths = Recurrences()  # by the version of the weights
        self._tell, self._supervisor, self._spawn, self._end = tell, supervisor, spawn, end
        self.lives = 0
        """How often its process was started: what was agreed with an earlier one is void."""
        self._facts: EngineFacts | None = None
        self._process: EngineProcess | None = None
        self._repair: asyncio.Task[None] | None = None
        self._given_up: RunFailed | InputError | None = None
        self._counted = 0  # the life of which the placer knows that it failed
        self.spared: Callable[[], bool] = lambda: False
        """Whether a run can begin without the engine."""
        self.room: Callable[[str], Awaitable[None]] | None = None
        """Waits until the engine's devices have room for its start (executor/memory/device_turns.py)."""
        self.gone: Callable[[str], None] | None = None
        """Hears that the engine's process was ended, and has no memory of a device any more."""

    @property
    def name(self) -> str:
        """Name of the engine in errors and traces; its replacement has the same name."""
        return self.config.name

    @property
    def facts(self) -> EngineFacts:
        """Facts that the engine's latest process reported when it had started."""
        assert self._facts is not None, f"{self.name} was never started"
        return self._facts

    # -- life and death ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine; a start that its process does not survive is tried again. Raises RunFailed, unless the
        engine is given up and `spared`.

        Where its node was lost and no other is there, the start goes on beside what follows, until the engine is back.
        """
        self._given_up = None
        starts = asyncio.create_task(self._supervisor.start(self), name=f"start of {self.name}")
        try:
            while not starts.done():
                await asyncio.wait({starts}, timeout=None if self._placer is None else LOOK_S)
                if not starts.done() and self._placer is not None and self._placer.waits(self.name) and self.spared():
                    self._repair = asyncio.create_task(self._come_back(starts), name=f"late start of {self.name}")
                    return
            await starts
        except GivenUp as error:
            if not self.spared():
                raise
            self._give_up(error)
        except asyncio.CancelledError:
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)
            raise

    async def find_node(self) -> None:
        """Find the engine's node and devices; waits as long as no node has room for it."""
        if self._placer is not None:
            placed = await self._placer.engine(self.name)
            self.config = replace(self.config, node_id=placed.node_id, cores=placed.cores, gpus=placed.gpus)
        if self.room is not None:
            await self.room(self.name)
            if self._placer is not None and not self._placer.stands(self.name, self.config.node_id):
                raise ActorFailed(self.name, "its node was left while it waited for room on its devices")

    async def launch(self) -> None:
        """One try of a start, for the supervisor. Raises RunFailed."""
        self.lives += 1
        process = EngineProcess(self.name, self._spawn(self.config), self._supervisor.patience, self._failed)
        self._process = process
        watch = asyncio.create_task(self._watch_start(process), name=f"watch of the start of {self.name}")
        try:
            deadline_s = self._supervisor.start_deadline_s(self.name)
            facts: EngineFacts = await process.answer(process.actor.start.remote(), deadline_s, "start")
        finally:
            watch.cancel()
        if facts.slow_seeds:
            log.warning("%s: %s; so vLLM draws sample by sample, which takes a GPU longer", self.name, facts.slow_seeds)
        self._facts, self.alive, self.version = facts, True, ""
        process.start_pump(lambda events: self._tell(EngineEvents(self, events)))

    async def _watch_start(self, process: EngineProcess) -> None:
        look = process.actor.look_at_children.options(concurrency_group=START_GROUP)
        why = await watch_start(look.remote, self._supervisor.patience.stall_s)
        self._failed(process, why)
        process.end(why)  # it is not up, so that nothing else ends it

    async def discard(self) -> None:
        """End what is left of the engine's process."""
        process, self._process, self.alive = self._process, None, False
        if process is not None:
            process.end("it was ended")
            await process.stop_pump()
            self._kill(process)
        if self.gone is not None:
            self.gone(self.name)

    def _kill(self, process: EngineProcess) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            self._end(process.actor)

    def _failed(self, process: EngineProcess, why: str) -> None:
        if process is not self._process:
            return
        if self._placer is not None and self._counted != self.lives:
            self._counted = self.lives
            self._placer.engine_failed(self.name, why)
        self.fail(why)

    def fail(self, why: str) -> None:
        """The engine is gone or of no use: kill it, and start another under its name beside what goes on."""
        if not self.alive or self._process is None:
            return
        self.alive = False
        self._process.end(why)
        self._kill(self._process)
        if (end := self._recurs(why)) is not None:
            if isinstance(end, MemoryRanOut):
                self._given_up = end
                self._tell(end)
            else:
                self._give_up(end)
            return
        self._tell(EngineDied(self, why))
        replaced = self._supervisor.replace(self, why)
        self._repair = asyncio.create_task(self._come_back(replaced), name=f"replacement of {self.name}")

    def _recurs(self, why: str) -> RunFailed | None:
        """Why the engine is not started again: it has died so often of this with the same weights, and would again."""
        cause = "memory" if out_of_memory(why) else RECEIVE if RECEIVE in why and fatal_text(why) else ""
        often = self._deaths.again(cause, self._sent)
        if often is None or not self._sent:
            return None
        text = f"{self.name}: {why}, {often} with the weights {self._sent}"
        return MemoryRanOut(text) if cause == "memory" else RunFailed(text)

    def leave_node(self, why: str) -> None:
        """Its node is another from now on: start it there, also if it was given up."""
        if self._given_up is not None:
            self._given_up = None
            start = self._supervisor.start(self)
            self._repair = asyncio.create_task(self._come_back(start), name=f"start of {self.name}")
        elif not self.alive and self._process is not None:
            self._process.end(why)  # it starts; whoever starts it places it anew
        self.fail(why)

    async def _come_back(self, start: Awaitable[None]) -> None:
        try:
            await start
        except Exception as error:  # noqa: BLE001 - any error is raised to who can use no other engine
            self._give_up(error)
        else:
            self._tell(EngineBack(self))

    def _give_up(self, error: Exception) -> None:
        self._given_up = error if isinstance(error, InputError) else failure(error, self.name)
        self._tell(EngineGivenUp(self, self._given_up))

    @property
    def given_up(self) -> bool:
        """Whether the engine could not be started, and is not tried again."""
        return self._given_up is not None

    @property
    def ends_run(self) -> bool:
        """Whether it died of what would be the death of any engine that decodes its samples (`check`)."""
        return isinstance(self._given_up, MemoryRanOut)

    def check(self) -> None:
        """Raises RunFailed or InputError if the engine was given up."""
        if self._given_up is not None:
            raise self._given_up

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
        process, was_alive, self.alive = self._process, self.alive, False
        if process is not None and was_alive:
            await asyncio.wait({track(process.actor.close.remote())}, timeout=CLOSE_S)
        await self.discard()

    def watch_progress(self) -> None:
        """Replace the engine if it lives and does not decode; call it every `LOOK_S` while the engine has samples."""
        if self._process is not None and self.alive:
            self._process.watch_progress()

    # -- calls: to the process that bears the name when the call is made -----------------------------------------------

    def load(self, path: str, version: str, checksums: bool) -> Coroutine[Any, Any, dict[str, str]]:
        """Load weights; returns tensor checksums if asked for. Raises ActorFailed if the engine is gone."""
        return self._load(self._process, path, version, checksums)

    async def _load(self, process: EngineProcess | None, path: str, version: str, checksums: bool) -> dict[str, str]:
        self._sent = version
        deadline_s = self._supervisor.patience.stall_s + Path(path).stat().st_size / LOAD_BYTES_PER_S
        sums: dict[str, str] = await self._up(process).core_call("load_weights", (path, version, checksums), deadline_s)
        if process is self._process:
            self.version = version
        return sums

    def transfer(self, method: str, arguments: tuple[Any, ...], deadline_s: float) -> Coroutine[Any, Any, Answer]:
        """Call a method of the engine's part in a transfer of weights (engine.py). Raises ActorFailed if the engine is
        gone, or hangs for `deadline_s`."""
        return self._transfer(self._process, method, arguments, deadline_s)

    async def _transfer(
        self, process: EngineProcess | None, method: str, arguments: tuple[Any, ...], deadline_s: float
    ) -> Answer:
        if method == "begin_weights":
            self._sent = arguments[0].version
        answer: Answer = await self._up(process).core_call(method, arguments, deadline_s)
        if process is self._process and method in ("begin_weights", "finish_weights"):
            self.version = arguments[0] if method == "finish_weights" else ""
        return answer

    def submit(
        self, requests: list[Request], version: str, max_num_seqs: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """Start decoding on this engine, at most `max_num_seqs` requests at a time (None: all that it was built for).

        Raises ActorFailed if it is gone: the samples are lost then.
        """
        return self._call(self._process, "submit", requests, version, max_num_seqs)

    def abort(self, request_ids: list[str]) -> Coroutine[Any, Any, None]:
        """Stop requests. Raises ActorFailed if the engine is gone: there is nothing to stop then."""
        return self._call(self._process, "abort", request_ids)

    def held_tokens(self) -> Coroutine[Any, Any, dict[str, int]]:
        """By request: tokens that it holds in the KV cache at most. Raises ActorFailed if the engine is gone."""
        return self._call(self._process, "held_tokens")

    def release(self, request_ids: list[str]) -> Coroutine[Any, Any, None]:
        """Stop requests, each of which then tells what it has decoded. Raises ActorFailed as `abort`."""
        return self._call(self._process, "release", request_ids)

    def begin_drafts(self, tokens: int, up_to_sequences: int) -> Coroutine[Any, Any, None]:
        """Begin a round with drafts, as RolloutEngine.begin_drafts. Raises ActorFailed."""
        return self._call(self._process, "begin_drafts", tokens, up_to_sequences)

    def remember(self, histories: list[PromptHistory]) -> Coroutine[Any, Any, None]:
        """Give the engine earlier responses to prompts of the round. Raises ActorFailed."""
        return self._call(self._process, "remember", histories)

    def take_drafts(self, unfinished: list[str]) -> Coroutine[Any, Any, DraftReport]:
        """What drafts gave in the round, with the tokens of aborted requests. Raises ActorFailed."""
        return self._call(self._process, "take_drafts", unfinished)

    async def _call(self, process: EngineProcess | None, method: str, *arguments: Any) -> Any:
        return await self._up(process).call(method, arguments)

    async def live_checksum(self) -> str:
        """Digest of the parameters as the kernels hold them."""
        return str(await self._up(self._process).core_call("live_checksum", (), CALL_DEADLINE_S))

    async def sleep(self) -> None:
        """Free the devices' memory; weights are dropped. Raises ActorFailed if the engine is gone, or cannot sleep."""
        await self._up(self._process).core_call("sleep", (), 2 * self._supervisor.patience.stall_s)
        self.version = ""

    async def wake(self, part: str) -> None:
        """Take memory for `weights`, which must be loaded next, or then for the `kv_cache`. Raises as `sleep`."""
        await self._up(self._process).core_call("wake", (part,), 2 * self._supervisor.patience.stall_s)

    def _up(self, process: EngineProcess | None) -> EngineProcess:
        if process is None:
            raise ActorFailed(self.name, "it is being replaced")
        return process


def spare_each_other(engines: Sequence[EngineHandle]) -> None:
    """Have a run begin without any of these engines, as long as one of them is not given up."""
    for engine in engines:
        engine.spared = partial(_others_are_left, engine, engines)


def _others_are_left(engine: EngineHandle, engines: Sequence[EngineHandle]) -> bool:
    return any(not other.given_up for other in engines if other is not engine)
