"""A rollout engine: vLLM's AsyncLLM behind one Ray actor, one vLLM request per sample.

Invariants:
- a request is refused unless its weight version is the engine's, and each finished sample carries the version at both
  ends, by the word of vLLM's core where it gives it (not in 0.24);
- weights are only loaded while nothing decodes, and the prefix cache is emptied with them;
- each request that was submitted ends in exactly one event, `finished`, `released` or `lost`, or in none if it was
  aborted;
- at most as many requests decode at once as the round's plan says; others wait, in the order of submission;
- a request that is released has given all tokens that it decoded, and decodes no more;
- events leave by long poll in batches: a Ray call costs about as much as a decode step of a small model;
- a poll without any other event returns a sign of life: `alive` if any request grew since the last poll, else `pulse`
  if vLLM's processes, which are asked once a second, answered since the last poll;
- the next poll after the death of vLLM's core or of a rank raises, whether anything decodes or not; no process that
  vLLM started outlives this actor;
- an engine that sleeps holds neither weights nor KV cache, and refuses requests until both are back: weights wake, are
  loaded, then the cache wakes.

Lifecycle: construct in an actor -> `start()` -> [`load_weights` -> `submit`/`poll`/`abort` ...]* -> `close()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from ...rounds.device_ledger import SLEEP_LEVEL
from ..drafts.draft_messages import DraftReport, PromptHistory
from ..placement.guard import guard_group
from ..processes.faults import ActorFailed
from ..processes.host import node_key, output_file, without_collection
from ..weights.transfer import Answer, Received, Transfer, agreed
from .engine_watch import Children, CoreWatch, look_at_children, root_cause
from .messages import RECEIVE, EngineConfig, EngineEvent, EngineFacts, Request
from .vllm_options import (
    engine_arguments,
    niceness,
    requests_have_intervals,
    sampling_parameters,
    tell_at_cutoff,
    versions_of,
)

# After the first event a poll waits this long for more: while the bulk of a round ends, samples end by the dozen, and
# one Ray reply for all of them leaves the cores to the decode.
COALESCE_S = 0.005


class EngineRequests:
    """The requests of one engine, a vLLM `AsyncLLM`: which decode, which wait, what they tell. `died` hears why vLLM
    failed, if it did. All methods run on one asyncio loop."""

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
                    if not output.finished and self._stopped(event, request):
                        await self._engine.abort(name)
                        event.version_start, event.version_end = versions_of(part, version, version)
                        break
                    reached = cutoff_tokens is not None and len(event.tokens) >= cutoff_tokens
                    if output.finished:
                        event.name, event.reason = ENDS.get(part.finish_reason, "lost"), str(part.finish_reason)
                        if event.name == "released" and reached:  # the engine where it goes on begins behind the cutoff
                            self._tell(EngineEvent("cutoff", name))
                        event.truncated = part.finish_reason == "length" and not self._stopped(event, request)
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

    def _stopped(self, event: EngineEvent, request: Request) -> bool:
        """Whether a sample that another engine began has reached one of its stop strings; what it has behind that is
        dropped then. vLLM looks for stop strings only in what this engine wrote, and misses one that began before."""
        if not request.drawn_tokens or not request.rules.stop:
            return False
        before = request.prompt_tokens[-request.drawn_tokens :]

        def stops(count: int) -> bool:
            text = self._engine.tokenizer.decode([*before, *event.tokens[:count]], skip_special_tokens=True)
            return any(stop in text for stop in request.rules.stop)

        if not stops(len(event.tokens)):
            return False
        kept = bisect_left(range(len(event.tokens)), True, key=stops)
        del event.tokens[kept:], event.logprobs[kept:]
        return True

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


ENDS = {"stop": "finished", "length": "finished", "abort": "released"}
"""By vLLM's finish reason, what became of a request. Any other ends it where the policy did not, and it is lost:
`error`, its core gave it up, such as where a grammar did not take its token; `repetition`, for which nobody asks."""

WARM_UP_REQUESTS = 64
SLEEPING_PARTS = ("weights", "kv_cache")
"""vLLM's tags of what sleeps, in the order in which it wakes."""


