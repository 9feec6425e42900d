"""Pieces of weights: every element of every tensor is sent by one rank and lies in one place, for any layout."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.weights.transfer.boxes import Box, chunk, intersection, owners, whole
from rlplan.executor.weights.transfer.bucket_plan import ALIGNMENT, Source, bucket_plan, whole_source


def cut(shape, fsdp, tp, rank, tp_dim):
    """What a rank of FSDP x TP holds of a tensor: its part along `tp_dim`, and of that its part along dimension 0."""
    box = whole(shape)
    if tp_dim is not None:
        box = chunk(box, tp_dim, tp, rank % tp)
    return chunk(box, 0, fsdp, rank // tp)


@st.composite
def layouts(draw):
    """Shapes of parameters, what each rank holds of them, the checkpoint's tensors, room of a bucket in bytes."""
    fsdp, tp = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shapes = {}
    held = [{} for _ in range(fsdp * tp)]
    sources = []
    for number in range(draw(st.integers(1, 5))):
        name = f"w{number}"
        shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
        tp_dim = draw(st.sampled_from([None, *range(len(shape))]))
        shapes[name] = shape
        for rank, of_rank in enumerate(held):
            of_rank[name] = cut(shape, fsdp, tp, rank, tp_dim)
        if len(shape) == 3 and draw(st.booleans()):  # experts: a tensor of the checkpoint for each index
            for index in range(shape[0]):
                box = Box((index, 0, 0), (1, *shape[1:]))
                sources.append(Source(f"{name}.{index}", shape[1:], name, box))
        else:
            sources.append(whole_source(name, shape))
    return shapes, held, sources, draw(st.integers(1, 400))


@given(layouts())
def test_every_element_is_sent_once_to_its_place_in_the_checkpoint(layout):
    import torch

    shapes, held, sources, room = layout
    plan = bucket_plan(sources, shapes, held, "float32", room)
    values = {name: torch.rand(shape) for name, shape in shapes.items()}
    times = {source.name: torch.zeros(source.shape) for source in sources}
    got = {source.name: torch.zeros(source.shape) for source in sources}
    for rank, of_rank in enumerate(plan.pieces):
        for bucket, pieces in zip(plan.buckets, of_rank, strict=True):
            for piece in pieces:
                name = bucket.tensors[piece.tensor].name
                part = values[piece.parameter][held[rank][piece.parameter].slices][piece.local.slices]
                got[name].view(piece.shape)[piece.box.slices] = part
                times[name].view(piece.shape)[piece.box.slices] += 1
    for source in sources:
        assert bool((times[source.name] == 1).all()), source.name
        assert torch.equal(got[source.name], values[source.parameter][source.box.slices].reshape(source.shape))


@given(layouts())
def test_tensors_lie_apart_and_only_single_ones_exceed_a_buckets_room(layout):
    shapes, held, sources, room = layout
    plan = bucket_plan(sources, shapes, held, "bfloat16", room)
    assert [tensor.name for bucket in plan.buckets for tensor in bucket.tensors] == [s.name for s in sources]
    for bucket in plan.buckets:
        assert bucket.nbytes <= room or len(bucket.tensors) == 1
        end = 0
        for tensor in bucket.tensors:
            assert tensor.offset >= end and tensor.offset % ALIGNMENT == 0
            end = tensor.offset + 2 * math.prod(tensor.shape)
        assert end == bucket.nbytes
    assert plan.nbytes == 2 * sum(math.prod(shape) for shape in shapes.values())


def test_ranks_that_hold_the_same_box_share_the_work():
    loads = [0, 0, 5]
    for _ in range(4):
        owners((10,), [whole((10,))] * 3, loads)
    assert sorted(loads) == [10, 15, 20]


@pytest.mark.parametrize(
    "held",
    [
        [Box((0,), (5,)), Box((6,), (4,))],
        [Box((0,), (6,)), Box((5,), (5,))],
        [Box((0,), (6,)), Box((5,), (4,))],
        [None, None],
    ],
)
def test_boxes_that_leave_a_gap_or_overlap_are_refused(held):
    with pytest.raises(ValueError, match="do not cover a tensor of shape"):
        owners((10,), held, [0, 0])


def test_a_checkpoint_without_a_part_of_a_parameter_is_refused():
    box = Box((0, 0), (2, 3))
    with pytest.raises(ValueError, match="hold other elements than parameter w"):
        bucket_plan([Source("half", (2, 3), "w", box)], {"w": (4, 3)}, [{"w": whole((4, 3))}], "float32", 100)


def test_a_chunk_is_what_torch_cuts():
    import torch

    rng = random.Random(1)
    for _ in range(200):
        size, parts = rng.randint(1, 12), rng.randint(1, 5)
        chunks = list(torch.arange(size).chunk(parts))
        for index in range(parts):
            box = chunk(whole((size,)), 0, parts, index)
            wanted = chunks[index] if index < len(chunks) else torch.arange(0)
            assert torch.equal(torch.arange(size)[box.slices], wanted)


def test_boxes_that_only_touch_have_nothing_in_common():
    assert intersection(Box((0, 0), (2, 2)), Box((2, 0), (2, 2))) is None
    assert intersection(Box((0, 0), (2, 2)), Box((1, 1), (4, 4))) == Box((1, 1), (1, 1))
