"""The actors of a run: engine sets per layout, kept alive, pumped for events, restarted when they die.

Invariants:
- engines of one TP size are shared by all layouts of that size: a layout of k engines uses the first k;
- each engine has exactly one pump that polls it, for as long as it lives, so no event is ever read by a caller that
  has gone; events go to the sink of the round in progress;
- an engine that dies or is silent past its deadline is replaced under the same name, at most `MAX_RESTARTS` times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ray

from ..plans.errors import RunFailed
from .engine import EngineConfig, EngineEvent, Request, RolloutEngine

MAX_RESTARTS = 3  # per engine and run; a fourth death is a fault to look at, not to paper over
START_DEADLINE_S = 600.0
CALL_DEADLINE_S = 120.0
POLL_S = 5.0

# Ray's logs and dashboards are not this tool's output, and Ray must not reserve cores: the plan places actors.
ACTOR_OPTIONS = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}


class Layout(NamedTuple):
    """An engine set: TP size and number of engines."""

    tp: int
    engines: int


class EngineDied(NamedTuple):
    """Put into the sink by a pump whose engine is gone."""

    engine: EngineHandle
    reason: str


Sink = Callable[["EngineHandle", list[EngineEvent]], None]


def start_ray() -> None:
    """Connect to the cluster in RAY_ADDRESS, or start Ray on this machine. Does nothing if already connected."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray runs its workers at niceness 15: whatever else runs on a shared host would starve the engines.
    os.environ.setdefault("RAY_worker_niceness", "0")
    address = os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(include_dashboard=False, object_store_memory=256 * 1024**2, **quiet)


async def within(deadline_s: float, awaitable: Any, whom: str) -> Any:
    """Await with a deadline that names whom it waited for. Raises RunFailed when it passes."""
    try:
        return await asyncio.wait_for(awaitable, deadline_s)
    except TimeoutError:
        raise RunFailed(f"{whom} did not answer within {deadline_s:.0f} s") from None


