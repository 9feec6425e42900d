"""Drafts verified by drawing: what each sample gets is what it draws without drafts, by a sampler that draws as vLLM's
does. Engines with vLLM's own are in test_drafting_engine.py."""

import contextlib
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.drafts.drawn_verification import DrawnVerification
from rlplan.executor.engines.seeded_sampling import drawn

VOCABULARY, MOST, REJECTED = 12, 4, -1


@dataclass
class Sampling:
    """What verification looks at of vLLM's `SamplingMetadata`."""

    temperature: Any


class LogProbs(NamedTuple):
    tokens: Any
    logprobs: Any
    ranks: Any
    per_request: Any = None


@dataclass
class Output:
    sampled_token_ids: Any
    logprobs_tensors: Any


class Sampler:
    """Draws with the seed 100 + row, at the place `begin` of the row's first output and those that follow."""

    def __init__(self, begins):
        self.begins, self.rows, self.tokens = torch.tensor(begins), None, None

    @contextlib.contextmanager
    def at(self, rows, tokens):
        self.rows, self.tokens = rows, tokens
        yield
        self.rows = self.tokens = None

    def __call__(self, logits, sampling):
        firsts = torch.tensor([int((self.rows < row).sum()) for row in self.rows])
        places = self.begins[self.rows] + torch.arange(len(self.rows)) - firsts
        assert torch.equal(self.tokens, torch.arange(len(self.rows)))
        return self.draw(logits, self.rows, places, sampling.temperature)

    def draw(self, logits, rows, places, temperature):
        warm = torch.ones(len(rows)) if temperature is None else temperature
        logs = (logits / torch.where(warm == 0, 1.0, warm)[:, None]).log_softmax(-1)
        ids = torch.where(warm == 0, logs.argmax(-1), drawn(logs, 100 + rows, places))[:, None]
        return Output(ids, LogProbs(ids, logs.gather(1, ids), ids))


def draft_metadata(drafts):
    """What verification looks at of vLLM's `SpecDecodeMetadata`, of each sample's drafted tokens."""
    ends = np.cumsum([len(draft) + 1 for draft in drafts])
    targets = [end - 1 - len(draft) + k for end, draft in zip(ends, drafts, strict=True) for k in range(len(draft))]
    return SimpleNamespace(
        num_draft_tokens=[len(draft) for draft in drafts],
        logits_indices=torch.arange(int(ends[-1])),
        target_logits_indices=torch.tensor(targets, dtype=torch.int32),
        draft_token_ids=torch.tensor([token for draft in drafts for token in draft], dtype=torch.int32),
    )


@pytest.mark.parametrize("case", range(12))
def test_each_sample_gets_what_it_draws_token_by_token(case):
    chosen = random.Random(case)
    samples = chosen.randint(1, 6)
    temperatures = torch.tensor([chosen.choice([0.0, 0.5, 1.0]) for _ in range(samples)])
    generator = torch.Generator().manual_seed(case)
    outputs = [3 * torch.randn(chosen.randint(0, MOST) + 1, VOCABULARY, generator=generator) for _ in range(samples)]
    sampler = Sampler([chosen.randint(0, 5) for _ in range(samples)])
    # Drafts that hold up to a place by chance, and one that is wrong there.
    wanted, drafts, kept = [], [], []
    for row, places in enumerate(outputs):
        rows = torch.full((len(places),), row)
        alone = sampler.draw(places, rows, sampler.begins[row] + torch.arange(len(places)), temperatures[rows])
        texts = alone.sampled_token_ids.ravel().tolist()
        wanted.append(list(zip(texts, alone.logprobs_tensors.logprobs.ravel().tolist(), strict=True)))
        right = chosen.randint(0, len(texts) - 1)
        del texts[-1]
        if right < len(texts):
            texts[right] = (texts[right] + 1) % VOCABULARY
        drafts.append(texts)
        kept.append(right + 1)
    done = DrawnVerification(sampler, sampler)(draft_metadata(drafts), None, torch.cat(outputs), Sampling(temperatures))
    width = max(map(len, drafts)) + 1
    assert done.sampled_token_ids.shape == (samples, width) and done.sampled_token_ids.dtype == torch.int32
    log_probs = done.logprobs_tensors.logprobs.reshape(samples, width)
    for row, (draws, keep) in enumerate(zip(wanted, kept, strict=True)):
        tokens = done.sampled_token_ids[row].tolist()
        assert tokens == [token for token, _ in draws[:keep]] + [REJECTED] * (width - keep)
        assert log_probs[row, :keep].tolist() == pytest.approx([value for _, value in draws[:keep]], abs=1e-6)
    assert sampler.rows is None, "the next step draws for the last token of each row"


def test_a_batch_of_greedy_samples_has_no_temperatures():
    sampler, outputs = Sampler([0]), torch.zeros(2, VOCABULARY)
    outputs[0, 3] = outputs[1, 5] = 50.0
    done = DrawnVerification(sampler, sampler)(draft_metadata([[3]]), None, outputs, Sampling(None))
    assert done.sampled_token_ids.tolist() == [[3, 5]]
