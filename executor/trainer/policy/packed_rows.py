"""Packed rows: several sequences in one row of tokens, and log-probabilities of their responses in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .attention import VARLEN
from .chunked_head import ChunkedHead
from .rank_mesh import RankMesh


class PackedRow(NamedTuple):
    """Several sequences in one row, or one rank's equal part of its tokens, and the positions that predict responses.

    Attributes:
        input_ids: [1, T].
        position_ids: [1, T], from 0 in each sequence.
        lengths: tokens of each sequence of the whole row, with padding as a last one.
        predictors: [N], indices in `input_ids` whose logits predict a response token; N may be 0.
        targets: [N], the response tokens.
        held: which of the response tokens of all sequences, one after another, the N are.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    lengths: tuple[int, ...]
    predictors: torch.Tensor
    targets: torch.Tensor
    held: slice


def packed_row(
    sequences: Sequence[tuple[list[int], list[int]]], device: torch.device, mesh: RankMesh | None = None
) -> PackedRow:
    """Concatenate (prompt, response) pairs; without any, dummy tokens that predict nothing. With sequence parallelism
    the row is padded to a multiple of sp, and the part of this rank is returned."""
    tokens: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    lengths: list[int] = []
    for prompt, response in sequences or [([0], [])]:
        first = len(tokens) + len(prompt) - 1  # the last prompt token predicts the first response token
        predictors.extend(range(first, first + len(response)))
        targets.extend(response)
        lengths.append(len(prompt) + len(response))
        tokens.extend(prompt)
        tokens.extend(response)
        positions.extend(range(lengths[-1]))
    parts, part = (1, 0) if mesh is None else (mesh.sp, mesh.sp_rank)
    padding = -len(tokens) % parts
    if padding:
        tokens.extend([0] * padding)
        positions.extend(range(padding))
        lengths.append(padding)
    size = len(tokens) // parts
    start, stop = part * size, (part + 1) * size
    here = [number for number, place in enumerate(predictors) if start <= place < stop]
    held = slice(here[0], here[-1] + 1) if here else slice(0, 0)

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return PackedRow(
        tensor(tokens[start:stop])[None],
        tensor(positions[start:stop])[None],
        tuple(lengths),
        tensor([place - start for place in predictors[held]]),
        tensor(targets[held]),
        held,
    )


class PackedLogprobs(NamedTuple):
    """Result of a forward.

    Attributes:
        logprobs: [N] float32, differentiable; log-probability of each target at the sampling temperature.
        entropies: [N] float32, without gradient; entropy of the distribution that each target was drawn from, in nats.
        anchor: scalar 0; in a row without targets it depends on all parameters, so that even that has a backward.
    """

    logprobs: torch.Tensor
    entropies: torch.Tensor
    anchor: torch.Tensor


def packed_logprobs(
    model: torch.nn.Module, head: ChunkedHead, row: PackedRow, group: dist.ProcessGroup | None = None
) -> PackedLogprobs:
    """Log-probabilities of the row's response tokens.

    Only the positions that predict a response token pass through the LM head. `group`: ranks that share the row.
    """
    device = row.input_ids.device
    # A head with no rows would leave its weight without a gradient; the dummy's position 0 stands in.
    nothing = torch.zeros(1, dtype=torch.long, device=device)
    predicts = len(row.predictors) > 0
    head.expect(row.targets if predicts else nothing)
    result = model(
        input_ids=row.input_ids,
        position_ids=row.position_ids,
        use_cache=False,
        logits_to_keep=row.predictors if predicts else nothing,
        **_lengths_for(model, row, group),
    ).logits[0]
    if not predicts:
        empty = torch.zeros(0, device=device)
        return PackedLogprobs(empty, empty, result.sum() * 0.0)
    return PackedLogprobs(result[:, 0], result[:, 1].detach(), result.new_zeros(()))


def _lengths_for(model: Any, row: PackedRow, group: dist.ProcessGroup | None) -> dict[str, Any]:
    if model.config._attn_implementation == VARLEN:
        return {"packed_lengths": row.lengths} | ({} if group is None else {"sequence_group": group})
    bounds = torch.tensor([0, *row.lengths], device=row.input_ids.device).cumsum(0).to(torch.int32)
    longest = max(row.lengths)
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
