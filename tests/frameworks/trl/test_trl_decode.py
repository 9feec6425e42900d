"""Engines in steps: what a sample becomes does not depend on who else is decoded, when it joins, or where."""

import random
import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rlplan.frameworks.trl.trl_decode import (
    PlannedSample,
    SamplingRule,
    SharedEngine,
    TransformersEngine,
    VllmEngine,
    decode_all,
    run_round,
)
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.rounds.machines.events import SampleKey
from rlplan.rounds.round_spec import QueueRule, RoundSpec
from rlplan.rounds.schedule import Schedule
from rlplan.rounds.seeds import RoundSeeds, SeedLedger

WORDS, STOPS = 40, [0, 1, 2]
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SPEC = RoundSpec("exact", 4, 2, 48, 6, 2, cutoff_tokens=12, queue=QueueRule(6))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def engine_of(model, rule=SamplingRule(), most_rows=64):  # noqa: B008 - frozen
    return TransformersEngine(model, rule, STOPS, most_rows)


def samples(count):
    shuffle = random.Random(5)
    return [
        PlannedSample(SampleKey(n, 0), [shuffle.randrange(3, WORDS) for _ in range(2 + n % 5)], 100 + n)
        for n in range(count)
    ]


@torch.no_grad()
def reference(model, sample, limit):
    """Token by token, each from a forward pass over the whole text, by the uniform number that the sample draws."""
    probe = PlannedSample(sample.key, sample.prompt, sample.seed)
    while len(probe.response) < limit and not (probe.response and probe.response[-1] in STOPS):
        logits = model(torch.tensor([sample.prompt + probe.response])).logits[0, -1]
        shares = logits.double().softmax(-1).tolist()
        wanted, word = probe.draw(6) / 2**48, 0
        while wanted >= sum(shares[: word + 1]):
            word += 1
        probe.response.append(word)
    return probe.response


def test_rows_that_join_and_leave_decode_as_alone(model):
    drawn = samples(12)
    decode_all(engine_of(model, most_rows=5), drawn, 24)
    assert [sample.response for sample in drawn] == [reference(model, sample, 24) for sample in drawn]
    assert len({len(sample.response) for sample in drawn}) > 3
    assert all(sample.truncated == (sample.response[-1] not in STOPS) for sample in drawn)


def test_a_sample_goes_on_after_others_left_where_it_stopped(model):
    drawn, engine = samples(6), engine_of(model)
    decode_all(engine, drawn, 4)
    cut = [sample for sample in drawn if sample.truncated]
    assert len(cut) > 1
    decode_all(engine, cut, 24)
    assert [sample.response for sample in drawn] == [reference(model, sample, 24) for sample in drawn]


def test_an_aborted_sample_takes_no_further_step(model):
    drawn = [sample for sample in samples(12) if len(reference(model, sample, 24)) > 4][:3]
    engine = engine_of(model, most_rows=2)
    for sample in drawn:
        engine.add(sample, 24)
    engine.step()
    engine.step()
    reached = list(drawn[0].response)
    engine.abort(drawn[0].key)
    engine.abort(drawn[2].key)
    while engine.busy:
        engine.step()
    assert len(reached) == 2 and drawn[0].response == reached and drawn[2].response == []
    assert drawn[1].response == reference(model, drawn[1], 24)


def test_tokens_are_drawn_as_often_as_they_are_likely(model):
    logits = torch.log(torch.tensor([0.0, 0.5, 0.2, 0.3]))
    engine, counts, draws = engine_of(model), [0] * 4, 4000
    for start in range(0, draws, 500):
        rows = [PlannedSample(SampleKey(n, 0), [], start + n) for n in range(500)]
        engine._draw(logits.expand(500, 4), rows)
        for row in rows:
            counts[row.response[0]] += 1
    for count, share in zip(counts, [0.0, 0.5, 0.2, 0.3], strict=True):
        assert abs(count / draws - share) <= 4 * (share * (1 - share) / draws) ** 0.5


def test_a_rule_of_sampling_leaves_out_what_it_names(model):
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))

    def words(**rule):
        rows = [PlannedSample(SampleKey(n, 0), [], n) for n in range(200)]
        engine_of(model, SamplingRule(**rule))._draw(logits.expand(200, 4), rows)
        return {row.response[0] for row in rows}

    assert words() == {0, 1, 2, 3}
    assert words(top_k=2) == {0, 1} == words(top_p=0.6)
    assert words(min_p=0.4) == {0, 1, 2}
    assert words(temperature=0.01) == {0}
    with pytest.raises(InputError, match="repetition_penalty must be 1"):
        engine_of(model, SamplingRule(repetition_penalty=1.1))


