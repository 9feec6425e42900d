"""A placement beside the cluster that is there: which node each of its nodes would be, and what the cluster lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..processes.cluster_address import cluster_address
from .seats import Placement, Room


class LiveCheck(NamedTuple):
    """What a start would find now.

    Attributes:
        addresses: of the nodes that it would take, None for those that lack; empty without a cluster.
        lack: what is lacking, or None.
        in_cluster: whether RAY_ADDRESS names a cluster. Without one, a plan may be checked for nodes that it will have.
    """

    addresses: list[str | None]
    lack: str | None
    in_cluster: bool


def live_check(placement: Placement, kind: str) -> LiveCheck:
    """Compare a placement with the cluster that RAY_ADDRESS names, after connecting to it; without that variable, with
    this machine, on which Ray would be started. `kind`: of devices, cpu or cuda.

    Raises InputError if RAY_ADDRESS is no address, RunFailed if nobody answers there.
    """
    rooms = list(placement.nodes_in_use().values())
    if cluster_address() is None:
        needs = f"needs {len(rooms)} nodes: set RAY_ADDRESS to the head of a Ray cluster that has them"
        return LiveCheck([], needs if len(rooms) > 1 else None, in_cluster=False)
    return _in_cluster(rooms, kind)


def live_check_of_rooms(rooms: Sequence[Room], kind: str) -> str | None:
    """What the cluster that RAY_ADDRESS names lacks for nodes of pools, or None; without that variable None, since this
    machine stands for all of them. Raises as `live_check`."""
    return None if cluster_address() is None else _in_cluster(rooms, kind).lack


def _in_cluster(rooms: Sequence[Room], kind: str) -> LiveCheck:
    from ..processes.actors import start_ray
    from .live_nodes import choose, cluster_nodes, device_resource

    start_ray()
    resource = device_resource(kind)
    chosen, lack = choose(cluster_nodes(resource), rooms, resource)
    return LiveCheck([None if node is None else node.address for node in chosen], lack, in_cluster=True)
