"""Drafts verified by drawing: what each sample gets is what it draws without drafts, by a sampler that draws as vLLM's
does. Engines with vLLM's own are in test_drafting_engine.py."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.drafts.drawn_verification import DrawnVerification

VOCABULARY, MOST, REJECTED = 12, 4, -1


class NeverCalled:
    def __call__(self, *args):
        raise AssertionError("left to vLLM's verification")


class Processors(NamedTuple):
    """Of logits."""

    argmax_invariant: Any = ()
    non_argmax_invariant: Any = ()


NO_PROCESSORS = Processors()


@dataclass
class Sampling:
    """What verification looks at of vLLM's `SamplingMetadata`."""

    temperature: Any
    generators: Any
    top_k: Any = None
    top_p: Any = None
    no_penalties: bool = True
    bad_words_token_ids: Any = None
    allowed_token_ids_mask: Any = None
    logprob_token_ids: Any = None
    thinking_budget_state_holder: Any = None
    logitsprocs: Any = NO_PROCESSORS


class LogProbs(NamedTuple):
    tokens: Any
    logprobs: Any
    ranks: Any
    per_request: Any = None


@dataclass
class Output:
    sampled_token_ids: Any
    logprobs_tensors: Any


def draw(logits, sampling):
    """A token of each row: one number of a row's generator is the seed of its noise, and the best keep their place."""
    tokens, logprobs = [], []
    for row, values in enumerate(logits):
        temperature = float(sampling.temperature[row])
        if sampling.top_k is not None:
            values = values.masked_fill(values < values.topk(int(sampling.top_k[row])).values[-1], -torch.inf)
        logs = (values / (temperature or 1.0)).log_softmax(-1)
        noise = torch.ones(VOCABULARY)
        if temperature:
            seed = int(torch.randint(0, 2**31, (1,), generator=sampling.generators.get(row)))
            noise.exponential_(generator=torch.Generator().manual_seed(seed))
        tokens.append(int((logs.exp() / noise).argmax()))
        logprobs.append(logs[tokens[-1]])
    ids = torch.tensor(tokens)[:, None]
    return Output(ids, LogProbs(ids, torch.stack(logprobs)[:, None], ids))


def draft_metadata(drafts):
    """What verification looks at of vLLM's `SpecDecodeMetadata`, of each sample's drafted tokens."""
    ends = np.cumsum([len(draft) + 1 for draft in drafts])
    targets = [end - 1 - len(draft) + k for end, draft in zip(ends, drafts, strict=True) for k in range(len(draft))]
    return SimpleNamespace(
        num_draft_tokens=[len(draft) for draft in drafts],
        target_logits_indices=torch.tensor(targets, dtype=torch.int32),
        draft_token_ids=torch.tensor([token for draft in drafts for token in draft], dtype=torch.int32),
    )


@pytest.mark.parametrize("case", range(12))
def test_each_sample_gets_what_it_draws_token_by_token(case):
    drawn = random.Random(case)
    samples = drawn.randint(1, 6)
    temperatures = [drawn.choice([0.0, 0.5, 1.0]) for _ in range(samples)]
    limits = [drawn.choice([2, VOCABULARY]) if temperature else VOCABULARY for temperature in temperatures]
    top_k = torch.tensor(limits) if case % 3 == 0 else None

    def generators():
        # A greedy sample has none in vLLM's batch.
        return {row: torch.Generator().manual_seed(100 + row) for row in range(samples) if temperatures[row]}

    outputs = [3 * torch.randn(drawn.randint(0, MOST) + 1, VOCABULARY) for _ in range(samples)]
    alone, wanted = generators(), []
    for row, places in enumerate(outputs):
        own = {0: alone[row]} if row in alone else {}
        draws = []
        for place in places:
            limit = None if top_k is None else top_k[row : row + 1]
            done = draw(place[None], Sampling([temperatures[row]], own, limit))
            draws.append((int(done.sampled_token_ids), float(done.logprobs_tensors.logprobs[0, 0])))
        wanted.append(draws)
    # Drafts that hold up to a place by chance, and one that is wrong there.
    drafts, kept = [], []
    for draws in wanted:
        right = drawn.randint(0, len(draws) - 1)
        texts = [token for token, _ in draws[:-1]]
        if right < len(texts):
            texts[right] = (texts[right] + 1) % VOCABULARY
        drafts.append(texts)
        kept.append(right + 1)
    mine = generators()
    sampling = Sampling(torch.tensor(temperatures), mine, top_k)
    done = DrawnVerification(NeverCalled(), draw)(draft_metadata(drafts), None, torch.cat(outputs), sampling)
    width = max(map(len, drafts)) + 1
    assert done.sampled_token_ids.shape == (samples, width) and done.sampled_token_ids.dtype == torch.int32
    log_probs = done.logprobs_tensors.logprobs.reshape(samples, width)
    for row, (draws, keep) in enumerate(zip(wanted, kept, strict=True)):
        tokens = done.sampled_token_ids[row].tolist()
        assert tokens == [token for token, _ in draws[:keep]] + [REJECTED] * (width - keep)
        assert log_probs[row, :keep].tolist() == pytest.approx([value for _, value in draws[:keep]], abs=1e-6)
        if row in mine:  # it has drawn one number a token, and none for what was rejected
            told = torch.Generator().manual_seed(100 + row)
            for _ in range(keep):
                torch.randint(0, 2**31, (1,), generator=told)
            assert torch.equal(mine[row].get_state(), told.get_state())


def processors(*states):
    first, *others = (SimpleNamespace(**state) for state in states)
    return {"logitsprocs": Processors([first], others)}


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({}, False),
        ({"no_penalties": False}, True),
        ({"bad_words_token_ids": {0: [[1]]}}, True),
        ({"allowed_token_ids_mask": 1}, True),
        ({"logprob_token_ids": {0: [1]}}, True),
        ({"thinking_budget_state_holder": SimpleNamespace(has_tracked_requests=lambda: False)}, False),
        ({"thinking_budget_state_holder": SimpleNamespace(has_tracked_requests=lambda: True)}, True),
        (processors({"min_p_count": 0}, {"biases": {}}, {"min_toks": {}}), False),
        (processors({"min_p_count": 0}, {"biases": {0: {1: 2.0}}}), True),
        (processors({"min_p_count": 1}), True),
        (processors({}), True),  # one that nobody knows may change any
    ],
)
def test_rules_on_earlier_tokens_and_drafts_with_chances_are_left_to_vllm(rules, left):
    verify = DrawnVerification(lambda *arguments: arguments, draw)
    drafts, outputs = draft_metadata([[1]]), torch.randn(2, VOCABULARY)
    sampling = replace(Sampling(torch.tensor([1.0]), {}), **rules)
    assert (verify(drafts, None, outputs, sampling) == (drafts, None, outputs, sampling)) is left
    chances = torch.ones(1, VOCABULARY)
    assert verify(drafts, chances, outputs, sampling) == (drafts, chances, outputs, sampling)
