"""Prompts are read row by row, and a bad row is named by its line."""

import json

import pytest

from rlplan.plans.files.prompt_rows import MOST_FAULTS, Prompt, read_prompts
from rlplan.plans.yaml.errors import InputError

CHAT = [{"role": "user", "content": "2+2"}]
ROW = '{"id": "first", "prompt": "p", "answer": 1}'


@pytest.fixture
def file(tmp_path):
    return tmp_path / "d.jsonl"


def test_rows_come_in_file_order_with_text_chat_and_any_answer(file):
    rows = [
        {"id": "b", "prompt": "1+1 \u2028 next", "answer": 2, "source": "left alone"},
        {"id": "a", "prompt": CHAT, "answer": None},
    ]
    # Blank lines, CRLF, and a separator that str.splitlines() would take for a line's end.
    file.write_text("\r\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows), encoding="utf-8", newline="")
    assert read_prompts(file) == [Prompt("b", "1+1 \u2028 next", 2), Prompt("a", CHAT, None)]
    file.write_text('{"id": "\\ud83d\\ude00", "prompt": "b", "answer": 1}\n')
    assert read_prompts(file)[0].id == "😀", "a whole surrogate pair is text"


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
        (ROW, "id 'first' is also in line 1"),
        ("[" * 200_000, "nested too deeply"),
        ('{"id": "a", "prompt": "b", "answer": ' + "9" * 5000 + "}", "more than 4,300 digits"),
        ('{"id": "\\ud800", "prompt": "b", "answer": 1}', "half of a surrogate pair"),
    ],
)
def test_a_bad_row_is_named_by_its_line(file, row, message):
    file.write_text(f"{ROW}\n\n{row}\n")
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    assert message in str(caught.value) and (caught.value.path, caught.value.line) == (str(file), 3)


def test_no_rows_and_no_file_are_errors(file):
    with pytest.raises(InputError, match="no such file"):
        read_prompts(file)
    file.write_text("\n")
    with pytest.raises(InputError, match="has no rows"):
        read_prompts(file)


def test_all_bad_rows_are_told_at_once_unless_they_are_very_many(file):
    file.write_text("\n".join([ROW, '{"prompt": "p", "answer": 1}', ROW, "nonsense", ROW.replace("first", "b")]))
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    errors = caught.value.each()
    assert [fault.line for fault in errors] == [2, 3, 4] and {fault.path for fault in errors} == {str(file)}
    assert ["missing key 'id'" in errors[0].message, "also in line 1" in errors[1].message] == [True, True]
    for more in (0, 7):
        file.write_text('{"id": "x", "prompt": "p"}\n' * (MOST_FAULTS + more))
        with pytest.raises(InputError) as caught:
            read_prompts(file)
        errors = caught.value.each()
        assert len(errors) == MOST_FAULTS + (more > 0)
        assert ("7 further rows have faults" in errors[-1].message) == (more > 0)


@pytest.mark.parametrize("header", ["id,prompt,answer", '"id","prompt"', "id\tquestion\tgold answer", "id;prompt"])
def test_a_table_in_place_of_jsonl_is_called_so_once(file, header):
    file.write_text(f"\n{header}\na,1+1,2\nb,1+2,3\n")
    with pytest.raises(InputError, match=r"d.jsonl:2: is a table and not JSONL; write each row as") as caught:
        read_prompts(file)
    assert not caught.value.others


@pytest.mark.parametrize("answer", ["null", '""', "[]", "{}", "0"])
def test_an_empty_answer_is_refused_where_the_reward_compares_with_it(file, answer):
    file.write_text(ROW.replace("1}", answer + "}"))
    assert len(read_prompts(file, "function")) == 1
    for kind in ("math", "code"):
        if answer == "0":
            assert read_prompts(file, kind)[0].answer == 0
            continue
        with pytest.raises(InputError, match=f"d.jsonl:1: answer is empty, and reward.kind {kind}"):
            read_prompts(file, kind)
