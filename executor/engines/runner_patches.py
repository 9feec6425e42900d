"""Parts of vLLM's first model runner that are replaced in an engine's ranks; nothing else of ours changes one.

What is replaced is private to vLLM, so each replacement looks at what is there first (`PARAMETERS`), and refuses
another vLLM by name rather than decode something else.

Random numbers of samples with a seed are functions of the seed and of a token's place in its context, and of nothing
else. vLLM gives a request with a seed a generator, over which its sampler loops in Python. Here one kernel computes the
noise of the whole batch: a step takes 0.95 to 1.09 times what it takes without seeds (H200, docs/cluster.md). Since
nothing is remembered from one token to the next, a sample draws the same whatever decodes beside it, whatever was
drafted, and on whichever engine it goes on. A token is the one with the largest logit - log(E) of the vocabulary, with
exponentially distributed E: the Gumbel-max trick, by which vLLM samples, too.

Drafts are verified by drawing: the tokens of a sample are those that it has without drafts. Speculative sampling
accepts a drafted token x with the chance p(x) that the policy gives it (arXiv 2302.01318, with a draft that is certain
of x). vLLM draws a number for that, and another token from what is left of p where x is rejected: the same
distribution, and other tokens than without drafts. Here each place draws its token from p as it would without drafts;
the draft holds up to the first place that drew another token. That is the chance p(x), too, and a request with a seed
has the same tokens with drafts as without, up to the rounding of the model's outputs. It also takes less time than
vLLM's, which samples twice. What vLLM does to outputs by the request's earlier tokens (penalties, bad words,
processors), no request of ours asks for.

What restricts a draw (`top_p`, `top_k`, `min_p`) is applied here, behind the temperature, and log-probs are taken
before it: of the whole softmax, as the trainer's are. vLLM would tell those of what is left of it, which differ from
the trainer's by the logarithm of the chance that is left, in each token and always to one side. A place of a draft is
restricted as its sample is.

Steps without drafts take the path of an engine that has none. vLLM (0.32) prepares every step of an engine that can
draft for its rejection sampler, which samples twice and gathers log-probs over all tokens, even where no sample has a
draft: about a sixth of a decode step of a small model on a CPU. Its plain sampler draws the same tokens for requests
with seeds.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any
from zlib import crc32

import numpy as np
import torch

from .vllm_options import MIN_P, SEED

PARAMETERS = {
    "sampler.topk_topp_sampler.forward": ("logits", "generators", "k", "p"),
    "rejection_sampler.forward": ("metadata", "draft_probs", "logits", "sampling_metadata"),
    "_prepare_inputs": ("scheduler_output", "num_scheduled_tokens"),
    "_update_states": ("scheduler_output",),
}
"""By place in vLLM's model runner: the parameters of what is replaced there, as in 0.24 to 0.32."""


def must_be_as_read(runner: Any, *places: str) -> None:
    """Raise RuntimeError if what this vLLM has in a place takes other parameters than what would replace it."""
    for place in places:
        found = reduce(getattr, place.split("."), runner)
        if len(inspect.signature(found).parameters) != len(PARAMETERS[place]):
            wanted = ", ".join(PARAMETERS[place])
            raise RuntimeError(f"{place} of this vLLM takes {inspect.signature(found)}, not ({wanted})")


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
        must_be_as_read(runner, "sampler.topk_topp_sampler.forward")
        self._runner = runner
        self._names: list[str] = []
        self._seeds: torch.Tensor | None = None
        self._min_p: torch.Tensor | None = None
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
        """A token of each row, drawn from what its limits leave, and the log-probs of all tokens without them."""
        self._look_at_batch()
        runner, seeds, min_p = self._runner, self._seeds, self._min_p
        if self._drafted is None:
            tokens = runner.query_start_loc.gpu[1 : len(logits) + 1] - 1
        else:
            rows, tokens = self._drafted
            seeds, min_p, top_k, top_p = (
                None if values is None else values[rows] for values in (seeds, min_p, top_k, top_p)
            )
        limited = any(values is not None for values in (min_p, top_k, top_p))
        if seeds is None and not limited:
            return self._by_vllm(logits, generators, top_k, top_p)
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        if min_p is not None:
            least = logits.amax(dim=-1, keepdim=True) + min_p.log()[:, None]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if seeds is None:
            return self._by_vllm(logits, generators, top_k, top_p)[0], log_probs
        if top_k is not None or top_p is not None:
            from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

            logits = apply_top_k_top_p(logits, top_k, top_p)
        return self._draw(logits, seeds, runner.positions[tokens]), log_probs

    def _look_at_batch(self) -> None:
        """Take the seed and the `min_p` of each row; None of all if no request has one."""
        names = self._runner.input_batch.req_ids
        if names == self._names:
            return
        self._names, self._seeds, self._min_p = list(names), None, None
        requests = [self._runner.requests[name].sampling_params.extra_args or {} for name in names]
        if any(SEED in request for request in requests):
            both = zip(requests, names, strict=True)
            self._seeds = self._on_device([each[SEED] if SEED in each else crc32(name.encode()) for each, name in both])
        if any(MIN_P in request for request in requests):
            self._min_p = self._on_device([float(request.get(MIN_P, 0.0)) for request in requests])

    def _on_device(self, values: list[Any]) -> torch.Tensor:
        pinned = self._runner.device.type == "cuda"  # so that the copy waits for no step
        return torch.tensor(values, pin_memory=pinned).to(self._runner.device, non_blocking=True)


