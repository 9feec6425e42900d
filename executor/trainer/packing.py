"""Packing: which sequences share a micro-batch, and on which rank.

Invariants, for every call:
- each sequence is in exactly one micro-batch of one rank;
- a micro-batch has at most `budget` tokens, unless it is a single sequence that is longer than that;
- all ranks have the same number of micro-batches (FSDP's collectives are entered by all or none), some perhaps empty;
- the result is a function of the lengths in their given order: no randomness, no hash order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

MicroBatch = list[int]


def pack(lengths: Sequence[int], budget: int, ranks: int = 1) -> list[list[MicroBatch]]:
    """Indices of `lengths` by rank and micro-batch; `lengths` and `budget` in tokens.

    Each sequence goes, longest first, to the least loaded micro-batch (LPT, which is within 4/3 of the best balance);
    the number of micro-batches is the smallest for which that fits and which all ranks can share evenly. Balanced
    micro-batches make ranks wait for each other least and keep peak memory as low as their number allows.
    """
    assert budget > 0 and ranks > 0 and all(length > 0 for length in lengths)
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    oversized: list[MicroBatch] = [[i] for i in longest_first if lengths[i] > budget]
    rest = longest_first[len(oversized) :]
    count = -(-sum(lengths[i] for i in rest) // budget)
    while True:  # ends at the latest when every sequence has a micro-batch of its own
        count += -(count + len(oversized)) % ranks
        shared = _balanced(lengths, rest, count)
        if all(sum(lengths[i] for i in batch) <= budget for batch in shared):
            break
        count += 1
    batches = sorted(oversized + shared, key=lambda batch: (-sum(lengths[i] for i in batch), batch))
    # Dealt back and forth (0 1 1 0 0 1 ...), so that no rank always gets the larger one of a pair.
    dealt: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for start in range(0, len(batches), ranks):
        row = batches[start : start + ranks]
        for rank, batch in enumerate(row if (start // ranks) % 2 == 0 else reversed(row)):
            dealt[rank].append(sorted(batch))
    return dealt


def _balanced(lengths: Sequence[int], longest_first: Sequence[int], count: int) -> list[MicroBatch]:
    batches: list[MicroBatch] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for i in longest_first:
        load, number = heapq.heappop(heap)
        batches[number].append(i)
        heapq.heappush(heap, (load + lengths[i], number))
    return batches
