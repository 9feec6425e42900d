"""Trainer ranks as they send: real processes with gloo, memory of the host in place of that of GPUs."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from rlplan.executor.trainer.rank_transfers import RankTransfers
from rlplan.executor.weights.bucket_memory import BucketMemory, tensors_in
from rlplan.executor.weights.bucket_plan import buckets_of
from rlplan.executor.weights.transfer import Transfer

RANKS, RANK_DEADLINE_S = 4, 120
SHAPES = {"embed": (40, 8), "q": (16, 8), "k": (6, 8), "norm": (8,), "up": (8, 10)}
TP = {"embed": Shard(0), "q": Shard(0), "k": Shard(0), "up": Shard(1), "norm": Replicate()}
MESHES = {"fsdp": (4,), "hybrid": (2, 2), "fsdp and tp": (2, 2)}


class Model(torch.nn.Module):
    """Parameters under the checkpoint's names."""

    def __init__(self, layout):
        super().__init__()
        mesh = init_device_mesh("cpu", MESHES[layout], mesh_dim_names=("outer", "inner")[: len(MESHES[layout])])
        torch.manual_seed(3)
        self.values = {name: torch.randn(shape) for name, shape in SHAPES.items()}
        for name, value in self.values.items():
            if layout == "fsdp and tp" and name != "k":  # FSDP alone cuts that one
                value = distribute_tensor(value, mesh["inner"], [TP[name]], src_data_rank=None)
            self.register_parameter(name, torch.nn.Parameter(value.clone()))
        fully_shard(self, mesh=mesh["outer"] if layout == "fsdp and tp" else mesh)

    def wanted(self):
        """What engines must get."""
        return {name: value.to(torch.bfloat16) for name, value in self.values.items()}


def run_rank(layout, folder, rank):
    """All ranks send three transfers with slots on their devices and two through the memory of their node."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    model = Model(layout)
    transfers = RankTransfers(model, rank, "bfloat16")
    held = [None] * RANKS
    dist.all_gather_object(held, transfers.holdings())
    assert sum(each.elements for each in held) == sum(value.numel() for value in model.values.values())
    buckets = buckets_of(held[0].sources, 2, 300)
    assert len(buckets) >= 3, "more than there are slots"
    shared = [transfers.meet("host", max(bucket.nbytes for bucket in buckets)).value]
    dist.broadcast_object_list(shared, 0)
    for slots in ["ipc"] * 3 + ["host"] * 2:
        told = Transfer("v", slots, "bfloat16", buckets, False, {"": ""} if slots == "ipc" else {}, shared[0])
        (version, handles), broken = transfers.begin(pickle.loads(bytes.fromhex(told.text())))
        assert (version, broken) == ("v", None)
        opened = BucketMemory(told.largest, handle=handles.get("", shared[0]))
        for index, bucket in enumerate(buckets):
            assert transfers.send(index) == (None, None)
            dist.barrier()
            found = tensors_in(opened.bucket(index, bucket.nbytes), bucket, torch.bfloat16)
            for name, tensor in found.items():
                assert torch.equal(tensor, model.wanted()[name]), (slots, name)
            dist.barrier()
        transfers.end()
        for name, parameter in model.named_parameters():
            model.values[name] += 1.0
            parameter.data.add_(1.0)
    sums = transfers.checksums()
    assert set(sums) == (set(model.values) if rank == 0 else set())
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("layout", MESHES)
def test_ranks_of_any_layout_send_the_whole_model_bit_for_bit(tmp_path, layout):
    from ..rank_processes import run_ranks  # the ranks themselves, which run this file as a script, have no package

    run_ranks(__file__, [layout, str(tmp_path)], RANKS, tmp_path, RANK_DEADLINE_S)


if __name__ == "__main__":
    run_rank(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
