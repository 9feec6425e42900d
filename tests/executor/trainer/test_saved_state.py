"""Staged states of several ranks: real processes with gloo, tensors divided in one and in two dimensions."""

import io
import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from rlplan.executor.processes.faults import ErrorClass, classify
from rlplan.executor.records.model_export import _Reader
from rlplan.executor.trainer.saved_state import Staging, all_finite, load_state, save_state
from rlplan.plans.yaml.errors import InputError, RunFailed

RANK_DEADLINE_S = 120
SHAPES = {"matrix": (8, 6), "uneven": (3, 4), "norm": (5,)}
PLACEMENTS = {
    "fsdp 2": {name: [Shard(0)] for name in SHAPES},
    # FSDP over the first dimension of the mesh, tensor parallel over the second, which leaves norms whole.
    "fsdp 2 x tp 2": {"matrix": [Shard(0), Shard(1)], "uneven": [Shard(0), Shard(0)], "norm": [Shard(0), Replicate()]},
    "tp 2": {"matrix": [Shard(1)], "uneven": [Shard(0)], "norm": [Replicate()]},
}


def whole(name, kind):
    dice = torch.Generator().manual_seed(kind)
    return torch.randn(SHAPES[name], generator=dice)


def state(layout, factor):
    """A state whose tensors are `factor` times those of `whole`; "" is one rank, whose tensors are plain."""
    tensors = {"counters": {"version": torch.tensor(3)}}
    mesh = None
    if layout:
        mesh = init_device_mesh("cpu", (2, 2) if " x " in layout else (2,))
    for number, kind in enumerate(("model", "optimizer.exp_avg")):
        tensors[kind] = {}
        for name in SHAPES:
            value = factor * whole(name, number)
            tensors[kind][name] = (
                value if mesh is None else distribute_tensor(value, mesh, PLACEMENTS[layout][name]).detach()
            )
    return tensors


def holds(found, factor):
    for number, kind in enumerate(("model", "optimizer.exp_avg")):
        for name, tensor in found[kind].items():
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if not torch.equal(full, factor * whole(name, number)):
                return False
    return int(found["counters"]["version"]) == 3


def run_rank(layout, folder, do, ranks, rank):
    """`write` a state, or `load` what is there."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{do}", rank=rank, world_size=ranks)
    live = state(layout, 1.0)
    if do == "load":
        live = state(layout, 0.0)
        load_state(folder / "first", live)
        assert holds(live, 1.0)
    else:
        staging = Staging(rank)
        assert staging.stage(live) > 0
        for kind in ("model", "optimizer.exp_avg"):
            for tensor in live[kind].values():
                tensor.mul_(2.0)  # as a training step does, in place
        staging.write(folder / "first")
        staging.stage(live)
        staging.write(folder / "second")
        if rank == 1:
            live["model"]["matrix"].to_local().view(-1)[-1] = torch.inf
        with pytest.raises(RuntimeError, match="of version 3 are not finite"):
            staging.stage(live)
        with pytest.raises(AssertionError, match="nothing is staged"):
            staging.write(folder / "third")
    dist.barrier()
    dist.destroy_process_group()


def together(layout, folder, do):
    from ..rank_processes import run_ranks  # the ranks themselves, which run this file as a script, have no package

    ranks = 4 if " x " in layout else 2
    run_ranks(__file__, [layout, str(folder), do, str(ranks)], ranks, folder, RANK_DEADLINE_S)


@pytest.mark.parametrize(("written", "read"), [("fsdp 2", "tp 2"), ("fsdp 2 x tp 2", "fsdp 2")])
def test_what_one_layout_staged_loads_on_another_and_on_one_rank(tmp_path, written, read):
    together(written, tmp_path, "write")
    together(read, tmp_path, "load")
    for name, factor in (("first", 1.0), ("second", 2.0)):
        alone = state("", 0.0)
        load_state(tmp_path / name, alone)
        assert holds(alone, factor), f"{name} is not the state of its staging"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["first", "second"]


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_is_found_among_many(odd):
    tensors = [torch.randn(1000, 7), torch.empty(0, 7), torch.tensor(3), torch.tensor(0.0)]
    assert all_finite(tensors)
    tensors[0][431, 2] = odd
    assert not all_finite(tensors)


class Runs:
    """What runs a command of its choice when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def text(value):
    """A text as a pickle has it."""
    return b"\x8c" + bytes([len(value)]) + value.encode()


