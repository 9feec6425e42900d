"""How much of a rollout's time its tail takes: the last responses, which few units can decode (refs/rollmux.md 4.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def tail_share(lengths: NDArray[np.float64], finished: float, load: float) -> float:
    """Share of a rollout's decode seconds after `finished` of its responses have ended.

    All responses start at once and decode in step; a step takes time on a line in the sequences that run, as profiles
    have it (design.md, Costs).

    Args:
        lengths: (responses,) tokens of a rollout's responses.
        finished: share of them after which the tail begins, in (0, 1); the paper's example is 0.8.
        load: share of a step's seconds that is due to its sequences when all run; the rest is due to reading weights.

    Raises:
        ValueError: no responses, or shares outside their ranges.
    """
    if not len(lengths) or not 0 < finished < 1 or not 0 <= load <= 1:
        raise ValueError(f"{len(lengths)} responses, finished {finished} and load {load}: need some, (0, 1) and [0, 1]")
    ends = np.sort(lengths)
    running = np.arange(len(ends), 0, -1) / len(ends)  # while the k-th shortest decodes its last tokens
    seconds = np.cumsum(np.diff(ends, prepend=0.0) * ((1 - load) + load * running))
    begins = seconds[int(np.ceil(finished * len(ends))) - 1]
    return float(1 - begins / seconds[-1])
