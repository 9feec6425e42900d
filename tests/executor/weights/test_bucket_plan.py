"""Buckets of weights: every element of every tensor lies in one place, whoever holds it, for any layout."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.weights.bucket_plan import (
    ALIGNMENT,
    Box,
    TensorSource,
    buckets_of,
    chunk,
    copies_of,
    cuts_of,
    whole_box,
)


def cut(shape, fsdp, tp, rank, tp_dim):
    """What a rank of FSDP x TP holds of a tensor: its part along `tp_dim`, and of that its part along dimension 0."""
    box = whole_box(shape)
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
                sources.append(TensorSource(f"{name}.{index}", shape[1:], name, box))
        else:
            sources.append(TensorSource(name, shape, name, whole_box(shape)))
    return shapes, held, sources, draw(st.integers(1, 400))


@given(layouts())
def test_every_element_has_its_place_in_the_checkpoint(layout):
    import torch

    shapes, held, sources, room = layout
    values = {name: torch.rand(shape) for name, shape in shapes.items()}
    for bucket in buckets_of(sources, 4, room):
        for source, shares in zip(bucket.sources, cuts_of(bucket, held), strict=True):
            got = torch.full(source.box.shape, torch.nan)
            for rank, (local, place, numel) in shares.items():
                part = values[source.parameter][held[rank][source.parameter].slices][local]
                assert part.numel() == numel > 0
                got[place] = part
            assert torch.equal(got, values[source.parameter][source.box.slices]), source.name


@given(layouts())
def test_tensors_lie_apart_and_only_single_ones_exceed_a_buckets_room(layout):
    _, _, sources, room = layout
    buckets = buckets_of(sources, 2, room)
    assert [source for bucket in buckets for source in bucket.sources] == sources
    for bucket in buckets:
        assert bucket.nbytes <= room or len(bucket.sources) == 1
        end = 0
        for source, offset in zip(bucket.sources, bucket.offsets, strict=True):
            assert offset >= end and offset % ALIGNMENT == 0
            end = offset + 2 * math.prod(source.shape)
        assert end == bucket.nbytes


@given(layouts(), st.integers(1, 3))
def test_ranks_gather_within_blocks_that_hold_the_model_once(layout, copies):
    shapes, held, _, _ = layout
    once = copies_of(held)
    for name, shape in shapes.items():
        assert sum(math.prod(box.shape) for box in {of_rank[name] for of_rank in held[:once]}) == math.prod(shape)
    assert copies_of(held * copies) == once


def test_a_chunk_is_what_torch_cuts():
    import torch

    rng = random.Random(1)
    for _ in range(200):
        size, parts = rng.randint(1, 12), rng.randint(1, 5)
        chunks = list(torch.arange(size).chunk(parts))
        for index in range(parts):
            box = chunk(whole_box((size,)), 0, parts, index)
            wanted = chunks[index] if index < len(chunks) else torch.arange(0)
            assert torch.equal(torch.arange(size)[box.slices], wanted)
