"""Exact attention over a packed row: many sequences in one row of tokens, each blind to the others.

Registered with transformers as `rlplan_varlen`, without a mask: transformers then makes none. On a GPU a row is one
launch of flash attention (torch's own, by cumulative lengths); on a CPU, and where that kernel does not take the type
or the size of the heads, torch's fused causal kernel runs sequence by sequence. Either way there is no T x T mask, no
padding, and each sequence's result is that of a forward of its own. What a row is made of travels through the model's
keyword arguments (`packed`), not through module state: an interrupted forward leaves nothing behind.

Where several ranks share a row by its tokens (`group`), they swap tokens for heads before attention and heads for
tokens after it, so that each computes whole sequences for its share of the heads (DeepSpeed-Ulysses, arXiv 2309.14509).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

VARLEN = "rlplan_varlen"

# All but cuDNN's, which builds a plan for each length that it has not seen: seconds a row on an H100.
LOOP_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# torch 2.11's kernel has no word for grouped heads yet: they are expanded for it.
SHARES_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters


@dataclass(frozen=True)
class PackedSequences:
    """What a row is made of, made once a row, so that no layer waits for a number.

    Attributes:
        lengths: tokens of each sequence, in the order in which they lie in the row.
        bounds: [len(lengths) + 1] int32, on the row's device: where each begins, and where the last ends.
        longest: the largest of the lengths.
        capability: CUDA compute capability of the device; (0, 0) on a CPU.
        group: ranks that hold equal, consecutive parts of the row's tokens; None: this rank holds all.
    """

    lengths: tuple[int, ...]
    bounds: torch.Tensor
    longest: int
    capability: tuple[int, int] = (0, 0)
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(
        cls, lengths: tuple[int, ...], device: torch.device, group: dist.ProcessGroup | None = None
    ) -> PackedSequences:
        """Sequences of these lengths in one row on `device`."""
        bounds = torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32, device=device)
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        return cls(lengths, bounds, max(lengths), capability, group)


def kernel(dtype: torch.dtype, head_size: int, capability: tuple[int, int]) -> Literal["row", "loop"]:
    """What computes attention: one launch for a `row`, or a `loop` over its sequences.

    Flash attention is there from Ampere on (compute capability 8.0; a CPU's is (0, 0)), for half precision and heads of
    up to 256 values, in eights.
    """
    taken = dtype in (torch.bfloat16, torch.float16) and head_size <= 256 and head_size % 8 == 0
    return "row" if taken and capability >= (8, 0) else "loop"


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed: PackedSequences | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of the packed sequences; transformers' attention interface.

    Args:
        query: [1, query heads, T, head size]; T is all tokens of `packed`, or this rank's share of them.
        key, value: [1, key-value heads, T, head size]; query heads are a multiple of key-value heads.
        sliding_window: a token sees so many, itself included; None: all before it.

    Returns: output of shape [1, T, query heads, head size], and no attention weights.
    Raises ValueError for models that need what this does not compute.
    """
    if packed is None:
        raise ValueError(f"{type(module).__name__} gets no packed sequences; this model cannot be trained packed")
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    unsupported += ["dropout"] * (dropout > 0)
    if unsupported or attention_mask is not None:
        raise ValueError(f"packed attention has no {', '.join(unsupported) or 'mask'}; this model cannot be trained")
    if packed.group is not None:
        query, key, value = (_heads_for_tokens(x, packed.group) for x in (query, key, value))
    compute = _row if kernel(query.dtype, query.shape[-1], packed.capability) == "row" else _loop
    output = compute(query, key, value, packed, sliding_window, scaling)
    if packed.group is not None:
        output = _tokens_for_heads(output, packed.group)
    return output.transpose(1, 2), None


def _row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packed: PackedSequences,
    window: int | None,
    scaling: float | None,
) -> torch.Tensor:
    """All sequences in one launch; shapes as in `varlen_attention`, output [1, query heads, T, head size]."""
    options: dict[str, Any] = {"enable_gqa": True} if SHARES_HEADS else {}
    if not SHARES_HEADS:
        key, value = _expanded(key, value, query.shape[1])
    q, k, v = (x.squeeze(0).transpose(0, 1).contiguous() for x in (query, key, value))  # [T, heads, head size]
    # The window's two sides are tokens before and after a query's own, which is always seen; -1: all.
    sides = (-1 if window is None else window - 1, 0)
    ends = packed.bounds, packed.bounds, packed.longest, packed.longest
    output = varlen_attn(q, k, v, *ends, scale=scaling, window_size=sides, **options)
    assert isinstance(output, torch.Tensor)
    return output.transpose(0, 1)[None]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # where layers are compiled, each length would be compiled
def _loop(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packed: PackedSequences,
    window: int | None,
    scaling: float | None,
) -> torch.Tensor:
    """Sequence by sequence; shapes as in `_row`."""
    key, value = _expanded(key, value, query.shape[1])
    # split and cat rather than slices: the backward of a slice fills a tensor of the whole row with zeros.
    outputs = []
    with sdpa_kernel(LOOP_BACKENDS):
        for q, k, v in zip(*(x.split(packed.lengths, dim=2) for x in (query, key, value)), strict=True):
            mask = _window_mask(q.shape[2], window, q.device)
            outputs.append(
                functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling)
            )
    return torch.cat(outputs, dim=2)


def _expanded(key: torch.Tensor, value: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with each head as often as query heads share it; [1, heads, T, head size]."""
    repeats = heads // key.shape[1]
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


def _heads_for_tokens(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[1, heads, T / sp, size] -> [1, heads / sp, T, size] (collective)."""
    ranks, (_, heads, tokens, size) = dist.get_world_size(group), x.shape
    sent = x.reshape(ranks, heads // ranks, tokens, size).contiguous()
    received = all_to_all_single_autograd(sent, None, None, group)  # [source rank, heads / sp, T / sp, size]
    return received.transpose(0, 1).reshape(1, heads // ranks, ranks * tokens, size)


def _tokens_for_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[1, heads / sp, T, size] -> [1, heads, T / sp, size] (collective)."""
    ranks, (_, heads, tokens, size) = dist.get_world_size(group), x.shape
    sent = x.reshape(heads, ranks, tokens // ranks, size).transpose(0, 1).contiguous()
    received = all_to_all_single_autograd(sent, None, None, group)  # heads in their order
    return received.reshape(1, ranks * heads, tokens // ranks, size)


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """True where position i sees j: i - window < j <= i. None if plain causality says the same."""
    if window is None or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril().triu(1 - window)


AttentionInterface.register(VARLEN, varlen_attention)
