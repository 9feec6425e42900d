"""Engines that a TRL trainer has, as what rounds need of one: requests that come, end and are aborted between steps.

A GRPOTrainer decodes by vLLM in its own process (`vllm_mode="colocate"`), or by the model that it trains. TRL hands
either a whole batch and waits for its last response; a round must stop requests while others go on. `VllmEngine`
drives the trainer's vLLM request by request. `TransformersEngine` decodes with the trainer's model: rows join a batch
when they are issued, and leave it, with their KV cache, when they end or are aborted.

Invariants:
- a token is drawn by its sample's seed and its own place, and not by a generator that samples share: what a sample
  becomes does not depend on what else is decoded, but for the rounding of sums in a batch of another shape;
- all processes step their engines the same number of times and see the same ends in the same order
  (`SharedEngine`), so each runs a round's machine for itself, and all of them do the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ...plans.yaml.errors import InputError, RunFailed
from ...rounds.machines.events import Issue, SampleKey
from ...rounds.machines.round import MAX_FAILURES_PER_PROMPT, Round
from ...rounds.seeds import SeedLedger
from ..drive_round import DecodedSample, drive_round

# Passes of the event loop from the end of a request to what a machine does about it: the waiting call, the driver, a
# score, the driver again, the tasks that it starts or cancels, and some to spare.
_PASSES = 8

# Steps between two exchanges of processes. One costs a millisecond or so, and a round that learns of an end a few
# tokens late wastes no more than these.
_STEPS_ALONE = 8


@dataclass(slots=True, eq=False)
class PlannedSample:
    """A sample that is decoded. `prompt`, `response`: token ids; `logprobs`: of the response's tokens, if the engine
    tells them; `truncated`: whether the limit of its last request ended it; `reason`: vLLM's, if it decoded."""

    key: SampleKey
    prompt: list[int]
    seed: int
    response: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    reason: str = "stop"

    @property
    def lost(self) -> bool:
        """Whether vLLM gave it up, so that it is no response."""
        return self.reason not in ("stop", "length")

    def draw(self, size: int) -> int:
        """A random number of so many bytes for the next token: of the sample's seed and the token's place."""
        name = f"{self.seed}:{len(self.response)}".encode()
        return int.from_bytes(blake2b(name, digest_size=size).digest(), "big")


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """How the next token is drawn, in TRL's terms: `top_k` 0, `top_p` 1 and `min_p` 0 leave all tokens in."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class SteppedEngine(Protocol):
    """An engine that decodes when it is told to."""

    def add(self, sample: PlannedSample, limit: int) -> None:
        """Decode the sample on, to at most `limit` response tokens in all."""

    def abort(self, key: SampleKey) -> None:
        """Stop decoding it, if it is under way."""

    @property
    def busy(self) -> bool:
        """Whether any sample is under way."""

    def step(self) -> list[PlannedSample]:
        """Decode a token of each sample, or so; the samples that ended by it, their new tokens in them."""


# -- rounds ------------------------------------------------------------------------------------------------------------


def run_round(
    machine: Round, engine: SteppedEngine, prompt_tokens: Callable[[str], list[int]], seeds: SeedLedger
) -> dict[SampleKey, PlannedSample]:
    """Run a round on the engine; returns what was decoded, by sample. Errors of the engine end the round.

    `prompt_tokens`: token ids of a prompt, by its id. Rewards come later: every sample is scored 0.
    """
    return _complete(_run_round(machine, engine, prompt_tokens, seeds))


async def _run_round(
    machine: Round, engine: SteppedEngine, prompt_tokens: Callable[[str], list[int]], seeds: SeedLedger
) -> dict[SampleKey, PlannedSample]:
    ends: dict[SampleKey, asyncio.Future[PlannedSample]] = {}

    async def decode(
        issue: Issue, before: DecodedSample[PlannedSample] | None, max_tokens: int
    ) -> DecodedSample[PlannedSample]:
        if before is None:
            sample = PlannedSample(issue.key, prompt_tokens(issue.prompt), seeds.issue(issue))
        else:
            sample = before.sample
        end = ends[issue.key] = asyncio.get_running_loop().create_future()
        engine.add(sample, max_tokens)
        try:
            sample = await end
            if sample.lost:
                seeds.lose(issue.key)  # what takes its place becomes what it would have been
                raise RuntimeError(f"vLLM ended it with {sample.reason!r}")
        except asyncio.CancelledError:
            engine.abort(issue.key)
            raise
        finally:
            del ends[issue.key]
        return DecodedSample(sample, len(sample.response), sample.truncated)

    async def score(sample: PlannedSample) -> float:
        return 0.0

    driving = asyncio.ensure_future(drive_round(machine, decode, score))
    try:
        while not driving.done():
            ended = engine.step() if engine.busy else []
            for sample in ended:
                if sample.key in ends and not ends[sample.key].done():
                    ends[sample.key].set_result(sample)
            for _ in range(_PASSES if ended or not engine.busy else 1):
                await asyncio.sleep(0)
    finally:
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
    return {key: decoded.sample for key, decoded in driving.result().items()}


def _complete(work: Coroutine[Any, Any, dict[SampleKey, PlannedSample]]) -> dict[SampleKey, PlannedSample]:
    """Run to the end, also where this thread runs an event loop already, as notebooks do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def decode_all(engine: SteppedEngine, samples: list[PlannedSample], limit: int) -> None:
    """Decode the samples to their ends, as plain generation does."""
    for sample in samples:
        engine.add(sample, limit)
    ended, tries = {}, Counter[SampleKey]()
    while engine.busy:
        for sample in engine.step():
            ended[sample.key] = sample
            tries[sample.key] += 1
            if sample.lost and tries[sample.key] > MAX_FAILURES_PER_PROMPT:
                raise RunFailed(f"vLLM ended a sample {tries[sample.key]} times with {sample.reason!r}")
            if sample.lost:
                sample.response, sample.logprobs = [], []
                engine.add(sample, limit)
    for sample in samples:
        end = ended[sample.key]
        sample.response, sample.logprobs, sample.truncated = end.response, end.logprobs, end.truncated


