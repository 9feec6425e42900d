"""Length traces from logs of one's own: CSV, gzipped CSV and JSON Lines, and what is wrong with them by line."""

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest

from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.imports.length_import import FIELDS, import_lengths
from rlplan.profiles.imports.log_columns import assignments
from rlplan.profiles.length_trace import read_lengths, write_lengths

CSV = """\
step,prompt_id,completion,score
7,a,100,1
7,a,200,0
7,b,16384,0
8,a,150,1
"""
COLUMNS = {"tokens": "completion"}


def write(folder, text, name="log.csv"):
    (folder / name).write_text(text)
    return folder / name


def test_columns_are_found_by_their_usual_names_and_samples_are_counted(tmp_path):
    rows = import_lengths(write(tmp_path, CSV), COLUMNS, 16384)
    assert [(r.prompt, r.epoch, r.sample, r.tokens, r.reward) for r in rows] == [
        ("a", 7, 0, 100, 1.0), ("a", 7, 1, 200, 0.0), ("b", 7, 0, 16384, 0.0), ("a", 8, 0, 150, 1.0)
    ]  # fmt: skip
    assert [r.truncated for r in rows] == [False, False, True, False]


def test_what_is_imported_is_a_length_trace(tmp_path):
    rows = import_lengths(write(tmp_path, CSV), COLUMNS, 16384)
    write_lengths(tmp_path / "lengths.jsonl", rows)
    trace = read_lengths(tmp_path / "lengths.jsonl")
    assert sorted(r.tokens for r in trace.rows) == [100, 150, 200, 16384] and trace.cap_tokens == 16384


def test_gzip_and_json_lines_give_the_same_rows(tmp_path):
    plain = import_lengths(write(tmp_path, CSV), COLUMNS)
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(CSV.encode()))
    assert import_lengths(packed, COLUMNS) == plain
    lines = "".join(
        f'{{"step": {s}, "uid": "{p}", "usage": {{"completion_tokens": {t}}}, "score": {r}}}\n'
        for s, p, t, r in ((7, "a", 100, 1), (7, "a", 200, 0), (7, "b", 16384, 0), (8, "a", 150, 1))
    )
    nested = import_lengths(write(tmp_path, lines, "log.jsonl"), {"tokens": "usage.completion_tokens"})
    assert nested == plain


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace(",", ";"),
        lambda text: "\n" + text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "\ufeff" + text.replace("prompt_id", '"Prompt ID"').replace("score", "SCORE "),
        lambda text: text.replace("7,b", "\n7,b").replace("\n", ",\n"),
        lambda text: json.dumps(list(csv.DictReader(io.StringIO(text)))),
        lambda text: json.dumps(list(csv.DictReader(io.StringIO(text))), indent=1),
    ],
)
def test_a_table_is_read_however_it_is_written(tmp_path, change):
    plain = import_lengths(write(tmp_path, CSV), COLUMNS)
    for name, data in (("log", change(CSV).encode()), ("log.gz", gzip.compress(change(CSV).encode()))):
        (tmp_path / name).write_bytes(data)
        assert import_lengths(tmp_path / name, COLUMNS) == plain


def test_parquet_is_a_table_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = list(csv.DictReader(io.StringIO(CSV)))
    table = pyarrow.Table.from_pylist([{key: value if key == "prompt_id" else int(value) for key, value in row.items()}
                                       for row in rows])  # fmt: skip
    parquet.write_table(table, tmp_path / "log")
    assert import_lengths(tmp_path / "log", COLUMNS) == import_lengths(write(tmp_path, CSV), COLUMNS)


def test_cells_may_be_of_any_length_and_hold_line_breaks(tmp_path):
    text = "prompt,response,tokens\n" + 'a,"' + 'x ""y""\n,' * 40_000 + '",7\nb,z,8\n'
    assert [(row.prompt, row.tokens) for row in import_lengths(write(tmp_path, text), {})] == [("a", 7), ("b", 8)]


