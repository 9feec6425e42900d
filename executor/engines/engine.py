"""A rollout engine: vLLM's AsyncLLM behind one Ray actor, one vLLM request per sample.

Invariants:
- a request is refused unless its weight version is the engine's, and each finished sample carries the version at both
  ends; weights are only loaded while nothing decodes, and the prefix cache is emptied with them;
- each request that was submitted ends in exactly one event: `finished`, or nothing if it was aborted;
- at most as many requests decode at once as the round's plan says; others wait here, in the order of submission;
- events leave by long poll in batches: a Ray call costs about as much as a decode step of a small model;
- an engine is heard of: a poll that finds no other event tells `alive` if any request grew since the last, else `pulse`
  if vLLM's processes answered since the last, which they are asked to once a second;
- the death of vLLM's core or of a rank is told by the next poll, whether anything decodes or not, and nothing that vLLM
  started outlives this actor.

Lifecycle: construct in an actor -> `start()` -> [`load_weights` -> `submit`/`poll`/`abort` ...]* -> `close()`.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import dataclass, field
from typing import Any

from ..faults import ActorFailed
from .core_watch import CoreWatch
from .guard import guard_group
from .start_watch import Children, look_at_children

# After the first event a poll waits this long for more: while the bulk of a round ends, samples end by the dozen, and
# one Ray reply for all of them leaves the cores to the decode.
COALESCE_S = 0.005

WARM_UP_REQUESTS = 64

# A request is heard of at least every so many tokens: 20 s at 80 ms a step, far less than any stall timeout.
ALIVE_TOKENS = 256

# Prompt tokens in one engine step on a CPU, vLLM's default there.
CPU_BATCHED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine is built. Lengths in tokens, memory in bytes; `cores` are host core ids for kind cpu."""

    name: str
    model_path: str
    dtype: str
    tp: int
    max_model_len: int
    max_num_seqs: int
    kind: str
    kv_memory_bytes: int
    cores: tuple[int, ...] = ()
    seed: int = 0

    def environment(self) -> dict[str, str]:
        """Environment of the engine's process; vLLM reads it at import."""
        env = {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self.kind == "cpu":
            assert len(self.cores) == self.tp, "one core per tensor-parallel rank"
            # More threads than one per rank only add barriers to the small products of a decode step.
            env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in self.cores)
            env["OMP_NUM_THREADS"] = "1"
        return env


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to decode: `request_id` unique over the engine's life, prompt token ids, limits in tokens.

    With a `seed` the sample's randomness is its own, whatever decodes beside it.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    cutoff_tokens: int | None = None
    temperature: float = 1.0
    ignore_eos: bool = False
    seed: int | None = None


@dataclass(slots=True)
class EngineEvent:
    """`finished`: tokens with the engine's log-probs, and how many of the prompt's tokens it found in its cache;
    `cutoff`: at least `cutoff_tokens` tokens and decoding on.

    Of no request: `alive`, tokens were decoded since the last poll; `pulse`, vLLM's processes answered since then."""

    kind: str
    request_id: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    version_start: str = ""
    version_end: str = ""
    decode_s: float = 0.0
    cached_tokens: int = 0


