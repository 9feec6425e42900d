"""The demo's task, its reward and its warm-up."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from rlplan.executor.example import task
from rlplan.executor.rewards.keyhunt import score

PROMPT = "keys n17 =c n83 =f n5 =a ?"


@pytest.mark.parametrize("end", ["", " <eos>", "\n"])
def test_a_found_key_with_its_value_earns_one(end: str) -> None:
    assert score(PROMPT, "n40 no n12 no n83 yes =f" + end, None) == 1.0


def test_a_hit_at_the_first_try_earns_one() -> None:
    assert score(PROMPT, "n5 yes =a", None) == 1.0


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("", "empty"),
        ("<eos>", "nothing but the end"),
        ("n40 no n12 no", "cut at the cap"),
        ("n40 no n83 yes", "cut before the value"),
        ("n83 =f", "no yes"),
        ("n83 no =f", "no instead of yes"),
        ("yes =f", "no key at all"),
        ("n83 yes =c", "another key's value"),
        ("n83 yes =b", "a value of no key"),
        ("n40 yes =f", "a key that is not in the prompt"),
        ("n8 yes =f", "a prefix of a key"),
        ("n83 yes yes =f", "value not beside its key"),
        ("=f", "no key"),
        ("n83 yes =f n5", "goes on after the answer"),
        ("n17 yes =c n83 yes =f", "two answers"),
        ("=f <eos> n83 yes =f <eos>", "two answers, one after an end"),
        ("? n83 yes =ff", "no value at all"),
        ("\x00 ☃ )( n83", "garbage"),
    ],
)
def test_any_other_response_earns_nothing(response: str, why: str) -> None:
    assert score(PROMPT, response, {"n83": "=f"}) == 0.0, why


def test_garbage_for_a_prompt_earns_nothing_and_raises_nothing() -> None:
    assert score("", "n83 yes =f") == 0.0
    assert score("n83=f =f n83", "n83 yes =f") == 0.0


def test_each_answer_in_the_data_earns_one_and_every_other_value_nothing() -> None:
    for hunt in task.draw_data(seed=3, prompts=50):
        for key, value in hunt.answer.items():
            rewards = {v: score(hunt.prompt, f"{key} {task.HIT} {v} {task.EOS}") for v in task.VALUE_WORDS}
            assert rewards == {v: float(v == value) for v in task.VALUE_WORDS}


def test_data_is_reproducible_distinct_and_has_the_stated_difficulties() -> None:
    hunts = task.draw_data(seed=1, prompts=2048)
    assert hunts == task.draw_data(seed=1, prompts=2048)
    assert hunts != task.draw_data(seed=2, prompts=2048)
    assert len({hunt.prompt for hunt in hunts}) == 2048
    count = Counter(len(hunt.pairs) for hunt in hunts)
    assert set(count) == {keys for keys, _ in task.DIFFICULTY}
    for keys, share in task.DIFFICULTY:
        assert abs(count[keys] - share * 2048) <= 1
    assert math.isclose(sum(share for _, share in task.DIFFICULTY), 1.0)


def test_keys_of_a_prompt_are_distinct_and_every_word_is_in_the_vocabulary() -> None:
    rng = random.Random(0)
    for keys in (1, 2, max(keys for keys, _ in task.DIFFICULTY)):
        hunt = task.draw_hunt(rng, keys)
        assert len(hunt.answer) == keys
        assert all(word in task.TOKEN for word in hunt.prompt.split())


def test_a_uniform_policy_has_heavy_tailed_lengths_with_one_to_two_percent_at_the_cap() -> None:
    rng = random.Random(0)

    def length(keys: int) -> int:
        tries = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - keys / task.SYMBOLS))
        return min(1024, 2 * tries + 2)

    steps = []
    for seed in range(3):
        hunts = task.draw_data(seed, 2048)
        steps += [[length(len(h.pairs)) for h in hunts[i : i + 16] for _ in range(4)] for i in range(0, 2048, 16)]
    lengths = sorted(tokens for step in steps for tokens in step)
    assert 0.01 <= sum(tokens >= 1024 for tokens in lengths) / len(lengths) <= 0.02
    assert 10 <= lengths[len(lengths) // 2] <= 40
    ratios = sorted(max(step) / sorted(step)[32] for step in steps)
    assert ratios[len(ratios) // 2] >= 20
    # With a share h of hard prompts, (1 - h)^16 of the steps draw none, and have no tail: 13% at h = 0.12.
    assert ratios[len(ratios) // 5] >= 12


@pytest.fixture(scope="module")
def torch() -> object:
    return pytest.importorskip("torch")


def test_the_teachers_sequences_follow_the_rules_of_the_task(torch: object) -> None:
    import numpy as np

    from rlplan.executor.example import warmup

    data = warmup.batch(np.random.default_rng(0), warmup.Phase(steps=1, rows=16, tokens=61, keys=12, hits=0.5))
    hits = 0
    for tokens, kinds, labels, positions in zip(
        *(data[name].tolist() for name in ("tokens", "kind", "label", "positions")), strict=True
    ):
        words = [task.WORDS[t] for t in tokens]
        start = words.index(task.ASK) + 1
        prompt = " ".join(words[:start])
        assert kinds[: start - 1] == [warmup.NOTHING] * (start - 1)
        assert positions == sorted(set(positions)) and positions[-1] < warmup.TRAINED_POSITIONS
        for i in range(start - 1, len(words)):
            if words[i] in (task.ASK, task.MISS):
                assert kinds[i] == warmup.TRY
            elif words[i] in task.VALUE_WORDS:
                assert (kinds[i], labels[i]) == (warmup.EXACT, task.TOKEN[task.EOS])
                assert score(prompt, " ".join(words[i - 2 : i + 1])) == 1.0
            elif words[i] == task.HIT:
                assert kinds[i] == warmup.VALUE
                assert score(prompt, f"{words[i - 1]} yes {task.WORDS[labels[i]]}") == 1.0
                hits += 1
            elif words[i] in prompt.split():
                assert (kinds[i], labels[i]) == (warmup.EXACT, task.TOKEN[task.HIT])
            else:
                assert (kinds[i], labels[i]) == (warmup.EXACT, task.TOKEN[task.MISS])
    assert hits > 40


def test_the_teachers_loss_is_least_for_the_teachers_own_distribution(torch: object) -> None:
    import torch as t

    from rlplan.executor.example import warmup

    size = len(task.WORDS)
    kind = t.tensor([[warmup.TRY, warmup.VALUE, warmup.EXACT, warmup.NOTHING]])
    label = t.tensor([[0, task.FIRST_VALUE + 2, task.TOKEN[task.EOS], 0]])
    p = t.full((1, 4, size), 1e-9)
    p[0, 0, task.FIRST_SYMBOL :] = 1 / task.SYMBOLS
    p[0, 1, task.FIRST_VALUE : task.FIRST_VALUE + task.VALUES] = (1 - warmup.RIGHT) / (task.VALUES - 1)
    p[0, 1, task.FIRST_VALUE + 2] = warmup.RIGHT
    p[0, 2, task.TOKEN[task.EOS]] = 1.0
    best = warmup.teacher_loss(p.log(), kind, label)
    generator = t.Generator().manual_seed(0)
    for _ in range(5):
        nudged = p.log() + 0.3 * t.randn(p.shape, generator=generator)
        assert warmup.teacher_loss(nudged, kind, label) > best + 1e-3


def test_a_tokenizer_gives_one_token_per_word_and_gives_the_text_back(torch: object, tmp_path: object) -> None:
    from transformers import AutoTokenizer

    from rlplan.executor.example import warmup

    warmup.make_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = [task.TOKEN[word] for word in PROMPT.split()]
    assert tokenizer(PROMPT)["input_ids"] == ids == tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == PROMPT
    assert tokenizer.eos_token_id == task.TOKEN[task.EOS]
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == PROMPT


@pytest.mark.engine
def test_the_same_seed_gives_the_same_weights_and_leaves_the_callers_random_state_alone(torch: object) -> None:
    import torch as t

    from rlplan.executor.example import warmup

    short = (warmup.Phase(steps=3, rows=4, tokens=32, keys=8, hits=0.5),)
    before = t.get_rng_state()
    first, again, other = (warmup.warm_up(seed, 1, short).state_dict() for seed in (5, 5, 6))
    assert t.equal(before, t.get_rng_state())
    assert all(t.equal(first[name], again[name]) for name in first)
    assert not t.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.engine
def test_a_new_model_looks_at_the_token_before_and_at_what_followed_a_try(torch: object) -> None:
    import numpy as np
    import torch as t

    from rlplan.executor.example import warmup

    model = warmup.make_model(0)
    model.set_attn_implementation("eager")
    data = warmup.batch(np.random.default_rng(0), warmup.Phase(steps=1, rows=4, tokens=48, keys=8, hits=0.5))
    with t.no_grad():
        out = model(data["tokens"], attention_mask=t.ones_like(data["tokens"]), output_attentions=True)
    assert out.attentions[0][:, 0].diagonal(-1, 1, 2).mean() > 0.8
    found = total = 0
    for row, query in (data["kind"] == warmup.VALUE).nonzero().tolist():
        place = int(out.attentions[1][row, 0, query - 1].argmax())  # from the try, one before `yes`
        found += int(data["tokens"][row, place] == data["label"][row, query])
        total += 1
    assert found > 0.6 * total  # chance is below 0.2