def test_words_say_which_responses_were_cut(tmp_path):
    cut = ["length", "LENGTH", "max_tokens", "Max tokens", "truncated", "FinishReason.LENGTH", "abort", "aborted", "1"]
    whole = ["stop", "eos", "eos_token", "finished", "Status.COMPLETED", "end_turn", "stop-sequence", "false", "0"]
    text = "prompt,tokens,truncated\n" + "".join(f"{n},5,{word}\n" for n, word in enumerate(cut + whole))
    assert [r.truncated for r in import_lengths(write(tmp_path, text), {})] == [True] * len(cut) + [False] * len(whole)
    reasons = ["length", None, "stop", {"type": "length"}, ["stop"], 151645, "true", "1"]
    rows = [{"prompt": "a", "tokens": 5, "finish_reason": reason} for reason in reasons]
    rows = [
        {"prompt": "b", "tokens": 9},
        *rows,
        {"prompt": "b", "tokens": 9, "truncated": 0, "finish_reason": "length"},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)))
    assert [r.truncated for r in import_lengths(path, {}, 9)] == [
        True, True, False, False, True, False, False, True, False, False,
    ]  # fmt: skip


def test_scores_may_be_words_of_truth_in_any_table(tmp_path):
    words = ("True", "false", "TRUE", "no", "passed", "0", "0.5", "0,25")
    lines = [f"p{n};9;{word}" for n, word in enumerate(words)]
    rows = import_lengths(write(tmp_path, "\n".join(["sep=;", "prompt;tokens;score", *lines])), {})
    assert [row.reward for row in rows] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.5, 0.25]
    rows = import_lengths(write(tmp_path, '{"prompt": "a", "tokens": 9, "score": true}', "log.jsonl"), {})
    assert [row.reward for row in rows] == [1.0]


def test_a_recognised_column_can_be_left_out_unless_it_is_needed(tmp_path):
    path = write(tmp_path, "prompt,tokens,score,step\na,5,good,first\n")
    rows = import_lengths(path, assignments(("reward=", "epoch="), FIELDS))
    assert [(row.reward, row.epoch) for row in rows] == [(None, 0)]
    late = write(tmp_path, '{"prompt": "a", "tokens": 9}\n{"prompt": "b", "tokens": 9, "score": "good"}', "log.jsonl")
    assert [row.reward for row in import_lengths(late, {"reward": ""})] == [None, None]
    with pytest.raises(InputError, match="tokens is needed"):
        assignments(("tokens=",), FIELDS)


def test_commas_in_a_header_of_semicolons_are_text(tmp_path):
    text = "prompt;tokens;note, on runs, in words, of ours\na;5;x\nb;6;y\n"
    assert [row.tokens for row in import_lengths(write(tmp_path, text), {})] == [5, 6]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        (("[Content_Types].xml", "xl/workbook.xml"), r"is an Excel workbook \(xlsx\); save it as CSV"),
        (("mimetype", "content.xml"), r"is an OpenDocument file \(ods\); save it as CSV"),
        (("Index/Document.iwa",), "is a Numbers document; save it as CSV"),
        (("log.csv",), "is packed by zip; unpack it"),
    ],
)
def test_a_spreadsheet_is_named_for_what_it_is(tmp_path, members, what):
    path = tmp_path / "log.csv"
    with zipfile.ZipFile(path, "w") as file:
        for member in members:
            file.writestr(member, CSV)
    for read in (lambda: import_lengths(path, {}), lambda: read_lengths(path)):
        with pytest.raises(InputError, match=what):
            read()
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    with pytest.raises(InputError, match=r"is an Excel workbook .xls.*; save it as CSV"):
        import_lengths(path, {})


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named_with_and_without_its_mark(tmp_path, coding):
    (tmp_path / "log.csv").write_bytes(CSV.encode(coding))
    with pytest.raises(InputError, match="is UTF-16 and not UTF-8 text; save it as UTF-8"):
        import_lengths(tmp_path / "log.csv", COLUMNS)


def test_a_table_given_as_a_trace_names_the_import(tmp_path):
    with pytest.raises(InputError, match=r"is no length trace.*; rlplan lengths import FILE"):
        read_lengths(write(tmp_path, CSV))


