"""The mend of vLLM's kernel on CPUs gives what vLLM documents."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.benchmarks.drafts.drafting_engine import expand, mend_expand


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.integers(0, 5)), min_size=1, max_size=12),
    st.sampled_from([torch.float32, torch.int32, torch.int64]),
)
def test_each_samples_value_stands_at_each_of_its_tokens(samples, dtype):
    values = torch.tensor([value for value, _ in samples], dtype=dtype)
    ends = torch.cumsum(torch.tensor([count for _, count in samples]), 0).to(torch.int32)
    tokens = int(ends[-1])
    wanted = [value for value, (_, count) in zip(values.tolist(), samples, strict=True) for _ in range(count)]
    assert expand(values, ends, tokens, 7, 9).tolist() == wanted and expand(values, ends, tokens).dtype is dtype
    assert expand(values, ends, tokens, 0, 1).tolist() == [1 if value == 0 else value for value in wanted]


def test_the_documented_example_of_vllm_holds():
    """x = [a, b, c] and cu_num_tokens = [2, 5, 6] give [a, a, b, b, b, c]."""
    expanded = expand(torch.tensor([1.5, 2.5, 3.5]), torch.tensor([2, 5, 6]), 6)
    assert expanded.tolist() == [1.5, 1.5, 2.5, 2.5, 2.5, 3.5]


@pytest.mark.parametrize("right", [True, False])
def test_vllms_function_is_replaced_only_if_it_is_wrong(monkeypatch, right):
    def of_vllm(values, ends, tokens, replace_from=0, replace_to=0):
        return expand(values, ends, tokens, replace_from, replace_to) + (0 if right else 1)

    kernel = SimpleNamespace(expand_batch_to_tokens=of_vllm)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample", SimpleNamespace(rejection_sampler=kernel))
    assert mend_expand() is not right
    assert kernel.expand_batch_to_tokens is (of_vllm if right else expand)
