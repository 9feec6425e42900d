"""Drafts verified by drawing: the tokens of a sample are those that it has without drafts.

Speculative sampling accepts a drafted token x with the chance p(x) that the policy gives it (arXiv 2302.01318, with a
draft that is certain of x). vLLM draws a number for that, and another token from what is left of p where x is rejected:
the same distribution, and other tokens than without drafts. Here each place draws its token from p as it would without
drafts (engines/seeded_sampling.py); the draft holds up to the first place that drew another token. That is the chance
p(x), too, and a request with a seed has the same tokens with drafts as without, up to the rounding of the model's
outputs. It also takes less time than vLLM's, which samples twice.

What vLLM does to outputs by the request's earlier tokens (penalties, bad words, processors), no request of ours asks
for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

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
        import torch

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
