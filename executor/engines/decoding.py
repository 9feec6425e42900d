"""The requests of one engine: which decode, which wait, and what they tell.

Invariants:
- each request that was submitted ends in exactly one event, `finished` or `released`, or in none if it was aborted;
- at most as many requests decode at once as the round's plan says; others wait here, in the order of submission;
- a request that is released has given all tokens that it decoded, and decodes no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from .messages import EngineEvent, Request
from .vllm_options import requests_have_intervals, sampling_parameters, tell_at_cutoff, versions_of

# After the first event a poll waits this long for more: while the bulk of a round ends, samples end by the dozen, and
# one Ray reply for all of them leaves the cores to the decode.
COALESCE_S = 0.005


class EngineRequests:
    """Requests of a vLLM `AsyncLLM`; `died` hears why vLLM failed, if it did. All methods run on one asyncio loop."""

    def __init__(self, max_num_seqs: int, died: Callable[[str], None]) -> None:
        self.grew = False
        """Whether any request got tokens since the last poll began."""
        self.draws_by_place = False
        """Whether vLLM's ranks draw samples by their seeds and places (runner_patches.py)."""
        self._engine: Any = None
        self._died = died
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, tuple[Request, EngineEvent]] = {}
        self._started: set[str] = set()
        self._released: set[str] = set()
        self._max_num_seqs, self._room = max_num_seqs, asyncio.Semaphore(max_num_seqs)
        self._outbox: list[EngineEvent] = []
        self._news = asyncio.Event()

    def open(self, engine: Any) -> None:
        """Decode on `engine`, an AsyncLLM, from now on."""
        self._engine = engine

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(self, requests: list[Request], version: str, max_num_seqs: int) -> None:
        """Start decoding by weights `version`, at most `max_num_seqs` requests at a time."""
        if max_num_seqs != self._max_num_seqs:  # another kind of round: no request of the round before decodes any more
            self._max_num_seqs, self._room = max_num_seqs, asyncio.Semaphore(max_num_seqs)
        for request in requests:
            task = asyncio.get_running_loop().create_task(self._decode(request, version))
            self._tasks[request.request_id] = task

    async def _decode(self, request: Request, version: str) -> None:
        name, cutoff_tokens = request.request_id, request.cutoff_tokens
        parameters = sampling_parameters(request, self.draws_by_place)
        event = EngineEvent("finished", name, version_start=version)
        self._progress[name] = (request, event)
        began = time.perf_counter()
        prompt = {"prompt_token_ids": list(request.prompt_tokens)}
        try:
            async with self._room:
                self._started.add(name)
                async for output in self._engine.generate(prompt, parameters, name):
                    self.grew = True
                    if cutoff_tokens is not None and not event.tokens and not requests_have_intervals():
                        tell_at_cutoff(self._engine, request)
                    event.cached_tokens = output.num_cached_tokens or 0
                    part = output.outputs[0]
                    event.tokens.extend(part.token_ids)
                    if part.logprobs is not None and part.token_ids:  # of no new token, 0.24 gives all log-probs again
                        event.logprobs.extend(part.logprobs.logprobs)
                    reached = cutoff_tokens is not None and len(event.tokens) >= cutoff_tokens
                    if output.finished:
                        event.name = "released" if part.finish_reason == "abort" else "finished"
                        if event.name == "released" and reached:  # the engine where it goes on begins behind the cutoff
                            self._tell(EngineEvent("cutoff", name))
                        event.truncated = part.finish_reason == "length"
                        event.version_start, event.version_end = versions_of(part, version, version)
                    elif name in self._released:  # vLLM had not begun with it when it was released
                        await self._engine.abort(name)
                    elif reached:
                        self._tell(EngineEvent("cutoff", name))
                        cutoff_tokens = None
            event.decode_s = time.perf_counter() - began
            self._tell(event)
        except Exception as error:  # noqa: BLE001 - a cancellation is none; poll() hands the driver what vLLM raises
            self._died(f"{type(error).__name__}: {error}")
            self._news.set()
        finally:
            self._tasks.pop(name, None)
            self._progress.pop(name, None)
            self._started.discard(name)
            self._released.discard(name)

    def held_tokens(self) -> dict[str, int]:
        """By request: tokens that it holds in the KV cache at most, its prompt's included; of one that waits, the
        prompt's.

        vLLM tells tokens in portions (`output_interval`); those that it has not told yet are counted as a whole one.
        """
        held = {}
        for name, (request, event) in self._progress.items():
            untold = request.output_interval if name in self._started else 0
            held[name] = len(request.prompt_tokens) + min(len(event.tokens) + untold, request.max_tokens)
        return held

    async def warm_up(self, requests: list[Request]) -> None:
        """Decode requests and drop what they tell."""
        await asyncio.gather(*(self._decode(request, "") for request in requests))
        self._outbox.clear()
        self._news.clear()

    def wake_up(self) -> None:
        """End a wait for news: something happened that is no event of a request."""
        self._news.set()

    def _tell(self, event: EngineEvent) -> None:
        self._outbox.append(event)
        self._news.set()

    @property
    def has_news(self) -> bool:
        """Whether events wait to be taken."""
        return bool(self._outbox)

    async def news(self, timeout_s: float) -> bool:
        """Wait for news, at most `timeout_s`; whether there are any."""
        self.grew = False
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return False
        await asyncio.sleep(COALESCE_S)
        return True

    def take(self) -> list[EngineEvent]:
        """All events that were not taken yet."""
        self._news.clear()
        events, self._outbox = self._outbox, []
        return events

    async def abort(self, request_ids: list[str]) -> None:
        """Stop these requests; ids that ended already are ignored. Their unread events are dropped."""
        gone = set(request_ids)
        tasks = [task for name in request_ids if (task := self._tasks.get(name)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outbox = [event for event in self._outbox if event.request_id not in gone]

    async def abort_all(self) -> None:
        """Stop all requests."""
        await self.abort(list(self._tasks))

    async def release(self, request_ids: list[str], version: str) -> None:
        """Stop these requests and tell what each has decoded (`released`); ids that ended already are ignored."""
        running = [name for name in request_ids if name in self._tasks]
        started = [name for name in running if name in self._started]
        self._released.update(started)
        waiting = {name: self._tasks[name] for name in running if name not in self._started}
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        for name in waiting:
            self._tell(EngineEvent("released", name, version_start=version, version_end=version))
        if started:
            await self._engine.abort(started)