class RolloutEngine:
    """The actor's body. All methods run on the actor's asyncio loop."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._version = ""
        self._engine: Any = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._at_once = config.max_num_seqs
        self._room = asyncio.Semaphore(self._at_once)
        self._outbox: list[EngineEvent] = []
        self._news = asyncio.Event()
        self._died: str | None = None
        self._grew = False
        self._watch: CoreWatch | None = None

    async def start(self) -> dict[str, Any]:
        """Start vLLM. Returns {start_s, kv_capacity_tokens, kv_block_tokens, pid, cores: pids of vLLM's cores}.

        Raises ActorFailed if a process of vLLM died meanwhile, else whatever vLLM raises.
        """
        began = time.perf_counter()
        guard_group()
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        config = self._config
        options: dict[str, Any] = {
            "model": config.model_path,
            "dtype": config.dtype,
            "tensor_parallel_size": config.tp,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "seed": config.seed,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            # Log-probs of the distribution that was sampled from, so that the trainer's can be compared with them.
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "worker_extension_cls": "rlplan.executor.engines.engine_worker.WeightReceiver",
        }
        if config.kind == "cpu":
            options |= {
                "enforce_eager": True,
                "kv_cache_memory_bytes": config.kv_memory_bytes,
                # After a part of a prefill vLLM rewinds the request's own generator, which CPU generators cannot do.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(config.max_model_len, CPU_BATCHED_TOKENS),
            }
        else:
            options |= {"enable_sleep_mode": True, "gpu_memory_utilization": 0.9}
        arguments = AsyncEngineArgs(**options)
        try:
            self._engine = AsyncLLM.from_engine_args(arguments)
        except RuntimeError as error:
            # vLLM's words for a core that did not come up. Whether it was killed or failed, only its own log knows.
            if "initialization failed" not in str(error):
                raise
            raise ActorFailed(self._config.name, " ".join(str(error).split())) from error
        self._watch = CoreWatch(self._config.name, self._engine, self._die, lambda: bool(self._tasks))
        with self._watch.deaths():
            await self._warm_up()
        self._watch.start()
        cache = self._engine.vllm_config.cache_config
        return {
            "start_s": time.perf_counter() - began,
            "kv_capacity_tokens": int(cache.num_gpu_blocks or 0) * int(cache.block_size),
            "kv_block_tokens": int(cache.block_size),
            "pid": os.getpid(),
            "cores": [process.pid for process in self._engine.engine_core.resources.engine_manager.processes],
        }

    async def look_at_children(self) -> Children:
        """vLLM's processes; answered in a thread of its own, also while `start()` blocks."""
        return look_at_children()

    async def _warm_up(self) -> None:
        """Decode a little and forget it: vLLM's first requests pay for libraries and kernels (4 s on a CPU)."""
        count = min(self._config.max_num_seqs, WARM_UP_REQUESTS)
        requests = [Request(f"warm-up-{i}", (1, 2, 3), 4, ignore_eos=True, seed=i) for i in range(count)]
        await asyncio.gather(*(self._decode(request) for request in requests))
        self._outbox.clear()
        self._news.clear()
        if self._died is not None:
            raise ActorFailed(self._config.name, f"vLLM failed while it warmed up: {self._died}")

    async def load_weights(self, path: str, version: str, checksums: bool) -> dict[str, str]:
        """Load the safetensors file at `path` into all ranks and name the weights `version`.

        Returns the checksum of each tensor as the ranks received it ({} unless `checksums`). Raises RuntimeError if
        requests are running, if the file says that it holds another version, or if ranks received different bytes.
        """
        if self._tasks:
            raise RuntimeError(f"{self._config.name}: weights must not change while {len(self._tasks)} requests decode")
        assert self._watch is not None, "weights come after start()"
        with self._watch.deaths():
            answers = await self._engine.collective_rpc("receive_weights", args=(path, version, checksums))
        for found, _ in answers:
            if found != version:
                # A rank that read another file may have taken it, so none of them may decode.
                self._version = ""
                raise RuntimeError(f"{self._config.name}: {path} holds weights {found!r}, not {version!r}")
        received = [sums for _, sums in answers]
        if any(other != received[0] for other in received[1:]):
            raise RuntimeError(f"{self._config.name}: ranks received different weights from {path}")
        if not await self._engine.reset_prefix_cache():
            raise RuntimeError(f"{self._config.name}: the prefix cache of the old weights could not be emptied")
        self._version = version
        first: dict[str, str] = received[0]
        return first

    async def live_checksum(self) -> str:
        """One digest over the parameters as the engine's kernels hold them (fused, sharded, repacked)."""
        return "-".join(str(part) for part in await self._engine.collective_rpc("live_checksum"))

    async def submit(self, requests: list[Request], version: str, at_once: int | None = None) -> None:
        """Start decoding, at most `at_once` requests at a time (None: as many as vLLM was built for).

        Raises RuntimeError if the engine does not hold `version`.
        """
        if version != self._version:
            raise RuntimeError(f"{self._config.name}: asked to decode with {version!r}, holds {self._version!r}")
        wanted = self._config.max_num_seqs if at_once is None else at_once
        if wanted != self._at_once:  # another kind of round: nothing of the one before it decodes any more
            self._at_once, self._room = wanted, asyncio.Semaphore(wanted)
        for request in requests:
            task = asyncio.get_running_loop().create_task(self._decode(request))
            self._tasks[request.request_id] = task

    async def _decode(self, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        watch = request.cutoff_tokens
        # vLLM tells the first token and then every so many: often enough to show that the request is alive, and, of a
        # watched one, so that an output comes at the watched length or a few tokens later.
        interval = ALIVE_TOKENS
        if watch is not None and watch > 1:
            outputs = math.ceil((watch - 1) / ALIVE_TOKENS)
            interval = math.ceil((watch - 1) / outputs)
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            ignore_eos=request.ignore_eos,
            seed=request.seed,
            output_kind=RequestOutputKind.DELTA,
            stream_interval=interval,
        )
        event = EngineEvent("finished", request.request_id, version_start=self._version)
        began = time.perf_counter()
        prompt = {"prompt_token_ids": list(request.prompt_tokens)}
        try:
            async with self._room:
                async for output in self._engine.generate(prompt, params, request.request_id):
                    self._grew = True
                    event.cached_tokens = output.num_cached_tokens or 0
                    part = output.outputs[0]
                    event.tokens.extend(part.token_ids)
                    if part.logprobs is not None:
                        event.logprobs.extend(part.logprobs.logprobs)
                    if output.finished:
                        event.truncated = part.finish_reason == "length"
                    elif watch is not None and len(event.tokens) >= watch:
                        self._tell(EngineEvent("cutoff", request.request_id))
                        watch = None
            event.version_end = self._version
            event.decode_s = time.perf_counter() - began
            self._tell(event)
        except asyncio.CancelledError:
            # generate() aborts the request in vLLM when it is cancelled.
            raise
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises, poll() has to hand it to the driver
            self._die(f"{type(error).__name__}: {error}")
        finally:
            self._tasks.pop(request.request_id, None)

    def _die(self, why: str) -> None:
        self._died = self._died or why
        self._news.set()

    def _tell(self, event: EngineEvent) -> None:
        self._outbox.append(event)
        self._news.set()

    async def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Wait for events, at most `timeout_s`; [] if there was no sign of life either. Raises ActorFailed if vLLM
        died."""
        if not self._outbox and self._died is None:
            self._grew = False
            try:
                await asyncio.wait_for(self._news.wait(), timeout_s)
            except TimeoutError:
                return self._signs_of_life()
            await asyncio.sleep(COALESCE_S)
        if self._died is not None:
            raise ActorFailed(self._config.name, f"vLLM failed: {self._died}")
        self._news.clear()
        events, self._outbox = self._outbox, []
        return events

    def _signs_of_life(self) -> list[EngineEvent]:
        pulsed = self._watch is not None and self._watch.take_pulse()
        sign = "alive" if self._grew else "pulse" if pulsed else None
        return [] if sign is None else [EngineEvent(sign, "")]

    async def abort(self, request_ids: list[str]) -> None:
        """Stop these requests; ids that ended already are ignored. Their unread events are dropped."""
        gone = set(request_ids)
        tasks = [task for name in request_ids if (task := self._tasks.get(name)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outbox = [event for event in self._outbox if event.request_id not in gone]

    async def sleep(self) -> None:
        """Free the accelerator's memory for training, where the platform can (CUDA)."""
        if self._config.kind == "cuda":
            await self._engine.sleep(level=2)

    async def wake(self) -> None:
        """Undo `sleep`; weights must be loaded afterwards (level 2 drops them)."""
        if self._config.kind == "cuda":
            await self._engine.wake_up()

    async def close(self) -> None:
        """Stop vLLM and its processes."""
        if self._watch is not None:
            self._watch.stop()
        await self.abort(list(self._tasks))
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