class EngineHandle:
    """One engine of the fleet: its actor, its pump, and its replacement."""

    def __init__(self, config: EngineConfig, notify: Callable[[EngineDied], None], sink: Sink) -> None:
        self.config = config
        self.name = config.name
        self.alive = False
        self.facts: dict[str, Any] = {}
        self.restarts = 0
        self.version = ""
        self._notify = notify
        self._sink = sink
        self._actor: Any = None
        self._pump: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the actor and vLLM in it. Raises RunFailed."""
        remote = ray.remote(RolloutEngine).options(
            **ACTOR_OPTIONS, max_concurrency=8, runtime_env={"env_vars": self.config.environment()}
        )
        self._actor = remote.remote(self.config)
        try:
            self.facts = await within(START_DEADLINE_S, self._actor.start.remote(), f"engine {self.name}")
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise RunFailed(f"engine {self.name} did not start: {_last_line(error)}") from error
        self.alive = True
        self.version = ""
        self._pump = asyncio.create_task(self._run_pump(), name=f"pump {self.name}")

    async def _run_pump(self) -> None:
        while True:
            try:
                events = await self._actor.poll.remote(POLL_S)
            except (ray.exceptions.RayError, RuntimeError) as error:
                self._die(_last_line(error))
                return
            if events:
                self._sink(self, events)

    def _die(self, reason: str) -> None:
        if self.alive:
            self.alive = False
            self._notify(EngineDied(self, reason))

    async def load(self, path: str, version: str, checksums: bool) -> dict[str, str]:
        """Load weights; returns tensor checksums if asked for. Raises RunFailed or a Ray error if the engine died."""
        call = self._actor.load_weights.remote(path, version, checksums)
        try:
            sums: dict[str, str] = await within(CALL_DEADLINE_S, call, f"weight load of {self.name}")
        except ray.exceptions.RayActorError:
            raise
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"{self.name} could not load weights: {_last_line(error)}") from error
        self.version = version
        return sums

    async def submit(self, requests: list[Request], version: str, at_once: int | None = None) -> None:
        """Start decoding on this engine, at most `at_once` requests at a time (None: all that it was built for)."""
        await within(CALL_DEADLINE_S, self._actor.submit.remote(requests, version, at_once), f"engine {self.name}")

    async def abort(self, request_ids: list[str]) -> None:
        """Stop requests; a dead engine has nothing to stop."""
        with contextlib.suppress(ray.exceptions.RayError):
            await within(CALL_DEADLINE_S, self._actor.abort.remote(request_ids), f"abort on {self.name}")

    async def live_checksum(self) -> str:
        """Digest of the parameters as the kernels hold them."""
        return str(await within(CALL_DEADLINE_S, self._actor.live_checksum.remote(), f"engine {self.name}"))

    async def sleep(self) -> None:
        """Free accelerator memory for training (CUDA)."""
        await within(CALL_DEADLINE_S, self._actor.sleep.remote(), f"sleep of {self.name}")

    async def wake(self) -> None:
        """Undo `sleep`; weights must be loaded next."""
        await within(CALL_DEADLINE_S, self._actor.wake.remote(), f"wake-up of {self.name}")

    def kill(self, reason: str) -> None:
        """End a silent engine; its pump reports the death."""
        self._die(reason)
        ray.kill(self._actor, no_restart=True)

    async def replace(self) -> None:
        """Start a fresh engine under this name. Raises RunFailed after too many deaths."""
        self.restarts += 1
        if self.restarts > MAX_RESTARTS:
            raise RunFailed(f"engine {self.name} died {self.restarts} times; see the trace for the reasons")
        await self._stop_pump()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor, no_restart=True)
        await self.start()

    async def _stop_pump(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None

    async def close(self) -> None:
        """Stop the engine; what does not stop in time is killed."""
        self.alive = False
        await self._stop_pump()
        if self._actor is not None:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                await asyncio.wait_for(self._actor.close.remote(), 20)
            ray.kill(self._actor, no_restart=True)


class Fleet:
    """All engines of the layouts in use."""

    def __init__(
        self,
        layouts: Iterable[Layout],
        *,
        model_path: str,
        dtype: str,
        kind: str,
        max_model_len: int,
        max_num_seqs: int,
        kv_memory_bytes_per_accelerator: int,
        seed: int = 0,
    ) -> None:
        self._kind = kind
        self._sink: Sink = lambda engine, events: None
        self._on_death: Callable[[EngineDied], None] = lambda death: None
        counts: dict[int, int] = {}
        for layout in layouts:
            counts[layout.tp] = max(counts.get(layout.tp, 0), layout.engines)
        cores = sorted(os.sched_getaffinity(0))
        self._engines: dict[int, list[EngineHandle]] = {}
        for tp, count in sorted(counts.items()):
            self._engines[tp] = [
                EngineHandle(
                    EngineConfig(
                        name=f"rollout-tp{tp}-{i}",
                        model_path=model_path,
                        dtype=dtype,
                        tp=tp,
                        max_model_len=max_model_len,
                        max_num_seqs=max_num_seqs,
                        kind=kind,
                        kv_memory_bytes=kv_memory_bytes_per_accelerator * tp,
                        cores=tuple(cores[(i * tp + r) % len(cores)] for r in range(tp)) if kind == "cpu" else (),
                        seed=seed + i,
                    ),
                    lambda death: self._on_death(death),
                    lambda engine, events: self._sink(engine, events),
                )
                for i in range(count)
            ]

    async def start(self) -> float:
        """Start every engine: on CPUs all at once, on GPUs one TP size after another. Returns seconds."""
        began = time.perf_counter()
        # On a GPU vLLM measures how much memory is free, so engines that share one must not start together.
        together = [self.all_engines()] if self._kind == "cpu" else list(self._engines.values())
        for engines in together:
            await asyncio.gather(*(engine.start() for engine in engines))
        return time.perf_counter() - began

    def engines(self, layout: Layout) -> list[EngineHandle]:
        """The engines of a layout, in order."""
        return self._engines[layout.tp][: layout.engines]

    def all_engines(self) -> list[EngineHandle]:
        """Every engine of every TP size."""
        return [engine for engines in self._engines.values() for engine in engines]

    def listen(self, sink: Sink, on_death: Callable[[EngineDied], None]) -> None:
        """Direct events and deaths to the round in progress."""
        self._sink, self._on_death = sink, on_death

    async def close(self) -> None:
        """Stop all engines."""
        await asyncio.gather(*(engine.close() for engine in self.all_engines()))


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
