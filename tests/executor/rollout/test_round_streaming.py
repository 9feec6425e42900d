"""Training beside a rollout, balanced rounds and moved samples, on a stage of two engines; and the job's prompts."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from rlplan.executor.rollout.prompts import load_prompts, load_tokenizer, stops_must_be_written
from rlplan.executor.rollout.round_runner import RoundOptions, RoundRunner
from rlplan.executor.rollout.round_streaming import RoundStreaming, round_streaming
from rlplan.executor.trainer.trainer_config import UpdateSettings
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.job import DataSpec, RolloutSpec
from rlplan.plans.schema.levers import RoundHandOver
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.rounds.hand_over import HandOver

from ..engines.engine_fakes import until
from ..stage import SHORT, staged
from ..virtual_loop import now_s, played
from .round_stage import PROMPTS, SAMPLES, RoundStage, check, race

UPDATE = UpdateSettings(8, recompute=False, offload=False)


class Adds:
    """A trainer that adds up the gradients of groups, a second each."""

    name, config, fails = "trainer a", SimpleNamespace(tp=1, sp=1), None

    def __init__(self):
        self.took = []

    async def stream(self, groups, update, replicas, first):
        await asyncio.sleep(1)
        if self.fails is not None:
            raise self.fails
        self.took.append(([group[0].prompt_id for group in groups], replicas, first))


class Streamed(RoundStage):
    """Rounds whose groups are trained beside them."""

    def __init__(self, tmp_path, **options):
        super().__init__(tmp_path, **options)
        self.trainer = Adds()

    async def streamed(self, decision=None, places=("GPU 0", "GPU 1")):
        self.turns.ledger.places = {
            "trainer a": list(places), **{e.name: [f"GPU {n}"] for n, e in enumerate(self.short)}
        }  # fmt: skip
        await self.turns.to_sending(self.run, self.short)
        for engine in self.short:
            await self.give(engine, "v")
        await self.turns.to_decoding(self.run, self.short)
        streaming = round_streaming(self.run, self.short, decision, UPDATE, self.trainer, self.turns)
        if streaming is None:
            return None, None
        runner = RoundRunner(self.fleet, self.rewards, PROMPTS, str, temperature=1.0)
        how = RoundOptions(max_num_seqs=8)
        result = await runner.run(race(), SHORT, "v", self.give, "v", how, [streaming])
        assert await streaming.trained() == streaming.taken
        streaming.report(self.run, result.moved)
        return streaming, result


@staged(Streamed, bounded=False)
async def test_engines_are_handed_over_and_groups_trained_on_their_devices(stage):
    for actor in stage.actors:
        actor.token_s = 1.0
    decision = HandOver(RoundHandOver(engines=1, at_finished=0.5), SAMPLES, 2)
    streaming, result = await stage.streamed(decision)
    check(result)
    assert {actor.at_once for actor in stage.actors} == {8, None}, "of the round's engines alone"
    (told,) = stage.run.told("streamed")
    assert told["freed"] == [stage.short[1].name] and told["replicas"] == [1] and told["step"] == 1
    assert told["moved"] == sum(sample.moves > 0 for sample in result.samples.values()) > 0
    assert 6.0 <= told["begun_s"] < 7.0, "once half of the samples had ended"
    taken = [prompt for prompts, _, _ in stage.trainer.took for prompt in prompts]
    assert streaming.taken == [int(prompt[1:]) for prompt in taken] and told["groups"] == len(taken)
    assert [first for _, _, first in stage.trainer.took] == [True] + [False] * (len(stage.trainer.took) - 1)
    assert told["portions"][0][1] - told["portions"][0][0] == 1.0


@staged(Streamed, bounded=False)
async def test_a_trainer_with_devices_of_its_own_trains_from_the_start(stage):
    streaming, result = await stage.streamed(places=("own 0",))
    check(result)
    assert streaming.replicas == (0,) and streaming.freed == () and streaming.begun_s == 0.0
    assert await stage.streamed(HandOver(RoundHandOver(engines=1, at_finished=0.5), SAMPLES, 2), places=("GPU 0",)) == (
        None,
        None,
    )


@pytest.mark.parametrize("fails", [RunFailed("out of memory"), TrainerDied("trainer a", "it is gone")])
@staged(Streamed, bounded=False)
async def test_a_training_fault_ends_the_round_but_a_death_waits(stage, fails):
    for actor in stage.actors:  # a group ends every 5 s
        actor.token_s, actor.length = 1.0, lambda request: 5 * (1 + int(request.prompt_id[1:]))
    stage.trainer.fails, began = fails, now_s()
    with pytest.raises(type(fails), match=str(fails)):
        await stage.streamed(places=("own 0",))
    ended = 20.0 if isinstance(fails, TrainerDied) else 6.0  # of its death the run takes care
    assert now_s() - began == pytest.approx(ended, abs=0.1)


@pytest.mark.parametrize("given_up, away, running, freed", [
    ((), (), 2, True), ((0,), (), 2, False), ((0,), (), 1, True), ((), (0,), 1, False), ((0, 1), (), 1, False),
    ((2,), (2,), 2, True),
])  # fmt: skip
def test_engines_that_were_given_up_hold_nothing_and_hinder_no_hand_over(given_up, away, running, freed):
    facts = SimpleNamespace(kv_capacity_tokens=100)
    engines = [
        SimpleNamespace(facts=facts, given_up=n in given_up, alive=n not in (*given_up, *away)) for n in range(3)
    ]
    requests = {"samples": {}, "running_tokens": lambda held: [100] * running, "requests_on": lambda n: [n]}
    ledger = SimpleNamespace(now_s=lambda: 1.0, **requests)
    decision = HandOver(RoundHandOver(engines=1, at_finished=0.5, growth_tokens=0), SAMPLES, 3)
    decision.finished = SAMPLES
    streaming = RoundStreaming(Adds(), UPDATE, [0], asyncio.sleep, decision)
    streaming.begin(SimpleNamespace(engines=engines, ledger=ledger, machine=None))
    assert streaming._decide({}) == ([(2, [2])] if freed else []) and decision.freed == freed


def test_a_stream_that_is_abandoned_trains_nothing_more():
    async def body():
        trainer, prepared = Adds(), []
        stream = RoundStreaming(trainer, UPDATE, (0, 2), lambda: asyncio.sleep(0, prepared.append(now_s())))
        group = [SimpleNamespace(tokens=100, prompt_id="p0")] * 2
        stream.offer(0, group)
        stream.start()
        stream.start()
        await until(lambda: trainer.took)
        stream.offer(1, group)
        await asyncio.sleep(0.5)
        stream.abandon()
        await asyncio.sleep(60)
        assert stream.taken[:1] == [0] and len(trainer.took) == len(prepared) == 1
        assert stream.portions == [pytest.approx((0.0, 1.0, 1, 200))] and trainer.took == [(["p0"], (0, 2), True)]

    played(body())


class Tokenizer:
    chat_template = "chat"

    def __init__(self, words=3):
        self.words = words

    def get_vocab(self):
        return {f"w{number}": number for number in range(self.words)}

    def convert_ids_to_tokens(self, number):
        return f"w{number}"

    def __call__(self, text, add_special_tokens=True):
        assert add_special_tokens != text.startswith("chat"), "a template has them"
        return {"input_ids": list(range(len(text.replace("none", "").split())))}

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, tools=(), **further):
        assert not tokenize and add_generation_prompt
        if messages[0]["role"] == "tool":
            raise ValueError("a tool\nspeaks first")
        said = [message["content"] for message in messages if message["role"] != "developer"]
        return " ".join(["chat", *said, *(tool["name"] for tool in tools), *further])


def test_prompts_are_tokens_of_the_policy_and_bad_ones_are_named(tmp_path, monkeypatch):
    path = tmp_path / "data.jsonl"
    rows = [{"id": "a", "prompt": "x y", "answer": "1"}]
    rows += [{"id": "b", "prompt": [{"role": "user", "content": "z"}], "answer": "2"}]

    def loaded(rows, tokenizer=None):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_prompts(path, tokenizer or Tokenizer(), 3)

    found = loaded(rows)
    assert found["a"].tokens == (0, 1) and found["a"].answer == "1" and found["b"].text == "chat z"
    for bad, why in (
        ("none", "prompt 'c' has no tokens"),
        ("w x y z", "has 4 tokens, more than rollout.max_prompt_tokens"),
    ):
        with pytest.raises(InputError, match=why):
            loaded([*rows, {"id": "c", "prompt": bad, "answer": "3"}])
    plain = Tokenizer()
    plain.chat_template = None
    with pytest.raises(InputError, match="prompt 'b' is chat messages and the model's tokenizer has no chat template"):
        loaded(rows, plain)
    code = {"id": "a", "prompt": "x", "answer": "", "test": "assert f() == 1", "entry_point": "f"}
    path.write_text(json.dumps(code))
    assert "assert f() == 1" in json.dumps(load_prompts(path, Tokenizer(), 3, "code")["a"].answer), "as it is scored"
    config = SimpleNamespace(vocab_size=3)
    auto = SimpleNamespace(from_pretrained=lambda path, **_: Tokenizer(int(path)))
    found = SimpleNamespace(AutoTokenizer=auto, AutoConfig=SimpleNamespace(from_pretrained=lambda path, **_: config))
    monkeypatch.setitem(sys.modules, "transformers", found)
    assert load_tokenizer("3").words == 3
    with pytest.raises(InputError, match=r"has token 3 \('w3'\), but the model's embedding has 3 rows"):
        load_tokenizer("4")
    with pytest.raises(InputError, match=r"no tokenizer to load \(ValueError: invalid literal"):
        load_tokenizer("no number")


@pytest.mark.parametrize(
    ("stops", "why"),
    [
        (
            {"stop": ["</a>", "x<eos>"]},
            "stop: 'x<eos>' has the special token '<eos>', which .* rollout.stop_token_ids: .1.",
        ),
        ({"stop_token_ids": [3, 9]}, "stop_token_ids: the model's tokenizer has no token 9, but 4 tokens"),
    ],
)
def test_a_stop_that_no_response_can_have_is_refused(stops, why):
    class Special:
        all_special_tokens, all_special_ids = ["<pad>", "<eos>"], [0, 1]
        __len__ = lambda self: 4  # noqa: E731

    rollout = RolloutSpec(prompts_per_step=1, samples_per_prompt=2, max_prompt_tokens=3, max_response_tokens=4)
    stops_must_be_written(rollout.model_copy(update={"stop": ("</a>",), "stop_token_ids": (3,)}), Special())
    with pytest.raises(InputError, match=why):
        stops_must_be_written(rollout.model_copy(update=stops), Special())


def test_variables_of_jobs_and_rows_go_to_the_chat_template(tmp_path):
    path, tokenizer = tmp_path / "data.jsonl", Tokenizer()
    tokenizer.chat_template = "{% if enable_thinking %}{{ tone }}"
    tokenizer.apply_chat_template = lambda messages, **given: f"chat {given['enable_thinking']} {given['tone']} z"
    asked = [{"role": "user", "content": "z"}]
    rows = [{"id": "a", "prompt": asked}, {"id": "b", "prompt": asked, "chat_template_kwargs": {"tone": "loud"}}]

    def texts(rows, **template):
        path.write_text("".join(json.dumps({"answer": 1, **row}) + "\n" for row in rows))
        return [prompt.text for prompt in load_prompts(path, tokenizer, 9, template=template).values()]

    text = {"id": "c", "prompt": "as it is"}
    found = texts([*rows, text], enable_thinking=False, tone="low")
    assert found == ["chat False low z", "chat False loud z", "as it is"]
    with pytest.raises(InputError, match="kwargs: the model's chat template does not read 'thinking'; remove it"):
        texts(rows, thinking=False)
    with pytest.raises(InputError, match=r"all prompts are text, .*; remove data.chat_template_kwargs"):
        texts([text], enable_thinking=False)
    with pytest.raises(ValidationError, match="has 'tools', which is no variable of its own there"):
        DataSpec(path="data.jsonl", chat_template_kwargs={"tools": []})


def test_what_a_chat_template_leaves_out_is_refused(tmp_path):
    path, user = tmp_path / "data.jsonl", {"role": "user", "content": "z"}

    def text(first=(), **further):
        row = {"id": "a", "prompt": [*first, user], "answer": 1, **further}
        path.write_text(json.dumps(row))
        tokenizer = Tokenizer()
        tokenizer.chat_template = "{{ tools }} {% if enable_thinking %}"
        return load_prompts(path, tokenizer, 9)["a"].text

    assert text(system="be brief", tools=[{"name": "add"}]) == "chat be brief z add"
    switched = {"enable_thinking": False}
    assert text(tools='[{"name": "add"}]', chat_template_kwargs=switched) == "chat z add enable_thinking"
    for further, why in (
        ({"documents": [{"text": "d"}]}, "has 'documents', which the model's chat template does not read"),
        ({"chat_template_kwargs": {"thinking": True}}, "has 'thinking', which the model's chat template does not"),
        ({"first": [{"role": "developer", "content": "hm"}]}, "role 'developer', which .* leaves out"),
        ({"first": [{"role": "tool", "content": "7"}]}, r"refused by the model's chat template \(ValueError: a tool\)"),
    ):
        with pytest.raises(InputError, match=why):
            text(**further)
