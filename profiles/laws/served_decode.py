"""The decode law under a serving benchmark: time per output token while requests arrive and finish.

Published points hold `batch` requests open all the time, each of `isl` prompt and `osl` output tokens. A step then also
carries the prompts of newcomers: `batch * isl / osl` tokens of them on average, in chunks, so that some steps carry a
chunk and others none. Contexts are `isl + osl / 2` on average. Where KV for all requests does not fit, fewer run and
the others wait. With attention data parallelism the batch is each group's own. Only fits of such points need this
module; the simulator issues prompts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .decode_law import DecodeLaw

Array = NDArray[np.float64]

CHUNK_TOKENS = 8192.0  # vLLM's default max_num_batched_tokens for serving on large GPUs
MEMORY_SHARE = 0.9  # vLLM's default gpu_memory_utilization
RESERVE_BYTES = 4e9  # of a GPU: context, captured graphs, activations
NODE = 8  # accelerators
_SOFT = 8.0  # sharpness of the smooth minimum of requests and of those that fit, and of a step's smooth maximum


@dataclass(frozen=True)
class Served:
    """Measured points as columns of one length: layout, load, seconds per output token, and whether (1 or 0) the engine
    schedules a step while the one before it runs."""

    tp: Array
    ep: Array
    dp: Array
    batch: Array
    isl: Array
    osl: Array
    seconds: Array
    ahead: Array

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def ranks(self) -> Array:
        """Accelerators of the engine.

        Files differ in what they call TP beside attention data parallelism: all ranks of the engine, or those of one
        attention group (1). And some name the product of TP and EP, which shows where it is EP squared and more than a
        node: the same times stand there under EP ranks.
        """
        named = np.maximum(self.tp, self.dp)
        return np.where((named > NODE) & (named == self.ep**2), self.ep, named)

    @property
    def groups(self) -> Array:
        """Attention groups of the engine."""
        return np.minimum(self.dp, self.ranks)

    def take(self, keep: NDArray[np.bool_]) -> Served:
        """The points that a mask keeps."""
        return Served(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def running(law: DecodeLaw, points: Served) -> Array:
    """Sequences that run at once on an engine: those asked for, or those whose KV fits."""
    s, ranks = law.sheet, points.ranks
    requested = points.batch * points.dp
    free = ranks * (MEMORY_SHARE * s.memory_bytes - RESERVE_BYTES) - s.weight_bytes
    held = s.kv_bytes_per_token * (points.isl + points.osl / 2) + s.window_bytes
    each = held * law.factor("kv_width") * ranks / law.kv_ranks(ranks, points.groups)
    # Weights that cannot fit mean that the sheet does not know how this was run (more ranks, another format).
    fits = np.where(free > 0, np.maximum(free, 1.0) * law.factor("capacity") / each, np.inf)
    return np.asarray(requested * (1 + (requested / fits) ** _SOFT) ** (-1 / _SOFT))


def seconds_per_token(law: DecodeLaw, points: Served) -> Array:
    """Predicted mean time between output tokens."""
    n = running(law, points)
    tp, ep, dp = points.ranks, points.ep, points.groups
    context = points.isl + points.osl / 2
    newcomers = n * points.isl / points.osl
    chunk = np.minimum(points.isl, CHUNK_TOKENS)
    joins = newcomers / chunk  # chunks a step
    share, together = np.minimum(joins, 1.0), np.maximum(joins, 1.0)
    without = law.linear_s(tp, n, ep, dp) + law.sums_s(tp, n)
    tokens = n + chunk * together
    with_chunk = law.linear_s(tp, tokens, ep, dp) + law.sums_s(tp, tokens) + law.factor("join") * law.sheet.join_s
    attention = law.factor("compute") * law.sheet.pair_s * points.isl / 2 * newcomers / tp
    step = law.step_s(tp, n, n * context, ep, dp) + share * (with_chunk - without) + attention
    device = step * np.where(dp > 1, law.factor("dp"), 1.0)
    host = law.host_s(n / dp)  # each attention group has an engine core of its own
    longer = (device**_SOFT + host**_SOFT) ** (1 / _SOFT)
    return np.asarray(np.where(points.ahead > 0, longer, device + host))
