"""The fleet: all engines of a run, as sets per layout; it passes their events and deaths to the round in progress.

Invariants:
- engines of one TP size are shared by all layouts of that size: a layout of k engines uses the first k;
- events go to the round in progress, and to nobody between rounds; a death between rounds is kept until `take_missed`;
- an engine that is gone is replaced while all else goes on (`engine_handle`); a round waits for it only if it
  has no other engine;
- an engine that cannot be started is given up, and a run goes on with the others of its layout; where none of them is
  left, with others of its TP size; where none of these is left, it ends with the reason.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...plans.facts.device_shares import ENGINE_SHARE
from ...plans.schema.levers import EngineLayout
from ..placement.actor_placer import ActorPlacer
from ..placement.run_placement import engine_counts, engine_name
from ..processes.supervision import Supervisor, together
from .engine_handle import EngineDied, EngineGivenUp, EngineHandle, EngineNews, spare_each_other
from .messages import EngineConfig
from .vllm_options import FIXED_CACHE_SHARE


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Which engines a fleet has, and how each is built. Lengths in tokens, memory in bytes.

    Attributes:
        layouts: the engine sets that will be asked for.
        device: `cpu` or `cuda`.
        max_model_len: longest prompt and response together.
        max_num_seqs: most sequences that an engine decodes at a time, in any kind of round.
        seed: of the first engine; those after it have the numbers that follow.
        draft_tokens: that an engine drafts for a sample and step at most, in any kind of round; 0: none ever drafts.
        head_dtype: of logits; None: `dtype`.
        kv_bytes: by TP size, of the KV cache of each of an engine's ranks, where a plan says it; else it takes what is
            left of the engines' share of a GPU, or all the KV space of its cores.
        restricts: some requests have rules that restrict what may be drawn.
        kv_dtype: of KV caches; None: `dtype`.
        batched_tokens: prompt tokens of an engine's step; None: the default for the device.
        share: of a GPU's memory, that an engine takes.
    """

    layouts: tuple[EngineLayout, ...]
    model_path: str
    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    kv_memory_bytes_per_accelerator: int
    seed: int = 0
    draft_tokens: int = 0
    head_dtype: str | None = None
    kv_bytes: Mapping[int, int] = field(default_factory=dict)
    restricts: bool = False
    kv_dtype: str | None = None
    batched_tokens: int | None = None
    share: float = ENGINE_SHARE

    def engines(self) -> dict[int, list[EngineConfig]]:
        """The engines by TP size: of each size as many as the largest layout of that size has."""
        counts = engine_counts(self.layouts)
        return {tp: [self._engine(tp, number) for number in range(count)] for tp, count in counts.items()}

    def _engine(self, tp: int, number: int) -> EngineConfig:
        cores = sorted(os.sched_getaffinity(0)) if self.device == "cpu" else []
        kv_bytes, room = self.kv_bytes.get(tp), self.kv_memory_bytes_per_accelerator
        fixed = self.device == "cuda" and kv_bytes is not None
        return EngineConfig(
            name=engine_name(tp, number),
            model_path=self.model_path,
            dtype=self.dtype,
            tp=tp,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            device=self.device,
            kv_memory_bytes=room * tp if kv_bytes is None else kv_bytes,
            memory_share=min(self.share, FIXED_CACHE_SHARE + (kv_bytes or 0) / room) if fixed else None,
            cores=tuple(cores[(number * tp + rank) % len(cores)] for rank in range(tp)) if cores else (),
            seed=self.seed + number,
            draft_tokens=self.draft_tokens,
            head_dtype=self.head_dtype,
            restricts=self.restricts,
            kv_dtype=self.kv_dtype,
            batched_tokens=self.batched_tokens,
            share=self.share,
        )


class Fleet:
    """All engines of the layouts in use."""

    def __init__(
        self,
        config: FleetConfig,
        supervisor: Supervisor | None = None,
        handle: Callable[[EngineConfig, Callable[[EngineNews], None], Supervisor], EngineHandle] | None = None,
        placer: ActorPlacer | None = None,
    ) -> None:
        handle = handle or partial(EngineHandle, placer=placer)
        self._device = config.device
        self.draft_tokens = config.draft_tokens
        """Tokens that its engines can draft for a sample and step; 0: they cannot."""
        self._tell: Callable[[EngineNews], None] | None = None
        self._missed: list[EngineDied] = []
        self._gave_up: Callable[[EngineGivenUp], None] = lambda news: None
        self.supervisor = supervisor or Supervisor()
        self._engines = {
            tp: [handle(engine, self.hear, self.supervisor) for engine in engines]
            for tp, engines in config.engines().items()
        }

    def spare(self, gave_up: Callable[[EngineGivenUp], None]) -> None:
        """Start without engines that cannot be started, as long as one of each TP size is left; `gave_up` hears of
        them."""
        self._gave_up = gave_up
        for engines in self._engines.values():
            spare_each_other(engines)

    async def start(self) -> None:
        """Start every engine: on CPUs all at once, on GPUs one TP size after another."""
        # On a GPU vLLM measures how much memory is free, so engines that share one must not start together.
        batches = [self.all_engines()] if self._device == "cpu" else list(self._engines.values())
        for engines in batches:
            await together(*(engine.start() for engine in engines))

    def engines(self, layout: EngineLayout) -> list[EngineHandle]:
        """The engines of a layout, in order, given up or not; others of their size where all of them are given up."""
        engines = self._engines[layout.tp]
        first = engines[: layout.engines]
        if not all(engine.given_up for engine in first):
            return first
        return [engine for engine in engines if not engine.given_up][: layout.engines] or first

    def all_engines(self) -> list[EngineHandle]:
        """Every engine of every TP size."""
        return [engine for engines in self._engines.values() for engine in engines]

    def listen(self, tell: Callable[[EngineNews], None]) -> None:
        """Direct the news of engines to the round in progress."""
        self._tell = tell

    def listen_no_more(self) -> None:
        """Stop directing news to the round, which is over."""
        self._tell = None

    def hear(self, news: EngineNews) -> None:
        """Handle news of an engine."""
        if isinstance(news, EngineGivenUp):
            self._gave_up(news)
        if self._tell is not None:
            self._tell(news)
        elif isinstance(news, EngineDied):
            self._missed.append(news)

    def take_missed(self) -> list[EngineDied]:
        """Deaths between rounds, each returned once."""
        missed, self._missed = self._missed, []
        return missed

    async def some_ready(self, engines: Sequence[EngineHandle]) -> list[EngineHandle]:
        """The engines that are up, at least one; waits only while none is.

        Raises RunFailed or InputError if all of them were given up, or one ends the run.
        """
        while True:
            for engine in engines:
                if engine.ends_run:
                    engine.check()
            up = [engine for engine in engines if engine.alive]
            if up:
                return up
            left = {engine.repair for engine in engines if not engine.given_up}
            if not left:
                engines[0].check()
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop all engines."""
        await asyncio.gather(*(engine.close() for engine in self.all_engines()))
