"""Exact attention over a packed row: many sequences in one row of tokens, each blind to the others.

Registered with transformers as `rlplan_varlen`. Sequence by sequence it runs torch's fused causal kernel, so there is
no T x T mask, no padding, and each sequence's result is that of a forward of its own. Lengths travel through the
model's keyword arguments (`packed_lengths`), not through module state: an interrupted forward leaves nothing behind.

Where several ranks share a row by its tokens (`sequence_group`), they swap tokens for heads before attention and heads
for tokens after it, so that each computes whole sequences for its share of the heads (DeepSpeed-Ulysses, arXiv
2309.14509).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

VARLEN = "rlplan_varlen"


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed_lengths: tuple[int, ...] | None = None,
    sequence_group: dist.ProcessGroup | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of the packed sequences; transformers' attention interface.

    Args:
        query: [1, query heads, T, head size]; T is the sum of `packed_lengths`, or this rank's share of it.
        key, value: [1, key-value heads, T, head size]; query heads are a multiple of key-value heads.
        packed_lengths: tokens of each sequence, in the order in which they lie in the row.
        sequence_group: ranks that hold equal, consecutive parts of the row's tokens; None: this rank holds all.

    Returns: output of shape [1, T, query heads, head size], and no attention weights.
    Raises ValueError for models that need what this does not compute.
    """
    if packed_lengths is None:
        raise ValueError(f"{type(module).__name__} gets no packed_lengths; this model cannot be trained packed")
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unsupported or attention_mask is not None:
        raise ValueError(f"packed attention has no {', '.join(unsupported) or 'mask'}; this model cannot be trained")
    if sequence_group is not None:
        query, key, value = (_HeadsForTokens.apply(x, sequence_group) for x in (query, key, value))  # type: ignore[no-untyped-call]
    assert query.shape[0] == 1 and query.shape[2] == sum(packed_lengths)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    # split and cat rather than slices: the backward of a slice fills a tensor of the whole row with zeros.
    outputs = []
    for q, k, v in zip(*(x.split(packed_lengths, dim=2) for x in (query, key, value)), strict=True):
        mask = _window_mask(q.shape[2], sliding_window, q.device)
        outputs.append(
            functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling
            )
        )
    output = torch.cat(outputs, dim=2)
    if sequence_group is not None:
        output = _TokensForHeads.apply(output, sequence_group)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


def _heads_for_tokens(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[1, heads, T / sp, size] -> [1, heads / sp, T, size] (collective)."""
    ranks, (_, heads, tokens, size) = dist.get_world_size(group), x.shape
    sent = x.reshape(ranks, heads // ranks, tokens, size).contiguous()
    received = torch.empty_like(sent)  # [source rank, heads / sp, T / sp, size]
    dist.all_to_all_single(received, sent, group=group)
    return received.transpose(0, 1).reshape(1, heads // ranks, ranks * tokens, size)


def _tokens_for_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[1, heads / sp, T, size] -> [1, heads, T / sp, size] (collective)."""
    ranks, (_, heads, tokens, size) = dist.get_world_size(group), x.shape
    sent = x.reshape(heads, ranks, tokens // ranks, size).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)  # [source rank, heads / sp, T / sp, size]: heads in their order
    dist.all_to_all_single(received, sent, group=group)
    return received.reshape(1, ranks * heads, tokens // ranks, size)


class _HeadsForTokens(torch.autograd.Function):
    """`_heads_for_tokens` with its gradient, which is the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _heads_for_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _tokens_for_heads(gradient, ctx.group), None


class _TokensForHeads(torch.autograd.Function):
    """`_tokens_for_heads` with its gradient, which is the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _tokens_for_heads(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _heads_for_tokens(gradient, ctx.group), None


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """True where position i sees j: i - window < j <= i. None if plain causality says the same."""
    if window is None or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril().triu(1 - window)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    return None


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, _no_mask)
