"""Bytes that engines and trainers hold on a node's host, by phase; memory_table.py lists the assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ...plans.schema.cluster import Pool
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...profiles.laws.rank_memory import CHECKPOINT_BYTES, GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES
from ...profiles.profile_schema import Profile
from .colocation import train_physics, trained_parameters, trainer_on_turns
from .device_memory import device_bytes
from .memory_bars import PHASES, Engines, Phase, Side

# A process on a host (interpreter, torch, kernels) beside weights and KV. An engine has one per rank, one for its core
# and one for the actor around it; a trainer on GPUs has one per rank.
HOST_PROCESS_BYTES = 1_000_000_000

# How weights travel in pieces (executor/weights): buckets of whole tensors of at most so many bytes, or of one tensor.
# A node with engines has two of them, and a third is counted as a reserve; a node of trainers one that it sends.
BUCKET_BYTES, ARRIVING, LEAVING = 128_000_000, 3, 1


class Share(NamedTuple):
    """Host memory of equal parts that are spread evenly over nodes.

    Attributes:
        part_count: how many parts there are.
        phases: for each phase, bytes of a part, and bytes that a node holds once, however many parts it has.
    """

    part_count: int
    phases: tuple[tuple[float, float], ...]

    def on_node(self, nodes: int) -> float:
        """Bytes on the fullest of so many nodes, in the phase in which it is fullest."""
        each = -(-self.part_count // max(1, nodes))
        return max(each * part + once for part, once in self.phases)


def engines_on_host(profile: Profile, engines: Engines, nodes: int) -> dict[str, float]:
    """Bytes of host memory that a layout's engines hold, in any phase, on the fullest of `nodes` nodes."""
    each = -(-engines.layout.engines // max(1, nodes))
    held: dict[str, float] = {"engine_processes": each * (engines.layout.tp + 2) * HOST_PROCESS_BYTES}
    if profile.machine.kind == "cpu":
        held["engine_weights"] = each * 4 * profile.model_parameters
        held["kv_cache"] = each * engines.kv_bytes
    return held


def weights_under_way(profile: Profile, weight_bytes: float, side: Side) -> float:
    """Bytes of host memory that weights on their way take on a node where `side` is.

    Of a model whose shape is unknown, which may be one large tensor, it is a whole copy. That much is also what the
    fallback by a file takes on the node of the trainer's first rank, which nothing here counts.
    """
    whole, physics = weight_bytes * profile.model_parameters, train_physics(profile)
    if physics is None:
        return whole
    shape = physics.architecture
    bucket = max(BUCKET_BYTES, weight_bytes * shape.hidden * max(shape.vocab, shape.intermediate))
    return min(whole, (LEAVING if side == "trainers" else ARRIVING) * bucket)


def trainers_on_host(
    profile: Profile,
    pool: Pool,
    weight_bytes: float,
    layout: UpdateLayout,
    ranks: int,
    phase: Phase,
    alone: bool = False,
    beside: Sequence[Engines] = (),
) -> dict[str, float]:
    """Bytes of host memory that `ranks` trainer ranks of a layout hold in a phase; `alone`: on a pool without engines;
    `beside`: engines that they take turns with, none: any of the profile's.

    In every phase that may be the copy that a checkpoint is written from while training goes on.
    """
    share = ranks * trained_parameters(profile, layout)
    parameters, optimizer = share * MASTER_BYTES, share * MOMENT_BYTES
    held = {"checkpoint_copy": share * CHECKPOINT_BYTES}
    if pool.accelerators.kind == "cpu":
        held |= {"trainer_parameters": parameters, "trainer_optimizer": optimizer}
        return {**held, "trainer_gradients": share * GRADIENT_BYTES} if phase == "train" else held
    held["trainer_processes"] = float(ranks * HOST_PROCESS_BYTES)
    # What ever leaves the GPU has page-locked memory of its own, which is not freed (local_tensors.host_zeros).
    capacity = device_bytes(profile, pool)
    trainer = trainer_on_turns(profile, capacity, weight_bytes, layout, alone=alone, engines=beside)
    return held | {part: ranks * size for part, size in trainer.on_host["offloaded"].items()}


def host_bytes_of_rank(
    profile: Profile, pool: Pool, weight_bytes: float, layout: UpdateLayout, alone: bool = False
) -> tuple[float, ...]:
    """Bytes of host memory that one trainer rank of a layout holds, in each phase; `alone`: on a pool without
    engines."""

    def held(phase: Phase) -> float:
        return sum(trainers_on_host(profile, pool, weight_bytes, layout, 1, phase, alone).values())

    if pool.accelerators.kind == "cpu":
        return tuple(held(phase) for phase in PHASES)
    return (held(PHASES[0]),) * len(PHASES)  # a rank on a GPU holds the same in every phase


def ranks_on_node(layout: UpdateLayout, nodes: int) -> int:
    """Trainer ranks on the fullest of `nodes` nodes; tensor-parallel ranks stay together."""
    return layout.tp * -(-(layout.accelerators // layout.tp) // max(1, nodes))


def engine_share(profile: Profile, engines: Engines) -> Share:
    """Host memory of a layout's engines, as shares that any number of nodes divide."""
    single = replace(engines, layout=EngineLayout(engines.layout.tp, 1))
    return Share(engines.layout.engines, ((sum(engines_on_host(profile, single, 1).values()), 0.0),))


def trainer_share(
    profile: Profile, pool: Pool, weight_bytes: float, layout: UpdateLayout, alone: bool = False
) -> Share:
    """Host memory of a layout's trainers and of weights in transfer, as shares that any number of nodes divide.

    `alone`: on a pool without engines.
    """
    side: Side = "trainers" if alone else "both"
    return Share(
        layout.accelerators // layout.tp,
        tuple(
            (
                sum(trainers_on_host(profile, pool, weight_bytes, layout, layout.tp, phase, alone).values()),
                weights_under_way(profile, weight_bytes, side) if phase == "sync" else 0.0,
            )
            for phase in PHASES
        ),
    )
