"""Prompts are read row by row, and a bad row is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlplan.plans.data import Prompt, read_prompts
from rlplan.plans.errors import InputError

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
    ("row", "words"),
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
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, words: str) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"id": "first", "prompt": "p", "answer": 1}\n\n' + row + "\n")
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    assert words in str(caught.value)
    assert (caught.value.path, caught.value.line) == (str(file), 3)


def test_no_rows_and_no_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no rows"):
        read_prompts(tmp_path / "d.jsonl")
    with pytest.raises(InputError, match="no such file"):
        read_prompts(tmp_path / "e.jsonl")
