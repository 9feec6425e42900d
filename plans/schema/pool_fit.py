"""Whether one way of running a phase fits its pool: nodes, slots, and accelerators that share a copy of the model."""

from __future__ import annotations

from collections.abc import Iterator

from ..phrases.numbers import count
from ..yaml.yaml_doc import Loc
from .cluster import Cluster


def even_sizes(held: int, nodes: int) -> list[int]:
    """Accelerators that may share one copy of the model, ascending, where `held` of each of `nodes` nodes are taken:
    those that leave none over."""
    return [n for n in range(1, held) if held % n == 0] + [n * held for n in range(1, nodes + 1) if nodes % n == 0]


def pool_faults(
    location: Loc, cluster: Cluster, pool_name: str, nodes: int, slots: int | None, tp: int
) -> Iterator[tuple[Loc, str]]:
    """Yield (location, what is wrong and what to write) for each reason why a way does not fit its pool.

    `location`: the way's location in the workload; `slots`: slots of each node, None for whole nodes; `tp`:
    accelerators that share one copy of the model.
    """
    pool = cluster.pools.get(pool_name)
    if pool is None:
        yield (
            (*location, "pool"),
            f"cluster '{cluster.name}' has no pool '{pool_name}'; its pools are {', '.join(cluster.pools)}",
        )
        return
    if nodes > pool.nodes:
        yield (
            (*location, "nodes"),
            f"needs {count(nodes, 'node')}, {nodes - pool.nodes} more than pool '{pool_name}' has ({pool.nodes}); "
            f"write at most {pool.nodes} or enlarge the pool",
        )
    if slots is not None and slots > pool.slots:
        yield (
            (*location, "slots"),
            f"a node of pool '{pool_name}' has {count(pool.slots, 'slot')}, not {slots}; write at most {pool.slots}",
        )
        return
    held = pool.accelerators.per_node * (slots or pool.slots) // pool.slots  # of a node
    if tp > nodes * held:
        yield (
            (*location, "tp"),
            f"{tp} accelerators share one copy of the model, and this way has {nodes * held}; "
            f"write at most {nodes * held}",
        )
        return
    right = even_sizes(held, nodes)
    if tp not in right:
        yield (
            (*location, "tp"),
            f"{tp} accelerators share one copy of the model, which leaves some of the {held} of a node over; "
            f"write one of {', '.join(map(str, right))}",
        )