class RolloutEngine:
    """vLLM in one actor. All methods run on the actor's asyncio loop."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._version = ""
        self._engine: Any = None
        self._decoding = EngineRequests(config.max_num_seqs, self._die)
        self._died: str | None = None
        self._watch: CoreWatch | None = None
        self._asleep: tuple[str, ...] = ()

    async def start(self) -> EngineFacts:
        """Start vLLM. Raises ActorFailed if a process of vLLM died meanwhile, else whatever vLLM raises."""
        began = time.perf_counter()
        guard_group()
        os.nice(niceness(self._config))  # what it starts inherits it
        with without_collection():
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(self._config)))
        except RuntimeError as error:
            # vLLM's words for a core that did not come up. Whether it was killed or failed, only its own log knows.
            if "initialization failed" not in str(error):
                raise
            log = output_file()
            where = "" if log is None else f"; see vLLM's log, {log} on the node of the engine"
            raise ActorFailed(self._config.name, " ".join(str(error).split()) + root_cause() + where) from error
        if wanted := self._config.head_dtype:
            got = str(self._engine.vllm_config.model_config.head_dtype).removeprefix("torch.")
            if got != wanted:  # vLLM 0.24 takes the model's dtype, with a warning alone
                raise ValueError(f"model.head_dtype: this vLLM has logits of {got}, not {wanted}; install vLLM 0.32")
        self._watch = CoreWatch(self._config.name, self._engine, self._die, lambda: len(self._decoding) > 0)
        self._decoding.open(self._engine)
        with self._watch.deaths():
            obstacle = next(filter(None, await self._engine.collective_rpc("draw_by_place")), "")
            self._decoding.draws_by_place = not obstacle
            if obstacle and self._config.restricts:
                raise ValueError(
                    "rollout.top_p, top_k, min_p: this vLLM would tell log-probs of what they leave alone "
                    f"({obstacle}); leave them out, or install vLLM 0.32"
                )
            if self._config.draft_tokens:
                await self._engine.collective_rpc("attach_drafts")
            await self._warm_up()
        # vLLM's modules are a million objects, and each of a round's requests makes more: looking through all of them
        # for garbage took a third of this process's time, and decoding waited for it.
        gc.collect()
        gc.freeze()
        self._watch.start()
        cache = self._engine.vllm_config.cache_config
        devices = await self._engine.collective_rpc("device_uuid") if self._config.device == "cuda" else ()
        return EngineFacts(
            start_s=time.perf_counter() - began,
            kv_capacity_tokens=int(cache.num_gpu_blocks or 0) * int(cache.block_size),
            kv_block_tokens=int(cache.block_size),
            pid=os.getpid(),
            cores=tuple(process.pid for process in self._engine.engine_core.resources.engine_manager.processes),
            node=node_key(),
            devices=tuple(devices),
            slow_seeds=obstacle,
        )

    async def look_at_children(self) -> Children:
        """The state of vLLM's processes; answered in a thread of its own, also while `start()` blocks."""
        return look_at_children()

    async def _warm_up(self) -> None:
        """Decode a few tokens and drop them: vLLM's first requests pay for libraries and kernels (4 s on a CPU)."""
        count = min(self._config.max_num_seqs, WARM_UP_REQUESTS)
        requests = [Request(f"warm-up-{i}", (1, 2, 3), 4, ignore_eos=True, seed=i) for i in range(count)]
        await self._decoding.warm_up(requests)
        if self._died is not None:
            raise ActorFailed(self._config.name, f"vLLM failed while it warmed up: {self._died}")

    async def load_weights(self, path: str, version: str, checksums: bool) -> dict[str, str]:
        """Load the safetensors file at `path` into all ranks and name the weights `version`.

        Returns the checksum of each tensor as the ranks received it ({} unless `checksums`). Raises RuntimeError if
        requests are running, if the file says that it holds another version, or if ranks received different bytes.
        """
        self._refuse_if_decoding()
        with self._turns(RECEIVE):
            answers = await self._call_ranks("receive_weights", (path, version, checksums))
        return await self._take(version, answers, path)

    async def begin_weights(self, transfer: Transfer, found: str) -> Answer:
        """Begin to receive weights with all ranks, of version `found` by the trainer's word; until all have come, the
        engine holds no version. Raises RuntimeError as `load_weights` does."""
        self._refuse_if_decoding()
        self._version = ""
        agreed(self._config.name, [(found, {})], transfer.version, "the trainer")
        return await self._ask_ranks("begin_weights", transfer.text(), self._config.name)

    async def load_bucket(self, index: int) -> Answer:
        """Load bucket `index` into all ranks."""
        return await self._ask_ranks("load_bucket", index)

    async def finish_weights(self, version: str) -> Answer:
        """Name the weights that were loaded `version`; answers as `load_weights` does, and raises as it does."""
        with self._turns(RECEIVE):
            answers = await self._call_ranks("finish_weights", ())
        return Answer(await self._take(version, answers, "the trainer"))

    async def _ask_ranks(self, method: str, *arguments: Any) -> Answer:
        """Call ranks, which answer with the reason why they could not do their part, or None."""
        with self._turns(RECEIVE):
            answers = await self._call_ranks(method, arguments)
        return Answer(broken=next((why for why in answers if why is not None), None))

    def _refuse_if_decoding(self) -> None:
        if running := len(self._decoding):
            raise RuntimeError(f"{self._config.name}: weights must not change while {running} requests decode")
        if "weights" in self._asleep:
            raise RuntimeError(f"{self._config.name}: the memory of its weights is asleep")

    async def _call_ranks(self, method: str, arguments: tuple[Any, ...]) -> list[Any]:
        assert self._watch is not None, "weights come after start()"
        with self._watch.deaths():
            answers: list[Any] = await self._engine.collective_rpc(method, args=arguments)
            return answers

    async def _take(self, version: str, answers: list[Received], source: str) -> dict[str, str]:
        """Hold `version` from now on, if that is what all ranks have received; returns the checksums."""
        self._version = ""  # a rank that received something else may have taken it, so none of them may decode
        sums = agreed(self._config.name, answers, version, source)
        if not await self._engine.reset_prefix_cache():
            raise RuntimeError(f"{self._config.name}: the prefix cache of the old weights could not be emptied")
        if (name_weights := getattr(self._engine, "update_weight_version", None)) is not None:
            await name_weights(version)  # vLLM writes it into each output from now on; 0.24 does not
        self._version = version
        return sums

    async def live_checksum(self) -> str:
        """One digest over the parameters as the engine's kernels hold them (fused, sharded, repacked)."""
        return "-".join(str(part) for part in await self._engine.collective_rpc("live_checksum"))

    async def submit(self, requests: list[Request], version: str, max_num_seqs: int | None = None) -> None:
        """Start decoding, at most `max_num_seqs` requests at a time (None: as many as vLLM was built for).

        Raises RuntimeError if the engine does not hold `version`.
        """
        if self._asleep:
            raise RuntimeError(f"{self._config.name}: asked to decode while its {', '.join(self._asleep)} sleep")
        if version != self._version:
            raise RuntimeError(f"{self._config.name}: asked to decode with {version!r}, holds {self._version!r}")
        self._decoding.submit(requests, version, self._config.max_num_seqs if max_num_seqs is None else max_num_seqs)

    def _die(self, why: str) -> None:
        self._died = self._died or why
        self._decoding.wake_up()

    async def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Wait for events, at most `timeout_s`; [] if there was no sign of life either. Raises ActorFailed if vLLM
        died."""
        if not self._decoding.has_news and self._died is None and not await self._decoding.news(timeout_s):
            return self._signs_of_life()
        if self._died is not None:
            raise ActorFailed(self._config.name, f"vLLM failed: {self._died}{root_cause()}")
        return self._decoding.take()

    def _signs_of_life(self) -> list[EngineEvent]:
        pulsed = self._watch is not None and self._watch.take_pulse()
        sign = "alive" if self._decoding.grew else "pulse" if pulsed else None
        return [] if sign is None else [EngineEvent(sign, "")]

    async def abort(self, request_ids: list[str]) -> None:
        """Stop these requests; ids that ended already are ignored. Their unread events are dropped."""
        await self._decoding.abort(request_ids)

    async def held_tokens(self) -> dict[str, int]:
        """By request: tokens that it holds in the KV cache at most, its prompt's included."""
        return self._decoding.held_tokens()

    async def release(self, request_ids: list[str]) -> None:
        """Stop these requests and tell what each has decoded, so that another engine may go on with it: each ends in an
        event `released`. Ids that ended already are ignored."""
        await self._decoding.release(request_ids, self._version)

    async def begin_drafts(self, tokens: int, up_to_sequences: int) -> None:
        """Begin a round that drafts at most so many tokens a step (0: none) while at most so many samples decode."""
        await self._call_ranks("begin_drafts", (tokens, up_to_sequences))

    async def remember(self, histories: list[PromptHistory]) -> None:
        """Take earlier responses to prompts of the round."""
        await self._call_ranks("remember", ([pickle.dumps(history) for history in histories],))

    async def take_drafts(self, unfinished: list[str]) -> DraftReport:
        """What drafts gave since `begin_drafts`, with the tokens of the `unfinished` requests, which were aborted."""
        answers = await self._call_ranks("take_drafts", (unfinished,))
        report: DraftReport = pickle.loads(next(answer for answer in answers if answer is not None))
        return report

    async def sleep(self) -> None:
        """Drop weights and KV cache and free their memory; on a CPU nothing is freed, and the weights count as dropped.

        Raises RuntimeError if requests are running, ActorFailed if vLLM cannot sleep.
        """
        if running := len(self._decoding):
            raise RuntimeError(f"{self._config.name}: cannot sleep while {running} requests decode")
        self._version = ""  # so that no request is taken before new weights came
        with self._turns("sleep"):
            await self._engine.collective_rpc("end_reload")  # of a transfer that broke off: it holds what cannot sleep
            if self._config.device == "cuda":
                await self._engine.sleep(level=SLEEP_LEVEL)
        self._asleep = SLEEPING_PARTS

    async def wake(self, part: str) -> None:
        """Take memory again for `weights`, which are loaded next, and then for the `kv_cache`.

        In this order: beside a KV cache there may be no room for the trainer's weights. Until both are awake, vLLM
        schedules nothing. Raises RuntimeError out of order, ActorFailed if vLLM cannot wake.
        """
        if part not in self._asleep or (part == "kv_cache" and not self._version):
            asleep = ", ".join(self._asleep) or "nothing"
            raise RuntimeError(f"{self._config.name}: {part} cannot wake; asleep: {asleep}")
        with self._turns(f"wake its {part}"):
            if self._config.device == "cuda":
                await self._engine.wake_up(tags=[part])
        self._asleep = tuple(other for other in self._asleep if other != part)

    @contextlib.contextmanager
    def _turns(self, what: str) -> Iterator[None]:
        """An engine that fails within the block is of no use: ActorFailed says so."""
        try:
            yield
        except ActorFailed:
            raise
        except Exception as error:
            raise ActorFailed(self._config.name, f"vLLM could not {what}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Stop vLLM and its processes."""
        if self._watch is not None:
            self._watch.stop()
        await self._decoding.abort_all()
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
