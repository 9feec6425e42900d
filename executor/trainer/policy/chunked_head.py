"""Log-probabilities at the language-model head, a chunk of rows at a time: the logits of a whole row never exist.

The head's forward is replaced by one that returns what is needed of the logits, so that hooks around the head
(FSDP's, tensor parallelism's) see one call as before. Each chunk but the last is computed again in the backward pass;
the last one's backward follows its forward at once, so keeping its logits takes no memory beyond that of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_ROWS = 2048
"""Rows of logits that exist at once; profiles/laws/rank_memory.py counts with it."""


class ChunkedHead:
    """The head of a model, which returns log-probabilities and entropies in place of logits.

    `expect` says what the next forward's rows predict.
    """

    def __init__(self, model: Any, temperature: float, rows: int = CHUNK_ROWS) -> None:
        head = model.get_output_embeddings()
        self._logits: Callable[[torch.Tensor], torch.Tensor] = head.forward
        self._temperature, self._rows = temperature, rows
        self._targets = torch.zeros(0, dtype=torch.long)
        head.forward = self.forward

    def expect(self, targets: torch.Tensor) -> None:
        """The next forward's rows predict `targets`, shape [N]."""
        self._targets = targets

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, N, hidden size] -> [1, N, 2] float32: log-probability of each target at the sampling temperature, and
        entropy of its distribution in nats, without gradient."""
        chunks = list(zip(hidden[0].split(self._rows), self._targets.split(self._rows), strict=True))
        results = []
        for number, (rows, targets) in enumerate(chunks):
            if torch.is_grad_enabled() and number < len(chunks) - 1:
                chunk: Any = checkpoint(self._chunk, rows, targets, use_reentrant=False, preserve_rng_state=False)
            else:
                chunk = self._chunk(rows, targets)
            results.append(torch.stack(chunk, dim=-1))
        return torch.cat(results)[None]

    def _chunk(self, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._logits(rows[None])[0]
        logprobs, entropies = _Logprobs.apply(logits, targets, self._temperature)
        return logprobs, entropies


class _Logprobs(torch.autograd.Function):
    """[N, vocabulary] logits of any type, [N] targets -> [N] log-probabilities and [N] entropies, float32.

    With p = softmax(x / T) and H its entropy: log p_t = x_t / T - logsumexp(x / T); H = logsumexp - sum(p x / T);
    d log p_t / dx = (1_t - p) / T. What is kept for the backward is the logits in their own type and the logsumexp.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = logits.float()
        scaled = scaled / temperature if temperature != 1.0 else scaled
        total = scaled.logsumexp(-1)
        logprobs = scaled.gather(1, targets[:, None])[:, 0] - total
        probabilities = (scaled - total[:, None]).exp_()
        # 0 log 0 is 0: a logit of minus infinity has no part in the sum.
        entropies = total - torch.where(probabilities > 0, scaled, torch.zeros_like(total)[:, None]).mul_(
            probabilities
        ).sum(-1)
        ctx.save_for_backward(logits, targets, total)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: torch.Tensor, _entropies: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        logits, targets, total = ctx.saved_tensors
        scale = -gradient / ctx.temperature
        slope = logits.float()  # of the logits' type itself in float32
        slope = (slope / ctx.temperature).sub_(total[:, None]).exp_().mul_(scale[:, None])
        slope.scatter_add_(1, targets[:, None], -scale[:, None])
        return slope.to(logits.dtype), None, None
