"""Packed rows: several sequences in one row of tokens, and log-probabilities of their responses in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .attention import PackedSequences
from .chunked_head import ChunkedHead
from .rank_mesh import RankMesh


class PackedRow(NamedTuple):
    """Several sequences in one row, or one rank's equal part of its tokens, and the positions that predict responses.

    Attributes:
        input_ids: [1, T].
        position_ids: [1, T], from 0 in each sequence.
        packed: the sequences of the whole row, with padding as a last one.
        predictors: [N], indices in `input_ids` whose logits predict a response token; N may be 0.
        targets: [N], the response tokens.
        held: which of the response tokens of all sequences, one after another, the N are.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    packed: PackedSequences
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
        PackedSequences.of(tuple(lengths), device, None if mesh is None else mesh.sequence_group),
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


def packed_logprobs(model: torch.nn.Module, head: ChunkedHead, row: PackedRow) -> PackedLogprobs:
    """Log-probabilities of the row's response tokens.

    Only the positions that predict a response token pass through the LM head.
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
        packed=row.packed,
    ).logits[0]
    if not predicts:
        empty = torch.zeros(0, device=device)
        return PackedLogprobs(empty, empty, result.sum() * 0.0)
    return PackedLogprobs(result[:, 0], result[:, 1].detach(), result.new_zeros(()))
