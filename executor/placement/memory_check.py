"""Whether what sleeps between turns fits into the memory that the nodes of groups have free, asked before jobs start.

The plan says for each node how many bytes the states of all jobs on it take (`nodes.*.resident_bytes`); the cluster
file, how much such a node has. What a node really has left, only a process there knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import ray

from ...plans.phrases.numbers import bytes_text
from ...plans.yaml.errors import InputError
from ..processes.actors import track, within
from .live_nodes import PROBE_S, LeasedNode, on_node

MEMORY, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class Sleeping(NamedTuple):
    """What is to sleep on a node: the node's pool, and bytes of the states that come there."""

    pool: str
    node: LeasedNode
    resident_bytes: float


async def check_host_memory(asleep: Iterable[Sleeping]) -> None:
    """Raises InputError unless each node has free what is to sleep there; jobs have seats, and do not run yet."""
    asked = [each for each in asleep if each.resident_bytes > 0]
    if (lack := lacking(asked, await _free_bytes({each.node.node_id for each in asked}))) is not None:
        raise InputError(lack)


def lacking(asleep: Iterable[Sleeping], free_bytes: Mapping[str, int | None]) -> str | None:
    """What a machine lacks, and the remedy; None if none lacks memory. Nodes of one machine sleep in the same memory.

    `free_bytes`: by Ray's id of the node; None: its platform does not tell.
    """
    on_machine: dict[str, list[Sleeping]] = {}
    for each in asleep:
        on_machine.setdefault(each.node.node_id, []).append(each)
    for node_id, there in on_machine.items():
        free, planned = free_bytes[node_id], sum(each.resident_bytes for each in there)
        if free is not None and planned > free:
            pools = ", ".join(sorted({f"'{each.pool}'" for each in there}))
            return (
                f"node {there[0].node.facts.address} (pool {pools}) has {bytes_text(free)} of host memory free, and "
                f"states of jobs that sleep there between their turns take {bytes_text(planned)} as planned; free "
                "memory there, or solve for fewer jobs on a node (rules.group_cap), or for nodes with that much"
            )
    return None


def free_host_bytes(memory: Path = MEMORY, cgroup: Path = CGROUP) -> int | None:
    """Bytes of host memory that processes of this machine, or of this container, can still take; None if the platform
    does not tell (Linux does: MemAvailable of proc(5), and memory.max of a control group)."""
    if not memory.exists():
        return None
    lines = dict(line.split(":", 1) for line in memory.read_text(encoding="ascii").splitlines() if ":" in line)
    free = 1024 * int(lines["MemAvailable"].split()[0])
    limit = cgroup / "memory.max"
    if limit.exists() and (most := limit.read_text(encoding="ascii").strip()) != "max":
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        held = int((cgroup / "memory.current").read_text(encoding="ascii"))
        free = min(free, int(most) - held + int(counts["inactive_file"]))  # files that were read give way
    return max(0, free)


async def _free_bytes(node_ids: Iterable[str]) -> dict[str, int | None]:
    here = ray.get_runtime_context().get_node_id()
    calls = {node: _free.options(**on_node(node)).remote() for node in node_ids if node != here}
    free = {node: await within(PROBE_S, track(call), f"node {node}") for node, call in calls.items()}
    return {**free, here: free_host_bytes()}


@ray.remote(num_cpus=0, max_retries=0)
def _free() -> int | None:
    return free_host_bytes()
