"""The demo's task, its reward and its warm-up."""

import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from rlplan.executor.example import task
from rlplan.executor.rewards.keyhunt import score
from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.errors import InputError

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


def test_each_answer_in_the_data_earns_one_and_other_values_nothing() -> None:
    for hunt in task.draw_data(seed=3, prompts=8):
        for key, value in hunt.answer.items():
            rewards = {v: score(hunt.prompt, f"{key} {task.HIT} {v} {task.EOS}") for v in task.VALUE_WORDS}
            assert rewards == {v: float(v == value) for v in task.VALUE_WORDS}


def test_data_is_reproducible_distinct_and_has_the_stated_difficulties() -> None:
    hunts = task.draw_data(seed=1, prompts=512)
    assert hunts == task.draw_data(seed=1, prompts=512) != task.draw_data(seed=2, prompts=512)
    assert len({hunt.prompt for hunt in hunts}) == 512
    assert all(len(hunt.answer) == len(hunt.pairs) for hunt in hunts), "keys of a prompt are distinct"
    assert {word for hunt in hunts for word in hunt.prompt.split()} < set(task.TOKEN)
    count = Counter(len(hunt.pairs) for hunt in hunts)
    assert set(count) == {keys for keys, _ in task.DIFFICULTY}
    assert all(abs(count[keys] - share * 512) <= 1 for keys, share in task.DIFFICULTY)
    assert math.isclose(sum(share for _, share in task.DIFFICULTY), 1.0)


