"""Seconds to bring a job's state onto the accelerators, warm and cold, and to transfer its weights across pools.

Warm and cold starts are published for one 8-GPU node and four sizes of a dense model (RollMux, arXiv 2512.11306,
Fig. 4); between these sizes they are interpolated by parameters, beyond them the nearest segment is extended. The parts
of a start differ: control-plane set-up is 58-76 % of a cold one, a copy over PCIe all of a warm one, so neither follows
from bytes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....plans.facts.public_models import Architecture
from ....plans.schema.cluster import Cluster
from ....profiles.laws.sync_law import Networks, between_pools_s

_BILLIONS = (3.09, 7.62, 14.77, 32.76)  # Qwen2.5-3B, 7B, 14B, 32B
_ROLLOUT_WARM_S = (0.8, 0.9, 1.8, 1.7)
_TRAIN_WARM_S = (1.9, 4.1, 4.7, 5.9)
_ROLLOUT_COLD_S = (25.3, 38.8, 60.4, 81.7)
_TRAIN_COLD_S = (26.7, 32.7, 59.0, 81.2)

SYNC_BYTES = 2.0
"""Bytes a parameter: weights travel as bf16."""


@dataclass(frozen=True)
class Switch:
    """Seconds to load a phase's state on its node: `*_warm_s` from host memory; `cold_s` both phases, at once on their
    nodes, from nothing."""

    rollout_warm_s: float
    train_warm_s: float
    cold_s: float


def switch_seconds(a: Architecture) -> Switch:
    """Switch seconds of a model of this size."""
    billions = a.parameters / 1e9
    return Switch(
        _interpolated(billions, _ROLLOUT_WARM_S),
        _interpolated(billions, _TRAIN_WARM_S),
        max(_interpolated(billions, _ROLLOUT_COLD_S), _interpolated(billions, _TRAIN_COLD_S)),
    )


def _interpolated(billions: float, seconds: tuple[float, ...]) -> float:
    """Seconds on the line through the neighbouring sizes; never below a fifth of the smallest model's."""
    upper = next((i for i, size in enumerate(_BILLIONS[1:], 1) if billions <= size), len(_BILLIONS) - 1)
    (x0, y0), (x1, y1) = ((_BILLIONS[i], seconds[i]) for i in (upper - 1, upper))
    return max(seconds[0] / 5, y0 + (billions - x0) * (y1 - y0) / (x1 - x0))


def sync_seconds(a: Architecture, cluster: Cluster, rollout: tuple[str, int], train: tuple[str, int]) -> float:
    """Seconds of a relayed transfer of the weights (sync_law.between_pools_s) from one phase's pool to the other's;
    within one pool, of the broadcast among the rollout's nodes, if several.

    `rollout`, `train`: (pool, nodes). A link that the cluster does not name costs nothing.
    """
    networks = Networks(
        between=cluster.stream_bytes_per_s(rollout[0], train[0]) if rollout[0] != train[0] else None,
        within=cluster.stream_bytes_per_s(rollout[0], rollout[0]),
    )
    streams = min(nodes * cluster.pools[pool].accelerators.per_node for pool, nodes in (rollout, train))
    return between_pools_s(SYNC_BYTES * a.parameters, networks, streams, rollout[1], relay=True)
