"""A rank's part of the trainer's state: copied to host memory while training stands still, written while it goes on.

Invariants:
- what is written is the state at the call of `stage`, whatever the trainer does meanwhile;
- state that is not finite is never staged, on any rank;
- the collectives of a write have a process group of their own, so that they never meet those of a training step;
- a folder of the final name is whole. All ranks write into `.NAME.partial` beside it, which rank 0 renames after all
  have finished and their files are synced; a crash leaves at most a partial folder, which the next save removes.

Tensors are stored whole or sharded as they are (torch's distributed checkpoint), and may be loaded by another number of
ranks.

A rank keeps one copy of its share of the state: 12 bytes for each parameter that it holds (weights and both moments of
AdamW in float32), reused by every checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from ...plans.yaml.errors import RunFailed
from ..processes.faults import device_error, out_of_memory
from .manifest import sync_folder, write_manifest
from .optimizer import ShardedAdamW
from .policy.adapters import trained_parameters
from .policy.local_tensors import cut_as, host_zeros, local
from .state_metadata import TensorReader

State = dict[str, dict[str, torch.Tensor]]

# A rank waits here for the slowest disk; the driver's own deadline ends a write that hangs.
SLOWEST_DISK = timedelta(days=7)


class Staging:
    """The staged state of one rank. Construct it on all ranks, after the process group that they train with.

    `device` is the rank's: also what is parked in host memory just now will be copied from there.
    `stage` and `write` are collective. They may be called from two threads; `stage` refuses while `write` runs.
    """

    def __init__(self, rank: int, device: torch.device | None = None) -> None:
        self._rank, self._device = rank, device
        self.group = dist.new_group(backend="gloo", timeout=SLOWEST_DISK) if dist.is_initialized() else None
        self._copies: State = {}
        self._whole = False  # the copies are of one instant and not written yet
        self._writing = threading.Lock()

    def stage(self, state: State) -> int:
        """Copy this rank's share of `state` to host memory; returns the bytes of the copy.

        Raises RunFailed on all ranks if one of them cannot copy its share (no host memory, say), with which they go on;
        RuntimeError if a weight or a moment of any is not finite, if a device fails, or if what was staged before is
        still being written.
        """
        if not self._writing.acquire(blocking=False):
            raise RuntimeError("the state that was staged before is still being written")
        try:
            self._whole = False
            tensors = [tensor for entries in state.values() for tensor in entries.values()]
            failure: Exception | None = None
            lost = not all_finite(tensors)
            if not lost:
                try:
                    self._copy(state)
                except (MemoryError, RuntimeError) as error:  # torch's allocator raises RuntimeError
                    failure = error
            lost, failed = self._on_any_rank(lost, failure is not None)
            if lost:
                version = int(state["counters"]["version"])
                raise RuntimeError(f"weights or moments of version {version} are not finite; no checkpoint is written")
            if failed:
                text = f"the state could not be copied to host memory: {failure or 'see the other ranks'}"
                if device_error(str(failure)) and not out_of_memory(str(failure)):
                    raise RuntimeError(text) from failure
                raise RunFailed(text) from failure
            self._whole = True
            return sum(local(tensor).nbytes for tensor in tensors)
        finally:
            self._writing.release()

    def write(self, folder: Path) -> None:
        """Write what was staged to `folder`, as `save_state` does. Raises FileExistsError, OSError on all ranks."""
        with self._writing:
            assert self._whole, "nothing is staged"
            save_state(folder, self._copies, self._rank, self.group)
            self._whole = False

    def _copy(self, state: State) -> None:
        for kind, entries in state.items():
            copies = self._copies.setdefault(kind, {})
            for name, tensor in entries.items():
                part = local(tensor.detach())
                if name not in copies:
                    copies[name] = cut_as(tensor, host_zeros(part, self._device))
                # From a GPU to page-locked memory the copies are queued; the device is waited for once, below.
                local(copies[name]).copy_(part, non_blocking=True)
        for device in {tensor.device for entries in state.values() for tensor in entries.values()}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def _on_any_rank(self, *flags: bool) -> tuple[bool, ...]:
        found = torch.tensor(flags, dtype=torch.int32)
        if self.group is not None:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return tuple(bool(flag) for flag in found.tolist())


def all_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether this rank's shares of `tensors` are finite; reads each once and copies none."""
    extremes: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        part = local(tensor.detach())
        if part.is_floating_point() and part.numel():
            # NaN and infinities are among the extremes, if there are any.
            extremes.setdefault(part.device, []).extend(x.float() for x in torch.aminmax(part))
    return all(bool(torch.isfinite(torch.stack(found)).all()) for found in extremes.values())


