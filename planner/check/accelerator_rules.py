"""Rules of a cluster's accelerators: kind and memory must fit the accelerator's name. Reads no file.

The memory of eight GPUs written for one (640 GB for an H100), or `kind: cpu` for GPUs, would make every plan of the
cluster worthless, and no other rule would notice.
"""

from __future__ import annotations

from ...plans.check.finding import Fault
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.cluster import Accelerators, Cluster
from ...plans.yaml.yaml_doc import Loc
from ...profiles.hardware import gpu_of, has_memory, states_memory, variants


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
    stated, sold = accelerators.memory_bytes, variants(sheet)
    like = [gpu for gpu in sold if has_memory(gpu, stated)]
    if not (sheet in like if states_memory(accelerators.name) else like):
        most = max(gpu.memory_bytes for gpu in sold)
        if not like and stated > most:
            message = f"is {bytes_text(stated)}, and no {sheet.name} has more than {bytes_text(most)}"
            return "memory_bytes", message, "write the memory of one accelerator, not of a node"
        if states_memory(accelerators.name):
            message = f"is {bytes_text(stated)}, and '{accelerators.name}' has {bytes_text(sheet.memory_bytes)}"
            other = min(like, key=lambda gpu: abs(gpu.memory_bytes - stated), default=None)
            name = "another name" if other is None else f"name: {other.name}"
            return "memory_bytes", message, f"write memory_bytes: {sheet.memory_bytes}, or {name}"
    return None
