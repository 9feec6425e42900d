"""Prompts are read row by row, and a bad row is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlplan.plans.files.prompt_rows import MOST_FAULTS, Prompt, read_prompts
from rlplan.plans.yaml.errors import InputError

CHAT = [{"role": "user", "content": "2+2"}]


def test_rows_come_in_file_order_with_text_chat_and_any_answer(tmp_path: Path) -> None:
    rows = [
        {"id": "b", "prompt": "1+1 \u2028 next", "answer": 2, "source": "left alone"},
        {"id": "a", "prompt": CHAT, "answer": None},
    ]
    file = tmp_path / "d.jsonl"
    # Blank lines, CRLF, and a separator that str.splitlines() would take for a line's end.
    file.write_text("\r\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows), encoding="utf-8", newline="")
    assert read_prompts(file) == [Prompt("b", "1+1 \u2028 next", 2), Prompt("a", CHAT, None)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"id": "x", "prompt": "p", "answer"', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('{"id": "x", "prompt": "p"}', "missing key 'answer'"),
        ('{"prompt": "p", "answer": 1}', "missing key 'id'"),
        ('{"id": "x", "answer": 1}', "missing key 'prompt'"),
        ('{"id": 7, "prompt": "p", "answer": 1}', "id must be text, not 7"),
        ('{"id": "x", "prompt": "", "answer": 1}', "prompt must be text or a list"),
        ('{"id": "x", "prompt": [], "answer": 1}', "prompt must be text or a list"),
        ('{"id": "x", "prompt": [{"role": "user"}], "answer": 1}', "prompt must be text or a list"),
        ('{"id": "first", "prompt": "p", "answer": 1}', "id 'first' is also in line 1"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"id": "first", "prompt": "p", "answer": 1}\n\n' + row + "\n")
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    assert message in str(caught.value)
    assert (caught.value.path, caught.value.line) == (str(file), 3)


def test_no_rows_and_no_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no rows"):
        read_prompts(tmp_path / "d.jsonl")
    with pytest.raises(InputError, match="no such file"):
        read_prompts(tmp_path / "e.jsonl")


def test_all_bad_rows_are_told_at_once_and_of_very_many_the_first_ones(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    good = '{"id": "ID", "prompt": "p", "answer": 1}'
    file.write_text("\n".join([good, '{"prompt": "p", "answer": 1}', good, "nonsense", good.replace("ID", "b")]))
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    errors = caught.value.each()
    assert [fault.line for fault in errors] == [2, 3, 4] and {fault.path for fault in errors} == {str(file)}
    assert ["missing key 'id'" in errors[0].message, "also in line 1" in errors[1].message] == [True, True]
    file.write_text('{"id": "x", "prompt": "p"}\n' * (MOST_FAULTS + 7))
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    errors = caught.value.each()
    assert len(errors) == MOST_FAULTS + 1 and "7 further rows have faults" in errors[-1].message


@pytest.mark.parametrize("header", ["id,prompt,answer", '"id","prompt"', "id\tquestion\tgold answer", "id;prompt"])
def test_a_table_in_place_of_jsonl_is_called_so_and_not_row_by_row(tmp_path: Path, header: str) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(f"\n{header}\na,1+1,2\nb,1+2,3\n")
    with pytest.raises(InputError, match=r"d.jsonl:2: is a table and not JSONL; write each row as") as caught:
        read_prompts(file)
    assert not caught.value.others


@pytest.mark.parametrize("answer", ["null", '""', "[]", "{}"])
def test_an_empty_answer_is_refused_where_the_reward_compares_with_it_and_taken_by_a_function(
    tmp_path: Path, answer: str
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"id": "x", "prompt": "p", "answer": ANSWER}\n'.replace("ANSWER", answer))
    assert len(read_prompts(file, "function")) == 1
    for kind in ("math", "code"):
        with pytest.raises(InputError, match=f"d.jsonl:1: answer is empty, and reward.kind {kind}"):
            read_prompts(file, kind)


def test_zero_is_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"id": "x", "prompt": "p", "answer": 0}\n')
    assert read_prompts(file, "math")[0].answer == 0
