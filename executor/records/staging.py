"""A rank's state in two halves: copied to host memory while training stands still, written to disk while it goes on.

Invariants:
- what is written is the state at the call of `stage`, whatever the trainer does meanwhile;
- state that is not finite is never staged, on any rank;
- the collectives of a write have a process group of their own, so that they never meet those of a training step.

A rank keeps one copy of its share of the state: 12 bytes for each parameter that it holds (weights and both moments of
AdamW in float32), reused by every checkpoint.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..trainer.policy.local_tensors import cut_as, host_zeros, local
from .checkpoint import State, save_state

# A rank waits here for the slowest disk; the driver's own deadline ends a write that hangs.
SLOWEST_DISK = timedelta(hours=3)


class Staging:
    """The staged state of one rank. Construct it on all ranks, after the process group that they train with.

    `device` is the rank's: also what is parked in host memory just now will be copied from there.
    `stage` and `write` are collective. They may be called from two threads; `stage` refuses while `write` runs.
    """

    def __init__(self, rank: int, device: torch.device | None = None) -> None:
        self._rank, self._device = rank, device
        self._group = dist.new_group(backend="gloo", timeout=SLOWEST_DISK) if dist.is_initialized() else None
        self._copies: State = {}
        self._whole = False  # the copies are of one instant and not written yet
        self._writing = threading.Lock()

    def stage(self, state: State) -> int:
        """Copy this rank's share of `state` to host memory; returns the bytes of the copy.

        Raises RuntimeError on all ranks if a weight or a moment of any is not finite, if one of them cannot copy its
        share (no host memory, say), or if what was staged before is still being written.
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
                why = failure or "see the other ranks"
                raise RuntimeError(f"the state could not be copied to host memory: {why}") from failure
            self._whole = True
            return sum(local(tensor).nbytes for tensor in tensors)
        finally:
            self._writing.release()

    def write(self, folder: Path) -> None:
        """Write what was staged to `folder`, as `save_state` does. Raises FileExistsError, OSError on all ranks."""
        with self._writing:
            assert self._whole, "nothing is staged"
            save_state(folder, self._copies, self._rank, self._group)
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
        if self._group is not None:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
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
