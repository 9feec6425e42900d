"""A real engine that drafts from history: what it writes is what it would have written without."""

import asyncio

import numpy as np
import pytest

from rlplan.executor.drafts.draft_messages import PromptHistory
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.executor.engines.messages import Request, SamplingRules
from rlplan.executor.example.task import draw_data
from rlplan.executor.example.warmup import make_tokenizer
from rlplan.plans.schema.levers import EngineLayout

from ..conftest import make_tiny_model
from ..engines.test_engines import events_in

pytestmark = pytest.mark.engine

DRAFTED = 4
AT_ONCE = 4
LONGEST = 40
HALF = LONGEST // 2
PROMPTS = 100


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two sets of random weights, whose text varies: each a folder, and the model in memory."""
    from transformers import AutoModelForCausalLM

    folders = [make_tiny_model(tmp_path_factory.mktemp("models") / f"model-{seed}", seed) for seed in (0, 1)]
    return [(folder, AutoModelForCausalLM.from_pretrained(folder).eval()) for folder in folders]


@pytest.fixture(scope="module")
def prompts():
    """The demo's prompts by id, as token ids of the random models."""
    tokenizer = make_tokenizer()
    texts = [tokenizer(hunt.prompt)["input_ids"] for hunt in draw_data(3, PROMPTS)]
    return {f"k{number}": tuple(3 + token % 61 for token in text) for number, text in enumerate(texts)}


@pytest.fixture(scope="module")
def engine(models, loop, ray):
    """One engine that can draft, with the first weights."""
    fleet = Fleet(
        FleetConfig(
            layouts=(EngineLayout(1, 1),), model_path=str(models[0][0]), dtype="float32", device="cpu",
            max_model_len=256, max_num_seqs=16, kv_memory_bytes_per_accelerator=100_000_000, draft_tokens=DRAFTED,
        )
    )  # fmt: skip
    loop.run_until_complete(fleet.start())
    (engine,) = fleet.all_engines()
    yield fleet, engine
    loop.run_until_complete(fleet.close())


async def load(engine, models, number):
    await engine.load(str(models[number][0] / "model.safetensors"), f"weights-{number}", False)


async def decode(fleet, engine, asked, drafts=None, most=DRAFTED):
    """Decode requests in a round of their own: without drafts, or with those from histories `drafts`, of at most `most`
    tokens; returns the last event of each by id, and the report of the drafts."""
    inbox = asyncio.Queue()
    fleet.listen(lambda news: inbox.put_nowait(events_in(news)))
    await engine.begin_drafts(*((0, 0) if drafts is None else (most, AT_ONCE)))
    if drafts:
        await engine.remember(drafts)
    await engine.submit(asked, engine.version, AT_ONCE)
    events = {}
    while len(events) < len(asked):
        for event in await asyncio.wait_for(inbox.get(), 60):
            if event.name == "finished":
                events[event.request_id] = event
    return events, await engine.take_drafts([])


def requests(tag, prompts, tokens=LONGEST, **more):
    return [
        Request(f"{tag}/{name}", prompt, tokens, ignore_eos=True, prompt_id=name, **more)
        for name, prompt in prompts.items()
    ]


def histories(events):
    """What was written to each prompt, as earlier responses."""
    return [
        PromptHistory(name.split("/")[1], [np.array(event.tokens, np.int32)], [1.0]) for name, event in events.items()
    ]


def tokens_of(events):
    return {name.split("/")[1]: event.tokens for name, event in events.items()}


def moved_in_the_middle(prompts, whole, **more):
    """Requests that go on after the first half of what `whole`, events of the same prompts, decoded."""
    return [
        Request(
            f"moved/{name}", (*prompt, *tokens_of(whole)[name][:HALF]), LONGEST - HALF, ignore_eos=True,
            drawn_tokens=HALF, prompt_id=name, **more,
        )
        for name, prompt in prompts.items()
    ]  # fmt: skip


