"""Processes of actors whose driver was killed: Ray ends them, on each node a moment later, and until then their devices
are not free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection
from pathlib import Path

import ray

from ..processes.actors import track, within
from .live_nodes import PROBE_S, on_node

GONE_S = 30.0  # within which Ray and the kernel end what a killed driver left
LOOK_S = 0.1


async def left_by(driver: int, deadline_s: float = GONE_S) -> dict[str, list[int]]:
    """Wait until the actors' processes of a driver that has ended are gone, wherever they ran.

    `driver`: its process id; it ran on this node. Returns those that still run after the deadline, by Ray's id of their
    node; {} if none does.
    """
    pids = await asyncio.to_thread(_pids_by_node, driver)
    here = ray.get_runtime_context().get_node_id()
    waits: dict[str, Awaitable[list[int]]] = {}
    for node, own in pids.items():
        if node == here:
            waits[node] = asyncio.to_thread(still_running, own, deadline_s)
        elif _alive(node):
            call = _left.options(**on_node(node)).remote(own, deadline_s)
            waits[node] = within(deadline_s + PROBE_S, track(call), f"node {node}")
    left = dict(zip(waits, await asyncio.gather(*waits.values()), strict=True))
    return {node: own for node, own in left.items() if own}


def _pids_by_node(driver: int) -> dict[str, list[int]]:
    """Process ids of the actors that a driver of this node started last, by Ray's id of the node."""
    from ray._private.state import actors, jobs  # Ray has no public call for it without its dashboard

    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    own = [job for job in jobs() if (job["DriverIPAddress"], job["DriverPid"]) == (address, driver)]  # type: ignore[no-untyped-call]
    if not own:  # it ended before it had connected
        return {}
    job_id = max(own, key=lambda job: job["StartTime"])["JobID"]
    found: dict[str, list[int]] = {}
    for actor in actors().values():
        if actor["JobID"] == job_id and actor["Pid"]:
            found.setdefault(actor["Address"]["NodeID"], []).append(int(actor["Pid"]))
    return found


def _alive(node_id: str) -> bool:
    """Whether a node is there: on one that is lost, nothing runs."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]


def still_running(pids: Collection[int], deadline_s: float) -> list[int]:
    """Wait until these processes of this node are gone; those that run after the deadline."""
    began = time.monotonic()
    left = sorted(pids)
    while (left := [pid for pid in left if _runs(pid)]) and time.monotonic() - began < deadline_s:
        time.sleep(LOOK_S)
    return left


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie, whose memory is free."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@ray.remote(num_cpus=0, max_retries=0)
def _left(pids: list[int], deadline_s: float) -> list[int]:
    return still_running(pids, deadline_s)
