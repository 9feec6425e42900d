"""How far a training law may be off in a layout: less where runs were measured, more where physics alone speaks.

Laws are fitted to runs that are data parallel on one node (tools/train_file.py). What other layouts exchange, and how
well their smaller products use a GPU, is physics only. Published runs of such layouts took, over the shipped law in the
same layout,

    RollPacker (arXiv 2509.21009, section 6; H800, Megatron, rows padded, what an update has beside training untold;
        over a law with Megatron's sharding and these rows)
        7B   16 GPUs, tp 2              1.85 times in short rounds, 1.9 in plain ones
        14B  32 GPUs, tp 2, pp 2, cp 2  2.0 and 2.75
        32B  64 GPUs, tp 4, cp 4        4.4 and 4.8
    NeMo-RL (issue 959: 27 and 28 s; 8B, 8 H100, Megatron, pp 2)                                 0.93
    torchtitan (benchmarks of 2024-12; 70B, 256 H100, tp 8: 829 tokens/s a GPU with Float8, 1.28 times as fast as
        without for 8B)                                                                          0.65

The geometric mean of these three systems gives the factor; the error reaches to the first and to the last.
"""

from __future__ import annotations

import math

from ...plans.schema.levers import UpdateLayout
from ..phase_schema import TrainLaw

PARALLEL_FACTOR = 1.2
"""Seconds of a layout with tp, pp, cp, sp or ep above 1, over what physics gives, where a profile does not state it."""

PHYSICS_ERROR = 0.6
"""Mean relative error of a layout that no run was fitted to, likewise."""

IMBALANCE_ERROR = 0.01
"""Mean relative error of an update for each doubling of its replicas: what simulated packing is off what the law takes
for it (train_law.IMBALANCE). Runs that the law is fitted to have rows of one length."""


def parallel_factor(law: TrainLaw) -> float:
    """Seconds of a layout with tp, pp, cp, sp or ep above 1, over what physics gives."""
    return PARALLEL_FACTOR if law.parallel_factor is None else law.parallel_factor


def physics_only(law: TrainLaw, layout: UpdateLayout) -> bool:
    """Whether no run was fitted to an update's layout: a replica has more than one rank, or ranks several nodes."""
    return max(layout.replica, layout.ep) > 1 or layout.accelerators > law.accelerators_per_node


def law_error(law: TrainLaw, layout: UpdateLayout) -> float:
    """Mean relative error to be expected of an update's seconds by the law."""
    error = math.hypot(law.error, IMBALANCE_ERROR * math.log2(layout.dp))
    if not physics_only(law, layout):
        return error
    return math.hypot(error, PHYSICS_ERROR if law.physics_error is None else law.physics_error)