class SharedEngine:
    """The engines of all processes as one: a sample is decoded by the process that its key names.

    `gather`: returns the elements of all processes' lists, on each of them; all must call it equally often.
    """

    def __init__(self, own: SteppedEngine, rank: int, ranks: int, gather: Callable[[list[Any]], list[Any]]) -> None:
        self._own, self._rank, self._ranks, self._gather = own, rank, ranks, gather
        self._open: set[SampleKey] = set()

    def add(self, sample: PlannedSample, limit: int) -> None:
        self._open.add(sample.key)
        if sum(sample.key) % self._ranks == self._rank:
            self._own.add(sample, limit)

    def abort(self, key: SampleKey) -> None:
        self._open.discard(key)
        self._own.abort(key)

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def step(self) -> list[PlannedSample]:
        ended: list[PlannedSample] = []
        for _ in range(_STEPS_ALONE):
            if self._own.busy:
                ended += self._own.step()
        everywhere = sorted(self._gather(ended), key=lambda sample: sample.key)
        self._open.difference_update(sample.key for sample in everywhere)
        return everywhere


# -- the trainer's model -----------------------------------------------------------------------------------------------


class RoomyLayer(DynamicLayer):
    """Keys and values (rows x heads x columns x width) with room for more: a token does not copy all of them."""

    _room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        assert self.keys is not None and self.values is not None
        columns, wanted = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if self._room is None or self._room[0].shape[2] < wanted:
            more = wanted + wanted // 4 + 16 - columns
            self._room = (pad(self.keys, (0, 0, 0, more)), pad(self.values, (0, 0, 0, more)))
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, columns:wanted] = states
        self.keys, self.values = (room[:, :, :wanted] for room in self._room)
        return self.keys, self.values

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """Have these in place of what was there."""
        self.keys, self.values, self._room = keys, values, None


_new_layer: Any = RoomyLayer  # its constructor, which is transformers', has no types


