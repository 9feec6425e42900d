"""Samples drawn by seed and place: random enough, from the distribution that was asked for, and of nothing else."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.engines import seeded_sampling
from rlplan.executor.engines.seeded_sampling import SeededSampling, drawn, mixed, uniform
from rlplan.executor.engines.vllm_options import SEED

ON_CPU = seeded_sampling.drawn_on_cpu
SAME = torch.full((200,), 12345)
COUNTED = torch.arange(200)


def strangeness(counts, expected):
    """How many standard deviations Pearson's chi-square is off its mean."""
    counts, expected = counts.double(), torch.as_tensor(expected, dtype=torch.float64).expand(counts.shape)
    freedom = counts.numel() - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def test_no_two_integers_are_mixed_to_the_same_one():
    numbers = torch.arange(-(2**31), 2**31, 4099, dtype=torch.int64).to(torch.int32)
    assert len(mixed(numbers).unique()) == len(numbers)
    # C's lowbias32, by arithmetic without wrapping.
    for number in (0, 1, 5, 2**31 - 1, 2**31, 2**32 - 1):
        x = number
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        x ^= x >> 16
        assert int(mixed(torch.tensor([number]).to(torch.int32))) % 2**32 == x


@pytest.mark.parametrize(
    ("seeds", "places"), [(COUNTED, SAME), (SAME, COUNTED), (COUNTED << 24, SAME)], ids=["seeds", "places", "high bits"]
)
def test_numbers_are_uniform_and_independent_along_each_axis(seeds, places):
    numbers = uniform(seeds, places, 4000)
    assert numbers.min() > 0 and numbers.max() < 1
    cells = (numbers * 16).long()
    assert abs(strangeness(torch.bincount((numbers * 256).long().ravel(), minlength=256), numbers.numel() / 256)) < 5
    for one, next_one in ((cells[:-1], cells[1:]), (cells[:, :-1], cells[:, 1:])):
        pairs = torch.bincount((16 * one + next_one).ravel(), minlength=256)
        assert abs(strangeness(pairs, pairs.sum() / 256)) < 5
    correlations = torch.corrcoef(numbers.double()).fill_diagonal_(0)
    assert correlations.abs().max() < 6 / 4000**0.5


def test_tokens_have_the_chances_that_logits_give_them():
    logits = 2 * torch.randn(40, generator=torch.Generator().manual_seed(3))
    chances = logits.double().softmax(0)
    draws = torch.arange(100_000)
    tokens = drawn(logits.expand(len(draws), -1), draws % 50, draws // 50)
    assert abs(strangeness(torch.bincount(tokens, minlength=40), chances * len(draws))) < 5
    likely = chances > 0.02
    for apart in (1, 50):  # the next seed, the next place
        pairs = torch.zeros(40, 40).index_put_((tokens[:-apart], tokens[apart:]), torch.ones(()), accumulate=True)
        expected = torch.outer(chances, chances) * (len(draws) - apart)
        assert abs(strangeness(pairs[likely][:, likely].ravel(), expected[likely][:, likely].ravel())) < 5


@pytest.mark.parametrize(("bits", "number"), [(0, 2.0**-33), (1, 1.5 * 2.0**-32), (-(2**31), 0.5), (-1, 1 - 2.0**-24)])
def test_a_token_without_rivals_is_drawn_whatever_its_number(monkeypatch, bits, number):
    monkeypatch.setattr(seeded_sampling, "mixed", lambda each: torch.full_like(each, bits))
    assert uniform(COUNTED, SAME, 3).unique().item() == number, "0 or 1 would make it as bad as the others"
    logits = torch.full((200, 3), -torch.inf)
    logits[:, 1] = 0.0
    assert drawn(logits, COUNTED, SAME).unique().tolist() == [1]


def test_the_kernel_on_cpus_has_other_bits_for_each_seed_and_place(monkeypatch):
    kernel = SimpleNamespace(fused_gumbel_argmax=lambda logits, bits: bits)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(_C=kernel))
    seeds, places = (2**32 - 1 - COUNTED).repeat_interleave(200), COUNTED.repeat(200)
    assert len(ON_CPU(None, seeds, places).unique()) == len(seeds)


class Runner:
    """What is looked at of vLLM's model runner, in a step of requests `seeds` at the `positions` of all its tokens."""

    def __init__(self, seeds, lengths):
        self.device = torch.device("cpu")
        self.sampler = SimpleNamespace(topk_topp_sampler=SimpleNamespace(forward=lambda *arguments: "vLLM's"))
        self.input_batch = SimpleNamespace(vocab_size=30, req_ids=[])
        self.requests, self.positions = {}, torch.zeros(8, dtype=torch.int64)
        self.query_start_loc = SimpleNamespace(gpu=torch.zeros(9, dtype=torch.int64))
        self.seeded = SeededSampling(self)
        self.step(seeds, lengths)

    def step(self, seeds, lengths):
        """Each request computes its last token, and draws the one behind its `lengths`."""
        self.input_batch.req_ids[:] = seeds
        for name, seed in seeds.items():
            arguments = None if seed is None else {SEED: seed}
            self.requests[name] = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=arguments))
        self.positions = torch.tensor([length - 1 for length in lengths])
        self.query_start_loc.gpu = torch.arange(len(lengths) + 1)

    def draw(self, logits, *limits):
        return self.sampler.topk_topp_sampler.forward(logits, {}, *(limits or (None, None)))


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(seeded_sampling, "drawn_on_cpu", drawn)


LOGITS = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))


def test_a_request_draws_the_same_wherever_it_is_in_a_batch():
    runner = Runner({"a": 7, "b": 8, "c": 9}, [5, 6, 7])
    tokens, logs = runner.draw(LOGITS[:3])
    assert torch.equal(tokens, drawn(LOGITS[:3], torch.tensor([7, 8, 9]), torch.tensor([4, 5, 6])))
    assert torch.allclose(logs, LOGITS[:3].log_softmax(-1))
    runner.step({"c": 9, "d": 1, "a": 7}, [7, 3, 5])
    again, _ = runner.draw(LOGITS[[2, 3, 0]])
    assert (again[0], again[2]) == (tokens[2], tokens[0])
    moved = Runner({"a+": 7}, [5])  # on another engine, where what it has decoded is part of its prompt
    assert moved.draw(LOGITS[:1])[0] == tokens[0]


def test_places_of_drafts_are_those_of_their_tokens():
    runner = Runner({"a": 7, "b": 8}, [5, 6])
    runner.positions = torch.tensor([4, 5, 6, 9])
    with runner.seeded.at(torch.tensor([0, 0, 0, 1]), torch.arange(4)):
        tokens, _ = runner.draw(LOGITS)
    assert torch.equal(tokens, drawn(LOGITS, torch.tensor([7, 7, 7, 8]), runner.positions))


def test_batches_without_seeds_are_vllms_and_mixed_ones_have_seeds_by_id():
    runner = Runner({"a": None, "b": None}, [5, 6])
    assert runner.draw(LOGITS[:2]) == "vLLM's" and Runner({}, []).draw(LOGITS) == "vLLM's"
    runner.step({"c": None, "d": 8}, [5, 6])
    tokens, _ = runner.draw(LOGITS[:2])
    assert torch.equal(tokens, Runner({"x": 3, "c": None, "d": 8}, [5, 5, 6]).draw(LOGITS[[0, 0, 1]])[0][1:])
    assert runner.draw(LOGITS[:2], torch.tensor([3, 3]), None) == "vLLM's", "of what our requests never ask"