def trainer_state(
    model: torch.nn.Module, optimizer: ShardedAdamW, version: int, adapter_scale: float | None = None
) -> State:
    """The state as live tensors (loading into them loads the trainer), plus `counters`, which are copies. Of a model
    with adapters it holds these, and their scale, for who merges them; the frozen weights are in the model's files.

    The optimizer's entries go by parameter name, so they do not depend on the order of parameters.
    """
    counters = {"version": torch.tensor(version), "rng": torch.get_rng_state()}
    if adapter_scale is not None:
        counters["adapter_scale"] = torch.tensor(adapter_scale, dtype=torch.float64)
    trained = {name: parameter.detach() for name, parameter in trained_parameters(model).items()}
    state: State = {"model": trained, "counters": counters}
    return state | {f"optimizer.{moment}": tensors for moment, tensors in optimizer.state().items()}


def save_state(folder: Path, state: State, rank: int, group: dist.ProcessGroup | None = None) -> None:
    """Write `state`, tensors in host memory, to `folder`, which must not exist; collective over the ranks of `group`.

    `group` is one of gloo; None stands for the default group. Raises FileExistsError: replacing a folder cannot be
    atomic. Raises OSError on every rank if one of them cannot write.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists; a checkpoint is never overwritten")
    partial = folder.with_name(f".{folder.name}.partial")
    with _together(group):
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
    try:
        with _silent_if_single():
            # Without reading ahead: that is for tensors on a GPU, whose stream it would wait for.
            writer = FileSystemWriter(partial, per_thread_copy_ahead=0)
            alone = not dist.is_initialized()
            dcp.save(state, storage_writer=writer, process_group=group, no_dist=alone)  # type: ignore[attr-defined]
    except CheckpointException as error:  # the same on all ranks
        rank_of_failure, (failure, _) = min(error.failures.items())
        raise OSError(f"rank {rank_of_failure}: {failure}") from error
    with _together(group):
        metadata = [partial / ".metadata"] if rank == 0 else []
        write_manifest(partial / f"manifest-{rank}.json", [*sorted(partial.glob(f"__{rank}_*")), *metadata])
    with _together(group):
        if rank == 0:
            sync_folder(partial)
            partial.rename(folder)
            sync_folder(folder.parent)


def load_state(folder: Path, state: State, group: dist.ProcessGroup | None = None) -> None:
    """Read `folder` into the tensors of `state`; collective over the ranks of `group`, one of gloo with patience (None:
    the default group). Nothing that the folder holds is run. Raises FileNotFoundError; InputError if its table of
    tensors is none."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no checkpoint at {folder}")
    reader, alone = TensorReader(folder), not dist.is_initialized()
    reader.read_metadata()  # refused here, in one line: torch would look for other tables, and log traces of both
    with _silent_if_single():
        dcp.load(state, storage_reader=reader, process_group=group, no_dist=alone)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _silent_if_single() -> Iterator[None]:
    """Silence torch's warning that one process alone writes or reads the checkpoint, which is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


@contextlib.contextmanager
def _together(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Wait for all ranks of the group at the end of the block; an OSError of one rank is raised by all of them."""
    failure: OSError | None = None
    try:
        yield
    except OSError as error:
        failure = error
    failed = torch.tensor(float(failure is not None))
    if dist.is_initialized():
        dist.all_reduce(failed, group=group)
    if failure is not None:
        raise failure
    if failed > 0:
        raise OSError("another rank could not write its part")
