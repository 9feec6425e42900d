"""Whether a profile was measured on the machines that a cluster names."""

from __future__ import annotations

from ..plans.schema.cluster import Pool
from .hardware import gpu_of
from .profile_schema import Machine, Profile

# Reported memory differs a little between boots of one machine.
MEMORY_TOLERANCE = 0.1


def machine_of(pool: Pool) -> Machine:
    """A node of the pool, as cluster.yaml describes it."""
    return Machine(
        accelerator=pool.accelerators.name,
        kind=pool.accelerators.kind,
        accelerators=pool.accelerators.per_node,
        cores=pool.cores,
        host_memory_bytes=pool.host_memory_bytes,
    )


def differences(profile: Profile, machine: Machine) -> list[str]:
    """In what `machine` is not the profiled one, in words; empty if a profile of it may be used here.

    A profile that was not measured is of an accelerator, on whatever host.
    """
    then = profile.machine
    if profile.provenance != "measured":
        there, here = gpu_of(then.accelerator), gpu_of(machine.accelerator)
        if then.kind == machine.kind and (there is not None and there == here):
            return []
        if then.kind != machine.kind:
            return [f"accelerators of kind {then.kind} there, of kind {machine.kind} here"]
        return [f"accelerator {then.accelerator!r} there, {machine.accelerator!r} here"]
    found = [
        f"{name} {getattr(then, name)!r} there, {getattr(machine, name)!r} here"
        for name in ("kind", "accelerator", "accelerators", "cores")
        if getattr(then, name) != getattr(machine, name)
    ]
    if abs(then.host_memory_bytes / machine.host_memory_bytes - 1) > MEMORY_TOLERANCE:
        found.append(f"host_memory_bytes {then.host_memory_bytes} there, {machine.host_memory_bytes} here")
    return found
