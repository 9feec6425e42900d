"""Which engine sets and which layouts of trainers are worth measuring for a job on a pool."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.facts.executable import update_faults
from ...plans.facts.model_shape import ModelShape, tp_divides
from ...plans.schema.cluster import Pool
from ...plans.schema.sections.layouts import EngineLayout, UpdateLayout


def layouts_to_measure(tp_sizes: Sequence[int], pool: Pool, model: ModelShape | None) -> list[EngineLayout]:
    """One engine and as many as fit, for each TP size that divides the model's heads.

    `model` None: not known, every size is tried. Raises ValueError if no size fits.
    """
    layouts: list[EngineLayout] = []
    for tp in tp_sizes:
        if pool.engines_of(tp) < 1 or (model is not None and not tp_divides(tp, model)):
            continue
        layouts.extend(EngineLayout(tp, count) for count in sorted({1, pool.engines_of(tp)}))
    if not layouts:
        divides = (
            "" if model is None else f" and divides the model's {model.heads} attention and {model.kv_heads} KV heads"
        )
        raise ValueError(
            f"no size of {list(tp_sizes)} fits the pool's {pool.accelerators.per_node} accelerators a node{divides}"
        )
    return layouts


def updates_to_measure(pool: Pool, model: ModelShape | None, micro_batch_tokens: int) -> list[UpdateLayout]:
    """Layouts of two trainer ranks, beside the one rank that is always measured: dp 2, tp 2 and sp 2.

    Only those that the executor can run of the model; `model` None: not known, only dp 2. None on GPUs, whose memory
    engines hold while updates are measured, or where a node has one accelerator.
    """
    if pool.accelerators.kind != "cpu" or pool.accelerators.per_node < 2:
        return []
    layouts = [
        UpdateLayout(dp=dp, tp=tp, sp=sp, micro_batch_tokens=micro_batch_tokens)
        for dp, tp, sp in ((2, 1, 1), (1, 2, 1), (1, 1, 2))
    ]
    return layouts[:1] if model is None else [layout for layout in layouts if not any(update_faults(layout, model))]
