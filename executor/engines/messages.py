"""What passes between the driver and an engine's actor: its configuration and facts, requests and events."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...plans.facts.device_shares import ENGINE_SHARE
from ...plans.facts.executable import ALIVE_TOKENS

RECEIVE = "receive weights"
"""What an engine could not do, in its words, whose rank raised as weights arrived."""


class SamplingRules(NamedTuple):
    """Which tokens may be drawn, and what ends a response beside its cap and the model's end token: as the keys of a
    job's `rollout`, whose defaults restrict nothing."""

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    @property
    def restrict(self) -> bool:
        """Whether some tokens may not be drawn."""
        return (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0)


NO_RULES = SamplingRules()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine is built. Lengths in tokens, memory in bytes; `cores` are host core ids for device cpu, `gpus`
    ids of GPUs for cuda (none: all that the process sees), `node_id` is Ray's of the engine's node ("": any).

    `draft_tokens`: drafted for a sample and step at most; 0: it never drafts. `compute_share`: of its cores, which an
    engine beside others gets while these want them too. `memory_share`: of a GPU's memory, what must be free when it
    starts; its KV cache then has `kv_memory_bytes` on each GPU, where it otherwise (None) takes what is left of the
    engines' share. `sleeps`: it leaves GPUs to trainers in turns. `head_dtype`: of its logits; None: `dtype`.
    `restricts`: some requests have rules that restrict what may be drawn. `kv_dtype`: of its KV cache; None: `dtype`.
    `batched_tokens`: prompt tokens of a step; None: vLLM's default for the device. `share`: of a GPU, its own.
    """

    name: str
    model_path: str
    dtype: str
    tp: int
    max_model_len: int
    max_num_seqs: int
    device: str
    kv_memory_bytes: int
    cores: tuple[int, ...] = ()
    seed: int = 0
    gpus: tuple[str, ...] = ()
    node_id: str = ""
    compute_share: float = 1.0
    memory_share: float | None = None
    sleeps: bool = True
    draft_tokens: int = 0
    head_dtype: str | None = None
    restricts: bool = False
    kv_dtype: str | None = None
    batched_tokens: int | None = None
    share: float = ENGINE_SHARE

    def renamed(self, name: str) -> EngineConfig:
        """Another engine that is built like this one."""
        return replace(self, name=name)


class EngineFacts(NamedTuple):
    """What an engine that started says of itself: seconds of the start, room of its KV cache in tokens and tokens of
    one block of it, process ids of its actor and of vLLM's cores, Ray's id of its node, UUIDs of its ranks' GPUs, and
    why requests with seeds are left to vLLM's generators ("": they are not)."""

    start_s: float
    kv_capacity_tokens: int
    kv_block_tokens: int
    pid: int
    cores: tuple[int, ...]
    node: str = ""
    devices: tuple[str, ...] = ()
    slow_seeds: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to decode: `request_id` unique over the engine's life, prompt token ids, limits in tokens.

    With a `seed` the sample does not depend on the requests that decode beside it. `drawn_tokens`: of the prompt's
    last tokens, those that another engine has decoded of this sample, by the same weights. With `choices` the engine
    can write one of these texts and nothing else. `prompt_id`: whose earlier responses drafts may come from. Tokens are
    drawn at the `temperature` and by `rules`.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    cutoff_tokens: int | None = None
    temperature: float = 1.0
    ignore_eos: bool = False
    seed: int | None = None
    drawn_tokens: int = 0
    choices: tuple[str, ...] = ()
    prompt_id: str = ""
    rules: SamplingRules = NO_RULES

    @property
    def output_interval(self) -> int:
        """Tokens between two outputs of the request, of which vLLM gives the first after one token.

        Outputs come often enough to show that the request is alive, and one of them comes at `cutoff_tokens` tokens or
        a few tokens later.
        """
        after = (self.cutoff_tokens or 0) - 1
        return ALIVE_TOKENS if after < 1 else math.ceil(after / math.ceil(after / ALIVE_TOKENS))


@dataclass(slots=True)
class EngineEvent:
    """What happened in an engine, by `name`.

    Of a request: `finished`, with its tokens, the engine's log-probs, and how many of the prompt's tokens it found in
    its cache; `released`, as `finished`, but it was stopped before its end so that another engine goes on with it;
    `lost`, vLLM gave it up for a `reason` that is no end of a response, and what it decoded is of no use;
    `cutoff`, it has at least `cutoff_tokens` tokens and decodes on. Of no request: `alive`, tokens were
    decoded since the last poll; `pulse`, vLLM's processes answered since the last poll.
    """

    name: str
    request_id: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    version_start: str = ""
    version_end: str = ""
    decode_s: float = 0.0
    cached_tokens: int = 0
    reason: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Tokens and log-probs travel as arrays: 8 bytes a token, where lists take 13 in Ray's store."""
        arrays = np.array(self.tokens, np.int32), np.array(self.logprobs, np.float32)
        rest = self.truncated, self.version_start, self.version_end, self.decode_s, self.cached_tokens, self.reason
        return _arrived, (self.name, self.request_id, *arrays, *rest)


def _arrived(name: str, request_id: str, tokens: Any, logprobs: Any, *rest: Any) -> EngineEvent:
    return EngineEvent(name, request_id, tokens.tolist(), logprobs.tolist(), *rest)
