"""The policy in the trainer: loading the model, and log-probabilities of packed responses in one forward.

Weights are kept in float32 whatever the job's dtype is: at learning rates of RL an update is smaller than bfloat16 can
add to a weight. With dtype bfloat16 matrix products run in bfloat16 (autocast); with float16 everything is computed in
float32, because float16 gradients would need loss scaling.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from .attention import VARLEN

ENTROPY_ROWS = 1024  # rows of logits turned into probabilities at a time, to bound memory with large vocabularies


def load_policy(path: str, dtype: str, device: torch.device) -> torch.nn.Module:
    """A Hugging Face causal LM with float32 weights, in evaluation mode: dropout would make the update off-policy.

    Args:
        path: folder of the model, or hub id.
        dtype: what the job computes in: float32, bfloat16 or float16.
    """
    flash = device.type == "cuda" and dtype == "bfloat16" and importlib.util.find_spec("flash_attn") is not None
    attention = "flash_attention_2" if flash else VARLEN
    disable_progress_bar()  # this is a worker; its terminal is somebody else's
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention
    )
    return model.to(device).eval()


class PackedRow(NamedTuple):
    """Several sequences in one row, and which positions predict their responses.

    Attributes:
        input_ids: [1, T].
        position_ids: [1, T], from 0 in each sequence.
        lengths: tokens of each sequence; they sum to T.
        predictors: [N], indices in the row whose logits predict a response token; N may be 0.
        targets: [N], the response tokens.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    lengths: tuple[int, ...]
    predictors: torch.Tensor
    targets: torch.Tensor


def packed_row(sequences: Sequence[tuple[list[int], list[int]]], device: torch.device) -> PackedRow:
    """Concatenate (prompt, response) pairs; without any, one dummy token that predicts nothing."""
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

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return PackedRow(tensor(tokens)[None], tensor(positions)[None], tuple(lengths), tensor(predictors), tensor(targets))


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


def packed_logprobs(model: torch.nn.Module, row: PackedRow, temperature: float, dtype: str) -> PackedLogprobs:
    """Log-probabilities of the row's response tokens.

    Only the positions that predict a response token pass through the LM head.
    """
    device = row.input_ids.device
    autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if dtype == "bfloat16":
        autocast = torch.autocast(device.type, torch.bfloat16)
    # A head with no rows would leave its weight without a gradient; the dummy's position 0 stands in.
    kept = row.predictors if len(row.predictors) else torch.zeros(1, dtype=torch.long, device=device)
    with autocast:
        logits = model(
            input_ids=row.input_ids,
            position_ids=row.position_ids,
            use_cache=False,
            logits_to_keep=kept,
            **_lengths_for(model, row),
        ).logits[0]
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    if not len(row.predictors):
        empty = torch.zeros(0, device=device)
        return PackedLogprobs(empty, empty, logits.sum() * 0.0)
    logprobs = -functional.cross_entropy(logits, row.targets, reduction="none")
    return PackedLogprobs(logprobs, _entropies(logits), logprobs.new_zeros(()))


def _lengths_for(model: Any, row: PackedRow) -> dict[str, Any]:
    if model.config._attn_implementation == VARLEN:
        return {"packed_lengths": row.lengths}
    bounds = torch.tensor([0, *row.lengths], device=row.input_ids.device).cumsum(0).to(torch.int32)
    longest = max(row.lengths)
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


@torch.no_grad()
def _entropies(logits: torch.Tensor) -> torch.Tensor:
    """[N, vocabulary] -> [N]: log-sum-exp(x) - sum(softmax(x) x)."""
    entropies = []
    for rows in logits.split(ENTROPY_ROWS):
        logs = rows.log_softmax(-1)
        entropies.append(-(logs.exp() * logs).sum(-1))
    return torch.cat(entropies)
