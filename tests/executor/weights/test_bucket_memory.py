"""Memory of buckets that processes share: of the host for real, of a GPU as far as torch's functions can be faked."""

import psutil
import pytest
import torch
from torch._C._distributed_c10d import HashStore

from rlplan.executor.weights import transfer as transfer_module
from rlplan.executor.weights.bucket_memory import HOST, BucketMemory, TransferBroken, device_key, put, tensors_in
from rlplan.executor.weights.bucket_plan import TensorSource, buckets_of, whole_box
from rlplan.executor.weights.transfer import Answer, BucketReader, Transfer, agreed, tensor_checksum

SHAPES = {"a": (2, 3), "b": (), "c": (5,), "d": (4, 4)}
(BUCKET,) = buckets_of([TensorSource(name, shape, name, whole_box(shape)) for name, shape in SHAPES.items()], 2, 1000)
GPU = torch.device("cuda", 1)


def test_what_one_process_writes_another_reads_from_two_buckets_in_turn():
    memory = BucketMemory(BUCKET.nbytes)
    other = BucketMemory(BUCKET.nbytes, handle=memory.handle())
    wanted = {}
    for number in range(3):
        wanted[number] = [torch.randn(shape).to(torch.bfloat16) for shape in SHAPES.values()]
        parts = zip(BUCKET.sources, [()] * 4, wanted[number], strict=True)
        put(memory.bucket(number, BUCKET.nbytes), BUCKET, torch.bfloat16, parts)
    for number in (1, 2):
        found = tensors_in(other.bucket(number, BUCKET.nbytes), BUCKET, torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(found.values(), wanted[number], strict=True))
        assert all(other.holds(tensor) for tensor in found.values()) and not other.holds(torch.zeros(1))


def test_shared_memory_is_gone_with_its_owner_and_then_is_refused():
    memory = BucketMemory(1000)
    handle, number = memory.handle(), memory._file
    del memory
    with pytest.raises(TransferBroken, match="could not be opened"):
        BucketMemory(1000, handle=handle)
    other = BucketMemory(1000)
    assert other._file == number, "which has its place, and another name"
    with pytest.raises(TransferBroken, match="the process that made it has ended or closed it"):
        BucketMemory(1000, handle=handle)


def test_memory_that_the_machine_lacks_is_refused_before_any_is_taken(monkeypatch):
    def refuse(file, first, size):
        raise AssertionError("memory was taken")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(TransferBroken, match=r"could not be taken: \d+ MB are available, of which half"):
        BucketMemory(psutil.virtual_memory().available)


def test_memory_of_a_gpu_is_opened_by_its_handle(monkeypatch):
    made, opened = [], []
    made_by_torch = torch.empty

    def empty(nbytes, **_):
        made.append(made_by_torch(nbytes, dtype=torch.uint8))
        return made[-1]

    def rebuild(*arguments):
        opened.append(arguments)
        return made[0]

    monkeypatch.setattr(torch, "empty", empty)
    arguments = (torch.Tensor, torch.Size([9]), (1,), 0, None, torch.uint8, 3, b"h", 1, 2, False, b"c", 4, b"e", True)
    monkeypatch.setattr("torch.multiprocessing.reductions.reduce_tensor", lambda memory: (None, arguments))
    monkeypatch.setattr("torch.multiprocessing.reductions.rebuild_cuda_tensor", rebuild)
    other = BucketMemory(100, GPU, BucketMemory(100, GPU).handle())
    assert opened == [(*arguments[:6], 1, *arguments[7:])], "the reader's own number of the device"
    assert other.bucket(1, 100).data_ptr() == made[0].data_ptr() + 128

    def refuse(*_, **__):
        raise RuntimeError("out of memory")

    for name in ("reduce_tensor", "rebuild_cuda_tensor"):
        monkeypatch.setattr(f"torch.multiprocessing.reductions.{name}", refuse)
    memory = BucketMemory(100, GPU)
    with pytest.raises(TransferBroken, match="no CUDA IPC handle on cuda:1: out of memory"):
        memory.handle()
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(TransferBroken, match="1 MB of cuda:1 could not be taken: out of memory"):
        BucketMemory(500_000, GPU)
    assert device_key(torch.device("cpu")) == ""


def test_an_engine_rank_loads_and_sums_up_what_is_in_memory():
    memory, loaded = BucketMemory(BUCKET.nbytes), {}
    told = Transfer("v", "host", "bfloat16", (BUCKET,), True, meeting=memory.handle())
    values = [torch.randn(shape).to(torch.bfloat16) for shape in SHAPES.values()]
    put(memory.bucket(0, BUCKET.nbytes), BUCKET, torch.bfloat16, zip(BUCKET.sources, [()] * 4, values, strict=True))
    reader = BucketReader()
    assert reader.begin(told.text(), "n") == Answer()
    assert reader.load(0, lambda tensors, _: loaded.update({n: t.clone() for n, t in tensors})) == Answer()
    assert reader.finish() == ("v", {n: tensor_checksum(t) for n, t in zip(SHAPES, values, strict=True)})
    assert all(torch.equal(loaded[name], value) for name, value in zip(SHAPES, values, strict=True))
    gone = told._replace(meeting="/proc/self/fd/0 rlplan-weights")
    answer = BucketReader().begin(gone.text(), "n")
    assert "could not be opened" in str(answer.broken)


def test_ranks_of_an_engine_must_have_received_the_same():
    one, same, other = ("v", {"w": "1"}), ("v", {"w": "1"}), ("v", {"w": "2"})
    assert agreed("e", [one, same], "v", "it") == {"w": "1"}
    with pytest.raises(RuntimeError, match="e: it holds weights 'v', not 'u'"):
        agreed("e", [one, same], "u", "it")
    with pytest.raises(RuntimeError, match="e: ranks received different weights from it"):
        agreed("e", [one, other], "v", "it")


def test_a_group_whose_other_member_never_comes_is_left(monkeypatch):
    told = Transfer("v", "nccl", "bfloat16", (BUCKET,), False, {}, "h:1/group", ("e",), deadline_s=0.3)
    message = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(TransferBroken, match=r"took more than 0 s|no broadcast from the trainer"):
        told.broadcast(message, 0, HOST, HashStore())

    def refused(*_):
        raise RuntimeError("no gloo")

    monkeypatch.setattr(transfer_module, "ProcessGroupGloo", refused)
    with pytest.raises(TransferBroken, match="no broadcast from the trainer: no gloo"):
        told._replace(meeting="h:1/another").broadcast(message, 0, HOST, HashStore())
