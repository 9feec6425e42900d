"""Which engine sets and which layouts of trainers are worth measuring for a job on a pool."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.schema.cluster import Pool
from ...plans.schema.job import tp_divides
from ...plans.schema.sections.layouts import EngineLayout, UpdateLayout


def layouts_to_measure(tp_sizes: Sequence[int], pool: Pool, heads: tuple[int, int] | None) -> list[EngineLayout]:
    """One engine and as many as fit, for each TP size that divides the heads (attention, KV).

    `heads` None: not known, every size is tried. Raises ValueError if no size fits.
    """
    layouts: list[EngineLayout] = []
    for tp in tp_sizes:
        if pool.engines_of(tp) < 1 or (heads is not None and not tp_divides(tp, heads)):
            continue
        layouts.extend(EngineLayout(tp, count) for count in sorted({1, pool.engines_of(tp)}))
    if not layouts:
        divides = "" if heads is None else f" and divides the model's {heads[0]} attention and {heads[1]} KV heads"
        raise ValueError(
            f"no size of {list(tp_sizes)} fits the pool's {pool.accelerators.per_node} accelerators a node{divides}"
        )
    return layouts


def updates_to_measure(pool: Pool, heads: tuple[int, int] | None, micro_batch_tokens: int) -> list[UpdateLayout]:
    """Layouts of two trainer ranks, beside the one rank that is always measured: dp 2, tp 2 and sp 2.

    The latter two need heads (attention, KV) that two ranks can share; `heads` None: not known, they are left out. None
    on GPUs, whose memory engines hold while updates are measured, or where a node has one accelerator.
    """
    if pool.accelerators.kind != "cpu" or pool.accelerators.per_node < 2:
        return []
    budget = micro_batch_tokens
    shared = heads is not None and not any(count % 2 for count in heads)
    return [UpdateLayout(dp=2, micro_batch_tokens=budget)] + shared * [
        UpdateLayout(dp=1, tp=2, micro_batch_tokens=budget),
        UpdateLayout(dp=1, sp=2, micro_batch_tokens=budget),
    ]
