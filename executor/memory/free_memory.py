"""What memory the machines of a run really have free, asked before anything starts there: only a process there knows.

Of GPUs it is what other processes hold, and the run is planned around it. NVML tells it (Ray ships a copy of its Python
binding), without a CUDA context that would take memory itself. A GPU that NVML does not know, or a machine without it,
counts as free.

Of hosts it is what is free for jobs of groups that sleep between their turns. The plan says for each node how many
bytes the states of all jobs on it take (`nodes.*.resident_bytes`); the cluster file, how much such a node has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray

from ...plans.phrases.numbers import bytes_text
from ...plans.yaml.errors import InputError, RunFailed
from ...rounds.device_ledger import DeviceLedger, DeviceTransition, OutOfMemory
from ...rounds.step_order import start_of, to_decoding, to_sending, to_starting, to_training
from ..engines.fleet import FleetConfig
from ..placement.live_nodes import PROBE_S, LeasedNode, on_node
from ..placement.run_placement import engine_name
from ..processes.actors import track, within
from .device_holds import trainer_name

LEAST_BYTES = 0.5e9
"""What other processes must hold of a GPU to be reported; drivers and monitors hold less."""

MEMORY, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")

# -- devices -----------------------------------------------------------------------------------------------------------


class HeldMemory(NamedTuple):
    """What others hold of a GPU, in bytes, and who: `pid 71, pid 85`, "" where NVML does not say."""

    held_bytes: float
    whose: str


async def held_by_others(nodes: Mapping[int, LeasedNode]) -> dict[str, HeldMemory]:
    """What processes hold of the GPUs of a run's nodes, by the names of a placement (`GPU 3 of node 1`), where it is
    at least LEAST_BYTES. Call it before the run starts anything there."""
    calls = {number: _held.options(**on_node(node.node_id)).remote(node.facts.gpus) for number, node in nodes.items()}
    found: dict[str, HeldMemory] = {}
    for number, call in calls.items():
        held = await within(PROBE_S, track(call), f"node {nodes[number].facts.address}")
        found |= {f"GPU {place} of node {number}": each for place, each in enumerate(held) if each is not None}
    return found


@ray.remote(num_cpus=0, max_retries=0)
def _held(gpus: Sequence[str]) -> list[HeldMemory | None]:
    return held_here(gpus)


def held_here(gpus: Sequence[str]) -> list[HeldMemory | None]:
    """What processes hold of this machine's GPUs, by NVML's numbers or UUIDs; None where that is below LEAST_BYTES."""
    from ray._private.thirdparty import pynvml

    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return [None] * len(gpus)
    try:
        return [_of_gpu(nvml, gpu) for gpu in gpus]
    finally:
        nvml.nvmlShutdown()


def _of_gpu(nvml: Any, gpu: str) -> HeldMemory | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else nvml.nvmlDeviceGetHandleByUUID(gpu)
        # The second version does not count what the driver keeps for itself, which no process can have.
        held = float(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
        pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except nvml.NVMLError:
        return None
    return HeldMemory(held, ", ".join(f"pid {pid}" for pid in sorted(pids))) if held >= LEAST_BYTES else None


def held_text(held: Mapping[str, HeldMemory]) -> str:
    """One line: what others hold, of each GPU, and who they are; as many as a reader wants to know of."""
    some = [
        f"{bytes_text(each.held_bytes)} of {name}" + (f" ({each.whose})" if each.whose else "")
        for name, each in list(held.items())[:3]
    ]
    more = f", and memory of {len(held) - 3} more GPUs" if len(held) > 3 else ""
    return f"other processes hold {', '.join(some)}{more}"


def beside_others(
    ledger_of: Callable[..., DeviceLedger],
    fleet: FleetConfig,
    runs: Collection[str],
    held: Mapping[str, HeldMemory],
) -> DeviceLedger:
    """The ledger of devices of which others hold `held`; `ledger_of` makes it, of these bytes as `others`.

    Raises RunFailed unless a whole step of each of `runs`, starts included, fits into what is left.
    """
    try:
        ledger = ledger_of(others={name: each.held_bytes for name, each in held.items()})
        refused = ledger.refusal(_whole_steps(ledger, fleet, runs))
    except OutOfMemory as none_left:
        refused = none_left
    if refused is not None:
        raise RunFailed(
            f"{held_text(held)}, and the plan does not fit beside them: {refused}; end them, or solve again with what "
            "they leave as memory_bytes in cluster.yaml"
        )
    return ledger


def _whole_steps(ledger: DeviceLedger, fleet: FleetConfig, runs: Collection[str]) -> Iterator[DeviceTransition]:
    """The turns of starts, one after the other, and of a step of each run with each layout of engines."""
    for name in sorted(ledger.holders, key=lambda each: ledger.holders[each].kind):  # engines first
        yield start_of(ledger, name)
        yield from to_starting(ledger)
    for run in runs:
        trainer = trainer_name(run)
        for layout in fleet.layouts:
            engines = [engine_name(layout.tp, number) for number in range(layout.engines)]
            yield from to_sending(ledger, trainer, engines)
            yield from to_decoding(ledger, engines)
            yield from to_training(ledger, trainer)


# -- hosts -------------------------------------------------------------------------------------------------------------


class Sleeping(NamedTuple):
    """What is to sleep on a node: the node's pool, and bytes of the states that come there."""

    pool: str
    node: LeasedNode
    resident_bytes: float


async def check_host_memory(asleep: Iterable[Sleeping]) -> None:
    """Raises InputError unless each node has free what is to sleep there; jobs are placed, and do not run yet."""
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
