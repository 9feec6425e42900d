"""The drafts of one round: what engines are given, and what is remembered, with engines that only note their calls."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rlplan.executor.actors import UnawaitedCalls
from rlplan.executor.drafts.draft_messages import BatchSteps, DraftReport, PromptHistory, summed
from rlplan.executor.drafts.history_store import HISTORY, HistoryStore
from rlplan.executor.engines.messages import Request
from rlplan.executor.faults import ActorFailed
from rlplan.executor.rollout.drafts.drafted_round import DraftedRound
from rlplan.executor.rollout.drafts.run_drafts import RunDrafts
from rlplan.executor.rollout.round_samples import RolloutSample
from rlplan.plans.schema.sections.levers import RoundDrafts
from rlplan.plans.yaml.errors import InputError
from rlplan.rounds.machines.events import SampleKey

DRAFTS = RoundDrafts(source="history", tokens=4, up_to_sequences=8)


class Engine:
    """Notes its calls, in order; `texts` are of requests that were aborted on it."""

    def __init__(self, name="e0", texts=None, dies=False):
        self.name, self.lives, self.alive = name, 1, True
        self.texts, self.dies = texts or {}, dies
        self.calls = []

    async def begin_drafts(self, tokens, up_to_sequences):
        self.calls.append(("begin", tokens, up_to_sequences))

    async def remember(self, histories):
        self.calls.append(("remember", [history.prompt for history in histories]))

    async def take_drafts(self, unfinished):
        self.calls.append(("take", sorted(unfinished)))
        if self.dies:
            raise ActorFailed(self.name, "it died")
        texts = {name: np.array(text, np.int32) for name, text in self.texts.items() if name in unfinished}
        return DraftReport(steps=3, unfinished=texts)


def requests(*prompts):
    return [Request(f"{prompt}.0", (1, 2, 3), 10, prompt_id=prompt) for prompt in prompts]


def sample(prompt, tokens, reward=None, finished_s=None):
    return RolloutSample(SampleKey(0, 0), prompt, 0.0, tokens=tokens, reward=reward, finished_s=finished_s)


def store_with(*prompts):
    store = HistoryStore()
    for prompt in prompts:
        store.record(prompt, 0, 0, [([1, 2], 1.0)])
    return store


def prepared(drafted, *steps):
    """Prepare engines with requests, in order, and carry out all calls; returns the errors."""
    failed = []

    async def body():
        calls = UnawaitedCalls()
        for engine, asked in steps:
            if callable(engine):
                engine()
            else:
                drafted.prepare(engine, asked, calls, failed.append)
        await calls.settle(None)

    asyncio.run(body())
    return failed


def test_an_engine_is_told_of_the_round_first_and_of_each_known_prompt_once():
    engine = Engine()
    drafted = DraftedRound(DRAFTS, store_with("p", "q"), lambda _: 1, 5)
    prepared(drafted, (engine, requests("p", "new")), (engine, requests("p", "q")), (engine, requests("q")))
    assert engine.calls == [("begin", 4, 8), ("remember", ["p"]), ("remember", ["q"])]


def test_an_engine_that_came_back_in_mid_round_is_told_again():
    engine = Engine()

    def replaced():
        engine.lives += 1

    drafted = DraftedRound(DRAFTS, store_with("p"), lambda _: 1, 5)
    prepared(drafted, (engine, requests("p")), (replaced, None), (engine, requests("p")))
    assert engine.calls == [("begin", 4, 8), ("remember", ["p"])] * 2


@pytest.mark.parametrize(("store", "settings"), [(HistoryStore(), (1, 0)), (None, (0, 0))])
def test_engines_draft_nothing_in_a_round_without_drafts_and_note_what_they_write_if_it_is_remembered(store, settings):
    engine = Engine()
    prepared(DraftedRound(None, store, lambda _: 0, 0), (engine, requests("p")))
    assert engine.calls == [("begin", *settings)]


def end(drafted, engines, samples):
    return asyncio.run(drafted.end(engines, samples))


def test_finished_responses_are_remembered_with_their_rewards_and_unfinished_ones_as_far_as_the_engine_knows():
    engine, store = Engine(texts={"p.1": [7, 8]}), HistoryStore()
    drafted = DraftedRound(DRAFTS, store, lambda _: 2, 5)
    prepared(drafted, (engine, requests("p")))
    report = end(drafted, [engine], [
        ("p.0", sample("p", [1, 2, 3], 1.0, 4.0)), ("p.1", sample("p", [])), ("p.2", sample("p", [9], 0.0, 2.0)),
        ("q.0+", sample("q", [5, 6])),
    ])  # fmt: skip
    assert engine.calls[-1] == ("take", ["p.1", "q.0+"]) and report is not None and report.steps == 3
    known = store.of("p", 2)
    assert known is not None and [text.tolist() for text in known.responses] == [[1, 2, 3], [7, 8], [9]]
    assert known.weights == [2.0, 1.0, 1.0]
    # What a sample had when it moved, though the engine that it moved to tells nothing of it.
    assert [text.tolist() for text in store.of("q", 2).responses] == [[5, 6]]


def test_an_engine_that_is_gone_or_was_replaced_tells_nothing_and_costs_nothing_else():
    gone, replaced, dies, sound = (Engine(name) for name in "abcd")
    dies.dies = True
    sound.texts = {"p.0": [3]}
    store = HistoryStore()
    drafted = DraftedRound(DRAFTS, store, lambda _: 0, 1)
    assert prepared(drafted, *((engine, requests("p")) for engine in (gone, replaced, dies, sound))) == []
    gone.alive, replaced.lives = False, 2
    report = end(drafted, [gone, replaced, dies, sound], [("p.0", sample("p", []))])
    assert [engine.calls[-1][0] for engine in (gone, replaced, dies, sound)] == ["begin", "begin", "take", "take"]
    assert report is not None and report.steps == 3
    assert [text.tolist() for text in store.of("p", 0).responses] == [[3]]


def test_a_round_without_drafts_is_remembered_and_reports_none():
    engine, store = Engine(), HistoryStore()
    drafted = DraftedRound(None, store, lambda _: 0, 1)
    prepared(drafted, (engine, requests("p")))
    assert end(drafted, [engine], [("p.0", sample("p", [1], 0.0, 1.0))]) is None and len(store) == 1
    assert end(DraftedRound(None, None, lambda _: 0, 1), [engine], []) is None


def test_the_report_of_several_engines_has_sums_of_counts_and_the_means_of_the_engine_with_more_steps():
    one = DraftReport(2, 9, [5, 1], [4, 0], {"own": 4}, {3: BatchSteps(0.01, 0.02, 1.5, 10, 0.4)}, 100)
    batches = {3: BatchSteps(0.03, 0.0, 0.0, 0, 0.0), 7: BatchSteps(0.05, 0.06, 2.0, 4, -0.1)}
    other = DraftReport(3, 1, [1, 1, 1], [1, 1, 0], {"own": 1, "earlier": 1}, batches, 50)
    both = summed([one, other])
    assert both == summed([DraftReport.unpacked(one.packed()), DraftReport.unpacked(other.packed())])
    assert (both.steps, both.sequence_steps, both.index_bytes) == (5, 10, 150)
    assert (both.drafted_at, both.accepted_at, both.by_source) == ([6, 2, 1], [5, 1, 0], {"own": 5, "earlier": 1})
    assert both.batches[3] == BatchSteps(0.01, 0.02, 1.5, 10, 0.4) and both.batches[7] == other.batches[7]


def test_the_history_of_a_prompt_passes_to_a_rank_as_plain_data():
    history = PromptHistory("p", [np.array([1, 2], np.int32), np.array([], np.int32)], [1.0, 0.5], 1)
    again = PromptHistory.unpacked(history.packed())
    assert [text.tolist() for text in again.responses] == [[1, 2], []] and again[2:] == history[2:]


class Fleet:
    draft_tokens = 4


class Schedule:
    round_number = 3

    def epoch_of(self, prompt):
        return 0


def run_drafts(planned=DRAFTS):
    return RunDrafts([planned], Fleet(), Schedule())


def test_a_checkpoint_holds_what_the_run_remembers_and_damage_is_told_and_costs_nothing_else(tmp_path):
    drafts = run_drafts()
    drafts.store = store_with("p", "q")
    for name, data in drafts.files().items():
        (tmp_path / name).write_bytes(data)
    other = run_drafts()
    assert other.load(tmp_path, ["p"]) is None and len(other.store) == 1
    (tmp_path / HISTORY).write_bytes(b"no zip")
    assert other.load(tmp_path, ["p"]) == "it is damaged (ValueError)" and len(other.store) == 0
    (tmp_path / HISTORY).unlink()
    assert other.load(tmp_path, ["p"]) == "No such file or directory"


def test_a_run_none_of_whose_rounds_drafts_writes_and_reads_no_history(tmp_path):
    drafts = run_drafts(None)
    assert drafts.files() == {} and drafts.load(tmp_path, ["p"]) is None


def test_a_run_begins_with_what_another_of_the_same_data_remembers_and_not_of_other_data(tmp_path):
    drafts = run_drafts()
    (tmp_path / HISTORY).write_bytes(store_with("p", "q").packed())
    drafts.inherit(tmp_path, ["p", "new"])
    assert drafts.store.of("p", 0).weights == [0.5] and len(drafts.store) == 1
    with pytest.raises(InputError, match="remembers none of this job's prompts"):
        run_drafts().inherit(tmp_path, ["new"])
    with pytest.raises(InputError, match="cannot be read: No such file"):
        run_drafts().inherit(tmp_path / "nowhere", ["p"])