class TransformersEngine:
    """Decodes with a causal language model of transformers, which must be in eval mode.

    The KV cache is a batch of rows that end in the same column; columns before a row's prompt are masked. It is cut to
    the rows that are under way, and to the longest of them, when rows leave. Raises InputError for models whose layers
    keep more than keys and values of all tokens.
    """

    def __init__(self, model: Any, rule: SamplingRule, stop_ids: list[int], most_rows: int) -> None:
        if rule.repetition_penalty != 1.0:
            raise InputError("repetition_penalty must be 1 where the trainer's model decodes; set use_vllm=True")
        self._model, self._warpers, self._most_rows = model, _warpers(rule), most_rows
        self._stop_ids = frozenset(stop_ids)
        self._waiting: dict[SampleKey, tuple[PlannedSample, int]] = {}
        self._rows: list[tuple[PlannedSample, int]] = []
        self._gone: set[SampleKey] = set()
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=model.device)  # rows x columns of the cache, 1: a token

    def add(self, sample: PlannedSample, limit: int) -> None:
        self._waiting[sample.key] = (sample, limit)

    def abort(self, key: SampleKey) -> None:
        if self._waiting.pop(key, None) is None and any(sample.key == key for sample, _ in self._rows):
            self._gone.add(key)

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or len(self._rows) > len(self._gone)

    @torch.no_grad()
    def step(self) -> list[PlannedSample]:
        self._leave()
        room = self._most_rows - len(self._rows)
        # Rows that join hold the others up for a step, and move the cache: they come many at once.
        if self._waiting and room >= min(len(self._waiting), self._most_rows // 4 + 1):
            joining = [self._waiting.pop(key) for key in list(self._waiting)[:room]]
            logits = self._join(joining)
        else:
            joining, logits = self._rows, self._one_more()
        self._draw(logits, [sample for sample, _ in joining])
        ended = []
        for sample, limit in joining:
            stopped = sample.response[-1] in self._stop_ids
            if stopped or len(sample.response) >= limit:
                sample.truncated = not stopped
                self._gone.add(sample.key)
                ended.append(sample)
        return ended

    def _leave(self) -> None:
        """Take the rows that are over out of the cache, and the columns that only they used."""
        if not self._gone:
            return
        stay = [place for place, (sample, _) in enumerate(self._rows) if sample.key not in self._gone]
        self._rows = [self._rows[place] for place in stay]
        self._gone.clear()
        if not stay:
            self._cache, self._mask = None, self._mask[:0, :0]
            return
        rows = torch.tensor(stay, device=self._mask.device)
        self._mask = self._mask[rows]
        first = int(self._mask.amax(0).argmax())
        self._mask = self._mask[:, first:]
        for layer in self._cache.layers:
            layer.hold(layer.keys[rows, :, first:], layer.values[rows, :, first:])

    def _join(self, joining: list[tuple[PlannedSample, int]]) -> Tensor:
        """Read the prompts, and what was decoded of them before, into the cache; logits of the next tokens."""
        texts = [sample.prompt + sample.response for sample, _ in joining]
        columns = max(map(len, texts))
        ids = torch.tensor([[0] * (columns - len(text)) + text for text in texts], device=self._mask.device)
        mask = torch.tensor([[0] * (columns - len(text)) + [1] * len(text) for text in texts], device=ids.device)
        cache: Any = DynamicCache(config=self._model.config)
        if odd := sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer}):
            raise InputError(f"the model has layers of kind {', '.join(odd)}; decode by vLLM instead: use_vllm=True")
        cache.layers = [_new_layer() for _ in cache.layers]
        logits = self._forward(ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
        if self._cache is None:
            self._cache, self._mask = cache, mask
        else:
            wide = max(columns, self._mask.shape[1])
            self._mask = torch.cat([_wider(self._mask, wide, 1), _wider(mask, wide, 1)])
            for old, new in zip(self._cache.layers, cache.layers, strict=True):
                both = ((old.keys, new.keys), (old.values, new.values))
                old.hold(*(torch.cat([_wider(part, wide, 2) for part in parts]) for parts in both))
        self._rows = self._rows + joining
        return logits

    def _one_more(self) -> Tensor:
        """Read each row's last token; logits of the next ones."""
        ids = torch.tensor([sample.response[-1:] for sample, _ in self._rows], device=self._mask.device)
        places = self._mask.sum(1, keepdim=True)
        self._mask = pad(self._mask, (0, 1), value=1)
        return self._forward(ids, self._mask, places, self._cache)

    def _forward(self, ids: Tensor, mask: Tensor, places: Tensor, cache: Any) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1].float()

    def _draw(self, logits: Tensor, samples: list[PlannedSample]) -> None:
        """Draw a token for each row by inversion: one uniform number of the sample's own each."""
        for warper in self._warpers:
            logits = warper(None, logits)
        sums = logits.softmax(-1).double().cumsum(-1)
        uniform = [sample.draw(6) / 2**48 for sample in samples]
        wanted = torch.tensor(uniform, dtype=sums.dtype, device=sums.device) * sums[:, -1]
        tokens = torch.searchsorted(sums, wanted[:, None], right=True)[:, 0].clamp(max=sums.shape[1] - 1)
        for sample, token in zip(samples, tokens.tolist(), strict=True):
            sample.response.append(token)


