"""Packing: which sequences share a micro-batch, and on which replica.

Invariants, for every call:
- each sequence is in exactly one micro-batch of one replica;
- a micro-batch has at most `budget` tokens, unless it is a single sequence that is longer than that;
- all replicas have the same number of micro-batches (FSDP's collectives are entered by all or none), some perhaps
  empty;
- the result is a function of the lengths in their given order: no randomness, no hash order.

Tokens bound memory, operations take time: a long sequence's attention makes it cost more than its tokens. So tokens
limit a micro-batch, and micro-batches are balanced by operations.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

MicroBatch = list[int]


def pair_share(config: Any) -> float:
    """Operations of a pair of tokens over those of a token, in a transformer of this Hugging Face `config`.

    A token takes 2 operations a parameter of the layers; a sequence of L tokens has L^2 / 2 causal pairs, each of 4
    operations per head and head dimension in each layer (Kaplan et al., arXiv 2001.08361, table 1).
    """
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    key_values = getattr(config, "num_key_value_heads", None) or heads
    experts = getattr(config, "num_experts_per_tok", None)
    width = experts * config.moe_intermediate_size if experts else config.intermediate_size
    layer = hidden * head_dim * (2 * heads + 2 * key_values) + 3 * hidden * width
    return float(2 * heads * head_dim / (2 * layer))


def pack(lengths: Sequence[int], budget: int, replicas: int = 1, pairs: float = 0.0) -> list[list[MicroBatch]]:
    """Indices of `lengths` by replica and micro-batch; `lengths` and `budget` in tokens.

    A sequence of L tokens costs L + pairs L^2 (`pair_share`). Each goes, the costliest first, to the micro-batch of
    least cost that has room (LPT, which without the token limit is within 4/3 of the best balance); the number of
    micro-batches is the smallest for which all fit and which all replicas can share evenly. Micro-batches of like cost
    run side by side, so that replicas wait for each other least.
    """
    assert budget > 0 and replicas > 0 and all(length > 0 for length in lengths)
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    costs = [length + pairs * length * length for length in lengths]
    oversized: list[MicroBatch] = [[i] for i in longest_first if lengths[i] > budget]
    rest = longest_first[len(oversized) :]
    count = -(-sum(lengths[i] for i in rest) // budget)
    while True:  # ends at the latest when every sequence has a micro-batch of its own
        count += -(count + len(oversized)) % replicas
        shared = _balanced(lengths, costs, rest, count, budget)
        if shared is not None:
            break
        count += 1
    batches = sorted(oversized + shared, key=lambda batch: (-sum(costs[i] for i in batch), batch))
    # Dealt back and forth (0 1 1 0 0 1 ...), so that no replica always gets the larger one of a pair.
    dealt: list[list[MicroBatch]] = [[] for _ in range(replicas)]
    for start in range(0, len(batches), replicas):
        row = batches[start : start + replicas]
        for replica, batch in enumerate(row if (start // replicas) % 2 == 0 else reversed(row)):
            dealt[replica].append(sorted(batch))
    return dealt


def _balanced(
    lengths: Sequence[int], costs: Sequence[float], longest_first: Sequence[int], count: int, budget: int
) -> list[MicroBatch] | None:
    """The sequences in `count` micro-batches of at most `budget` tokens; None if this way finds no room for one."""
    batches: list[MicroBatch] = [[] for _ in range(count)]
    tokens = [0] * count
    heap = [(0.0, number) for number in range(count)]
    for i in longest_first:
        full = []
        while heap and tokens[heap[0][1]] + lengths[i] > budget:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        cost, number = heapq.heappop(heap)
        batches[number].append(i)
        tokens[number] += lengths[i]
        for entry in [*full, (cost + costs[i], number)]:
            heapq.heappush(heap, entry)
    return batches
