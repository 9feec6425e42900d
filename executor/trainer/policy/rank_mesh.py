"""Where a rank stands among dp x sp x tp ranks, the groups in which it communicates, and gradients that no backward
pass sums over all of them.

Rank = (dp_rank * sp + sp_rank) * tp + tp_rank: the ranks of a tensor-parallel group are neighbours, as they exchange
most. This is the order of transformers' mesh (fsdp, tp), whose fsdp ranks are our dp x sp ranks. Where there are copies
of the states, the first dp x sp / state_copies of these share out the first one, and so on: neighbours, too, which are
on one node if they divide its devices (executor/placement/run_placement.py).

Partial gradients are summed once, after the last micro-batch of a step. Of parameters that tensor-parallel ranks hold
whole while each sees a share of the heads, norms of heads, transformers (5.19) sums gradients over the ranks in a hook
of every backward pass, and sums what has accumulated: with several micro-batches the earlier ones would be summed
again. So the hook is taken off. Where there are copies of the states, FSDP sums gradients over the ranks of a copy
alone, whose own mesh it has. FSDP's hybrid sharding would sum them over copies in the step's last micro-batch, which is
not known: groups are streamed, and what was streamed last may have been the last. Copies stay equal to the bit, as an
all-reduce gives the same to all.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ...processes.host import stay_on_cluster_interface
from .local_tensors import local

COLLECTIVE_DEADLINE = timedelta(minutes=10)  # a rank that waits longer for the others fails, naming the collective


@dataclass(frozen=True)
class RankMesh:
    """A rank's place.

    Attributes:
        rank: its number.
        dp, sp, tp: sizes: replicas, ranks that share a replica's tokens, ranks that share its matrices.
        state_copies: copies of the states, each sharded over dp x sp / state_copies ranks (and tp).
        sequence_group: ranks that share this rank's tokens; None where sp is 1.
        tensor_group: ranks that share this rank's matrices; None where tp is 1.
        batch_group: ranks with this rank's share of the matrices: together they hold each token once; None where no
            process group was joined.
        copies_group: ranks that hold the same shards, one of each copy; None where there is one copy.
    """

    rank: int = 0
    dp: int = 1
    sp: int = 1
    tp: int = 1
    state_copies: int = 1
    sequence_group: dist.ProcessGroup | None = None
    tensor_group: dist.ProcessGroup | None = None
    batch_group: dist.ProcessGroup | None = None
    copies_group: dist.ProcessGroup | None = None

    @property
    def shards(self) -> int:
        """Ranks that share out each weight of a copy, beside tensor-parallel ones."""
        return self.dp * self.sp // self.state_copies

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.dp * self.sp * self.tp

    @property
    def dp_rank(self) -> int:
        """Number of this rank's replica."""
        return self.rank // (self.sp * self.tp)

    @property
    def sp_rank(self) -> int:
        """Which part of the replica's tokens this rank holds."""
        return self.rank // self.tp % self.sp


def join(
    rank: int, dp: int, sp: int, tp: int, device: torch.device, init_method: str | None, state_copies: int = 1
) -> RankMesh:
    """Join the process group of all ranks and make the groups within it (collective).

    `init_method`: where ranks meet, `tcp://HOST:PORT/SECRET` (`meeting_store`) or one of torch's; None for one rank,
    which needs a group only for the library's sake.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    ranks = dp * sp * tp
    store: Any = None
    where = init_method
    if init_method is None:
        store = dist.HashStore()  # type: ignore[attr-defined]
    elif init_method.startswith("tcp://"):
        stay_on_cluster_interface()
        store, where = meeting_store(init_method.removeprefix("tcp://"), leads=rank == 0), None
    dist.init_process_group(
        backend, init_method=where, store=store, rank=rank, world_size=ranks, timeout=COLLECTIVE_DEADLINE
    )
    batch = _group_of(rank, [[first + tp * i for i in range(dp * sp)] for first in range(tp)])
    sequence = tensor = copies = None
    if sp > 1:
        blocks = [(replica, first) for replica in range(dp) for first in range(tp)]
        sequence = _group_of(rank, [[(replica * sp + i) * tp + first for i in range(sp)] for replica, first in blocks])
    if tp > 1:
        tensor = _group_of(rank, [list(range(first, first + tp)) for first in range(0, ranks, tp)])
    if state_copies > 1:
        size = ranks // state_copies
        copies = _group_of(rank, [list(range(first, ranks, size)) for first in range(size)])
    return RankMesh(rank, dp, sp, tp, state_copies, sequence, tensor, batch, copies)


def meeting_store(meeting: str, leads: bool) -> PrefixStore:
    """The store in which ranks meet at HOST:PORT/SECRET; the one that leads serves it.

    It listens at HOST alone, where torch's own would at every address of the machine, and all keys begin with the
    SECRET, a nonce that the driver made for this start: ranks of another start or run, and who guesses, find nobody.
    Raises ConnectionError where that rank cannot listen there, torch's DistNetworkError where it cannot be reached.
    """
    address, _, secret = meeting.partition("/")
    host, _, port = address.rpartition(":")
    listener = None
    if leads:
        try:
            listener = socket.create_server((host, int(port))).detach()
        except OSError as error:  # someone took the port meanwhile; a new start finds another
            raise ConnectionError(f"no rank can listen at {address}: {error.strerror}") from error
    own = TCPStore(host, int(port), None, leads, COLLECTIVE_DEADLINE, wait_for_workers=False, master_listen_fd=listener)
    return PrefixStore(secret, own)


def _group_of(rank: int, groups: list[list[int]]) -> dist.ProcessGroup:
    """The group that holds `rank`; every rank makes all of them, as torch demands."""
    mine: dist.ProcessGroup | None = None
    for members in groups:
        group = dist.new_group(members, timeout=COLLECTIVE_DEADLINE)
        if rank in members:
            mine = group
    assert mine is not None, f"rank {rank} is in none of {groups}"
    return mine


PARTIAL = "replicated_with_grad_allreduce"  # transformers' name in a model's `tp_plan`


class PartialGradients:
    """The parameters of a model whose gradients are partial on each tensor-parallel rank, or in each copy."""

    def __init__(self, model: Any, mesh: RankMesh, adapters: bool = False) -> None:
        self._model, self._group, self._copies = model, mesh.tensor_group, mesh.copies_group
        self._adapters = adapters and mesh.ranks > 1
        self._modules: list[torch.nn.Module] = []
        if self._group is None:
            return
        plan = model.tp_plan or {}
        patterns = [re.escape(name).replace(r"\*", r"\d+") for name, style in plan.items() if style == PARTIAL]
        for name, module in model.named_modules():
            if any(re.fullmatch(rf"(.+\.)?{pattern}", name) for pattern in patterns):
                module._backward_hooks.clear()
                self._modules.append(module)

    def sum(self) -> None:
        """Add up the gradients of this step over copies and tensor-parallel ranks, and those of adapters, of which each
        rank has all, over all ranks (collective)."""
        if self._adapters:
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            _sum_together(gradients, None)
            return
        if self._copies is not None:
            for parameter in self._model.parameters():
                dist.all_reduce(local(parameter.grad), group=self._copies)
        parts = [local(p.grad) for module in self._modules for p in module.parameters() if p.grad is not None]
        if parts:
            _sum_together(parts, self._group)


def _sum_together(parts: list[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Add up tensors over the ranks of a group (None: all) in one collective."""
    whole = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(whole, group=group)
    for part, total in zip(parts, whole.split([part.numel() for part in parts]), strict=True):
        part.copy_(total.view_as(part))
