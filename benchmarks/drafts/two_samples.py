"""Tests of whether two sets of samples have one distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch

LEAST_EXPECTED = 5.0
"""A category that is expected less often in either set is counted with others: the chi-square law is one of many."""


def chi_square_p(one: Mapping[Hashable, int], other: Mapping[Hashable, int]) -> float:
    """P-value of the two-sample chi-square test of homogeneity on two counts; 1 if there is only one category.

    The p-value is the regularised upper incomplete gamma function Q(df / 2, x / 2).
    """
    ones, others = sum(one.values()), sum(other.values())
    shares = (ones / (ones + others), others / (ones + others))
    rows: list[tuple[int, int]] = []
    rest = [0, 0]
    for name in sorted({*one, *other}, key=repr):
        counts = one.get(name, 0), other.get(name, 0)
        if min(shares) * sum(counts) >= LEAST_EXPECTED:
            rows.append(counts)
        else:
            rest = [rest[0] + counts[0], rest[1] + counts[1]]
    if min(shares) * sum(rest) >= LEAST_EXPECTED:
        rows.append((rest[0], rest[1]))
    if len(rows) < 2:
        return 1.0
    x = sum((count - share * sum(counts)) ** 2 / (share * sum(counts))
            for counts in rows for count, share in zip(counts, shares, strict=True))  # fmt: skip
    half = torch.tensor([(len(rows) - 1) / 2, x / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def length_classes(lengths: Iterable[int]) -> Counter[Hashable]:
    """How often lengths are in each of classes that grow by a fifth."""
    bounds = [1]
    while bounds[-1] < 10**6:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 6 // 5))
    edges = torch.tensor(bounds)
    return Counter(torch.bucketize(torch.tensor(list(lengths)), edges).tolist())


def transitions(texts: Iterable[Sequence[int]], kinds: Mapping[int, str]) -> Counter[Hashable]:
    """How often a token follows one of a kind, as (kind, token); tokens that `kinds` does not name are all `other`."""
    counts: Counter[Hashable] = Counter()
    for text in texts:
        for before, token in itertools.pairwise(text):
            counts[kinds.get(before, "other"), token] += 1
    return counts
