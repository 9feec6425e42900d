"""Attention over packed rows: one launch for a row gives what the loop over its sequences gives."""

import math

import pytest
import torch

from rlplan.executor.trainer.policy import attention
from rlplan.executor.trainer.policy.attention import PackedSequences, kernel, varlen_attention
from rlplan.executor.trainer.policy.rank_mesh import join

CPU = torch.device("cpu")
LENGTHS = (5, 1, 9, 2, 3)  # the last one is padding
SIZE = 8


def plain_varlen(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    """`torch.nn.attention.varlen.varlen_attn` in plain words, which has no CPU kernel: position i of a sequence sees
    from i - left to i + right, both included, where a negative side is unbounded."""
    assert q.dim() == k.dim() == v.dim() == 3 and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert enable_gqa or q.shape[1] == k.shape[1]
    assert (isinstance(max_q, int), max_q) == (True, int(cu_seq_q.diff().max())) and max_k == max_q
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    left, right = (math.inf if side < 0 else side for side in window_size)
    outputs = []
    for first, last in zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False):
        scores = torch.einsum("ihd,jhd->hij", q[first:last], k[first:last]) * (scale or q.shape[-1] ** -0.5)
        places = torch.arange(last - first)
        ahead = places[None] - places[:, None]
        scores = scores.masked_fill((ahead > right) | (-ahead > left), -math.inf)
        outputs.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v[first:last]))
    return torch.cat(outputs)


def output_and_gradients(packed, heads, key_values, window, scale=0.3):
    torch.manual_seed(0)
    tokens = sum(packed.lengths)
    states = [torch.randn(1, count, tokens, SIZE, requires_grad=True) for count in (heads, key_values, key_values)]
    module = torch.nn.Identity()
    output, _ = varlen_attention(module, *states, None, scaling=scale, sliding_window=window, packed=packed)
    assert output.shape == (1, tokens, heads, SIZE)
    (output * torch.randn(output.shape)).sum().backward()
    return [output.detach(), *(x.grad for x in states)]


@pytest.fixture
def calls(monkeypatch):
    """Rows are one launch, on this CPU too; what each launch was given."""
    seen = []

    def counted(*given, **named):
        seen.append((given[1].shape[1], named["window_size"]))
        return plain_varlen(*given, **named)

    monkeypatch.setattr(attention, "varlen_attn", counted)
    return seen


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize(("heads", "key_values"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("shares_heads", [True, False])
def test_one_launch_for_a_row_equals_the_loop(monkeypatch, calls, window, heads, key_values, shares_heads):
    packed = PackedSequences.of(LENGTHS, CPU)
    loop = output_and_gradients(packed, heads, key_values, window)
    assert not calls
    monkeypatch.setattr(attention, "kernel", lambda *_: "row")
    monkeypatch.setattr(attention, "SHARES_HEADS", shares_heads)
    row = output_and_gradients(packed, heads, key_values, window)
    assert calls == [(key_values if shares_heads else heads, (-1 if window is None else window - 1, 0))]
    for found, expected in zip(row, loop, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_whole_row_is_launched_after_tokens_were_swapped_for_heads(monkeypatch, calls):
    alone = output_and_gradients(PackedSequences.of(LENGTHS, CPU), 4, 2, None)
    monkeypatch.setattr(attention, "kernel", lambda *_: "row")
    group = join(0, 1, 1, 1, CPU, None).batch_group
    try:
        shared = output_and_gradients(PackedSequences.of(LENGTHS, CPU, group), 4, 2, None)
    finally:
        torch.distributed.destroy_process_group()
    assert len(calls) == 1
    for found, expected in zip(shared, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "head_size", "capability", "found"),
    [
        (torch.bfloat16, 128, (9, 0), "row"),
        (torch.float16, 256, (8, 0), "row"),
        (torch.float32, 128, (9, 0), "loop"),
        (torch.bfloat16, 264, (9, 0), "loop"),
        (torch.bfloat16, 60, (9, 0), "loop"),
        (torch.bfloat16, 64, (7, 5), "loop"),
        (torch.bfloat16, 64, (0, 0), "loop"),
    ],
)
def test_the_kernel_follows_from_type_heads_and_device(dtype, head_size, capability, found):
    assert kernel(dtype, head_size, capability) == found


def test_the_loop_never_takes_cudnn(monkeypatch):
    seen = []
    compute = attention.functional.scaled_dot_product_attention

    def watched(*given, **named):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return compute(*given, **named)

    monkeypatch.setattr(attention.functional, "scaled_dot_product_attention", watched)
    output_and_gradients(PackedSequences.of(LENGTHS, CPU), 2, 2, None)
    assert seen == [False] * len(LENGTHS)


def test_attention_that_needs_more_than_packed_rows_is_refused():
    x = torch.zeros(1, 1, 2, 4)
    packed = PackedSequences.of((2,), CPU)
    for options, says in (
        ({}, "gets no packed sequences"),
        ({"packed": packed, "softcap": 1.0}, "has no softcap"),
        ({"packed": packed, "dropout": 0.1}, "has no dropout"),
        ({"packed": packed, "attention_mask": x}, "has no mask"),
    ):
        with pytest.raises(ValueError, match=says):
            varlen_attention(torch.nn.Identity(), x, x, x, **({"attention_mask": None} | options))
