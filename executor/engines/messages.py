"""What passes between the driver and an engine's actor: its configuration and facts, requests and events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine is built. Lengths in tokens, memory in bytes; `cores` are host core ids for device cpu."""

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


class EngineFacts(NamedTuple):
    """What an engine that started says of itself: seconds of the start, room of its KV cache in tokens and tokens of
    one block of it, process ids of its actor and of vLLM's cores, Ray's id of its node."""

    start_s: float
    kv_capacity_tokens: int
    kv_block_tokens: int
    pid: int
    cores: tuple[int, ...]
    node: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to decode: `request_id` unique over the engine's life, prompt token ids, limits in tokens.

    With a `seed` the sample does not depend on the requests that decode beside it.
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
    """What happened in an engine, by `name`.

    Of a request: `finished`, with its tokens, the engine's log-probs, and how many of the prompt's tokens it found in
    its cache; `cutoff`, it has at least `cutoff_tokens` tokens and decodes on. Of no request: `alive`, tokens were
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