def test_a_prompts_text_is_kept_as_a_digest(tmp_path):
    text = "What is the sum of all primes below one hundred, and why would anybody ask? " * 3
    (row,) = import_lengths(write(tmp_path, f'prompt,tokens\n"{text}",5\n'), {})
    assert row.prompt != text and len(row.prompt) == 16


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("prompt,length\na,5\n", 2, "none of its columns is tokens.*--column tokens=NAME.*length"),
        ("prompt,tokens\na,5\nb,many\n", 3, "tokens must be a number, not 'many'"),
        ("prompt,tokens\na,5.5\n", 2, "tokens must be a whole number"),
        ("prompt,tokens\na,-1\n", 2, "tokens must be a whole number from 0"),
        ("prompt,tokens\na,99999999999\n", 2, "to 10000000"),
        ("prompt,tokens\na,inf\n", 2, "tokens must be finite"),
        ("prompt,tokens\na,\n", 2, "tokens is empty"),
        ("prompt,tokens\n,5\n", 2, "prompt is empty"),
        ("prompt,sample,tokens\na,0,5\na,0,6\n", 3, "the same sample is also in line 2"),
        ("prompt,tokens\n", None, "has no rows"),
        ("", None, "has no rows"),
        ('{"prompt": "a", "tokens": 5}\n{oops\n', 2, "not valid JSON"),
        ('[{"prompt": "a", "tokens": 5},\n{"prompt": "b"}]', 2, "tokens is empty"),
        ('{"prompt": "a", "tokens": 5, "tokens": 6}', 1, "the key 'tokens' twice"),
        ('{"prompt": "a", "tokens": NaN}', 1, "tokens must be finite"),
        ("prompt,tokens\na,5,6\n", 2, "has 3 cells, and the header has 2; put cells"),
        ('prompt,tokens\n"a\nb",5\n"c,x\n', 4, "is no CSV: unexpected end of data"),
        ('prompt,tokens\n"a\nb",x\n', 2, "tokens must be a number, not 'x'"),
        ("prompt,tokens,Tokens,tokens\n", 1, "has the column 'tokens' twice"),
        ("prompt,tokens,truncated\na,5,maybe\n", 2, "truncated is 'maybe', and not whether .*; write stop or length"),
        ("prompt,tokens,finish_reason\na,5,??\n", 2, r"finish_reason is '\?\?', and not whether"),
        ("prompt,tokens,score\na,5,good\n", 2, r"reward \(column 'score'\) must .*, not 'good'.*--column reward=\)"),
        ('prompt;tokens;score\na;"1,024";1\n', 2, "tokens must be a number, not '1,024'; write it without the comma"),
        ("prompt tokens\na 5\n", 2, "it has prompt tokens alone; commas, tabs or semicolons part columns"),
        ("<html><table></table></html>", 1, "is XML or HTML; save it as CSV"),
        ("prompt,tokens\0\n", 1, "is no text .it holds null bytes.; save it as CSV"),
    ],
)
def test_a_fault_is_one_line_with_its_place_and_what_to_do(tmp_path, text, line, why):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=why) as caught:
        import_lengths(path, {})
    assert caught.value.line == line and caught.value.path == str(path) and "\n" not in str(caught.value)


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    with pytest.raises(InputError, match=r"no column 'len'.*it has step, prompt_id, completion, score"):
        import_lengths(write(tmp_path, CSV), {"tokens": "len"})
    with pytest.raises(InputError, match="above --cap 150"):
        import_lengths(write(tmp_path, CSV), COLUMNS, 150)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    for path, why in ((tmp_path, "is a folder"), (Path("/dev/zero"), "a device"), (tmp_path / "x.csv", "no such file")):
        with pytest.raises(InputError, match=why):
            import_lengths(path, {})
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(CSV.encode())[:30])
    with pytest.raises(InputError, match="cannot be read"):
        import_lengths(torn, {})


def test_column_options_name_known_fields_once():
    assert assignments(["tokens=a=b", "prompt=p"], FIELDS) == {"tokens": "a=b", "prompt": "p"}
    for given, why in ((["tokens"], "FIELD=COLUMN"), (["size=a"], "a field of epoch"), (["tokens=a"] * 2, "once")):
        with pytest.raises(InputError, match=why):
            assignments(given, FIELDS)
