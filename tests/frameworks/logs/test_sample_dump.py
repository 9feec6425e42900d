"""Dumps of slime, verl and TRL: files that their own writers wrote (files/), and ones that are damaged."""

import json
import pickle
from pathlib import Path

import pytest

from rlplan.frameworks.logs.sample_dump import digest, placed, read_sample_dump
from rlplan.plans.yaml.errors import InputError

FILES = Path(__file__).parent / "files"


def words(text):
    return len(text.split())


def test_slimes_dumps_have_lengths_rewards_and_groups():
    pytest.importorskip("torch")
    dump = read_sample_dump(FILES / "slime_dump")
    assert (dump.framework, dump.files, len(dump.samples), dump.has_lengths) == ("slime", 3, 24, True)
    assert {s.group_number for s in dump.samples if s.step == 0} == {0, 1, 3, 4}  # the third group was not trained
    assert {s.prompt_tokens for s in dump.samples} == {9} and {s.reward for s in dump.samples} == {0.0, 1.0}
    assert [s.truncated for s in dump.samples] == [s.tokens > 24 for s in dump.samples]


def test_a_prompt_that_comes_again_is_in_its_next_epoch():
    pytest.importorskip("torch")
    places = list(placed(read_sample_dump(FILES / "slime_dump").samples))
    assert len({(s.prompt, p.epoch, p.sample) for s, p in places}) == len(places)
    assert {p.epoch for s, p in places if s.step < 2} == {0} and {p.epoch for s, p in places if s.step == 2} == {1}
    assert {(p.draw, p.sample) for s, p in places if s.step == 1} == {(d, n) for d in range(4) for n in range(2)}


def test_code_in_a_dump_is_not_run(tmp_path):
    torch = pytest.importorskip("torch")

    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "ran").touch, ())

    torch.save({"rollout_id": 0, "samples": [Bomb()]}, tmp_path / "0.pt")
    with pytest.raises(InputError, match="cannot be read as a dump of slime's"):
        read_sample_dump(tmp_path / "0.pt")
    assert not (tmp_path / "ran").exists()
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), tmp_path / "program.pt")
    with pytest.raises(InputError, match="a program, not data"):
        read_sample_dump(tmp_path / "program.pt")
    (tmp_path / "1.pt").write_bytes(pickle.dumps(3)[:-1])
    with pytest.raises(InputError, match=r"1\.pt"):
        read_sample_dump(tmp_path / "1.pt")


def test_tensors_and_arrays_in_a_dump_are_read(tmp_path):
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    row = {"group_index": 3, "prompt": [{"role": "user", "content": "a"}], "response_length": 2, "status": "truncated"}
    row |= {
        "tokens": torch.arange(5),
        "reward": {"score": numpy.float32(0.5), "other": 1},
        "metadata": {"x": numpy.array(["a"])},
    }
    torch.save({"rollout_id": 1, "samples": [row]}, tmp_path / "1.pt")
    (sample,) = read_sample_dump(tmp_path / "1.pt").samples
    assert (sample.prompt_tokens, sample.truncated, sample.reward, sample.text) == (3, True, 0.5, "a")


def test_filling_and_evaluations_are_left_out(tmp_path):
    torch = pytest.importorskip("torch")
    row = {
        "group_index": 0,
        "prompt": "a",
        "response_length": 2,
        "tokens": [1, 2, 3],
        "status": "completed",
        "reward": 1.0,
    }
    rows = [row | {"metadata": {"rlplan": own}} for own in ({"row": 0, "round": "long"}, {"filling": True})]
    torch.save({"rollout_id": 4, "samples": rows}, tmp_path / "rollout_4.pt")
    torch.save({"rollout_id": 4, "samples": [row]}, tmp_path / "eval_4.pt")
    (sample,) = read_sample_dump(tmp_path).samples
    assert sample.long_round is True and sample.step == 4


def test_verls_texts_have_lengths_by_a_tokenizer_alone(tmp_path):
    rows = [
        {"input": "add 1", "output": "it is 2", "gts": "2", "score": 1.0, "step": 3, "uid": f"q_{n}_0"} for n in (0, 1)
    ]
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain, counted = read_sample_dump(tmp_path), read_sample_dump(tmp_path, words)
    assert (plain.framework, plain.has_lengths, counted.has_lengths) == ("verl", False, True)
    assert [(s.group, s.tokens, s.prompt_tokens, s.reward) for s in counted.samples] == [("q", 3, 2, 1.0)] * 2
    assert counted.samples[0].prompt == digest("add 1") and counted.samples[0].truncated is None


def test_trls_completions_are_read_with_their_one_reward():
    pytest.importorskip("pyarrow")
    dump = read_sample_dump(FILES / "trl_completions", words)
    assert (dump.framework, dump.files, len(dump.samples)) == ("trl", 3, 24)
    assert {s.step for s in dump.samples} == {1, 2, 3} and {s.reward for s in dump.samples} == {0.0, 1.0}


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "1.jsonl").write_text('{"input": "a", "output": "b", "step": 1}\n{"input": "a"}\n')
    with pytest.raises(InputError, match=r"1\.jsonl:2: has no input, output or step"):
        read_sample_dump(tmp_path)


@pytest.mark.parametrize("step", ['"last"', "null", "NaN", "1" + 400 * "0"])
def test_a_step_that_is_no_number_is_named(tmp_path, step):
    (tmp_path / "1.jsonl").write_text(f'{{"input": "a", "output": "b", "step": {step}}}\n')
    with pytest.raises(InputError, match=r"1\.jsonl:1: its step is .* not a number"):
        read_sample_dump(tmp_path)
