"""A real engine that decodes whole rounds, with drafts of one kind or without: vLLM in a Ray actor, on one core."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlplan.executor.drafts.draft_messages import DraftReport
from rlplan.executor.drafts.history_store import HistoryStore
from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.engine_handle import EngineEvents, EngineHandle, EngineNews
from rlplan.executor.engines.engine_worker import EngineRank
from rlplan.executor.engines.messages import EngineConfig, EngineEvent, Request
from rlplan.executor.engines.vllm_options import environment
from rlplan.executor.processes.supervision import Supervisor

from .exact_expand import mend_expand

METHODS = ("none", "history", "suffix", "ngram")
DRAFT_TOKENS = 4
KV_BYTES = 400_000_000
VERSION = "as it is"

STOCK: Mapping[str, Mapping[str, Any]] = {
    # Its defaults; drafts are as long as ours.
    "suffix": {"method": "suffix", "num_speculative_tokens": DRAFT_TOKENS},
    # One or more tokens before, which is what finds anything in these responses.
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": DRAFT_TOKENS,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 4,
    },
}


class StockRank(EngineRank):
    """All that runs in a rank of a stock engine beside vLLM's own."""

    def mend_drafts(self) -> bool:
        """Have vLLM verify whatever drafts it has exactly (exact_expand.py); returns whether it did not."""
        return mend_expand()


class StockEngine(RolloutEngine):
    """An engine whose drafts are vLLM's own, by one of its methods."""

    async def start_stock(self, options: Mapping[str, Any], folder: str | None) -> Any:
        """Start it with these speculative options; `folder`: of a package that vLLM imports for them."""
        import sys

        from rlplan.executor.engines import engine

        if folder is not None:
            sys.path.append(folder)
            os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"  # of the process of vLLM's core
        made = engine.engine_arguments
        further = {"speculative_config": dict(options), "worker_extension_cls": f"{__name__}.{StockRank.__name__}"}
        engine.engine_arguments = lambda config: made(config) | further
        facts = await self.start()
        await self._call_ranks("mend_drafts", ())
        return facts


class Sample(NamedTuple):
    """A response of a round: its prompt, tokens and the engine's log-probs."""

    prompt: str
    tokens: list[int]
    logprobs: list[float]


class Decoded(NamedTuple):
    """A round: seconds from its start to its last token, samples in the order of the requests, and what drafts gave."""

    seconds: float
    samples: list[Sample]
    report: DraftReport | None


class DraftingEngine:
    """An engine that drafts by `method`, one of METHODS; it remembers the responses of its own rounds."""

    def __init__(
        self, method: str, model: Path, longest_tokens: int, sequences: int, suffix_folder: str | None = None
    ) -> None:
        self.method = method
        self.store = HistoryStore()
        self.rounds = 0
        self._model, self._suffix_folder = model, suffix_folder
        self._news: asyncio.Queue[EngineNews] = asyncio.Queue()
        config = EngineConfig(
            name=f"engine-{method}",
            model_path=str(model),
            dtype="float32",
            tp=1,
            max_model_len=longest_tokens + (DRAFT_TOKENS if method in STOCK else 0),
            max_num_seqs=sequences,
            device="cpu",
            kv_memory_bytes=KV_BYTES,
            cores=(min(os.sched_getaffinity(0)),),
            draft_tokens=DRAFT_TOKENS if method == "history" else 0,
        )
        self._handle = EngineHandle(config, self._news.put_nowait, Supervisor(), spawn=self._spawn)

    def _spawn(self, config: EngineConfig) -> Any:
        import ray

        from rlplan.executor.engines.engine_watch import START_GROUP
        from rlplan.executor.processes.actors import ACTOR_OPTIONS

        kind: Any = _started_as(STOCK[self.method], self._suffix_folder) if self.method in STOCK else RolloutEngine
        remote: Any = ray.remote(concurrency_groups={START_GROUP: 1})(kind)  # type: ignore[call-overload]
        options = {**ACTOR_OPTIONS, "max_concurrency": 8, "runtime_env": {"env_vars": environment(config)}}
        return remote.options(**options).remote(config)

    async def start(self) -> None:
        """Start it with the model's weights."""
        await self._handle.start()
        await self._handle.load(str(self._model / "model.safetensors"), VERSION, False)

    async def close(self) -> None:
        """Stop it."""
        await self._handle.close()

    async def decode(
        self,
        prompts: Mapping[str, tuple[int, ...]],
        samples: int,
        most_tokens: int,
        *,
        epoch: int = 0,
        up_to_sequences: int = 64,
        temperature: float = 1.0,
        seed: int | None = None,
        remembers: bool = True,
    ) -> Decoded:
        """Decode a round of `samples` responses to each of the prompts; `remembers`: drafts of later rounds may come
        from it."""
        self.rounds += 1
        requests = [
            Request(
                request_id=f"{self.rounds}/{number}.{sample}",
                prompt_tokens=tokens,
                max_tokens=most_tokens,
                temperature=temperature,
                seed=None if seed is None else seed + number * samples + sample,
                prompt_id=prompt,
            )
            for number, (prompt, tokens) in enumerate(prompts.items())
            for sample in range(samples)
        ]
        began = time.perf_counter()
        if self.method == "history":
            await self._handle.begin_drafts(DRAFT_TOKENS, up_to_sequences)
            known = [history for prompt in prompts if (history := self.store.of(prompt, epoch)) is not None]
            if known:
                await self._handle.remember(known)
        await self._handle.submit(requests, VERSION)
        ended = await self._finished(len(requests))
        seconds = time.perf_counter() - began
        report = await self._handle.take_drafts([]) if self.method == "history" else None
        done = [Sample(each.prompt_id, ended[each.request_id].tokens, ended[each.request_id].logprobs)
                for each in requests]  # fmt: skip
        if remembers and self.method == "history":
            for prompt in prompts:
                texts: Sequence[tuple[list[int], None]] = [(one.tokens, None) for one in done if one.prompt == prompt]
                self.store.record(prompt, epoch, self.rounds, texts)
        return Decoded(seconds, done, report)

    async def _finished(self, count: int) -> dict[str, EngineEvent]:
        ended: dict[str, EngineEvent] = {}
        while len(ended) < count:
            news = await self._news.get()
            if not isinstance(news, EngineEvents):
                raise RuntimeError(f"{self.method}: {news}")
            ended |= {event.request_id: event for event in news.events if event.name == "finished"}
        return ended


def _started_as(options: Mapping[str, Any], folder: str | None) -> type:
    """An engine's class whose start is that of a stock method."""

    class Stock(StockEngine):
        async def start(self) -> Any:
            if getattr(self, "_begun", False):
                return await super().start()
            self._begun = True
            return await self.start_stock(options, folder)

    return Stock
