"""Drafts verified by drawing, with vLLM's own sampler: what each sample gets is what it draws without drafts."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import numpy as np
import torch

from rlplan.executor.drafts.drawn_verification import REJECTED, DrawnVerification

VOCABULARY = 12
MOST = 4


class NeverCalled:
    def __call__(self, *args):
        raise AssertionError("left to vLLM's verification")


def metadata(temperatures, generators, **more):
    """vLLM's, of samples at these temperatures."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    greedy = [temperature == 0.0 for temperature in temperatures]
    nothing = torch.empty(0)
    values = {
        "temperature": torch.tensor(temperatures), "all_greedy": all(greedy), "all_random": not any(greedy),
        "top_p": None, "top_k": None, "generators": generators, "max_num_logprobs": 0, "no_penalties": True,
        "prompt_token_ids": None, "frequency_penalties": nothing, "presence_penalties": nothing,
        "repetition_penalties": nothing, "output_token_ids": [[] for _ in temperatures],
        "allowed_token_ids_mask": None, "bad_words_token_ids": {}, "logitsprocs": LogitsProcessors(),
    }  # fmt: skip
    return SamplingMetadata(**(values | more))


def draft_metadata(drafts):
    """vLLM's, of each sample's drafted tokens."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    made = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    places = np.array([len(draft) + 1 for draft in drafts])
    ends = np.cumsum(places)
    targets = [begin + k for begin, draft in zip(ends - places, drafts, strict=True) for k in range(len(draft))]
    made.target_logits_indices = torch.tensor(targets, dtype=torch.int32)
    made.bonus_logits_indices = torch.tensor(ends - 1, dtype=torch.int32)
    return made


@pytest.fixture(scope="module")
def sampler():
    from vllm.v1.sample.sampler import Sampler

    return Sampler("processed_logprobs")


@pytest.mark.parametrize("case", range(12))
def test_each_sample_has_the_tokens_and_log_probs_that_it_draws_one_by_one(sampler, case):
    drawn = random.Random(case)
    torch.manual_seed(case)
    samples = drawn.randint(1, 6)
    temperatures = [drawn.choice([0.0, 0.5, 1.0]) for _ in range(samples)]
    # vLLM sets no limit for greedy samples.
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
            one = metadata([temperatures[row]], own, top_k=None if top_k is None else top_k[row : row + 1])
            done = sampler(place[None].clone(), one)
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
    verify = DrawnVerification(NeverCalled(), sampler)
    done = verify(draft_metadata(drafts), None, torch.cat(outputs).clone(), metadata(temperatures, mine, top_k=top_k))
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


def test_samples_without_seeds_are_of_the_policy(sampler):
    """Of 20,000 samples whose draft is token 0: token 0 has its chance, and the others theirs."""
    torch.manual_seed(0)
    samples, chances = 20_000, torch.tensor([0.5, 0.3, 0.2] + [0.0] * (VOCABULARY - 3))
    outputs = chances.log().clamp(min=-1e9).repeat(2 * samples, 1)
    verify = DrawnVerification(NeverCalled(), sampler)
    done = verify(draft_metadata([[0]] * samples), None, outputs, metadata([1.0] * samples, {}))
    first, second = done.sampled_token_ids.unbind(1)
    shares = torch.bincount(first, minlength=VOCABULARY) / samples
    assert torch.allclose(shares, chances, atol=0.015)  # four standard deviations
    assert torch.equal(second == REJECTED, first != 0)


def test_rules_on_earlier_tokens_and_drafts_with_chances_are_left_to_vllm(sampler):
    asked = []

    def by_vllm(*arguments):
        asked.append(arguments)
        return "vllm's"

    verify = DrawnVerification(by_vllm, sampler)
    drafts, outputs = draft_metadata([[1]]), torch.randn(2, VOCABULARY)
    penalties = metadata([1.0], {}, no_penalties=False)
    words = metadata([1.0], {}, bad_words_token_ids={0: [[1]]})
    plain = metadata([1.0], {})
    active = metadata([1.0], {})
    active.logitsprocs.non_argmax_invariant.append(SimpleNamespace(biases={0: {1: 2.0}}))
    assert [verify(drafts, None, outputs, each) for each in (penalties, words, active)] == ["vllm's"] * 3
    assert verify(drafts, torch.ones(1, VOCABULARY), outputs, plain) == "vllm's" and len(asked) == 4