def _wider(tensor: Tensor, columns: int, dim: int) -> Tensor:
    """The tensor with zeros before it along `dim`, so that it has so many columns."""
    missing = columns - tensor.shape[dim]
    return pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [missing, 0]) if missing else tensor


def _warpers(rule: SamplingRule) -> list[Any]:
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TemperatureLogitsWarper(rule.temperature)] if rule.temperature != 1.0 else []
    warpers += [TopKLogitsWarper(rule.top_k)] if rule.top_k else []
    warpers += [TopPLogitsWarper(rule.top_p)] if rule.top_p < 1.0 else []
    return warpers + ([MinPLogitsWarper(rule.min_p)] if rule.min_p else [])


# -- the trainer's vLLM ------------------------------------------------------------------------------------------------


class VllmEngine:
    """Drives a `vllm.LLM` that runs in this process by its engine's requests; an abort frees the request's KV cache.

    `options`: further sampling parameters of vLLM.
    """

    def __init__(self, llm: Any, rule: SamplingRule, options: dict[str, Any]) -> None:
        if options.get("repetition_detection") is not None:
            raise InputError(
                "generation_kwargs.repetition_detection ends responses that the policy did not end, and a round would "
                "draw them again for what they are; leave it out"
            )
        self._engine, self._rule, self._options = llm.llm_engine, rule, options
        self._open: dict[str, PlannedSample] = {}
        self._ids: dict[SampleKey, str] = {}
        self._requests = 0

    def add(self, sample: PlannedSample, limit: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        rule = self._rule
        params = SamplingParams(
            **self._options
            | {
                "n": 1,
                "temperature": rule.temperature,
                "top_k": rule.top_k,
                "top_p": rule.top_p,
                "min_p": rule.min_p,
                "repetition_penalty": rule.repetition_penalty,
                "max_tokens": limit - len(sample.response),
                "seed": sample.draw(4),
                "logprobs": 0,
                "output_kind": RequestOutputKind.FINAL_ONLY,
            }
        )
        self._requests += 1
        name = f"{sample.key.draw}-{sample.key.sample}-{self._requests}"
        self._open[name], self._ids[sample.key] = sample, name
        self._engine.add_request(name, {"prompt_token_ids": sample.prompt + sample.response}, params)

    def abort(self, key: SampleKey) -> None:
        if (name := self._ids.pop(key, None)) is not None:
            del self._open[name]
            self._engine.abort_request([name])

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def step(self) -> list[PlannedSample]:
        ended = []
        for output in self._engine.step():
            sample = self._open.pop(output.request_id, None)
            if sample is None:
                continue
            del self._ids[sample.key]
            done = output.outputs[0]
            sample.response += done.token_ids
            sample.logprobs += [
                place[token].logprob for token, place in zip(done.token_ids, done.logprobs, strict=True)
            ]
            sample.truncated, sample.reason = done.finish_reason == "length", done.finish_reason
            ended.append(sample)
        return ended
