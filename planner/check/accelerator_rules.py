"""Rules of a cluster's accelerators: kind and memory must fit the accelerator's name. Reads no file.

The memory of eight GPUs written for one (640 GB for an H100), or `kind: cpu` for GPUs, would make every plan of the
cluster worthless, and no other rule would notice.
"""

from __future__ import annotations

from ...plans.check.finding import Fault
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.cluster import Accelerators, Cluster
from ...plans.yaml.yaml_doc import Loc
from ...profiles.hardware import gpu_of, largest_memory_bytes

TOLERANCE = 0.08
"""Relative tolerance of memory: a card of 80 GB is written as 80e9 or as 80 * 2**30 bytes."""


def unlike_names(cluster: Cluster) -> list[Fault]:
    """Faults of accelerators whose name is a GPU's, and whose kind or memory no GPU of that name has."""
    faults = []
    for name, pool in sorted(cluster.pools.items()):
        location: Loc = ("pools", name, "accelerators")
        fault = accelerator_fault(pool.accelerators)
        if fault is not None:
            key, message, remedy = fault
            faults.append(Fault("accelerator-unlike-name", (*location, key), message, remedy))
    return faults


def unlike_names_at(location: Loc, cluster: Cluster) -> list[Fault]:
    """The faults of a cluster's accelerators, at `location` of another document that names the cluster."""
    return [
        Fault(fault.rule, location, f"{fault.key} {fault.message}", fault.remedy) for fault in unlike_names(cluster)
    ]


def accelerator_fault(accelerators: Accelerators) -> tuple[str, str, str] | None:
    """(key, what is wrong, what to do) if accelerators are not what their name says; None if they may be, or if the
    name is not known."""
    sheet = gpu_of(accelerators.name)
    if sheet is None:
        return None
    if accelerators.kind == "cpu":
        return "kind", f"is cpu, and '{accelerators.name}' is the name of a GPU", "write kind: cuda, or another name"
    most = largest_memory_bytes(sheet)
    if accelerators.memory_bytes <= (1 + TOLERANCE) * most:
        return None
    message = f"is {bytes_text(accelerators.memory_bytes)}, and no {sheet.name} has more than {bytes_text(most)}"
    return "memory_bytes", message, "write the memory of one accelerator, not of a node"
