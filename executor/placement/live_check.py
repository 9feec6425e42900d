"""A placement beside the cluster that is there: which node each of its nodes would be, and what the cluster lacks."""

from __future__ import annotations

import os

from .seats import Placement


def live_addresses(placement: Placement, kind: str) -> tuple[list[str | None], str | None]:
    """(addresses of the nodes that a start would take now, None for those that lack; what is lacking, or None).

    Connects to the cluster that RAY_ADDRESS names; ([], None) without that variable, since Ray would then be started on
    this machine alone.
    """
    if not os.environ.get("RAY_ADDRESS"):
        return [], None
    from ..actors import start_ray
    from .live_nodes import choose, cluster_nodes, device_resource

    start_ray()
    resource = device_resource(kind)
    nodes = cluster_nodes(resource)
    chosen, lack = choose(nodes, list(placement.nodes_in_use().values()), resource)
    return [None if node is None else node.address for node in chosen], lack
