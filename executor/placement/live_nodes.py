"""Nodes of the Ray cluster that is connected: how many devices each has, and what a process on it sees.

Devices are a resource of Ray: `GPU`; for pools of kind cpu `rlplan_core` where a node has it, as by `ray start
--resources`, else Ray's `CPU`. A node is leased by a placement group of one bundle, so that other jobs of the cluster
are not given the same devices. Actors then run on the node outside that bundle, with the devices
that the placement of the run gives them.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ...plans.phrases.numbers import count
from ...plans.yaml.errors import RunFailed
from ..processes.actors import track, visible_gpus, within
from ..processes.faults import reason
from ..processes.host import installed
from .run_placement import Room

CORE_RESOURCE = "rlplan_core"
POOL_LABEL = "rlplan-pool"
"""Label of a Ray node (`ray start --labels rlplan-pool=NAME`) that serves only the pool of this name."""
LEASE_S = 30.0  # for Ray to reserve devices that are free
PROBE_S = 120.0  # for a process to start on a node and answer
DEVICES_S = 300.0  # for a process to import torch and try the GPUs of a node


class ClusterNode(NamedTuple):
    """A node as Ray's tables have it.

    Attributes:
        devices, free: devices that it has, and those that no job holds.
        pool: the only pool that it serves; "": any.
        drains: whether it is to be taken away.
    """

    node_id: str
    address: str
    devices: int
    free: int
    pool: str = ""
    drains: bool = False


class NodeFacts(NamedTuple):
    """What a process on a node sees: its address, host name, the cores that it may run on, ids of the GPUs that were
    asked for, versions of packages, and which of the devices do not work, by number, and why."""

    address: str
    host: str
    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    faults: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class LeasedNode:
    """A node whose devices this run has.

    Attributes:
        lease: of the devices; None if another process holds it, or if Ray was started on this machine for this run.
        part: whether other nodes of the run are on the same machine, with other cores.
    """

    node_id: str
    facts: NodeFacts
    lease: Any = None
    part: bool = False

    def release(self) -> None:
        """Give the devices back."""
        if self.lease is not None:
            remove_placement_group(self.lease)


def device_resource(kind: str) -> str:
    """Ray's resource for devices of a pool of this kind: `cpu` or `cuda`."""
    if kind == "cuda":
        return "GPU"
    named = any(CORE_RESOURCE in node["Resources"] for node in _alive())
    return CORE_RESOURCE if named else "CPU"


def cluster_nodes(resource: str) -> list[ClusterNode]:
    """The nodes that are alive and have such devices, in order of their addresses."""
    from ray._private.state import available_resources_per_node  # Ray has no public call for it

    free = available_resources_per_node()  # type: ignore[no-untyped-call]
    going = draining_nodes()
    nodes = [
        ClusterNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            int(node["Resources"].get(resource, 0)),
            int(free.get(node["NodeID"], {}).get(resource, 0)),
            node.get("Labels", {}).get(POOL_LABEL, ""),
            node["NodeID"] in going,
        )
        for node in _alive()
    ]
    return sorted((n for n in nodes if n.devices), key=lambda n: (_order(n.address), n.node_id))


def draining_nodes() -> dict[str, float | None]:
    """Nodes that are to be taken away, by Ray's id: the seconds until then, None where no time was named."""
    from ray._private.state import state  # Ray has no public call for it

    ends_ms: dict[str, int] = state.get_draining_nodes()
    return {node: max(0.0, end / 1e3 - time.time()) if end else None for node, end in ends_ms.items()}


