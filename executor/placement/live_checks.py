"""Compares a placement with the live cluster: which of its nodes it would take, what it lacks, and whether all nodes
share the folder of a run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from ...plans.yaml.errors import InputError
from ..processes.actors import track, within
from ..processes.host import cluster_address
from .live_nodes import PROBE_S, LeasedNode, on_node
from .run_placement import Room


async def check_shared(
    folder: Path,
    nodes: Sequence[LeasedNode],
    why: str = "since trainer ranks on every node write checkpoints there",
) -> None:
    """Raises InputError, which says `why`, if a node does not share `folder` with this process: each node has to read
    what this process writes there, and this process what the node writes. One node alone is not checked."""
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in nodes if node.node_id != here]
    if not others:
        return
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(8)
    name = f".shared-{token}"
    written = folder / name
    written.write_text(token, encoding="utf-8")
    try:
        calls = [
            _answer.options(**on_node(node.node_id)).remote(str(folder.resolve()), name, number)
            for number, node in enumerate(others)
        ]
        waits = (within(PROBE_S, track(c), f"node {n.facts.address}") for c, n in zip(calls, others, strict=True))
        for number, (node, fault) in enumerate(zip(others, await asyncio.gather(*waits), strict=True)):
            answer = folder / f"{name}-{number}"
            if fault is None and not (answer.is_file() and answer.read_text(encoding="utf-8") == token):
                fault = "what it writes there is not seen here"
            if fault is not None:
                raise InputError(
                    f"node {node.facts.address} does not share this folder: {fault}; name one with --out that all "
                    f"nodes share, {why}",
                    str(folder),
                )
    finally:
        for path in folder.glob(f"{name}*"):
            path.unlink(missing_ok=True)


@ray.remote(num_cpus=0, max_retries=0)
def _answer(folder: str, name: str, number: int) -> str | None:
    """Copy the token of `name` in `folder` into a file of this node; returns the error, or None."""
    try:
        token = (Path(folder) / name).read_text(encoding="utf-8")
        (Path(folder) / f"{name}-{number}").write_text(token, encoding="utf-8")
    except OSError as error:
        return f"{error.strerror or error}"
    return None


class LiveCheck(NamedTuple):
    """What a start would find now.

    Attributes:
        addresses: of the nodes that it would take, None for each that is lacking; empty without a cluster.
        lack: what is lacking, or None.
        in_cluster: whether RAY_ADDRESS names a cluster; without one, the nodes may be added later.
    """

    addresses: list[str | None]
    lack: str | None
    in_cluster: bool


def live_check(rooms: Sequence[Room], kind: str) -> LiveCheck:
    """Compare the nodes that are needed with the cluster that RAY_ADDRESS names, after connecting to it; without that
    variable, with this machine, on which Ray would be started. `kind`: of devices, cpu or cuda.

    Raises InputError if RAY_ADDRESS is no address, RunFailed if no cluster answers there.
    """
    if cluster_address() is None:
        needs = f"needs {len(rooms)} nodes: set RAY_ADDRESS to the head of a Ray cluster that has them"
        return LiveCheck([], needs if len(rooms) > 1 else None, in_cluster=False)
    from ..processes.actors import start_ray
    from .live_nodes import choose, cluster_nodes, device_resource

    start_ray()
    resource = device_resource(kind)
    chosen, lack = choose(cluster_nodes(resource), rooms, resource)
    return LiveCheck([None if node is None else node.address for node in chosen], lack, in_cluster=True)
