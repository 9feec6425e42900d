"""Rules of a cluster's accelerators: a GPU must be one that is known, or that was measured, and kind and memory must
fit its name. Reads no file.

The memory of eight GPUs written for one (640 GB for an H100), or `kind: cpu` for GPUs, would make every plan of the
cluster worthless, and no other rule would notice.
"""

from __future__ import annotations

from ...plans.check.finding import Fault
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.cluster import Accelerators, Cluster
from ...plans.yaml.yaml_doc import Loc
from ...profiles.hardware import gpu_of, has_memory, hint_of, states_memory, variants
from ...profiles.profile_schema import Profile


def unlike_names(cluster: Cluster, profile: Profile | None, measures: bool = False) -> list[Fault]:
    """Faults of accelerators whose name is a GPU's, and whose kind or memory no GPU of that name has; and of GPUs with
    the name of none, where that is like one of a known GPU, or known not to be planned for.

    `profile`: of the cluster, None for none; a GPU that it measured may have any name. `measures`: whether a profile is
    about to be measured.
    """
    faults = []
    for name, pool in sorted(cluster.pools.items()):
        location: Loc = ("pools", name, "accelerators")
        fault = accelerator_fault(pool.accelerators)
        if fault is None and not measures:
            fault = unknown_fault(pool.accelerators, profile)
        if fault is not None:
            key, message, remedy = fault
            faults.append(Fault("accelerator-unlike-name", (*location, key), message, remedy))
    return faults


def unlike_names_at(location: Loc, cluster: Cluster, profile: Profile | None) -> list[Fault]:
    """The faults of a cluster's accelerators, at `location` of another document that names the cluster."""
    return [
        Fault(fault.rule, location, f"{fault.key} {fault.message}", fault.remedy)
        for fault in unlike_names(cluster, profile)
    ]


def unknown_fault(accelerators: Accelerators, profile: Profile | None) -> tuple[str, str, str] | None:
    """As `accelerator_fault`, of a GPU without a data sheet that `profile` did not measure, if its name tells what it
    is, or which one was meant."""
    hint = hint_of(accelerators.name) if _is_unknown(accelerators, profile) else ""
    if hint.endswith("?"):
        remedy = f"{hint} Of another GPU, measure a profile first: rlplan profile"
        return "name", f"'{accelerators.name}' is no GPU that is known", remedy
    what, _, remedy = hint.partition("; ")
    return ("name", f"'{accelerators.name}': {what}", remedy) if hint else None


def unknown_notes(cluster: Cluster, profile: Profile | None) -> list[str]:
    """Notes on GPUs that nothing is known of."""
    return [
        f"pools.{name}.accelerators: '{pool.accelerators.name}' is no GPU that is known: no profile ships for it, and "
        "its memory is not checked; measure it: rlplan profile"
        for name, pool in sorted(cluster.pools.items())
        if _is_unknown(pool.accelerators, profile) and not hint_of(pool.accelerators.name)
    ]


def _is_unknown(accelerators: Accelerators, profile: Profile | None) -> bool:
    """Whether a GPU has no data sheet here, and `profile` did not measure it."""
    if accelerators.kind != "cuda" or gpu_of(accelerators.name) is not None:
        return False
    measured = profile if profile is not None and profile.provenance == "measured" else None
    return measured is None or measured.machine.accelerator != accelerators.name


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