def _alive() -> list[dict[str, Any]]:
    """Ray's entries of the nodes that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _order(address: str) -> tuple[tuple[int, ...], str]:
    parts = address.split(".")
    return (tuple(map(int, parts)) if all(part.isdigit() for part in parts) else (), address)


def choose(
    nodes: Sequence[ClusterNode], rooms: Sequence[Room], resource: str
) -> tuple[list[ClusterNode | None], str | None]:
    """A different node for each of `rooms`, or None where none is left; and a text of what is lacking, or None.

    Nodes that are labelled with a pool serve only that pool, and are taken first; then the nodes with the fewest free
    devices that suffice, so that larger nodes stay whole.
    """
    left = list(nodes)
    chosen: dict[int, ClusterNode] = {}
    for number, room in sorted(enumerate(rooms), key=lambda item: -item[1].devices):
        fitting = [
            node for node in left if node.free >= room.devices and node.pool in ("", room.pool) and not node.drains
        ]
        if fitting:
            chosen[number] = min(fitting, key=lambda node: (node.pool == "", node.free))
            left.remove(chosen[number])
    lacking = [room for number, room in enumerate(rooms) if number not in chosen]
    return [chosen.get(number) for number in range(len(rooms))], _lack(left, rooms, lacking, resource)


def _lack(left: Sequence[ClusterNode], rooms: Sequence[Room], lacking: Sequence[Room], resource: str) -> str | None:
    if not lacking:
        return None
    room = lacking[0]
    wanted = sum(each.pool == room.pool for each in rooms)
    there = wanted - sum(each.pool == room.pool for each in lacking)
    others = [
        f"node {node.address} has {node.devices}"
        + (f", {node.free} of them free" if node.free < node.devices else "")
        + (f", and is of pool '{node.pool}'" if node.pool not in ("", room.pool) else "")
        + (", and is to be taken away" if node.drains else "")
        for node in left
    ]
    return (
        f"pool '{room.pool}' needs {count(wanted, 'node')} with {room.devices} free {resource} each, and the cluster "
        f"has {there or 'none'}" + "".join(f"; {text}" for text in others)
    )


async def lease(node: ClusterNode, resource: str, devices: int) -> LeasedNode | None:
    """Lease `devices` of a node for this run; None if they, or the node, are gone by now."""
    group = placement_group([{resource: devices, f"node:{node.address}": 0.001}])
    try:
        if not await asyncio.to_thread(group.wait, LEASE_S):
            remove_placement_group(group)
            return None
        gpus = devices if resource == "GPU" else 0
        strategy = PlacementGroupSchedulingStrategy(group, 0) if gpus else _on(node.node_id)
        probe: Any = _probe.options(scheduling_strategy=strategy, num_gpus=gpus)  # Ray's stubs know no defaults
        call = probe.remote("cuda" if gpus else "cpu", devices)
        facts = NodeFacts(*await within(PROBE_S + DEVICES_S, track(call), f"node {node.address}"))
    except BaseException as error:
        remove_placement_group(group)
        if isinstance(error, ray.exceptions.RayTaskError):
            raise RunFailed(
                f"node {node.address}: no process of rlplan starts there ({reason(error)}); install the same rlplan, "
                "torch and vLLM on all nodes, under the same path"
            ) from None
        raise
    return LeasedNode(node.node_id, facts, group)


def this_machine(kind: str, devices: int) -> LeasedNode:
    """The machine on which Ray was started for this run: nobody else has it, so nothing is leased."""
    facts = _facts()
    if kind == "cuda":
        facts = facts._replace(gpus=gpus_here(devices))
    facts = facts._replace(faults=tuple(device_faults(kind, facts.gpus, devices).items()))
    return LeasedNode(ray.get_runtime_context().get_node_id(), facts)


def gpus_here(devices: int) -> tuple[str, ...]:
    """Ids of the GPUs of this machine that this process may use: the first `devices`, unless its environment says."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(visible.split(",")) if visible else tuple(map(str, range(devices)))


def part_of_this_machine(kind: str, devices: int, users: Mapping[int, int]) -> LeasedNode:
    """Some cores of the machine on which Ray was started for this run, as a node of its own: the least used ones.

    `users`: how many nodes use each core already. Raises ValueError unless `kind` is cpu, where devices are cores.
    """
    if kind != "cpu":
        raise ValueError("GPUs of one machine are not shared out over nodes")
    whole = this_machine(kind, devices)
    fewest_first = sorted(whole.facts.cores, key=lambda core: users.get(core, 0))
    cores = tuple(sorted(fewest_first[:devices]))
    return LeasedNode(whole.node_id, whole.facts._replace(cores=cores), part=True)


