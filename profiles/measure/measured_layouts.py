"""Which engine sets are worth measuring for a job on a pool."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.schema.cluster import Pool
from ...plans.schema.job import tp_divides
from ...plans.schema.sections.layouts import EngineLayout


def layouts_to_measure(tp_sizes: Sequence[int], pool: Pool, heads: tuple[int, int] | None) -> list[EngineLayout]:
    """One engine and as many as fit, for each TP size that divides the heads (attention, KV).

    `heads` None: not known, every size is tried. Raises ValueError if no size fits.
    """
    found: list[EngineLayout] = []
    for tp in tp_sizes:
        if pool.engines_of(tp) < 1 or (heads is not None and not tp_divides(tp, heads)):
            continue
        found.extend(EngineLayout(tp, count) for count in sorted({1, pool.engines_of(tp)}))
    if not found:
        known = "" if heads is None else f" and divides the model's {heads[0]} attention and {heads[1]} KV heads"
        raise ValueError(
            f"no size of {list(tp_sizes)} fits the pool's {pool.accelerators.per_node} accelerators a node{known}"
        )
    return found
