"""A mend of vLLM on CPUs (0.32): what its verification of drafts reads of each sample must be the sample's.

vLLM spreads a value of each sample, such as its temperature, over the sample's drafted tokens. Its CPU kernel writes
the result of values that are no 64-bit integers into a copy that nobody reads (`cpu_triton_utils._expand_kernel_impl`),
so that drafts are verified at whatever temperature the memory held before: samples are then no samples of the policy.
"""

from __future__ import annotations

from typing import Any


def expand(values: Any, ends: Any, tokens: int, replace_from: float = 0, replace_to: float = 0) -> Any:
    """Each sample's value at each of its tokens, as vLLM's `expand_batch_to_tokens`.

    Args:
        values: [samples].
        ends: [samples]; tokens of all samples up to each.
        tokens: of all samples.
        replace_from, replace_to: a value that is written as another.
    """
    import torch

    counts = torch.diff(ends, prepend=ends.new_zeros(1)).to(torch.int64)
    expanded = values.repeat_interleave(counts, output_size=tokens)
    return expanded.masked_fill(expanded == replace_from, replace_to)


def mend_expand() -> bool:
    """Have vLLM use `expand` in this process if its own function is wrong; returns whether it was."""
    import torch
    from vllm.v1.sample import rejection_sampler

    values, ends = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 5], dtype=torch.int32)
    wanted = expand(values, ends, 5, 0, 1)
    if torch.equal(rejection_sampler.expand_batch_to_tokens(values, ends, 5, 0, 1), wanted):
        return False
    rejection_sampler.expand_batch_to_tokens = expand  # type: ignore[assignment]
    return True
