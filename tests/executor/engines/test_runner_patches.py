"""What is replaced in vLLM's model runner: samples drawn by seed and place are random enough, from the distribution
that was asked for, and of nothing else; drafts verified by drawing give what each sample draws without drafts; steps
without drafts are prepared as those of an engine that cannot draft. Engines with vLLM's own are in
test_drafting_engine.py."""

import ast
import contextlib
import importlib.util
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rlplan.executor.engines import runner_patches
from rlplan.executor.engines.runner_patches import (
    PARAMETERS,
    DrawnVerification,
    SeededSampling,
    drawn,
    mixed,
    patch_for_drafts,
    uniform,
)
from rlplan.executor.engines.vllm_options import MIN_P, SEED

ON_CPU = runner_patches.drawn_on_cpu
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
    monkeypatch.setattr(runner_patches, "mixed", lambda each: torch.full_like(each, bits))
    assert uniform(COUNTED, SAME, 3).unique().item() == number, "0 or 1 would make it as bad as the others"
    logits = torch.full((200, 3), -torch.inf)
    logits[:, 1] = 0.0
    assert drawn(logits, COUNTED, SAME).unique().tolist() == [1]


def test_the_kernel_on_cpus_has_other_bits_for_each_seed_and_place(monkeypatch):
    kernel = SimpleNamespace(fused_gumbel_argmax=lambda logits, bits: bits)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(_C=kernel))
    seeds, places = (2**32 - 1 - COUNTED).repeat_interleave(200), COUNTED.repeat(200)
    assert len(ON_CPU(None, seeds, places).unique()) == len(seeds)


class SamplingRunner:
    """What is looked at of vLLM's model runner, in a step of requests `seeds` at the `positions` of all its tokens."""

    def __init__(self, seeds, lengths):
        self.device = torch.device("cpu")
        self.sampler = SimpleNamespace(
            topk_topp_sampler=SimpleNamespace(forward=lambda logits, generators, k, p: "vLLM's")
        )
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
    monkeypatch.setattr(runner_patches, "drawn_on_cpu", drawn)


LOGITS = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))


def test_a_request_draws_the_same_wherever_it_is_in_a_batch():
    runner = SamplingRunner({"a": 7, "b": 8, "c": 9}, [5, 6, 7])
    tokens, logs = runner.draw(LOGITS[:3])
    assert torch.equal(tokens, drawn(LOGITS[:3], torch.tensor([7, 8, 9]), torch.tensor([4, 5, 6])))
    assert torch.allclose(logs, LOGITS[:3].log_softmax(-1))
    runner.step({"c": 9, "d": 1, "a": 7}, [7, 3, 5])
    again, _ = runner.draw(LOGITS[[2, 3, 0]])
    assert (again[0], again[2]) == (tokens[2], tokens[0])
    moved = SamplingRunner({"a+": 7}, [5])  # on another engine, where what it has decoded is part of its prompt
    assert moved.draw(LOGITS[:1])[0] == tokens[0]


def test_places_of_drafts_are_those_of_their_tokens():
    runner = SamplingRunner({"a": 7, "b": 8}, [5, 6])
    runner.positions = torch.tensor([4, 5, 6, 9])
    with runner.seeded.at(torch.tensor([0, 0, 0, 1]), torch.arange(4)):
        tokens, _ = runner.draw(LOGITS)
    assert torch.equal(tokens, drawn(LOGITS, torch.tensor([7, 7, 7, 8]), runner.positions))


def test_batches_without_seeds_are_vllms_and_mixed_ones_have_seeds_by_id():
    runner = SamplingRunner({"a": None, "b": None}, [5, 6])
    assert runner.draw(LOGITS[:2]) == "vLLM's" and SamplingRunner({}, []).draw(LOGITS) == "vLLM's"
    runner.step({"c": None, "d": 8}, [5, 6])
    tokens, _ = runner.draw(LOGITS[:2])
    assert torch.equal(tokens, SamplingRunner({"x": 3, "c": None, "d": 8}, [5, 5, 6]).draw(LOGITS[[0, 0, 1]])[0][1:])


def limited(logits, k, p):
    """As vLLM's `apply_top_k_top_p`, which tests with engines call: to import it takes seconds."""
    chances, order = logits.softmax(-1).sort(-1, descending=True)
    kept = (chances.cumsum(-1) - chances < p[:, None]) & (torch.arange(logits.shape[1]) < k[:, None])
    return logits.masked_fill(~kept.gather(1, order.argsort(-1)), -torch.inf)