def test_a_model_with_other_caches_is_refused():
    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    engine = engine_of(Qwen2ForCausalLM(sliding).eval())
    engine.add(samples(1)[0], 4)
    with pytest.raises(InputError, match="layers of kind DynamicSlidingWindowLayer"):
        engine.step()


# -- rounds ------------------------------------------------------------------------------------------------------------

PROMPTS = [f"p{n:02d}" for n in range(24)]
TEXTS = {prompt: [3 + n % 9, 5 + n] for n, prompt in enumerate(PROMPTS)}


def trained(model, schedule, shared=lambda engine: engine):
    """The groups that the next round trains, as (prompt, responses); the schedule is a round further."""
    number, machine = schedule.round_number, schedule.begin()
    seeds = RoundSeeds(9, schedule.epoch_of, number if machine.cuts else None)
    decoded = run_round(machine, shared(engine_of(model)), TEXTS.__getitem__, SeedLedger(seeds))
    groups = schedule.end(machine).trained
    for group in groups:
        assert [len(decoded[key].response) for key in group.keys] == list(group.tokens)
    return machine.kind, [(group.prompt, [decoded[key].response for key in group.keys]) for group in groups]


def test_rounds_train_each_prompt_once_an_epoch(model):
    schedule, rounds = Schedule(SPEC, PROMPTS, seed=3), []
    while schedule.epoch < 2:
        rounds.append(trained(model, schedule))
    assert {kind for kind, _ in rounds} == {"short", "long"}
    longest = {
        kind: max(len(r) for k, groups in rounds if k == kind for _, g in groups for r in g) for kind, _ in rounds
    }
    assert longest["short"] <= 12 < longest["long"]
    times = [prompt for _, groups in rounds for prompt, _ in groups]
    assert {times.count(prompt) for prompt in PROMPTS} <= {1, 2, 3}


def test_two_processes_run_the_same_round_and_share_its_samples(model):
    alone = Schedule(SPEC, PROMPTS, seed=3)
    expected = [trained(model, alone) for _ in range(5)]
    meet, posted, results, own = threading.Barrier(2), {}, {}, {0: 0, 1: 0}

    def work(rank):
        def gather(ended):
            posted[rank] = ended
            meet.wait()
            everything = [*posted[0], *posted[1]]
            meet.wait()
            own[rank] += len(ended)
            return everything

        schedule = Schedule(SPEC, PROMPTS, seed=3)
        results[rank] = [trained(model, schedule, lambda e: SharedEngine(e, rank, 2, gather)) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results[0] == results[1] == expected
    assert min(own.values()) > 10


class GivesUp(TransformersEngine):
    """Gives up what it ends, so many times, as vLLM may."""

    times = 0

    def step(self):
        ended = super().step()
        for sample in ended:
            self.times -= 1
            sample.reason = "error" if self.times >= 0 else "stop"
        return ended


def test_a_response_that_vllm_gives_up_is_drawn_again(model):
    engine = GivesUp(model, SamplingRule(), STOPS, 64)
    engine.times = 3
    expected = trained(model, Schedule(SPEC, PROMPTS, seed=3))
    assert trained(model, Schedule(SPEC, PROMPTS, seed=3), lambda _: engine) == expected and engine.times < 0
    drawn, again, engine.times = samples(3), samples(3), 4
    decode_all(engine_of(model), drawn, 24)
    decode_all(engine, again, 24)
    assert [sample.response for sample in again] == [sample.response for sample in drawn]
    engine.times = 1000
    with pytest.raises(RunFailed, match="vLLM ended a sample 9 times with 'error'"):
        decode_all(engine, samples(1), 24)


def test_vllm_may_not_end_what_repeats_itself():
    with pytest.raises(InputError, match=r"generation_kwargs.repetition_detection .*leave it out"):
        VllmEngine(None, SamplingRule(), {"repetition_detection": {"max_pattern_size": 3}})


def test_an_error_of_the_engine_ends_the_round(model):
    class Broken(TransformersEngine):
        def step(self):
            raise RuntimeError("out of memory")

    machine = Schedule(SPEC, PROMPTS, seed=3).begin()
    seeds = SeedLedger(RoundSeeds(9, lambda prompt: 0, 0))
    with pytest.raises(RuntimeError, match="out of memory"):
        run_round(machine, Broken(model, SamplingRule(), STOPS, 8), TEXTS.__getitem__, seeds)