def no_tensor(table, folder, marker):
    """A table by which torch would unpickle a file's bytes in place of a tensor."""
    entry = next(index for index in table.storage_data if index.fqn == "model.matrix")
    table.state_dict_metadata["model.matrix"] = BytesStorageMetadata()
    data = io.BytesIO()
    torch.save(Runs(marker), data)
    (folder / "own").write_bytes(data.getvalue())
    info = table.storage_data.pop(entry)
    info.relative_path, info.offset, info.length = "own", 0, len(data.getvalue())
    table.storage_data[type(entry)("model.matrix")] = info
    return pickle.dumps(table)


def outside(table, folder, marker):
    """A table that has a tensor in a file outside of the checkpoint."""
    for info in table.storage_data.values():
        info.relative_path = "../elsewhere"
    return pickle.dumps(table)


def of_another_folder(table, folder, marker):
    """A table whose files are hidden from a look at its values."""
    for info in table.storage_data.values():
        info.relative_path = f"../secret/{info.relative_path}"
    table.storage_data = OrderedDict(table.storage_data)
    table.storage_data.values = torch.Size
    return pickle.dumps(table)


def method(module, name, attribute):
    """A pickle that sets an attribute of a class, by a state of slots."""
    made = text(module) + text(name) + b"\x93N}" + text(attribute) + text("torch") + text("Size") + b"\x93s\x86b."
    return b"\x80\x04" + made


def without_its_kind(table, folder, marker):
    table.storage_meta = "x"
    return pickle.dumps(table)


HOSTILE = {
    "another folder's files": (of_another_folder, "sets attributes of OrderedDict"),
    "a method of a path": (lambda *_: method("pathlib", "PosixPath", "exists"), "sets attributes of type"),
    "no kind of a table's": (without_its_kind, "is no table"),
    "a command": (lambda table, folder, marker: pickle.dumps(Runs(marker)), "names (posix|os).system"),
    "a command in a table": (
        lambda table, folder, marker: (setattr(table, "planner_data", Runs(marker)), pickle.dumps(table))[1],
        "names (posix|os).system",
    ),
    "a name behind a name": (  # protocol 4 looks up names with dots
        lambda table, folder, marker: (
            b"\x80\x04"
            + text("torch.distributed.checkpoint.metadata")
            + text("os.system")
            + b"\x93"
            + text(f"touch {marker}")
            + b"\x85R."
        ),
        "names torch.distributed.checkpoint.metadata.os.system",
    ),
    "bytes": (no_tensor, "names torch.distributed.checkpoint.metadata.BytesStorageMetadata"),
    "a file elsewhere": (outside, "files of its folder"),
    "no table": (lambda *_: pickle.dumps({"a": 1}), "is no table"),
    "nothing": (lambda *_: b"", "is no table"),
}


@pytest.mark.parametrize("reader", [lambda folder: load_state(folder, state("", 0.0)), _Reader], ids=["load", "export"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_checkpoint_that_holds_a_program_runs_none_of_it(tmp_path, kind, reader):
    folder, marker = tmp_path / "hostile", tmp_path / "ran"
    save_state(folder, state("", 1.0), 0)
    found = state("", 0.0)
    load_state(folder, found)
    assert holds(found, 1.0)
    make, says = HOSTILE[kind]
    table = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(make(table, folder, marker))
    with pytest.raises(InputError, match=says) as refusal:
        reader(folder)
    assert not marker.exists() and len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (MemoryError(), ErrorClass.FATAL),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), ErrorClass.FATAL),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), ErrorClass.ACTOR),
    ],
)
def test_a_copy_that_finds_no_host_memory_costs_no_trainer(monkeypatch, raised, kind):
    staging = Staging(0)

    def copy(state):
        raise raised

    monkeypatch.setattr(staging, "_copy", copy)
    with pytest.raises(RuntimeError if kind is ErrorClass.ACTOR else RunFailed, match="could not be copied") as error:
        staging.stage(state("", 1.0))
    assert classify(error.value) is kind, "a checkpoint less, or a rank that is replaced"


if __name__ == "__main__":
    run_rank(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