REJECTED = -1
"""In place of a token that is none of the sample (vLLM's PLACEHOLDER_TOKEN_ID)."""


class DrawnVerification:
    """In place of vLLM's rejection sampler.

    Args:
        sampler: vLLM's sampler.
        seeded: what draws in it, a `SeededSampling`.
    """

    def __init__(self, sampler: Any, seeded: Any) -> None:
        self._sampler, self._seeded = sampler, seeded

    def __call__(self, drafts: Any, chances: Any, outputs: Any, sampling: Any) -> Any:
        """Tokens int32 [samples, longest draft + 1], REJECTED after the last of each, and their log-probs, as vLLM's
        `SamplerOutput`.

        Args:
            drafts: vLLM's `SpecDecodeMetadata`.
            chances: of drafts that a model drew; not used.
            outputs: logits [drafted tokens + samples, vocabulary], each sample's places after each other.
            sampling: vLLM's `SamplingMetadata` of the samples.
        """
        # Arrays are NumPy's: of so few elements, each operation of torch takes a multiple of the time.
        places = np.array(drafts.num_draft_tokens) + 1
        begins = np.cumsum(places) - places
        rows = torch.from_numpy(np.repeat(np.arange(len(places)), places)).to(outputs.device)
        warmth = None if sampling.temperature is None else sampling.temperature[rows]
        with self._seeded.at(rows, drafts.logits_indices):
            drawn = self._sampler(outputs, replace(sampling, temperature=warmth))
        tokens = drawn.sampled_token_ids.cpu().numpy().ravel()
        held = np.ones(len(tokens), bool)  # of each place: whether the draft before it was drawn
        drafted = drafts.target_logits_indices.cpu().numpy()
        held[drafted + 1] = tokens[drafted] == drafts.draft_token_ids.cpu().numpy()
        ahead = np.arange(places.max())
        grid = np.minimum(begins[:, None] + ahead, len(tokens) - 1)
        holds = np.logical_and.accumulate(held[grid] & (ahead < places[:, None]), axis=1)
        sampled = torch.from_numpy(np.where(holds, tokens[grid], REJECTED).astype(np.int32)).to(outputs.device)
        log_probs = drawn.logprobs_tensors
        if log_probs is not None:
            order = torch.from_numpy(grid.ravel()).to(outputs.device)
            log_probs = type(log_probs)(*(values[order] for values in log_probs[:3]))
        return replace(drawn, sampled_token_ids=sampled, logprobs_tensors=log_probs)


def patch_for_drafts(runner: Any, seeded: SeededSampling, scheduled: Callable[[Any], None]) -> None:
    """Have vLLM's model runner verify drafts by drawing, and prepare steps without drafts as one that cannot draft.

    `scheduled` hears what each step schedules (vLLM's `SchedulerOutput`), before the runner does. Models with recurrent
    states prepare all steps as vLLM does: it reads these states at offsets that only steps prepared for drafts have.
    Raises RuntimeError if this vLLM is another than was read.
    """
    must_be_as_read(runner, "rejection_sampler.forward", "_prepare_inputs", "_update_states")
    runner.rejection_sampler = DrawnVerification(runner.sampler, seeded)
    prepare, update = runner._prepare_inputs, runner._update_states

    def prepared(output: Any, *arguments: Any, **options: Any) -> Any:
        if output.scheduled_spec_decode_tokens:
            return prepare(output, *arguments, **options)
        drafts, runner.speculative_config = runner.speculative_config, None
        try:
            return prepare(output, *arguments, **options)
        finally:
            runner.speculative_config = drafts

    def updated(output: Any) -> Any:
        scheduled(output)
        return update(output)

    if not (runner.model_config.is_hybrid or runner.model_config.is_attention_free):
        runner._prepare_inputs = prepared
    runner._update_states = updated
