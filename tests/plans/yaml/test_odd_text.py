"""Text that looks like YAML and is not is named with line and column; numbers are read as meant, or refused."""

import re

import pytest

from rlplan.plans.check.any_document import read_document
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.json_text import JsonError, parse_json
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import loads

from ..conftest import JOB


def told(text):
    with pytest.raises(InputError) as caught:
        loads(text, Job, "job.yaml")
    return str(caught.value)


def numbered(text):
    return re.sub(r"prompts_per_step: [0-9]+", f"prompts_per_step: {text}", JOB)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a:\n  b: 1\n\tc: 2\n", "3: not valid YAML: column 1", "is a tab; indent with spaces"),
        ("a:\n  - b: 1\n \t  c: 2\nd: 4\n", "3: not valid YAML: column 2", "is a tab; indent with spaces"),
        ("a:\n\u00a0\u00a0b: 1\n  c: 2\n", "2: not valid YAML: column 1", "U+00A0 (no-break space); write a space"),
        ("a:\u00a01\nb: 2\n", "1: not valid YAML: column 3", "U+00A0 (no-break space); write a space"),
        ("a: {b: x\u200by}\n", "1: column 9", "U+200B (zero width space); remove it, or put the text in quotes"),
        ("a: 1\n\ufeffb: 2\n", "2: column 1", "U+FEFF (zero width no-break space); remove it"),
        ("# note\na: 1\nb：2\nc: 3\n", "3: not valid YAML: column 2", "U+FF1A (fullwidth colon); write :"),
        ("a: {b: 1，c: 2}\n", "1: not valid YAML: column 9", "U+FF0C (fullwidth comma); write ,"),
        ("a:\n  b: “x”\n", "2: column 6", 'U+201C (left double quotation mark); write "'),
        ("a: 1\u2028b: 2\n", "1: not valid YAML: column 5", "U+2028 (line separator)"),
        ("a: 1\nb: x\x0b\n", "2: not valid YAML: column 5", "U+000B (a control character); remove it"),
        ("a:\n  " + "[" * 5000 + "]" * 5000 + "\n", "2: column 4", "nested deeper than 40; check the brackets"),
        ("a:\n  " + "{a: " * 5000, "2: column 160", "nested deeper than 40; check the brackets"),
        ("".join(" " * depth + "a:\n" for depth in range(60)), "41: column 41", "nested deeper than 40"),
        ("a: [1\nb: 2]\nc: 3]\n", "2: not valid YAML: column 2", "expected ',' or ']', but got ':'"),
        ("a: {b: 1,000}\n", "1: column 10", "the comma in 1,000 ends the value; write 1000, or 1.000"),
    ],
)  # fmt: skip
def test_what_stands_wrong_is_named_with_line_and_column(text, where, what):
    with pytest.raises(InputError) as caught:
        parse(text, "x.yaml")
    assert str(caught.value).startswith(f"x.yaml:{where}") and what in str(caught.value), str(caught.value)


def test_a_tab_on_an_empty_line_and_deep_json_are_named():
    with pytest.raises(InputError, match=r"x:2: not valid YAML: column 1 is a tab"):
        parse("a: 1\n\t\n\nb: 2\n", "x")
    deep = '{"text": "[[\\"{{", "b": [1, [2]],\n "a": ' + "[" * 100_000
    with pytest.raises(JsonError, match="JSON is nested too deeply at column 106; flatten it") as caught:
        parse_json(deep)
    assert caught.value.line == 2


def test_odd_characters_may_stand_in_quotes_and_comments():
    text = "a: 'x\u00a0y “z”'  # “see”\u200b\n# \u00a0\tnote\nb: \"\u200b\"\nc: |\n  “x”\u00a0\nd: é–x\n"
    assert parse(text, "x").value == {"a": "x\u00a0y “z”", "b": "\u200b", "c": "“x”\u00a0\n", "d": "é–x"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0200", "0200 is 128 (octal) in YAML 1.1 and 200 in YAML 1.2; write 200 or 128"),
        ("08", "08 begins with 0; write 8"),
        ("0o200", "not '0o200'; write 128"),
        ("0x80", "not '0x80'; write 128"),
        ("1e3", "not 1e3; write 1000"),
        ("128.0", "not 128.0; write 128"),
        ("1.000", "not 1.000; write 1 or 1000"),
        ("1__0", "not '1__0'; write 10"),
        ("4k", "not '4k'; write 4000"),
        ("'20'", "not '20' in quotes; write 20"),
        ("12:30", "not '12:30' ("),
        ("yes", "not 'yes' ("),
        ("１２", "not '１２'; it holds U+FF11 (fullwidth digit one); write 12"),
    ],
)
def test_a_number_is_refused_as_it_is_written(text, what):
    assert f"rollout.prompts_per_step: {what}" in told(numbered(text)).replace("must be a whole number, ", "")


@pytest.mark.parametrize(("text", "value"), [("1_000", 1000), ("+12", 12), ("64", 64)])
def test_a_number_that_leaves_no_doubt_is_read(text, value):
    assert loads(numbered(text), Job).rollout.prompts_per_step == value
    assert parse("a: 1_000.5\nb: 030.5\nc: 1e-3\n", "x").value == {"a": 1000.5, "b": 30.5, "c": 1e-3}


def test_minutes_and_words_of_truth_are_told_as_to_write_them():
    minutes = re.sub(r"deadline_s: [0-9.]+", "deadline_s: 12:30", JOB)
    assert "must be a number of seconds, not '12:30'; write 750" in told(minutes)
    words = JOB.replace("algorithm:\n", "algorithm:\n  mask_truncated: yes\n")
    assert "must be true or false, not 'yes'; write true" in told(words)


def test_all_doubtful_numbers_of_a_file_are_told_at_once(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("rlplan_job: 1\na: 0200\nb: 012\n")
    assert [(finding.rule, finding.line) for finding in read_document(str(path)).findings] == [
        ("not-yaml", 2), ("not-yaml", 3)
    ]  # fmt: skip