async def answers(node: LeasedNode) -> bool:
    """Whether a process can be started on the node."""
    if all(entry["NodeID"] != node.node_id for entry in _alive()):
        return False
    call = _probe.options(scheduling_strategy=_on(node.node_id)).remote()
    try:
        await within(PROBE_S, track(call), f"node {node.facts.address}")
    except Exception:  # noqa: BLE001 - whatever Ray says of it, nothing can be started there
        return False
    return True


def free_address() -> str:
    """`host:port` of this node at which nobody listens now, as other nodes reach it."""
    address = _own_address()
    with socket.socket() as probe:
        probe.bind((address, 0))
        return f"{address}:{probe.getsockname()[1]}"


def on_node(node_id: str) -> dict[str, Any]:
    """Options of an actor that runs on this node; `""`: on any."""
    return {"scheduling_strategy": _on(node_id)} if node_id else {}


def _on(node_id: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


@ray.remote(num_cpus=0, max_retries=0)
def _probe(kind: str = "", devices: int = 0) -> NodeFacts:
    """What a process on the node sees; `kind`: of devices that are tried, "": none."""
    facts = _facts()
    return facts._replace(faults=tuple(device_faults(kind, facts.gpus, devices).items())) if kind else facts


def device_faults(kind: str, gpus: Sequence[str], devices: int) -> dict[int, str]:
    """Which of the devices of this machine do not multiply what they are given, by number, and why; GPUs are tried in
    a process of their own, which gives their memory back."""
    if kind != "cuda":
        left, right = (np.add.outer(7 * np.arange(256), by * np.arange(256)) % 11.0 - 5.0 for by in (3, 5))
        wrong = not np.array_equal(left.astype(np.float32) @ right.astype(np.float32), left @ right)
        return dict.fromkeys(range(devices), "its cores multiply wrongly") if wrong else {}
    code = f"{inspect.getsource(gpu_faults)}\nimport json\nprint(json.dumps(gpu_faults({len(gpus)})))"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEVICES_S, env={**os.environ, **visible_gpus(gpus)}
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(range(len(gpus)), f"its GPUs did not multiply within {DEVICES_S:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return dict.fromkeys(range(len(gpus)), f"its GPUs could not be tried: {last}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return {int(number): f"GPU {gpus[int(number)]}: {why}" for number, why in found.items()}


def gpu_faults(count: int, device: str = "cuda") -> dict[int, str]:
    """Which of the first GPUs do not multiply what they are given, and why; needs nothing but torch."""
    import torch

    # Small integers: products are exact in each format, whatever the order of the sums.
    rows = torch.arange(1024, dtype=torch.float64)
    left, right = ((7 * rows[:, None] + by * rows) % 11 - 5 for by in (3, 5))
    exact = left @ right
    faults = {}
    for number in range(count):
        on = f"{device}:{number}"
        try:
            for dtype in (torch.float32, torch.bfloat16):
                found = (left.to(on, dtype) @ right.to(on, dtype)).cpu()
                if not torch.equal(found, exact.to(dtype)):
                    faults[number] = f"multiplies wrongly in {dtype}".replace("torch.", "")
        except torch.OutOfMemoryError:
            pass  # others hold its memory, which is counted elsewhere
        except Exception as error:  # noqa: BLE001 - whatever CUDA says of it
            faults[number] = " ".join(str(error).split())[:200] or type(error).__name__
    return faults


def _own_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _facts() -> NodeFacts:
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return NodeFacts(
        _own_address(),
        socket.gethostname(),
        tuple(sorted(os.sched_getaffinity(0))),
        tuple(map(str, gpus)),
        installed(),
    )
