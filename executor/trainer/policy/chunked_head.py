"""Log-probabilities at the language-model head, a chunk of rows at a time: the logits of a whole row never exist.

The head's forward is replaced by one that returns what is needed of the logits, so that hooks around the head
(FSDP's, tensor parallelism's) see one call as before. Each chunk but the last is computed again in the backward pass;
the last one's backward follows its forward at once, so keeping its logits takes no memory beyond that of a chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_LOG = logging.getLogger(__name__)

CHUNK_ROWS = 2048
"""Rows of logits that exist at once; profiles/laws/rank_memory.py counts with it."""

BLOCK_ELEMENTS = {"cpu": 2**18, "cuda": 2**25}
"""Logits whose log-probabilities are computed at once: on a CPU they stay in its cache, on a GPU they fill it."""


class ChunkedHead:
    """The head of a model, which returns log-probabilities and entropies in place of logits.

    `expect` says what the next forward's rows predict. `explores`: entropies have a gradient.
    """

    def __init__(self, model: Any, temperature: float, rows: int = CHUNK_ROWS, explores: bool = False) -> None:
        head = model.get_output_embeddings()
        self._logits: Callable[[torch.Tensor], torch.Tensor] = head.forward
        self._temperature, self._rows, self.explores = temperature, rows, explores
        self._targets = torch.zeros(0, dtype=torch.long)
        head.forward = self.forward

    def expect(self, targets: torch.Tensor) -> None:
        """The next forward's rows predict `targets`, shape [N]."""
        self._targets = targets

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, N, hidden size] -> [1, N, 2] float32: log-probability of each target at the sampling temperature, and
        entropy of its distribution in nats."""
        # The smaller chunk comes first: it is one of those that are computed again.
        count = self._targets.shape[0]
        sizes = [count % self._rows or self._rows]
        sizes += [self._rows] * ((count - sizes[0]) // self._rows)
        # squeeze rather than [0], here and below: the backward of an index fills a tensor with zeros.
        chunks = list(zip(hidden.squeeze(0).split(sizes), self._targets.split(sizes), strict=True))
        results = []
        for number, (rows, targets) in enumerate(chunks):
            if torch.is_grad_enabled() and number < len(chunks) - 1:
                chunk: Any = checkpoint(self._chunk, rows, targets, use_reentrant=False, preserve_rng_state=False)
            else:
                chunk = self._chunk(rows, targets)
            results.append(torch.stack(chunk, dim=-1))
        return torch.cat(results)[None]

    def _chunk(self, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._logits(rows[None]).squeeze(0)
        logprobs, entropies = _Logprobs.apply(  # type: ignore[no-untyped-call]
            logits, targets, self._temperature, self.explores
        )
        return logprobs, entropies


def float32_head(model: Any) -> None:
    """Have the head of `model` give float32 logits: its inputs and its matrix, in the type that is computed in, are
    multiplied as float32 numbers, so that no logit is rounded to that type."""
    head = model.get_output_embeddings()

    def forward(rows: torch.Tensor) -> torch.Tensor:
        if rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16) and not isinstance(rows, DTensor):
            logits: torch.Tensor = _Float32Product.apply(rows, head.weight)  # type: ignore[no-untyped-call]
            return logits if head.bias is None else logits + head.bias.float()
        return functional.linear(rows.float(), head.weight.float(), None if head.bias is None else head.bias.float())

    head.forward = forward


class _Float32Product(torch.autograd.Function):
    """[1, N, hidden size] by a matrix [vocabulary, hidden size] of the same half-precision type: [1, N, vocabulary] in
    float32, on a GPU. The sums are float32 in any case and are not rounded here; gradients are computed as usual."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, matrix)
        return torch.mm(rows.squeeze(0), matrix.t(), out_dtype=torch.float32)[None]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, matrix = ctx.saved_tensors
        slope = gradient.squeeze(0).to(rows.dtype)
        of_matrix = torch.mm(slope.t(), rows.squeeze(0)) if ctx.needs_input_grad[1] else None  # frozen under adapters
        return torch.mm(slope, matrix)[None], of_matrix


