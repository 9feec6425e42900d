"""Layouts in which a model can be trained on so many accelerators: divisibility and memory, before any cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ...plans.facts.device_shares import PLANNED_SHARE
from ...plans.schema.base import Recompute
from ...plans.schema.levers import ReferencePlace, UpdateLayout
from ..hardware import GPUS
from ..phase_schema import TrainLaw
from ..profile_schema import Profile
from .rank_memory import TrainMemory, parameter_bytes, rank_parameters, train_memory
from .train_error import parallel_factor
from .train_law import TrainPhysics, fits_heads

SIZES = (1, 2, 4, 8)
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")


_last: tuple[TrainLaw, TrainPhysics] | None = None
"""The law that was asked for last, and its physics: a solve asks a million times for that of one profile."""


def physics_of(law: TrainLaw) -> TrainPhysics:
    """Training physics of a profile's law."""
    global _last
    if _last is None or _last[0] is not law:
        physics = TrainPhysics(
            law.shape,
            GPUS[law.accelerator],
            law.factors,
            law.fabric_bytes_per_s,
            law.accelerators_per_node,
            parallel_factor(law),
            adapters=law.adapters,
        )
        _last = law, physics
    return _last[1]


def train_physics(law: TrainLaw | None) -> TrainPhysics | None:
    """Training physics of the law that a profile may have."""
    return None if law is None else physics_of(law)


def rank_share(profile: Profile, layout: UpdateLayout) -> float:
    """Parameters of the model that a trainer rank keeps; an equal share where the profile has no law of the model."""
    if profile.train_law is None:
        return profile.model_parameters * layout.state_copies / layout.accelerators
    return rank_parameters(physics_of(profile.train_law).architecture, layout)


def kept_bytes(profile: Profile, layout: UpdateLayout) -> float:
    """Bytes of the parameters that a trainer rank keeps, frozen ones included."""
    return parameter_bytes(rank_share(profile, layout), profile.adapters)


def fitted_memory(law: TrainLaw, layout: UpdateLayout) -> TrainMemory:
    """Memory of a rank that computes in bfloat16, as a law has it, scaled by the fitted factors."""
    return train_memory(physics_of(law).architecture, layout, adapters=law.adapters).scaled(law.memory_factors)


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
    reference: Sequence[ReferencePlace] = ("none",),
    memory_bytes: int | None = None,
) -> Iterator[UpdateLayout]:
    """Packed layouts on exactly `accelerators` that divide the model and fit its memory, in a stable order.

    States are sharded over all ranks or, on several nodes and without stages or shared experts, over those of a node.

    Of one sharding and micro-batch, all ways to save memory that fit come, those that save none first: which is fastest
    depends on what is trained, for recomputation costs a share of each token, and offloading the same in each step.

    Args:
        tp, cp, sp, pp, ep: sizes to consider; a trainer that has no pipeline passes pp=(1,). Sequences are shared by cp
            or by sp, never by both.
        reference: where a reference may be.
        memory_bytes: of an accelerator, where it has less than its data sheet says; None: as the data sheet says.
    """
    physics = physics_of(law)
    limit = PLANNED_SHARE * min(physics.gpu.memory_bytes, memory_bytes or physics.gpu.memory_bytes)
    experts = ep if physics.architecture.experts else (1,)
    for size in itertools.product(tp, cp, sp, pp, experts, sorted(micro_batch_tokens)):
        ways = _ways(law, physics, accelerators, size, offload, recompute)
        for layout in (way.model_copy(update={"reference": place}) for way in ways for place in reference):
            if fitted_memory(law, layout).peak_bytes <= limit:
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
