"""Layouts in which a model can be trained on so many accelerators: divisibility and memory, before any cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from ...plans.facts.device_shares import PLANNED_SHARE
from ...plans.schema.base import Recompute
from ...plans.schema.levers import UpdateLayout
from ..hardware import GPUS
from ..phase_schema import TrainLaw
from ..profile_schema import Profile
from .rank_memory import TrainMemory, rank_parameters, train_memory
from .train_error import parallel_factor
from .train_law import TrainPhysics, fits_heads

MEMORY_SHARE = PLANNED_SHARE
"""Of an accelerator's memory that a trainer may plan to fill."""
SIZES = (1, 2, 4, 8)
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")


_last: tuple[TrainLaw, TrainPhysics] | None = None
"""The law that was asked for last, and its physics: a solve asks a million times for that of one profile."""


def physics_of(law: TrainLaw) -> TrainPhysics:
    """Training physics of a profile's law. Raises ValueError when its model or its accelerator is in no table."""
    global _last
    if _last is None or _last[0] is not law:
        _last = law, _physics_of(law)
    return _last[1]


def _physics_of(law: TrainLaw) -> TrainPhysics:
    shape = law.shape
    if shape is None or law.accelerator not in GPUS:
        raise ValueError(f"train_law names {law.model} on {law.accelerator}; the tables do not have both")
    return TrainPhysics(
        shape,
        GPUS[law.accelerator],
        law.factors,
        law.fabric_bytes_per_s,
        law.accelerators_per_node,
        parallel_factor(law),
    )


def train_physics(profile: Profile) -> TrainPhysics | None:
    """Training physics of the profile's law; None without a law, or if its model or GPU is in no table."""
    if profile.train_law is None:
        return None
    try:
        return physics_of(profile.train_law)
    except ValueError:
        return None


def trained_parameters(profile: Profile, layout: UpdateLayout) -> float:
    """Parameters that a trainer rank keeps in float32; an equal share where the profile names no known model."""
    physics = train_physics(profile)
    if physics is None or not physics.trainer.sharded:
        return profile.model_parameters * layout.state_copies / layout.accelerators
    return rank_parameters(physics.architecture, layout)


def fitted_memory(physics: TrainPhysics, layout: UpdateLayout, memory_factors: Mapping[str, float]) -> TrainMemory:
    """Memory of a rank that computes in bfloat16, as a law has it, scaled by the fitted factors."""
    return train_memory(physics.architecture, layout, physics.trainer.sharded).scaled(memory_factors)


def peak_bytes(physics: TrainPhysics, layout: UpdateLayout, memory_factors: Mapping[str, float]) -> int:
    """Peak memory of a rank, scaled by the fitted factors."""
    return fitted_memory(physics, layout, memory_factors).peak_bytes


def train_layouts(
    law: TrainLaw,
    accelerators: int,
    micro_batch_tokens: Sequence[int],
    *,
    tp: Sequence[int] = SIZES,
    cp: Sequence[int] = SIZES,
    sp: Sequence[int] = SIZES,
    pp: Sequence[int] = SIZES,
    ep: Sequence[int] = SIZES,
    recompute: Sequence[Recompute] = RECOMPUTES,
    offload: Sequence[bool] = (False, True),
    memory_bytes: int | None = None,
) -> Iterator[UpdateLayout]:
    """Packed layouts on exactly `accelerators` that divide the model and fit its memory, in a stable order.

    States are sharded over all ranks or, on several nodes and without stages or shared experts, over those of a node.

    Of one sharding and micro-batch, all ways to save memory that fit come, those that save none first: which is fastest
    depends on what is trained, for recomputation costs a share of each token, and offloading the same in each step.

    Args:
        tp, cp, sp, pp, ep: sizes to consider; a trainer that has no pipeline passes pp=(1,). Sequences are shared by cp
            or by sp, never by both.
        memory_bytes: of an accelerator, where it has less than its data sheet says; None: as the data sheet says.
    """
    physics = physics_of(law)
    limit = MEMORY_SHARE * min(physics.gpu.memory_bytes, memory_bytes or physics.gpu.memory_bytes)
    experts = ep if physics.architecture.experts else (1,)
    for size in itertools.product(tp, cp, sp, pp, experts, sorted(micro_batch_tokens)):
        for layout in _ways(law, physics, accelerators, size, offload, recompute):
            if peak_bytes(physics, layout, law.memory_factors) <= limit:
                yield layout


def _ways(
    law: TrainLaw,
    physics: TrainPhysics,
    accelerators: int,
    size: tuple[int, int, int, int, int, int],
    offload: Sequence[bool],
    recompute: Sequence[Recompute],
) -> Iterator[UpdateLayout]:
    """Layouts of one (tp, cp, sp, pp, ep, micro-batch) that divide the model, those that save no memory first."""
    t, c, s, p, e, budget = size
    if accelerators % (t * c * s * p) or (c > 1 and s > 1):
        return
    ranks, nodes = accelerators // (t * p), accelerators // law.accelerators_per_node
    hybrid = p == e == 1 and nodes > 1 and accelerators % law.accelerators_per_node == ranks % nodes == 0
    for copies, off, again in itertools.product((1, nodes) if hybrid else (1,), offload, recompute):
        layout = UpdateLayout(
            dp=ranks // (c * s),
            tp=t,
            pp=p,
            cp=c,
            sp=s,
            state_copies=copies,
            ep=e,
            micro_batch_tokens=budget,
            recompute=again,
            offload=off,
        )
        if fits_heads(physics.architecture, layout, law.accelerators_per_node) is not None:
            return
        yield layout