def true_logprobs(model, prompt, tokens):
    """Log-probs of each token of the vocabulary where each of `tokens` was drawn, by a forward pass of all at once."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].float()
    return torch.log_softmax(logits[len(prompt) - 1 : -1], -1).numpy()


def test_greedy_text_is_the_same_token_by_token_with_and_without_drafts(engine, models, prompts, loop):
    fleet, drafting = engine

    async def body():
        await load(drafting, models, 0)
        plain, nothing = await decode(fleet, drafting, requests("plain", prompts, temperature=0.0))
        asked = requests("drafted", prompts, temperature=0.0)
        return plain, nothing, *(await decode(fleet, drafting, asked, histories(plain)))

    plain, nothing, drafted, report = loop.run_until_complete(body())
    assert tokens_of(drafted) == tokens_of(plain) and len(drafted) == PROMPTS
    assert nothing.steps == 0 and nothing.by_source == {}
    # Each place of a draft is verified where it stands: text that was written before is accepted as a whole.
    assert report.drafted_at[-1] > 0
    assert all(a >= 0.9 * d for a, d in zip(report.accepted_at, report.drafted_at, strict=True))
    assert report.by_source["earlier"] > PROMPTS and report.index_bytes > 0


def test_log_probs_of_accepted_drafts_are_those_of_a_forward_pass(engine, models, prompts, loop):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:24])

    async def body():
        await load(drafting, models, 0)
        first, _ = await decode(fleet, drafting, requests("first", some, temperature=0.5))
        return await decode(fleet, drafting, requests("again", some, temperature=0.5), histories(first))

    events, report = loop.run_until_complete(body())
    assert sum(report.accepted_at) > 20 and sum(report.drafted_at) > sum(report.accepted_at)
    for name, event in events.items():
        logits = true_logprobs(models[0][1], some[name.split("/")[1]], event.tokens) / 0.5
        expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        drawn = expected[np.arange(len(event.tokens)), event.tokens]
        assert event.logprobs == pytest.approx(drawn.tolist(), abs=1e-4)


@pytest.mark.parametrize("rules", [SamplingRules(), SamplingRules(0.8, 20, 0.02)])
def test_a_seeded_request_has_the_same_tokens_with_and_without_drafts(engine, models, prompts, loop, rules):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:32])

    def asked(tag):
        return requests(tag, some, temperature=0.3, seed=7, rules=rules)

    async def body():
        await load(drafting, models, 0)
        plain, _ = await decode(fleet, drafting, asked("plain"))
        other, _ = await decode(fleet, drafting, requests("other", some, temperature=0.3, seed=8))
        return plain, other, *(await decode(fleet, drafting, asked("drafted"), histories(plain) + histories(other)))

    plain, other, drafted, report = loop.run_until_complete(body())
    assert tokens_of(drafted) == tokens_of(plain) != tokens_of(other)
    # Where a draft was rejected, the number that was drawn beyond it is drawn again.
    assert 0 < sum(report.accepted_at) < sum(report.drafted_at)


@pytest.mark.parametrize(
    ("rules", "seed"),
    [(SamplingRules(top_p=0.7), None), (SamplingRules(top_k=3), 7), (SamplingRules(min_p=0.2), None)],
)
def test_rules_leave_some_tokens_and_log_probs_are_of_all(engine, models, prompts, loop, rules, seed):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:12])

    async def body():
        await load(drafting, models, 0)
        return await decode(fleet, drafting, requests("limited", some, temperature=0.8, rules=rules, seed=seed))

    events, _ = loop.run_until_complete(body())
    drawn = set()
    for name, event in events.items():
        logits = true_logprobs(models[0][1], some[name.split("/")[1]], event.tokens) / 0.8
        chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        rows = np.arange(len(event.tokens))
        own = chances[rows, event.tokens]
        assert event.logprobs == pytest.approx(np.log(own).tolist(), abs=1e-4)
        likelier = np.where(chances > own[:, None], chances, 0.0)
        assert (own > rules.min_p * chances.max(-1) - 1e-6).all() and (likelier.sum(-1) < rules.top_p + 1e-6).all()
        assert not rules.top_k or (likelier > 0).sum(-1).max() < rules.top_k
        drawn |= set(event.tokens)
    assert len(drawn) > 10


def test_a_stop_ends_a_response_which_has_it_and_is_complete(engine, models, prompts, loop):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:32])

    async def body():
        await load(drafting, models, 0)
        whole, _ = await decode(fleet, drafting, requests("whole", some, temperature=0.3, seed=7))
        words = [f"w{token - 3}" for token in next(iter(whole.values())).tokens[6:8]]
        rules = SamplingRules(stop=(" ".join(words),), stop_token_ids=(40,))
        stopped = requests("stopped", some, temperature=0.3, seed=7, rules=rules)
        return whole, words, *(await decode(fleet, drafting, stopped, histories(whole)))

    whole, words, stopped, report = loop.run_until_complete(body())
    stop, ends = [int(word[1:]) + 3 for word in words], set()
    assert sum(report.accepted_at) > 0, "several tokens of a step, of which the stop may be the first"
    for name, event in stopped.items():
        tokens = tokens_of(whole)[name.split("/")[1]]
        found = [n for n in range(1, LONGEST + 1) if tokens[n - 2 : n] == stop or tokens[n - 1] == 40]
        assert event.tokens == tokens[: found[0] if found else LONGEST]
        assert event.truncated == (not found) and len(event.logprobs) == len(event.tokens)
        ends.add(event.tokens[-1] if found else None)
    assert stop[-1] in ends and len(ends) > 1


def test_new_weights_write_their_own_text_whatever_the_old_ones_left_behind(engine, models, prompts, loop):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:16])

    async def body():
        await load(drafting, models, 0)
        old, _ = await decode(fleet, drafting, requests("old", some, temperature=0.0))
        await load(drafting, models, 1)
        new, report = await decode(fleet, drafting, requests("new", some, temperature=0.0), histories(old))
        return old, new, report

    old, new, report = loop.run_until_complete(body())
    assert sum(report.drafted_at) > 0 and tokens_of(old) != tokens_of(new)
    for name, event in new.items():
        truth = true_logprobs(models[1][1], some[name.split("/")[1]], event.tokens)
        drawn = truth[np.arange(len(event.tokens)), event.tokens]
        assert drawn == pytest.approx(truth.max(-1), abs=1e-4), "not the likeliest token of the new weights"


def test_a_moved_sample_goes_on_with_drafts_of_its_prompt(engine, models, prompts, loop):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:8])

    async def body():
        await load(drafting, models, 0)
        whole, _ = await decode(fleet, drafting, requests("whole", some, temperature=0.0))
        moved = moved_in_the_middle(some, whole, temperature=0.0)
        return whole, *(await decode(fleet, drafting, moved, histories(whole)))

    whole, moved, report = loop.run_until_complete(body())
    assert {name: tokens[HALF:] for name, tokens in tokens_of(whole).items()} == tokens_of(moved)
    assert report.by_source.get("earlier", 0) > 0


def test_a_moved_sample_draws_on_where_its_seed_stopped(engine, models, prompts, loop):
    fleet, drafting = engine
    some = dict(list(prompts.items())[:16])

    async def body():
        await load(drafting, models, 0)
        whole, _ = await decode(fleet, drafting, requests("whole", some, temperature=0.3, seed=7))
        moved = moved_in_the_middle(some, whole, temperature=0.3, seed=7)
        return whole, *(await decode(fleet, drafting, moved, histories(whole)))

    whole, moved, report = loop.run_until_complete(body())
    assert {name: tokens[HALF:] for name, tokens in tokens_of(whole).items()} == tokens_of(moved)
    assert sum(report.accepted_at) > 0


def test_drafts_keep_to_the_longest_context_and_to_their_rounds_plan(engine, models, prompts, loop):
    fleet, drafting = engine
    name, prompt = next(iter(prompts.items()))
    some, longest = {name: prompt}, 256 - len(prompt)

    async def body():
        await load(drafting, models, 0)
        plain, _ = await decode(fleet, drafting, requests("plain", some, longest, temperature=0.0))
        asked = requests("drafted", some, longest, temperature=0.0)
        return plain, *(await decode(fleet, drafting, asked, histories(plain), most=2))

    plain, drafted, report = loop.run_until_complete(body())
    assert tokens_of(drafted) == tokens_of(plain) and len(tokens_of(drafted)[name]) == longest
    assert len(report.drafted_at) == 2 and report.accepted_at[1] > longest / 4


def test_a_request_that_is_aborted_is_told_as_far_as_it_came(engine, models, prompts, loop):
    fleet, drafting = engine
    name, prompt = next(iter(prompts.items()))

    async def body():
        await load(drafting, models, 0)
        await drafting.begin_drafts(DRAFTED, AT_ONCE)
        await drafting.submit([Request("cut", prompt, 200, ignore_eos=True, temperature=0.0, prompt_id=name)],
                              drafting.version)  # fmt: skip
        await asyncio.sleep(0.2)
        await drafting.abort(["cut"])
        report = await drafting.take_drafts(["cut"])
        plain, _ = await decode(fleet, drafting, [Request("all", prompt, 200, ignore_eos=True, temperature=0.0)])
        return report.unfinished["cut"].tolist(), plain["all"].tokens

    cut, whole = loop.run_until_complete(body())
    assert cut and cut[:200] == whole[: len(cut)]
