"""Log-probabilities at the head, against torch's own over all rows at once."""

import pytest
import torch

from rlplan.executor.trainer.policy import chunked_head
from rlplan.executor.trainer.policy.chunked_head import ChunkedHead
from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.trainer.policy.packed_rows import packed_row
from rlplan.executor.trainer.policy.rank_mesh import join

from .test_trainer_rank import write_model

VOCABULARY, WIDTH = 13, 8


class Policy(torch.nn.Module):
    """What a head needs of a model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def get_output_embeddings(self):
        return self.head


@pytest.mark.parametrize("count", [1, 5, 6, 14], ids=lambda count: f"{count} rows")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_and_blocks_of_rows_give_what_all_rows_at_once_give(monkeypatch, count, temperature):
    monkeypatch.setitem(chunked_head.BLOCK_ELEMENTS, "cpu", 2 * VOCABULARY)  # two rows
    plain, chunked = Policy(), Policy()
    head = ChunkedHead(chunked, temperature, rows=5)
    hidden = 3.0 * torch.randn(1, count, WIDTH)
    targets, weights = torch.randint(0, VOCABULARY, (count,)), torch.randn(count)
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()

    head.expect(targets)
    found = chunked.head(ours)[0]
    (found[:, 0] * weights).sum().backward()
    logs = (plain.head(theirs)[0] / temperature).log_softmax(-1)
    logprobs = logs.gather(1, targets[:, None])[:, 0]
    (logprobs * weights).sum().backward()

    torch.testing.assert_close(found[:, 0], logprobs)
    torch.testing.assert_close(found[:, 1], -(logs.exp() * logs).sum(-1))
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(chunked.head.weight.grad, plain.head.weight.grad)


def test_rows_of_the_smaller_chunk_alone_are_computed_again():
    policy, computed = Policy(), []
    forward = policy.head.forward
    policy.head.forward = lambda rows: computed.append(rows.shape[1]) or forward(rows)
    head = ChunkedHead(policy, 1.0, rows=5)
    head.expect(torch.zeros(6, dtype=torch.long))
    policy.head(torch.randn(1, 6, WIDTH, requires_grad=True))[0, :, 0].sum().backward()
    assert computed == [1, 5, 1]


def test_a_token_that_cannot_be_drawn_has_no_part_in_the_entropy():
    policy = Policy()
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(torch.tensor([0.0, 0.0] + [-torch.inf] * (VOCABULARY - 2)))
    head = ChunkedHead(policy, 1.0)
    head.expect(torch.tensor([1]))
    found = policy.head(torch.randn(1, 1, WIDTH))
    torch.testing.assert_close(found.flatten().detach(), torch.tensor([-1.0, 1.0]) * torch.tensor(2.0).log())


def test_logits_that_are_not_finite_give_log_probabilities_that_are_not():
    policy = Policy()
    with torch.no_grad():
        policy.head.bias[3] = torch.inf
    head = ChunkedHead(policy, 1.0)
    head.expect(torch.tensor([1]))
    assert not policy.head(torch.randn(1, 1, WIDTH))[0, 0, 0].isfinite()


def passes(logits, targets, weights):
    """Log-probabilities, entropies, and the gradient of their weighted sum."""
    ours = logits.clone().requires_grad_()
    logprobs, entropies = chunked_head._Logprobs.apply(ours, targets, 0.7, False)
    (logprobs * weights).sum().backward()
    return logprobs.detach(), entropies, ours.grad


def test_entropies_have_a_gradient_where_the_head_explores():
    logits, targets = 3.0 * torch.randn(6, VOCABULARY), torch.randint(0, VOCABULARY - 1, (6,))
    logits[:, -1] = -torch.inf
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    weights, pulls = torch.randn(6), torch.randn(6)
    logprobs, entropies = chunked_head._Logprobs.apply(ours, targets, 0.7, True)
    (logprobs * weights + entropies * pulls).sum().backward()
    logs = (theirs / 0.7).log_softmax(-1)
    plain = -(logs[:, :-1].exp() * logs[:, :-1]).sum(-1)
    (logs.gather(1, targets[:, None])[:, 0] * weights + plain * pulls).sum().backward()
    torch.testing.assert_close(ours.grad[:, :-1], theirs.grad[:, :-1])
    assert not ours.grad[:, -1].any()


def test_compiled_passes_equal_the_blocks_and_are_compiled_once(monkeypatch):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compile_ = torch.compile
    compiled = chunked_head._Passes()
    monkeypatch.setattr(torch, "compile", lambda formula: compile_(formula, backend=backend))
    for count in (5, 3, 9, 14):
        logits, targets = 3.0 * torch.randn(count, VOCABULARY), torch.randint(0, VOCABULARY, (count,))
        weights = torch.randn(count)
        blocks = passes(logits, targets, weights)
        with monkeypatch.context() as patch:
            patch.setattr(chunked_head._PASSES, "run", compiled.compiled)
            for found, expected in zip(passes(logits, targets, weights), blocks, strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert len(graphs) == 2, "one forward and one backward, for all numbers of rows"


def test_where_compiling_fails_blocks_of_rows_take_over_and_say_so_once(monkeypatch, caplog):
    passes, tries = chunked_head._Passes(), []

    def fails(*_):
        tries.append(1)
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(passes, "compiled", fails)
    monkeypatch.setitem(chunked_head.BLOCK_ELEMENTS, "meta", 2 * VOCABULARY)
    logits = torch.randn(5, VOCABULARY, device="meta")
    for _ in range(2):
        total, entropy = passes.run(chunked_head._statistics, logits, 1.0)
        assert total.shape == entropy.shape == (5,)
    assert len(tries) == 1
    assert [record.message.count("\n") for record in caplog.records] == [0]
    assert caplog.records[0].message.endswith("slower: no compiler")
    monkeypatch.setattr(chunked_head._Passes, "compiled", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError):
        chunked_head._Passes().run(chunked_head._statistics, logits, 1.0)


@pytest.mark.parametrize("fused", [False, True])
def test_a_float32_head_multiplies_half_precision_without_rounding(monkeypatch, fused):
    plain = torch.mm
    monkeypatch.setattr(  # as CUDA's: no CPU kernel takes this argument
        torch, "mm", lambda a, b, out_dtype=None: plain(a.float(), b.float()) if out_dtype else plain(a, b)
    )
    policy = Policy().to(torch.bfloat16)
    chunked_head.float32_head(policy)
    rows, outer = torch.randn(1, 6, WIDTH).bfloat16().requires_grad_(), torch.randn(1, 6, VOCABULARY)
    matrix, bias = policy.head.weight, policy.head.bias
    logits = chunked_head._Float32Product.apply(rows, matrix) + bias.float() if fused else policy.head(rows)
    wide = [x.detach().float().requires_grad_() for x in (rows, matrix)]
    expected = torch.nn.functional.linear(*wide, bias.float())
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    (logits * outer).sum().backward()
    (expected * outer).sum().backward()
    for found, exact in zip((rows.grad, matrix.grad), wide, strict=True):
        torch.testing.assert_close(found.float(), exact.grad, rtol=2e-2, atol=2e-2)


def test_a_trainer_in_bfloat16_with_a_float32_head_rounds_no_logit(tmp_path):
    cpu, mesh = torch.device("cpu"), join(0, 1, 1, 1, torch.device("cpu"), None)
    try:
        path, logits = write_model(tmp_path, tie_word_embeddings=False), {}
        for head_dtype in (None, "float32"):
            policy = load_policy(path, "bfloat16", cpu, mesh, head_dtype)
            row = packed_row([([1, 2], [3, 4, 5])], cpu)
            with torch.no_grad():
                logits[head_dtype] = policy(
                    input_ids=row.input_ids, position_ids=row.position_ids, use_cache=False, packed=row.packed
                ).logits
    finally:
        torch.distributed.destroy_process_group()
    assert (logits[None].dtype, logits["float32"].dtype) == (torch.bfloat16, torch.float32)
    assert not torch.equal(logits["float32"], logits[None].float())
    torch.testing.assert_close(logits["float32"].bfloat16(), logits[None], rtol=1e-2, atol=1e-2)
