"""Drafts verified by drawing: the tokens of a sample are those that it has without drafts.

Speculative sampling accepts a drafted token x with the chance p(x) that the policy gives it (arXiv 2302.01318, with a
draft that is certain of x). vLLM draws a number for that, and another token from what is left of p where x is rejected:
the same distribution, and other tokens than without drafts. Here each place draws its token from p as vLLM's sampler
draws it, by the request's own random numbers, one number a token; the draft holds up to the first place that drew
another token. That is the chance p(x), too, and a request with a seed has the same tokens with drafts as without, up to
the rounding of the model's outputs. It also takes less time than vLLM's, which samples twice.

Invariants:
- a generator has drawn as many numbers as its request has tokens, whatever was drafted (of requests verified here);
  engine_worker.skip_draws and steps without drafts count on it;
- what vLLM does to outputs by the request's earlier tokens (penalties, bad words, processors) is left to vLLM's own
  verification.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

REJECTED = -1
"""In place of a token that is none of the sample (vLLM's PLACEHOLDER_TOKEN_ID)."""


class DrawnVerification:
    """In place of vLLM's rejection sampler, for generators on a CPU.

    Args:
        by_vllm: vLLM's, for what is not verified here.
        sampler: vLLM's sampler.
    """

    def __init__(self, by_vllm: Any, sampler: Any) -> None:
        self._by_vllm, self._sampler = by_vllm, sampler

    def __call__(self, drafts: Any, chances: Any, outputs: Any, sampling: Any) -> Any:
        """Tokens int32 [samples, longest draft + 1], REJECTED after the last of each, and their log-probs, as vLLM's
        `SamplerOutput`.

        Args:
            drafts: vLLM's `SpecDecodeMetadata`.
            chances: of drafts that a model drew; None of ours.
            outputs: logits [drafted tokens + samples, vocabulary], each sample's places after each other.
            sampling: vLLM's `SamplingMetadata` of the samples.
        """
        import torch

        if chances is not None or _by_earlier_tokens(sampling):
            return self._by_vllm(drafts, chances, outputs, sampling)
        # Arrays are NumPy's: of so few elements, each operation of torch takes a multiple of the time.
        places = np.array(drafts.num_draft_tokens) + 1
        begins = np.cumsum(places) - places
        sample_of_place = torch.from_numpy(np.repeat(np.arange(len(places)), places))

        def of_places(values: Any) -> Any:
            return None if values is None else values[sample_of_place]

        generators, before = {}, {}
        for row, generator in sampling.generators.items():
            if places[row] > 1:
                before[row] = generator.get_state()
            for place in range(begins[row], begins[row] + places[row]):
                generators[place] = generator
        drawn = self._sampler(
            outputs,
            replace(
                sampling,
                temperature=of_places(sampling.temperature),
                top_p=of_places(sampling.top_p),
                top_k=of_places(sampling.top_k),
                generators=generators,
            ),
        )
        tokens = drawn.sampled_token_ids.numpy().ravel()
        held = np.ones(len(tokens), bool)  # of each place: whether the draft before it was drawn
        drafted = drafts.target_logits_indices.numpy()
        held[drafted + 1] = tokens[drafted] == drafts.draft_token_ids.numpy()
        ahead = np.arange(places.max())
        grid = np.minimum(begins[:, None] + ahead, len(tokens) - 1)
        holds = np.logical_and.accumulate(held[grid] & (ahead < places[:, None]), axis=1)
        counts = holds.sum(axis=1)
        for row, state in before.items():
            if counts[row] < places[row]:
                generator = sampling.generators[row]
                generator.set_state(state)
                torch.randint(0, 2**31, (int(counts[row]),), generator=generator, dtype=torch.long)
        log_probs = drawn.logprobs_tensors
        if log_probs is not None:
            order = torch.from_numpy(grid.ravel())
            log_probs = type(log_probs)(*(values[order] for values in log_probs[:3]))
        return replace(
            drawn,
            sampled_token_ids=torch.from_numpy(np.where(holds, tokens[grid], REJECTED).astype(np.int32)),
            logprobs_tensors=log_probs,
        )


def draws_a_number_a_token(sampler: Any) -> bool:
    """Whether vLLM's sampler draws one integer of a request's generator for each of its tokens, as it does on CPUs (but
    for some architectures, and with `use_fp64_gumbel`)."""
    by_chance = sampler.topk_topp_sampler
    return not by_chance.use_fp64_gumbel and getattr(by_chance.forward, "__name__", "") == "forward_cpu"


def _by_earlier_tokens(sampling: Any) -> bool:
    """Whether a request has rules that change its logits by what it has written so far, or by its row in the batch."""
    holder = sampling.thinking_budget_state_holder
    processors = sampling.logitsprocs
    return bool(
        not sampling.no_penalties
        or sampling.bad_words_token_ids
        or sampling.allowed_token_ids_mask is not None
        or sampling.logprob_token_ids
        or (holder is not None and holder.has_tracked_requests())
        or any(map(_is_active, (*processors.argmax_invariant, *processors.non_argmax_invariant)))
    )


def _is_active(processor: Any) -> bool:
    """Whether one of vLLM's processors of logits changes any; one that we do not know may."""
    states = [getattr(processor, name) for name in ("min_p_count", "biases", "min_toks") if hasattr(processor, name)]
    return any(states) if states else True
