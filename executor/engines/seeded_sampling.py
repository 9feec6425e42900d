"""The random numbers of samples with a seed: functions of the seed and of a token's place in its context, and of
nothing else.

vLLM gives a request with a seed a generator, over which its sampler loops in Python. Here one kernel computes the noise
of the whole batch: a step takes 0.95 to 1.09 times what it takes without seeds (H200, docs/cluster.md). Since nothing
is remembered from one token to the next, a sample draws the same whatever decodes beside it, whatever was drafted, and
on whichever engine it goes on.

A token is the one with the largest logit - log(E) of the vocabulary, with exponentially distributed E: the Gumbel-max
trick, by which vLLM samples, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import torch

from .vllm_options import SEED


def mixed(bits: torch.Tensor) -> torch.Tensor:
    """A permutation of the 32-bit integers that has no pattern left (int32, any shape; products wrap around).

    `lowbias32` of github.com/skeeto/hash-prospector; Python has no unsigned shift, hence the masks.
    """
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return bits ^ (bits >> 16 & 0xFFFF)


def keys_of(seeds: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """64 bits, as two int32 [rows], for each seed and place (int64 [rows]); of one seed, no two places share them."""
    seed, place = mixed(seeds.to(torch.int32)), places.to(torch.int32)
    return mixed(seed ^ place), mixed(mixed(seed + 0x3C6EF372) + place)


def uniform(seeds: torch.Tensor, places: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Numbers between 0 and 1, neither included: float32 [rows, vocabulary] for int64 seeds and places [rows]."""
    one, other = keys_of(seeds, places)
    tokens = torch.arange(vocabulary, dtype=torch.int32, device=seeds.device)
    bits = mixed(mixed(tokens ^ one[:, None]) ^ other[:, None])
    # In halves, which float32 holds as they are: a token wins by a number near 0, and there all 32 bits count.
    numbers = (bits >> 16 & 0xFFFF) * 2.0**-16 + ((bits & 0xFFFF) + 0.5) * 2.0**-32
    return numbers.clamp(max=1 - 2.0**-24)


def drawn(logits: torch.Tensor, seeds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """A token of each row, int64 [rows], by its seed and place, from softmax(logits), float32 [rows, vocabulary]."""
    exponential = -torch.log1p(-uniform(seeds, places, logits.shape[1]))
    return (logits - exponential.log()).argmax(dim=-1)


def drawn_on_cpu(logits: torch.Tensor, seeds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """As `drawn`, by the kernel of vLLM's own sampler on CPUs, which mixes a row's 64 bits with each token's number."""
    tokens: torch.Tensor = torch.ops._C.fused_gumbel_argmax(logits, seeds << 32 | places)
    return tokens


class SeededSampling:
    """In place of the last part of vLLM's sampler (`TopKTopPSampler`), for batches of its first model runner.

    Batches without seeds are left to vLLM. In others a request without a seed has one by its id.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._names: list[str] = []
        self._seeds: torch.Tensor | None = None
        self._drafted: tuple[torch.Tensor, torch.Tensor] | None = None
        self._draw = drawn_on_cpu if runner.device.type == "cpu" else torch.compile(drawn, dynamic=True)
        with torch.inference_mode():  # as vLLM's steps are, or they would compile it once more
            for count in (2, 1):  # torch compiles a single row apart
                logits = torch.zeros(count, runner.input_batch.vocab_size, device=runner.device)
                self._draw(logits, *runner.positions.new_zeros(2, count))
        sampler = runner.sampler.topk_topp_sampler
        self._by_vllm, sampler.forward = sampler.forward, self._forward

    @contextlib.contextmanager
    def at(self, rows: torch.Tensor, tokens: torch.Tensor) -> Iterator[None]:
        """Within the block logits are of these rows of the batch and of these tokens of the step (int64); else of each
        row and its last token."""
        self._drafted = rows, tokens
        try:
            yield
        finally:
            self._drafted = None

    def _forward(self, logits: torch.Tensor, generators: Any, top_k: Any, top_p: Any) -> Any:
        """A token of each row and all log-probs, as vLLM's sampler; no request of ours asks for top-k or top-p."""
        seeds = self._seeds_of_batch()
        if seeds is None or top_k is not None or top_p is not None:
            return self._by_vllm(logits, generators, top_k, top_p)
        runner = self._runner
        if self._drafted is None:
            tokens = runner.query_start_loc.gpu[1 : len(logits) + 1] - 1
        else:
            rows, tokens = self._drafted
            seeds = seeds[rows]
        return self._draw(logits, seeds, runner.positions[tokens]), logits.log_softmax(dim=-1, dtype=torch.float32)

    def _seeds_of_batch(self) -> torch.Tensor | None:
        """The seed of each row; None if no request has one."""
        names = self._runner.input_batch.req_ids
        if names != self._names:
            self._names, self._seeds = list(names), None
            requests = [self._runner.requests[name].sampling_params.extra_args or {} for name in names]
            if any(SEED in request for request in requests):
                both = zip(requests, names, strict=True)
                seeds = [request[SEED] if SEED in request else crc32(name.encode()) for request, name in both]
                pinned = self._runner.device.type == "cuda"  # so that the copy waits for no step
                self._seeds = torch.tensor(seeds, pin_memory=pinned).to(self._runner.device, non_blocking=True)
        return self._seeds
