"""Which engine sets and which layouts of trainers are worth measuring for a job on a pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...plans.facts.device_shares import ENGINE_SHARE, PLANNED_SHARE
from ...plans.facts.executable import update_faults
from ...plans.facts.model_shape import ModelShape, tp_divides
from ...plans.facts.public_models import Architecture
from ...plans.schema.cluster import Pool
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ..laws.rank_memory import ENGINE_RESERVE_BYTES, adapters_of, rank_peak_bytes

TP_SIZES = (2, 4, 8)
"""Tensor-parallel sizes of trainers on GPUs."""


def layouts_to_measure(
    tp_sizes: Sequence[int], pool: Pool, model: ModelShape | None, weight_bytes: float = 0.0
) -> list[EngineLayout]:
    """One engine and as many as fit, for each TP size that divides the model's heads.

    `model` None: not known, every size is tried. `weight_bytes`: of the whole model in an engine; sizes whose GPUs
    cannot hold their part are left out. Raises ValueError if no size fits.
    """
    layouts: list[EngineLayout] = []
    for tp in tp_sizes:
        if pool.engines_of(tp) < 1 or (model is not None and not tp_divides(tp, model)):
            continue
        if pool.accelerators.kind == "cuda" and not _holds(pool, weight_bytes / tp):
            continue
        layouts.extend(EngineLayout(tp, count) for count in sorted({1, pool.engines_of(tp)}))
    if not layouts:
        divides = (
            "" if model is None else f" and divides the model's {model.heads} attention and {model.kv_heads} KV heads"
        )
        holds = " and holds its weights" if weight_bytes and pool.accelerators.kind == "cuda" else ""
        raise ValueError(
            f"no size of {list(tp_sizes)} fits the pool's {pool.accelerators.per_node} accelerators a node"
            f"{divides}{holds}"
        )
    return layouts


def _holds(pool: Pool, weight_bytes: float) -> bool:
    """Whether an engine has room for a KV cache beside so many bytes of weights on each of its GPUs."""
    return weight_bytes + ENGINE_RESERVE_BYTES < ENGINE_SHARE * pool.accelerators.memory_bytes


def layout_name(layout: EngineLayout) -> str:
    """A layout of engines in progress lines."""
    return f"{layout.engines} engine{'s' * (layout.engines > 1)}, TP {layout.tp}"


def share_of_step(layout: EngineLayout, layouts: Sequence[EngineLayout], pool: Pool) -> float:
    """Which share of a step's samples the engines of a layout decode while they are measured.

    On CPUs all, since a plan may leave cores to others. On GPUs as many for each engine as where all engines of its
    size decode: one of many would take hours for a whole step, and no plan gives it one.
    """
    if pool.accelerators.kind == "cpu":
        return 1.0
    return layout.engines / max(other.engines for other in layouts if other.tp == layout.tp)


def first_update(
    pool: Pool,
    model: ModelShape | None,
    architecture: Architecture | None,
    dtype: str,
    budgets: Sequence[int],
    head_dtype: str | None = None,
) -> UpdateLayout | None:
    """The layout of the trainer that takes turns with engines: with the longest micro-batch of `budgets` that any ranks
    hold, data parallel, on the fewest that do, with as little that saves memory as they need. None: no ranks hold any.

    On a CPU, and where the architecture is not known, one rank and the longest.
    """
    choices = ((tokens, ranks) for tokens in sorted(budgets, reverse=True) for ranks in _counts(pool))
    layouts = (UpdateLayout(dp=ranks, micro_batch_tokens=tokens) for tokens, ranks in choices)
    found = (_lightest(pool, model, architecture, (dtype, head_dtype), layout) for layout in layouts)
    return next((layout for layout in found if layout is not None), None)


def updates_to_measure(
    pool: Pool,
    model: ModelShape | None,
    micro_batch_tokens: int,
    architecture: Architecture | None = None,
    dtype: str = "float32",
    head_dtype: str | None = None,
) -> list[UpdateLayout]:
    """Layouts of several trainer ranks that a plan may choose, those that tell most first.

    On CPUs two ranks: dp 2, tp 2 and sp 2. On GPUs all of a node, and all of the pool: data parallel, of several nodes
    also with a copy of the states on each, then with tensor parallelism of each size, then with sequence parallelism;
    each with as little that saves memory as it needs.

    Only those that the executor can run of the model; `model` None: not known, only data parallel. None where the pool
    has one accelerator.
    """
    per_node, on_cpu = pool.accelerators.per_node, pool.accelerators.kind == "cpu"
    counts = [2] if on_cpu else sorted({per_node, pool.accelerators_total}, reverse=True)
    sizes = [tp for tp in ((2,) if on_cpu else TP_SIZES) if tp <= per_node]
    shapes = [(ranks, 1, 1, 1) for ranks in counts]
    shapes += [(pool.accelerators_total, 1, 1, pool.nodes)] * (not on_cpu and pool.nodes > 1)
    shapes += [(ranks, tp, 1, 1) for ranks in counts for tp in sizes] + [(ranks, 1, 2, 1) for ranks in counts]
    layouts: list[UpdateLayout] = []
    for ranks, tp, sp, copies in shapes:
        if not 2 <= ranks <= pool.accelerators_total or ranks % (tp * sp) or (model is None and tp * sp > 1):
            continue
        dp = ranks // (tp * sp)
        layout = UpdateLayout(dp=dp, tp=tp, sp=sp, state_copies=copies, micro_batch_tokens=micro_batch_tokens)
        if found := _lightest(pool, model, architecture, (dtype, head_dtype), layout):
            layouts.append(found)
    return layouts


def _counts(pool: Pool) -> list[int]:
    """Numbers of ranks, ascending: powers of two within a node, the node, and all nodes."""
    if pool.accelerators.kind == "cpu":
        return [1]
    per_node = pool.accelerators.per_node
    powers = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    return sorted({*powers, per_node, pool.accelerators_total})


def _lightest(
    pool: Pool,
    model: ModelShape | None,
    architecture: Architecture | None,
    dtypes: tuple[str, str | None],
    layout: UpdateLayout,
) -> UpdateLayout | None:
    """The layout with the least that saves memory of what it needs to fit on its devices; None: it cannot fit, or the
    executor cannot run it of the model. `dtypes`: the job's, of all and of the head."""
    if model is not None and any(update_faults(layout, model)):
        return None
    if pool.accelerators.kind == "cpu" or architecture is None:
        return layout
    limit = PLANNED_SHARE * pool.accelerators.memory_bytes
    dtype, head_dtype = dtypes
    adapters = None if model is None else adapters_of(architecture, model.lora, dtype)
    peaks = (
        (each, rank_peak_bytes(architecture, each, dtype, head_dtype=head_dtype, adapters=adapters))
        for each in _savings(layout)
    )
    return next((each for each, peak in peaks if peak <= limit), None)


def _savings(layout: UpdateLayout) -> Iterator[UpdateLayout]:
    for offload in (False, True):
        for recompute in ("none", "full"):
            yield layout.model_copy(update={"recompute": recompute, "offload": offload})