class _Logprobs(torch.autograd.Function):
    """[N, vocabulary] logits of any type, [N] targets -> [N] log-probabilities and [N] entropies, float32.

    With y = x / T less its maximum m, s = sum(exp y), p = exp(y) / s = softmax(x / T) and H its entropy:
    log p_t = x_t / T - (m + log s); H = log s - sum(p y); d log p_t / dx = (1_t - p) / T; and, if the head `explores`,
    dH / dx = -p (log p + H) / T. What is kept for the backward is the logits in their own type and m + log s.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperature: float, explores: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, entropy = _PASSES.run(_statistics, logits, temperature)
        logprobs = logits.gather(1, targets[:, None])[:, 0].float() / temperature - total
        ctx.save_for_backward(logits, targets, total, logprobs, entropy)
        ctx.temperature, ctx.explores = temperature, explores
        if not explores:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, of_entropies: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, targets, total, logprobs, entropy = ctx.saved_tensors
        scale, slope = gradient / ctx.temperature, torch.empty_like(logits)
        # Set and not added: in the logits' own type the sum of the two parts would lose what 1 - p has of digits.
        of_targets = scale * -logprobs.expm1()
        if ctx.explores:
            pull = of_entropies / ctx.temperature
            _PASSES.run(_write_slopes, logits, ctx.temperature, total, scale, entropy, pull, slope)
            of_targets = of_targets - pull * logprobs.exp() * (logprobs + entropy)
        else:
            _PASSES.run(_write_slope, logits, ctx.temperature, total, scale, slope)
        return slope.scatter_(1, targets[:, None], of_targets.to(slope.dtype)[:, None]), None, None, None


def _statistics(logits: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """m + log s and H of each row, float32 (see `_Logprobs`)."""
    shifted = logits.float() / temperature
    greatest = shifted.amax(-1, keepdim=True)
    powers = shifted.sub_(greatest).exp()
    mass = powers.sum(-1)
    # 0 log 0 is 0: a logit of minus infinity has no part in the sum.
    mean = shifted.clamp_(min=torch.finfo(torch.float32).min).mul_(powers).sum(-1) / mass
    return greatest.squeeze(-1) + mass.log(), mass.log() - mean


def _write_slope(
    logits: torch.Tensor, temperature: float, total: torch.Tensor, scale: torch.Tensor, slope: torch.Tensor
) -> tuple[()]:
    """Into `slope`: -p times each row's `scale`, which is the gradient but for the targets."""
    slope.copy_((logits.float() / temperature).sub_(total[:, None]).exp_().mul_(-scale[:, None]))
    return ()


def _write_slopes(
    logits: torch.Tensor,
    temperature: float,
    total: torch.Tensor,
    scale: torch.Tensor,
    entropy: torch.Tensor,
    pull: torch.Tensor,
    slope: torch.Tensor,
) -> tuple[()]:
    """As `_write_slope`, with the gradients of entropies: -p times `scale` + `pull` (log p + H)."""
    # A token that cannot be drawn has no part: exp(-1e4) is 0, and its product with the logarithm is finite.
    logs = (logits.float() / temperature).sub_(total[:, None]).clamp_(min=-1e4)
    slope.copy_(logs.exp().mul_(scale[:, None] + pull[:, None] * (logs + entropy[:, None])).neg_())
    return ()


class _Passes:
    """Runs a formula over rows of logits. On a GPU it is compiled: a kernel or two, which read the logits from its
    memory once or twice and write nothing in between. On a CPU, and where compiling fails, it takes few rows at a time
    (BLOCK_ELEMENTS), so that what it computes in between is small."""

    def __init__(self) -> None:
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._fails = False

    def run(
        self,
        formula: Callable[..., tuple[torch.Tensor, ...]],
        logits: torch.Tensor,
        temperature: float,
        *rows: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """`formula` of the logits, the temperature, and further tensors with as many rows."""
        if logits.device.type != "cpu" and not self._fails:
            try:
                return self.compiled(formula, logits, temperature, *rows)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever compilers and their toolchains raise
                self._fails = True
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                _LOG.warning("the head's log-probabilities are not compiled, which is slower: %s", reason)
        size = max(1, BLOCK_ELEMENTS[logits.device.type] // logits.shape[1])
        blocks = zip(logits.split(size), *(values.split(size) for values in rows), strict=True)
        results = [formula(block, temperature, *values) for block, *values in blocks]
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))

    def compiled(
        self,
        formula: Callable[..., tuple[torch.Tensor, ...]],
        logits: torch.Tensor,
        temperature: float,
        *rows: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """As `run`, compiled, once for all numbers of rows."""
        if formula not in self._compiled:
            self._compiled[formula] = torch.compile(formula)
        torch._dynamo.mark_static(logits, 1)  # or a second vocabulary in a process would make it a runtime value
        for tensor in (logits, *rows):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        with torch._dynamo.config.patch(suppress_errors=False):  # `run` has a better answer to a failure
            results: tuple[torch.Tensor, ...] = self._compiled[formula](logits, temperature, *rows)
        return results


_PASSES = _Passes()
