"""Packed rows: several sequences in one row of tokens, and log-probabilities of their responses in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .attention import PackedSequences
from .chunked_head import ChunkedHead
from .rank_mesh import RankMesh

Ints = npt.NDArray[np.int32]


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
    sequences: Sequence[tuple[Sequence[int] | Ints, Sequence[int] | Ints]],
    device: torch.device,
    mesh: RankMesh | None = None,
) -> PackedRow:
    """Concatenate (prompt, response) pairs; without any, dummy tokens that predict nothing. With sequence parallelism
    the row is padded to a multiple of sp, and the part of this rank is returned."""
    parts, part = (1, 0) if mesh is None else (mesh.sp, mesh.sp_rank)
    # Two for each part: compiled layers would take a row of one token for another kind of row.
    sequences = sequences or [(np.zeros(2 * parts, np.int32), [])]
    lengths = [len(prompt) + len(response) for prompt, response in sequences]
    padding = -sum(lengths) % parts
    lengths += [padding] * (padding > 0)
    ends = np.cumsum(lengths)
    # The token before a response token predicts it.
    last = [np.arange(end - len(response) - 1, end - 1) for (_, response), end in zip(sequences, ends, strict=False)]
    predictors, targets = np.concatenate(last), np.concatenate([np.asarray(x, np.int64) for _, x in sequences])
    tokens = np.concatenate(
        [*(np.asarray(x, np.int64) for pair in sequences for x in pair), np.zeros(padding, np.int64)]
    )
    start, stop = part * len(tokens) // parts, (part + 1) * len(tokens) // parts
    held = slice(*(int(place) for place in np.searchsorted(predictors, (start, stop))))
    positions = np.concatenate([np.arange(length) for length in lengths])

    def tensor(values: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    return PackedRow(
        tensor(tokens[start:stop])[None],
        tensor(positions[start:stop])[None],
        PackedSequences.of(tuple(lengths), device, None if mesh is None else mesh.sequence_group),
        tensor(predictors[held] - start),
        tensor(targets[held]),
        held,
    )


class PackedLogprobs(NamedTuple):
    """Result of a forward.

    Attributes:
        logprobs: [N] float32, differentiable; log-probability of each target at the sampling temperature.
        entropies: [N] float32, differentiable if the head `explores`; entropy of the distribution that each target was
            drawn from, in nats.
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
    entropies = result[:, 1] if head.explores else result[:, 1].detach()
    return PackedLogprobs(result[:, 0], entropies, result.new_zeros(()))
