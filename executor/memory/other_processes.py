"""What other processes hold of the GPUs that a run is to have: seen before anything starts there, and planned around.

NVML tells it (Ray ships a copy of its Python binding), without a CUDA context that would take memory itself. A GPU that
NVML does not know, or a machine without it, counts as free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from ...plans.phrases.numbers import bytes_text
from ...plans.yaml.errors import RunFailed
from ...rounds.device_ledger import DeviceLedgers, OutOfMemory, Turn
from ...rounds.step_order import start_of, to_decoding, to_sending, to_starting, to_training
from ..engines.fleet import FleetConfig
from ..placement.live_nodes import PROBE_S, LeasedNode, on_node
from ..placement.seats import engine_name
from ..processes.actors import track, within
from .device_holds import trainer_name

LEAST_BYTES = 0.5e9
"""What other processes must hold of a GPU to be reported; drivers and monitors hold less."""


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
    ledgers_of: Callable[..., DeviceLedgers],
    fleet: FleetConfig,
    runs: Collection[str],
    held: Mapping[str, HeldMemory],
) -> DeviceLedgers:
    """The ledgers of devices of which others hold `held`; `ledgers_of` makes them, of these bytes as `others`.

    Raises RunFailed unless a whole step of each of `runs`, starts included, fits into what is left.
    """
    try:
        ledgers = ledgers_of(others={name: each.held_bytes for name, each in held.items()})
        refused = ledgers.refusal(_whole_steps(ledgers, fleet, runs))
    except OutOfMemory as none_left:
        refused = none_left
    if refused is not None:
        raise RunFailed(
            f"{held_text(held)}, and the plan does not fit beside them: {refused}; end them, or solve again with what "
            "they leave as memory_bytes in cluster.yaml"
        )
    return ledgers


def _whole_steps(ledgers: DeviceLedgers, fleet: FleetConfig, runs: Collection[str]) -> Iterator[Turn]:
    """The turns of starts, one after the other, and of a step of each run with each layout of engines."""
    holders, beside = ledgers.holders, ledgers.beside
    for name in sorted(holders, key=lambda each: holders[each].kind):  # engines first
        yield start_of(name, holders)
        yield from to_starting(holders, ledgers.states, beside, ledgers.shared)
    for run in runs:
        trainer = trainer_name(run)
        for layout in fleet.layouts:
            engines = [engine_name(layout.tp, number) for number in range(layout.engines)]
            yield from to_sending(holders, ledgers.states, beside, trainer, engines)
            yield from to_decoding(holders, ledgers.states, beside, engines)
            yield from to_training(holders, ledgers.states, beside, trainer)
