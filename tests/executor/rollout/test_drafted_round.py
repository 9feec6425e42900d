"""The drafts of rounds: what engines are given and decode ahead, and what is remembered; engines note their calls."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from rlplan.executor.drafts.draft_messages import BatchSteps, DraftReport, summed
from rlplan.executor.drafts.history_store import HISTORY, HistoryStore
from rlplan.executor.engines.messages import Request, SamplingRules
from rlplan.executor.processes.actors import UnawaitedCalls
from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_drafts import UPCOMING, DraftedRound, RunDrafts
from rlplan.executor.rollout.round_lever import OpenRound
from rlplan.executor.rollout.round_samples import RolloutSample
from rlplan.plans.schema.levers import RoundDrafts
from rlplan.plans.yaml.errors import InputError

DRAFTS = RoundDrafts(source="history", tokens=4, up_to_sequences=8)
RULES = SamplingRules(top_k=9)


class Engine:
    """Notes its calls, in order; `texts` are of requests that were aborted on it."""

    def __init__(self, name="e0", texts=None):
        self.name, self.lives, self.alive, self.texts, self.dies, self.calls = name, 1, True, texts or {}, False, []

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
    return RolloutSample(prompt, 0, (), tokens, reward=reward, draw=0, finished_s=finished_s)


def store_with(*prompts):
    store = HistoryStore()
    for prompt in prompts:
        store.record(prompt, 0, 0, [([1, 2], 1.0)])
    return store


def texts_of(store, prompt, epoch):
    return [text.tolist() for text in store.of(prompt, epoch).responses]


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


def test_an_engine_hears_of_the_round_then_each_known_prompt():
    engine = Engine()
    drafted = DraftedRound(DRAFTS, store_with("p", "q"), lambda _: 1, 5)
    prepared(drafted, (engine, requests("p", "new")), (engine, requests("p", "q")), (engine, requests("q")))
    told = [("begin", 4, 8), ("remember", ["p"]), ("remember", ["q"])]
    assert engine.calls == told
    prepared(drafted, (lambda: setattr(engine, "lives", 2), None), (engine, requests("p")))
    assert engine.calls[3:] == told[:2], "again once it came back in mid-round"


@pytest.mark.parametrize(("store", "settings"), [(HistoryStore(), (1, 0)), (None, (0, 0))])
def test_engines_draft_nothing_in_a_round_without_drafts(store, settings):
    engine = Engine()
    drafted = DraftedRound(None, store, lambda _: 0, 1)
    prepared(drafted, (engine, requests("p")))
    assert engine.calls == [("begin", *settings)], "they note what they write if it is remembered"
    assert end(drafted, [engine], [("p.0", sample("p", [1], 0.0, 1.0))]) is None
    assert store is None or len(store) == 1


def opened(engines=(), samples=(), prompts=None):
    """A round on engines, with samples by the id of their latest request."""
    ledger = SimpleNamespace(
        samples=dict(samples), request_id=lambda key: key, prompts=prompts, tag="t", temperature=0.7, rules=RULES
    )  # fmt: skip
    return OpenRound(SimpleNamespace(max_tokens=50), list(engines), ledger, "v", print)


def end(drafted, engines, samples):
    """What is told of drafts once the round is over."""
    told = []
    asyncio.run(drafted.end(opened(engines, samples)))
    run = SimpleNamespace(step_number=6, event=lambda name, **fields: told.append((name, fields)))
    drafted.report(run, 0)
    return told[0][1] if told else None


def test_responses_are_remembered_with_rewards_or_as_far_as_an_engine_knows():
    engine, store = Engine(texts={"p.1": [7, 8]}), HistoryStore()
    drafted = DraftedRound(DRAFTS, store, lambda _: 2, 5)
    prepared(drafted, (engine, requests("p")))
    report = end(drafted, [engine], [
        ("p.0", sample("p", [1, 2, 3], 1.0, 4.0)), ("p.1", sample("p", [])), ("p.2", sample("p", [9], 0.0, 2.0)),
        ("q.0+", sample("q", [5, 6])),
    ])  # fmt: skip
    assert engine.calls[-1] == ("take", ["p.1", "q.0+"])
    assert (report["step"], report["kind"], report["steps"]) == (7, "short", 3)
    assert texts_of(store, "p", 2) == [[1, 2, 3], [7, 8], [9]] and store.of("p", 2).weights == [2.0, 1.0, 1.0]
    assert texts_of(store, "q", 2) == [[5, 6]], "what it had when it moved to an engine that tells nothing of it"
    fields = drafted.fields(DraftReport(2, 9, [5, 1], [4, 0], {"own": 4}, {3: BatchSteps(0.01, 0.02, 1.5, 10)}, 100))
    assert (fields["epoch"], fields["steps"], fields["sequence_steps"], fields["ahead"]) == (3, 2, 9, [0, 0])
    assert (fields["drafted_at"], fields["accepted_at"], fields["by_source"]) == ([5, 1], [4, 0], {"own": 4})
    assert fields["batches"]["3"]["plain_s"] == 0.01 and fields["batches"]["3"]["drafted_s"] == 0.02
    assert (fields["index_bytes"], fields["history_bytes"]) == (100, store.nbytes)


def test_an_engine_that_is_gone_or_was_replaced_tells_nothing():
    gone, replaced, dies, sound = engines = [Engine(name) for name in "abcd"]
    dies.dies, sound.texts = True, {"p.0": [3]}
    store = HistoryStore()
    drafted = DraftedRound(DRAFTS, store, lambda _: 0, 1)
    assert prepared(drafted, *((engine, requests("p")) for engine in engines)) == []
    gone.alive, replaced.lives = False, 2
    report = end(drafted, engines, [("p.0", sample("p", []))])
    assert [engine.calls[-1][0] for engine in engines] == ["begin", "begin", "take", "take"]
    assert report["steps"] == 3 and texts_of(store, "p", 0) == [[3]]


def test_prompts_of_rounds_to_come_are_decoded_ahead_in_the_tail():
    drafts = DRAFTS.model_copy(update={"run_ahead": 2})
    engine, store = Engine(texts={"t/ahead.0": [4, 5]}), store_with("known")
    drafted = DraftedRound(drafts, store, lambda _: 0, 3, [("known", 1), ("b", 1), ("c", 2), ("d", 2)])
    prompts = {name: PromptText(name, "text", (7, 8), None) for name in "bcd"}
    changed = opened(prompts=prompts)
    changed.change = "engines stop"
    drafted.begin(changed)
    assert changed.ahead is None and changed.prepare == drafted.prepare, "nobody would move them"
    begun = opened(prompts=prompts)
    drafted.begin(begun)
    ahead = begun.ahead
    assert ahead.fill({0: 2, 1: 5}, 0) == [], "not before a sample of the round has finished"
    asked = [
        Request(f"t/ahead.{n}", (7, 8), 50, temperature=0.7, prompt_id=prompt, rules=RULES)
        for n, prompt in enumerate("bcd")
    ]
    assert ahead.fill({0: 1, 1: 0}, 1) == [(0, asked[0]), (1, asked[1]), (1, asked[2])], "each up to two"
    ahead.heard("t/ahead.1")
    ahead.heard("another")
    assert ahead.fill({0: 1, 1: 0}, 1) == [] and ahead.prompt_of == {f"t/ahead.{n}": p for n, p in enumerate("bcd")}
    ahead.lose(1)
    assert ahead.stop() == {0: ["t/ahead.0"]} and ahead.stop() == {}
    prepared(drafted, (engine, requests("known")))
    end(drafted, [engine], [("r.0", sample("known", [1], 0.0, 1.0))])
    assert engine.calls[-1] == ("take", ["t/ahead.0", "t/ahead.1", "t/ahead.2"])
    assert texts_of(store, "b", 1) == [[4, 5]] and drafted.fields(DraftReport())["ahead"] == [3, 2]


def test_a_report_of_engines_has_sums_and_weighted_means():
    one = DraftReport(2, 9, [5, 1], [4, 0], {"own": 4}, {3: BatchSteps(0.01, 0.02, 1.5, 10, 0.4)}, 100)
    batches = {3: BatchSteps(0.03, 0.0, 0.0, 0, 0.0), 7: BatchSteps(0.05, 0.06, 2.0, 4, -0.1)}
    other = DraftReport(3, 1, [1, 1, 1], [1, 1, 0], {"own": 1, "earlier": 1}, batches, 50)
    both = summed([one, other])
    assert (both.steps, both.sequence_steps, both.index_bytes) == (5, 10, 150)
    assert (both.drafted_at, both.accepted_at, both.by_source) == ([6, 2, 1], [5, 1, 0], {"own": 5, "earlier": 1})
    assert both.batches[3] == BatchSteps(0.01, 0.02, 1.5, 10, 0.4) and both.batches[7] == other.batches[7]


def run_drafts(planned=DRAFTS, draft_tokens=4):
    schedule = SimpleNamespace(round_number=3, epoch_of=lambda prompt: 0, upcoming=lambda count: [("z", count)])
    return RunDrafts([planned], SimpleNamespace(draft_tokens=draft_tokens), schedule)


def test_a_checkpoint_holds_what_the_run_remembers_and_damage_is_told(tmp_path):
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
    without = run_drafts(None)
    assert without.files() == {} and without.load(tmp_path, ["p"]) is None
    assert run_drafts(None, 0).next_round(None, "short") is None, "its engines draft in no run"
    drafted = drafts.next_round(DRAFTS, "long")
    assert (drafted._epoch_of("z"), drafted._epoch_of("p"), drafted._number) == (UPCOMING, 0, 3)


def test_a_run_begins_with_what_another_of_the_same_data_remembers(tmp_path):
    drafts = run_drafts()
    (tmp_path / HISTORY).write_bytes(store_with("p", "q").packed())
    drafts.inherit(tmp_path, ["p", "new"])
    assert drafts.store.of("p", 0).weights == [0.5] and len(drafts.store) == 1
    with pytest.raises(InputError, match="remembers none of this job's prompts"):
        run_drafts().inherit(tmp_path, ["new"])
    with pytest.raises(InputError, match="cannot be read: No such file"):
        run_drafts().inherit(tmp_path / "nowhere", ["p"])
    run_drafts(None).inherit(tmp_path, ["p"])
