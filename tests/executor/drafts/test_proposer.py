"""Drafts in a vLLM worker whose model runner is a fake: it writes texts that are given to it, and verifies drafts."""

import itertools
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest

from rlplan.executor.drafts import proposer as proposers
from rlplan.executor.drafts.draft_messages import PROMPT, PROMPT_TOKENS, REQUEST, PromptHistory
from rlplan.executor.drafts.proposer import HistoryProposer
from rlplan.executor.engines.engine_worker import DraftRank
from rlplan.executor.engines.runner_patches import DrawnVerification

MOST, LONGEST = 4, 240
ASKED = [7, 8, 9]
"""The prompt of all samples, as tokens."""
TEXT = random.Random(1).sample(range(100, 1000), 150)
OTHER = random.Random(2).sample(range(1000, 2000), 150)


class Engine:
    """A model runner with its batch; `drafted` and `accepted` count what it verified, by place."""

    def __init__(self):
        self.model_config = SimpleNamespace(is_hybrid=True, is_attention_free=False)
        self.input_batch = SimpleNamespace(
            req_ids=[], req_id_to_index={}, token_ids_cpu=np.zeros((4, LONGEST), np.int32),
            num_tokens_no_spec=np.zeros(4, np.int32),
        )  # fmt: skip
        self.requests, self.texts, self.drafts = {}, {}, {}
        self.new, self.gone = [], []
        self.drafted, self.accepted = [0] * MOST, [0] * MOST
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=MOST),
            model_config=SimpleNamespace(max_model_len=LONGEST),
        )
        self.drafter = HistoryProposer(config)
        self.drafter.attach(self)

    def add(self, name, prompt, text):
        """A sample that writes `text`; "" as its prompt: it is none of a round."""
        extra = {PROMPT: prompt, PROMPT_TOKENS: len(ASKED), REQUEST: f"driver's {name}"} if prompt else None
        self.requests[name] = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))
        batch, row = self.input_batch, len(self.input_batch.req_ids)
        batch.req_ids.append(name)
        batch.req_id_to_index[name] = row
        batch.token_ids_cpu[row, : len(ASKED)] = ASKED
        batch.num_tokens_no_spec[row] = len(ASKED)
        self.texts[name] = text
        self.new.append(name)

    def end(self):
        """All samples have ended: they leave the batch with the next step."""
        self.gone = list(self.input_batch.req_ids)

    def step(self, spoilt=False):
        """A step of all samples; `spoilt`: the drafts to verify are others than were proposed. Returns the drafts."""
        batch = self.input_batch
        told = {name: [0] * len(draft) if spoilt else draft for name, draft in self.drafts.items() if draft}
        self.drafter.scheduled(
            SimpleNamespace(
                scheduled_spec_decode_tokens=told, scheduled_new_reqs=self.new, finished_req_ids=set(self.gone)
            )
        )
        if self.gone:
            batch.req_ids, batch.req_id_to_index, self.drafts = [], {}, {}
        self.new, self.gone = [], []
        sampled = []
        for row, name in enumerate(batch.req_ids):
            known = batch.num_tokens_no_spec[row]
            wanted = self.texts[name][known - len(ASKED) :]
            draft = told.get(name, [])
            held = next((k for k, token in enumerate(draft) if token != wanted[k]), len(draft))
            sampled.append(wanted[: held + 1])
            if not spoilt:
                for place in range(len(draft)):
                    self.drafted[place] += 1
                    self.accepted[place] += place < held
            batch.token_ids_cpu[row, known : known + len(sampled[-1])] = sampled[-1]
            batch.num_tokens_no_spec[row] += len(sampled[-1])
        proposed = self.drafter.propose(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu)
        self.drafts = dict(zip(batch.req_ids, proposed, strict=True))
        return proposed

    def report(self, *wanted):
        return self.drafter.report(set(wanted))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A step takes a second, with or without drafts."""
    monkeypatch.setattr(proposers, "time", SimpleNamespace(perf_counter=itertools.count(1.0).__next__))


def steps(engine, count):
    return [engine.step() for _ in range(count)]


def test_drafts_come_from_the_prompts_earlier_responses_once_steps_are_known():
    engine = Engine()
    engine.drafter.begin(MOST, 8)
    engine.drafter.remember(PromptHistory("p", [np.array(OTHER, np.int32), np.array(TEXT, np.int32)], [1.0, 1.0], 1))
    engine.add("a", "p", OTHER)
    first = steps(engine, 5)
    assert first[:4] == [[[]]] * 4 and first[4] == [OTHER[5:9]], "four steps show what one takes without drafts"
    steps(engine, 8)
    report = engine.report("driver's a")
    assert report.drafted_at == engine.drafted == [8] * 4 and report.accepted_at == engine.accepted == [8] * 4
    assert report.by_source == {"earlier": 32}
    assert (report.steps, report.sequence_steps) == (9, 9)
    (batch,) = report.batches.values()
    assert (batch.drafted, batch.accepted, batch.drafted_steps, batch.sequence_steps) == (32, 32, 8, 9)
    assert (batch.verified, batch.plain_s, batch.drafted_s, batch.emitted) == (8, 1.0, 1.0, 5.0)
    assert list(report.unfinished) == ["driver's a"] and report.unfinished["driver's a"].tolist() == OTHER[:45]
    assert report.index_bytes > 8 * 300


def test_rejected_drafts_are_learnt_from_and_what_was_ahead_is_told_apart():
    engine = Engine()
    engine.drafter.begin(MOST, 8)
    history = [token if number % 3 else 1 for number, token in enumerate(TEXT)]
    engine.drafter.remember(PromptHistory("p", [np.array(history, np.int32)], [1.0], 1))
    engine.add("a", "p", TEXT)
    before = engine.drafter._table.rates.copy()
    steps(engine, 60)
    report = engine.report()
    assert report.drafted_at == engine.drafted and report.accepted_at == engine.accepted
    assert 0 < sum(report.accepted_at) < sum(report.drafted_at)
    assert report.by_source == {"ahead": sum(report.accepted_at)} and report.unfinished == {}
    assert (engine.drafter._table.rates != before).any()
    engine.drafter.begin(2, 8)
    assert engine.report().drafted_at == [0, 0] and engine.report().batches[1].drafted == 0
    assert engine.report().index_bytes == 0 and not engine.drafter._histories, "the driver gives those of the round"


def test_samples_draft_from_their_siblings_and_from_other_prompts():
    engine = Engine()
    engine.drafter.begin(MOST, 8)
    engine.add("a", "p", TEXT)
    steps(engine, 140)
    assert engine.report().by_source == {}, "nobody wrote these tokens before"
    engine.add("b", "p", TEXT)
    steps(engine, 9)
    assert set(engine.report().by_source) == {"sibling"}
    engine.end()
    engine.step()
    assert set(engine.drafter._common.text.tokens.tolist()) >= set(TEXT[:140])
    engine.add("c", "q", TEXT)
    steps(engine, 20)
    report = engine.report("driver's b", "driver's c")
    assert report.by_source["other"] > 0 and set(report.unfinished) == {"driver's b", "driver's c"}
    assert sum(report.by_source.values()) == sum(report.accepted_at) == sum(engine.accepted)


def test_no_draft_is_longer_than_the_context_has_room_for():
    engine = Engine()
    engine.drafter.begin(MOST, 8)
    long = list(range(10, 10 + LONGEST))
    engine.drafter.remember(PromptHistory("p", [np.array(long, np.int32)], [1.0]))
    engine.add("a", "p", long)
    lengths = {}
    while (known := int(engine.input_batch.num_tokens_no_spec[0])) < LONGEST - 1:
        ((draft,),) = [engine.step()]
        lengths[int(engine.input_batch.num_tokens_no_spec[0])] = len(draft)
        assert engine.input_batch.num_tokens_no_spec[0] > known
    assert all(length <= max(0, LONGEST - MOST - known) for known, length in lengths.items())
    assert 0 < max(length for known, length in lengths.items() if known > LONGEST - 2 * MOST) < MOST


def test_drafts_of_others_and_samples_of_no_round_teach_nothing():
    engine = Engine()
    engine.drafter.begin(MOST, 8)
    engine.drafter.remember(PromptHistory("p", [np.array(TEXT, np.int32)], [1.0]))
    engine.add("a", "p", TEXT)
    engine.add("b", "", TEXT)
    steps(engine, 5)
    assert engine.drafts == {"a": TEXT[5:9], "b": []}
    engine.step(spoilt=True)
    report = engine.report()
    assert (report.drafted_at, report.by_source) == ([0] * 4, {}) and report.batches[3].verified == 0
    assert engine.drafter.propose([[], [1]], [8, 9], engine.input_batch.token_ids_cpu)[0] == [], "in a prefill"


def test_a_round_without_drafts_only_looks_at_the_number_of_samples():
    engine = Engine()
    engine.drafter.load_model()
    engine.drafter.begin(0, 8)
    engine.drafter.remember(PromptHistory("p", [np.array(TEXT, np.int32)], [1.0]))
    engine.add("a", "p", TEXT)
    assert steps(engine, 9) == [[[]]] * 9
    report = engine.report("driver's a")
    assert (report.steps, report.unfinished, report.batches) == (0, {}, {})
    engine.drafter.begin(99, 8)
    assert engine.report().drafted_at == [0] * MOST, "no more than vLLM was made for"
    assert engine.report("driver's a").unfinished == {}, "what was in the batch before is no sample of the round"


def rank_of(number):
    rank = DraftRank()
    rank.model_runner, rank.rank = Engine(), number
    return rank


def test_the_first_rank_drafts_for_all_ranks_of_an_engine():
    history = PromptHistory("p", [np.array(TEXT, np.int32)], [0.5], 1)
    for number in (0, 1):
        rank = rank_of(number)
        rank.begin_drafts(MOST, 8)
        rank.remember([pickle.dumps(history)])
        known = rank.model_runner.drafter._histories
        assert (rank.model_runner.drafter._tokens, list(known)) == ((MOST, ["p"]) if number == 0 else (0, []))
        if number == 0:
            assert known["p"].responses[0].tolist() == TEXT and known["p"][2:] == history[2:]
            assert pickle.loads(rank.take_drafts(["x"])).drafted_at == [0] * MOST
        else:
            assert rank.take_drafts(["x"]) is None
    with pytest.raises(RuntimeError, match="drawing with seeds"):
        rank.attach_drafts()
    rank.seeded, runner = "seeded", rank.model_runner
    runner.sampler, runner._prepare_inputs = "vLLM's", lambda scheduler_output, num_scheduled_tokens: None
    runner._update_states = lambda scheduler_output: None
    runner.rejection_sampler = SimpleNamespace(forward=lambda metadata, draft_probs, logits, sampling_metadata: None)
    rank.attach_drafts()
    assert isinstance(runner.rejection_sampler, DrawnVerification)
    runner.drafter = object()
    with pytest.raises(RuntimeError, match="vLLM drafts by object, not by HistoryProposer"):
        rank.attach_drafts()