@pytest.mark.parametrize("seed", [None, 7])
def test_draws_are_limited_by_row_and_log_probs_are_not(seed, monkeypatch):
    sampler = SimpleNamespace(apply_top_k_top_p=limited)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.ops.topk_topp_sampler", sampler)
    runner = SamplingRunner({name: seed for name in "abcd"}, [5] * 4)
    by_vllm = []

    def forward(logits, generators, k, p):
        by_vllm.append(limited(logits, k, p) > -torch.inf)
        return logits.argmax(-1), None

    runner.seeded._by_vllm = forward
    runner.requests["b"].sampling_params.extra_args = {MIN_P: 0.3} | ({} if seed is None else {SEED: seed})
    runner.seeded._names = []  # the batch is another one
    limits = torch.tensor([30, 30, 2, 30]), torch.tensor([1.0, 1.0, 1.0, 0.7])
    chances = LOGITS.double().softmax(-1)
    sorted_, order = chances.sort(-1, descending=True)
    before = torch.zeros_like(chances).scatter(1, order, sorted_.cumsum(-1) - sorted_)
    allowed = torch.ones(4, 30, dtype=torch.bool)
    allowed[1] = chances[1] >= 0.3 * chances[1].max()
    allowed[2] = chances[2] >= sorted_[2, 1]
    allowed[3] = before[3] < 0.7
    assert [int(row.sum()) for row in allowed[2:]] == [2, 8] and 2 < allowed[1].sum() < 30
    draws = torch.zeros(4, 30)
    for place in range(400):
        runner.positions = torch.full((4,), place)
        tokens, logs = runner.draw(LOGITS.clone(), *limits)
        assert torch.allclose(logs, LOGITS.log_softmax(-1)), "of the whole softmax, as the trainer's"
        draws[torch.arange(4), tokens] += 1
        if seed is None:
            assert torch.equal(by_vllm[0], allowed)
            return
    for row in range(4):
        expected = chances[row, allowed[row]] / chances[row, allowed[row]].sum() * 400
        assert draws[row, ~allowed[row]].sum() == 0 and abs(strangeness(draws[row, allowed[row]], expected)) < 5
    runner.positions = torch.tensor([9, 10, 9, 9, 10])
    rows = torch.tensor([1, 1, 2, 3, 3])
    with runner.seeded.at(rows, torch.arange(5)):
        drafted, logs = runner.draw(LOGITS[rows], *limits)
    assert all(allowed[row, token] for row, token in zip(rows, drafted, strict=True)), "each place as its sample"
    runner.positions = torch.full((4,), 9)
    assert torch.equal(runner.draw(LOGITS.clone(), *limits)[0][1:], drafted[[0, 2, 3]])


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


class DraftingRunner:
    """What is replaced of vLLM's model runner for drafts; it tells by which options it prepared a step."""

    def __init__(self, **model):
        self.model_config = SimpleNamespace(**{"is_hybrid": False, "is_attention_free": False} | model)
        self.speculative_config, self.sampler, self.updates = "drafts", "vLLM's", []
        self.rejection_sampler = SimpleNamespace(forward=lambda metadata, draft_probs, logits, sampling_metadata: None)

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        if num_scheduled_tokens is None:
            raise ValueError("no tokens")
        return self.speculative_config, num_scheduled_tokens

    def _update_states(self, scheduler_output):
        self.updates.append(scheduler_output)


def step(drafts):
    return SimpleNamespace(scheduled_spec_decode_tokens=drafts)


def test_only_steps_without_drafts_are_prepared_without_them_and_the_options_stay():
    runner, heard = DraftingRunner(), []
    patch_for_drafts(runner, "seeded", heard.append)
    assert runner._prepare_inputs(step({}), 3) == (None, 3) and runner.speculative_config == "drafts"
    assert runner._prepare_inputs(step({"a": [1]}), 3) == ("drafts", 3)
    with pytest.raises(ValueError):
        runner._prepare_inputs(step({}), None)
    assert runner.speculative_config == "drafts" and isinstance(runner.rejection_sampler, DrawnVerification)
    runner._update_states("step")
    assert heard == runner.updates == ["step"]


@pytest.mark.parametrize("kind", ["is_hybrid", "is_attention_free"])
def test_models_with_recurrent_states_prepare_all_steps_as_vllm_does(kind):
    runner = DraftingRunner(**{kind: True})
    patch_for_drafts(runner, "seeded", print)
    assert runner._prepare_inputs(step({}), 3) == ("drafts", 3)


def test_another_vllm_than_was_read_is_refused_by_name():
    runner = DraftingRunner()
    runner._update_states = lambda scheduler_output, further: None
    with pytest.raises(RuntimeError, match=r"_update_states of this vLLM takes \(scheduler_output, further\)"):
        patch_for_drafts(runner, "seeded", print)
    assert not isinstance(runner.rejection_sampler, DrawnVerification), "nothing is replaced by halves"


@pytest.mark.parametrize(
    ("place", "file", "owner", "methods"),
    [
        ("_prepare_inputs", "worker/gpu_model_runner.py", "GPUModelRunner", ["_prepare_inputs"]),
        ("_update_states", "worker/gpu_model_runner.py", "GPUModelRunner", ["_update_states"]),
        ("rejection_sampler.forward", "sample/rejection_sampler.py", "RejectionSampler", ["forward"]),
        ("sampler.topk_topp_sampler.forward", "sample/ops/topk_topp_sampler.py", "TopKTopPSampler",
         ["forward_native", "forward_cpu", "forward_cuda"]),
    ],
)  # fmt: skip
def test_the_installed_vllm_has_what_is_replaced(place, file, owner, methods):
    found = importlib.util.find_spec("vllm")  # its source is read: to import it takes seconds
    if found is None or not found.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    tree = ast.parse((Path(found.submodule_search_locations[0]) / "v1" / file).read_text(encoding="utf-8"))
    (cls,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
    functions = {node.name: [argument.arg for argument in node.args.args] for node in cls.body
                 if isinstance(node, ast.FunctionDef)}  # fmt: skip
    for method in methods:
        assert functions[method] == ["self", *PARAMETERS[place]]
