"""Trainer state on disk, through torch's distributed checkpoint.

Invariant: a folder of the final name is whole. All ranks write into `.NAME.partial` beside it, which rank 0 renames
after all have finished and their files are synced; a crash leaves at most a partial folder, which the next save
removes. Each rank lists the files that it wrote in `manifest-RANK.json`. Tensors are stored whole or sharded as they
are, and may be loaded by another number of ranks.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from ..trainer.optimizer import ShardedAdamW
from .manifest import sync_folder, write_manifest

State = dict[str, dict[str, torch.Tensor]]


def trainer_state(model: torch.nn.Module, optimizer: ShardedAdamW, version: int) -> State:
    """The state as live tensors (loading into them loads the trainer), plus `counters`, which are copies.

    The optimizer's entries go by parameter name, so they do not depend on the order of parameters.
    """
    counters = {"version": torch.tensor(version), "rng": torch.get_rng_state()}
    state: State = {"model": {name: p.detach() for name, p in model.named_parameters()}, "counters": counters}
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


def load_state(folder: Path, state: State) -> None:
    """Read `folder` into the tensors of `state`; collective over all ranks. Raises FileNotFoundError."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no checkpoint at {folder}")
    with _silent_if_single():
        dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())  # type: ignore[attr-defined]


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
