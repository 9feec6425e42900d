"""All engines of a run, as sets per layout.

Invariants:
- engines of one TP size are shared by all layouts of that size: a layout of k engines uses the first k;
- what engines say goes to the round in progress, and to nobody between rounds; a death between rounds is kept until
  somebody asks for it;
- an engine that is gone is replaced beside whatever goes on (`engine_handle`); nobody waits for it who can do without.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import ray

from ...plans.schema.sections.layouts import EngineLayout
from ..supervision import Supervisor, together
from .engine import EngineConfig, EngineEvent
from .engine_handle import EngineDied, EngineHandle

Sink = Callable[[EngineHandle, list[EngineEvent]], None]


def start_ray() -> None:
    """Connect to the cluster in RAY_ADDRESS, or start Ray on this machine. Does nothing if already connected."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray runs its workers at niceness 15: whatever else runs on a shared host would starve the engines.
    os.environ.setdefault("RAY_worker_niceness", "0")
    address = os.environ.get("RAY_ADDRESS")
    # Ray's logs and dashboards are not this tool's output.
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(include_dashboard=False, object_store_memory=256 * 1024**2, **quiet)


class Fleet:
    """All engines of the layouts in use."""

    def __init__(
        self,
        layouts: Iterable[EngineLayout],
        *,
        model_path: str,
        dtype: str,
        kind: str,
        max_model_len: int,
        max_num_seqs: int,
        kv_memory_bytes_per_accelerator: int,
        seed: int = 0,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._kind = kind
        self._listeners: _Listeners | None = None
        self._missed: list[EngineDied] = []
        self.supervisor = supervisor or Supervisor()
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
                    self,
                    self.supervisor,
                )
                for i in range(count)
            ]

    async def start(self) -> None:
        """Start every engine: on CPUs all at once, on GPUs one TP size after another."""
        # On a GPU vLLM measures how much memory is free, so engines that share one must not start together.
        at_once = [self.all_engines()] if self._kind == "cpu" else list(self._engines.values())
        for engines in at_once:
            await together(*(engine.start() for engine in engines))

    def engines(self, layout: EngineLayout) -> list[EngineHandle]:
        """The engines of a layout, in order."""
        return self._engines[layout.tp][: layout.engines]

    def all_engines(self) -> list[EngineHandle]:
        """Every engine of every TP size."""
        return [engine for engines in self._engines.values() for engine in engines]

    def listen(
        self,
        sink: Sink,
        on_death: Callable[[EngineDied], None],
        on_back: Callable[[EngineHandle], None] = lambda engine: None,
        on_given_up: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Direct what engines do to the round in progress: events, deaths, replacements that are up or given up."""
        self._listeners = _Listeners(sink, on_death, on_back, on_given_up)

    def listen_no_more(self) -> None:
        """The round is over."""
        self._listeners = None

    def on_events(self, engine: EngineHandle, events: list[EngineEvent]) -> None:
        """What an engine says (see `engine_handle.Listener`)."""
        if self._listeners is not None:
            self._listeners.sink(engine, events)

    def on_death(self, death: EngineDied) -> None:
        """An engine is gone."""
        if self._listeners is not None:
            self._listeners.on_death(death)
        else:
            self._missed.append(death)

    def on_back(self, engine: EngineHandle) -> None:
        """An engine was replaced."""
        if self._listeners is not None:
            self._listeners.on_back(engine)

    def on_given_up(self, engine: EngineHandle, error: Exception) -> None:
        """An engine could not be replaced; whoever needs it next is told by `ready`."""
        if self._listeners is not None:
            self._listeners.on_given_up(error)

    def take_missed(self) -> list[EngineDied]:
        """Deaths between rounds that nobody was told of yet."""
        missed, self._missed = self._missed, []
        return missed

    async def some_ready(self, engines: Sequence[EngineHandle]) -> list[EngineHandle]:
        """Those of `engines` that are up, at least one; waits only if none is.

        Raises RunFailed if one of them could not be replaced: without it the plan is not what runs.
        """
        while True:
            for engine in engines:
                engine.check()
            up = [engine for engine in engines if engine.alive]
            if up:
                return up
            await asyncio.wait({engine.repair for engine in engines}, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop all engines."""
        await asyncio.gather(*(engine.close() for engine in self.all_engines()))


class _Listeners(NamedTuple):
    sink: Sink
    on_death: Callable[[EngineDied], None]
    on_back: Callable[[EngineHandle], None]
    on_given_up: Callable[[Exception], None]
