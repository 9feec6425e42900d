"""A placement beside the cluster that is there: which node each of its nodes would be, and what the cluster lacks."""

from __future__ import annotations

import os

from .seats import Placement


def live_addresses(placement: Placement, kind: str) -> tuple[list[str], str | None]:
    """(addresses of the nodes that a start would take now, what is lacking for the others or None).

    Connects to the cluster that RAY_ADDRESS names; ([], None) without that variable, since Ray would then be started on
    this machine alone.
    """
    if not os.environ.get("RAY_ADDRESS"):
        return [], None
    from ..actors import start_ray
    from .live_nodes import choose, cluster_nodes, device_resource, shortage

    start_ray()
    resource, devices, wanted = device_resource(kind), placement.room.devices, placement.nodes_in_use()
    nodes = cluster_nodes(resource)
    return [node.address for node in choose(nodes, wanted, devices)], shortage(nodes, wanted, devices, resource)
