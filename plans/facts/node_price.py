"""The price of a node: people know prices per GPU, and a plan pays for whole nodes."""

from __future__ import annotations

from ..schema.cluster import Pool


def usd_per_node_hour(pool: Pool) -> float:
    """Return USD for one node and hour: the pool's price per node, or its price per GPU times the node's GPUs."""
    if pool.usd_per_gpu_hour is not None:
        return pool.usd_per_gpu_hour * pool.accelerators.per_node
    assert pool.usd_per_node_hour is not None, "a pool has one of the two prices"
    return pool.usd_per_node_hour