def test_a_uniform_policy_has_heavy_tailed_lengths_cut_at_the_cap() -> None:
    rng = random.Random(0)

    def length(keys: int) -> int:
        tries = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - keys / task.SYMBOLS))
        return min(2048, 2 * tries + 2)

    keys = [number for number, share in task.DIFFICULTY for _ in range(round(1000 * share))]
    steps = [[length(number) for number in rng.sample(keys, 16) for _ in range(3)] for _ in range(384)]
    lengths = sorted(tokens for step in steps for tokens in step)
    assert 0.004 <= sum(tokens >= 2048 for tokens in lengths) / len(lengths) <= 0.01
    assert 8 <= lengths[len(lengths) // 2] <= 14 and 400 <= lengths[19 * len(lengths) // 20] <= 600
    ratios = sorted(max(step) / sorted(step)[24] for step in steps)
    assert ratios[len(ratios) // 2] >= 80
    # With a share h of hard prompts, (1 - h)^16 of the steps draw none, and have no tail: 19% at h = 0.1.
    assert ratios[len(ratios) // 4] >= 30


def test_the_teachers_sequences_follow_the_rules_of_the_task() -> None:
    import numpy as np

    from rlplan.executor.example import warmup

    data = warmup.batch(np.random.default_rng(0), warmup.WarmupPhase(steps=1, rows=16, tokens=61, keys=12, hits=0.5))
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
            taught, said = (kinds[i], labels[i]), words[i]
            if said in (task.ASK, task.MISS):
                assert taught[0] == warmup.TRY
            elif said in task.VALUE_WORDS:
                assert taught == (warmup.EXACT, task.TOKEN[task.EOS])
                assert score(prompt, " ".join(words[i - 2 : i + 1])) == 1.0
            elif said == task.HIT:
                assert taught[0] == warmup.VALUE
                assert score(prompt, f"{words[i - 1]} yes {task.WORDS[labels[i]]}") == 1.0
                hits += 1
            else:
                assert taught == (warmup.EXACT, task.TOKEN[task.HIT if said in prompt.split() else task.MISS])
    assert hits > 40


def test_the_teachers_loss_is_least_for_the_teachers_own_distribution() -> None:

    from rlplan.executor.example import warmup

    size = len(task.WORDS)
    kind = torch.tensor([[warmup.TRY, warmup.VALUE, warmup.EXACT, warmup.NOTHING]])
    label = torch.tensor([[0, task.FIRST_VALUE + 2, task.TOKEN[task.EOS], 0]])
    p = torch.full((1, 4, size), 1e-9)
    p[0, 0, task.FIRST_SYMBOL :] = 1 / task.SYMBOLS
    p[0, 1, task.FIRST_VALUE : task.FIRST_VALUE + task.VALUES] = (1 - warmup.RIGHT) / (task.VALUES - 1)
    p[0, 1, task.FIRST_VALUE + 2] = warmup.RIGHT
    p[0, 2, task.TOKEN[task.EOS]] = 1.0
    best = warmup.teacher_loss(p.log(), kind, label)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        nudged = p.log() + 0.3 * torch.randn(p.shape, generator=generator)
        assert warmup.teacher_loss(nudged, kind, label) > best + 1e-3


def test_an_example_is_a_whole_folder_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short warm-up: it learns nothing, and its learning rate rises, then falls."""
    from rlplan.executor.example import warmup, write

    rates: list[float] = []
    adamw = warmup.torch.optim.AdamW
    noted = type("AdamW", (adamw,), {"step": lambda self: rates.append(self.param_groups[0]["lr"]) or adamw.step(self)})
    monkeypatch.setattr(warmup.torch.optim, "AdamW", noted)
    monkeypatch.setattr(warmup, "RAMP_STEPS", 2)
    monkeypatch.setattr(write, "PROMPTS", 20)
    short, told = (warmup.WarmupPhase(4, 2, 32, 8, 0.5),), []
    before = warmup.torch.get_num_threads()
    facts = write.write_example(tmp_path / "demo", 5, short, lambda *step: told.append(step[:2]))
    assert warmup.torch.get_num_threads() == before and told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    cosine = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    ramp = (0.5, 1.0, 1.0, 1.0)
    assert rates == pytest.approx([1.5e-3 * r * max(0.03, c) for r, c in zip(ramp, cosine, strict=True)])
    files = {"cluster.yaml", "data.jsonl", "held_out.jsonl", "job.yaml", "model/config.json", "model/tokenizer.json"}
    assert files < set(facts["files"]) and (facts["prompts"], facts["seed"], facts["kind"]) == (20, 5, "cpu")
    rows = [json.loads(line) for line in (tmp_path / "demo" / "data.jsonl").read_text().splitlines()]
    assert rows[1]["id"] == "k00001" and rows[0]["answer"] and len(rows) == 20
    held_out = [json.loads(line) for line in (tmp_path / "demo" / "held_out.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in [*rows, *held_out]}) == 20 + write.HELD_OUT
    assert {len(row["answer"]) for row in held_out} == {80}
    assert len({row["prompt"] for row in [*rows, *held_out]}) == 20 + write.HELD_OUT
    evaluated = load_job(tmp_path / "demo" / "job.yaml").evaluate
    assert evaluated is not None and evaluated.data == "held_out.jsonl"
    assert (tmp_path / "demo").stat().st_mode & 0o777 == 0o755
    cluster = write.detect_cluster().pools["main"]
    assert cluster.accelerators.per_node == cluster.cores == write.available_cores()
    assert write.MIN_KV_BYTES <= cluster.accelerators.memory_bytes <= write.MAX_KV_BYTES
    with pytest.raises(InputError, match="is not empty; choose a new folder, nothing was written"):
        write.write_example(tmp_path / "demo")
    monkeypatch.setattr(warmup, "warm_up", lambda *given, **more: warmup.make_model(0))
    with pytest.raises(RuntimeError, match="the warm-up did not succeed with seed 7"):
        write.write_example(tmp_path / "another", 7)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="exists and is no folder"):
        write.write_example(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "file"]


def test_a_tokenizer_gives_one_token_per_word_and_gives_the_text_back(tmp_path: object) -> None:
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
def test_a_seed_gives_the_same_weights_and_keeps_the_callers_state() -> None:

    from rlplan.executor.example import warmup

    short = (warmup.WarmupPhase(steps=3, rows=4, tokens=32, keys=8, hits=0.5),)
    before = torch.get_rng_state()
    first, again, other = (warmup.warm_up(seed, 1, short).state_dict() for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.engine
def test_a_new_model_looks_back_at_the_token_and_the_try() -> None:
    import numpy as np

    from rlplan.executor.example import warmup

    model = warmup.make_model(0)
    model.set_attn_implementation("eager")
    data = warmup.batch(np.random.default_rng(0), warmup.WarmupPhase(steps=1, rows=4, tokens=48, keys=8, hits=0.5))
    with torch.no_grad():
        out = model(data["tokens"], attention_mask=torch.ones_like(data["tokens"]), output_attentions=True)
    assert out.attentions[0][:, 0].diagonal(-1, 1, 2).mean() > 0.8
    found = total = 0
    for row, query in (data["kind"] == warmup.VALUE).nonzero().tolist():
        place = int(out.attentions[1][row, 0, query - 1].argmax())  # from the try, one before `yes`
        found += int(data["tokens"][row, place] == data["label"][row, query])
        total += 1
    assert found > 0.6 * total  # chance is below 0.2
