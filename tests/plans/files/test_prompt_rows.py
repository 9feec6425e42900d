"""Prompts are read row by row, and a bad row is named by its line."""

import gzip
import json
import sys
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
import yaml
from pydantic import ValidationError

from rlplan.plans.files.prompt_rows import (
    MOST_FAULTS,
    Prompt,
    data_file,
    enough_prompts,
    evaluated_ids,
    evaluated_prompts,
    held_out_ids,
    prompts_to_plan,
    read_prompts,
    read_rows,
    trained_rows,
)
from rlplan.plans.files.row_files import rows_digest
from rlplan.plans.schema.job import Job, JobPaths, RowSets, job_paths
from rlplan.plans.schema.rollout_spec import DataSpec
from rlplan.plans.yaml.errors import InputError

from ..conftest import JOB

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
        ('{"id": "x", "prompt": "p"}', "missing key 'answer' (id 'x'); each row has id, prompt and answer"),
        (
            '{"uid": "x", "question": "p", "answer": 1}',
            "missing keys 'id', 'prompt'; rename 'uid' to id and rename",
        ),
        ('{"prompt": "p", "answer": 1}', "missing key 'id'"),
        ('{"id": "x", "answer": 1}', "missing key 'prompt'"),
        ('{"id": 7, "prompt": "p", "answer": 1}', "id must be text, not 7"),
        ('{"id": " ", "prompt": "p", "answer": 1}', "id is blank"),
        ('{"id": "x", "prompt": " \\n", "answer": 1}', "prompt is blank (id 'x')"),
        ('{"id": "x", "prompt": "", "answer": 1}', "prompt must be text or a list"),
        ('{"id": "x", "prompt": [], "answer": 1}', "prompt must be text or a list"),
        ('{"id": "x", "prompt": [{"role": "user"}], "answer": 1}', "prompt must be text or a list"),
        (ROW, "id 'first' is also in line 1"),
        (ROW.replace("first", "x") + ",", "a comma follows the row; remove it"),
        ('{"id": "x", "prompt": "p", "answer": 1, "answer": 2}', "has the key 'answer' twice in one object"),
        ('{"id": "x", "prompt": "p", "answer": {"a": {"b": 1, "b": 1}}}', "has the key 'b' twice in one object"),
        (
            '{"id": "x", "prompt": "p", "answer": NaN}',
            "answer holds NaN or Infinity, which are no JSON numbers (id 'x')",
        ),
        ('{"id": "x", "prompt": "p", "answer": [-Infinity]}', "answer holds NaN or Infinity"),
        ('{"id": "x", "prompt": "p", "answer": {"a": 1e999}}', "answer holds NaN or Infinity"),
        ("[" * 200_000, "nested too deeply"),
        ('{"id": "a", "prompt": "b", "answer": ' + "9" * 5000 + "}", "more than 4,300 digits"),
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
        assert ("7 further rows have faults, 27 of 27 in all; rlplan check" in errors[-1].message) == (more > 0)


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
            continue
        with pytest.raises(InputError, match=f"d.jsonl:1: answer is empty, and reward.kind {kind}"):
            read_prompts(file, kind)
    file.write_text(ROW.replace("1}", "0}"))
    assert read_prompts(file, "math")[0].answer == 0
    with pytest.raises(InputError, match=r"d.jsonl:1: the answer 0 has no test in it \(id 'first'\); write"):
        read_prompts(file, "code")


def rows_of(file, *rows, reward="function"):
    file.write_text("".join(json.dumps({"id": f"r{n}", "prompt": CHAT, "answer": 1} | row) + "\n"
                            for n, row in enumerate(rows)))  # fmt: skip
    return read_rows(file, reward)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([*CHAT, {"role": "assistant", "content": "4"}], "the last message is the assistant's"),
        ([{"role": "human", "content": "2"}], "message 1 has the role 'human'; write one of system,"),
        ([{"role": "user", "content": " "}], "message 1, of role user, is blank"),
        (json.dumps(CHAT), "prompt is text that holds messages as JSON, and would be sent as it is"),
        ([{"role": "system", "content": "be brief"}], "no message is the user's"),
        ([{"role": "user", "content": "2", "name": "me"}], "text in both, and message 1 has 'name' as well"),
        ([*CHAT, {"role": "tool", "content": "2", "tool_call_id": "7"}], "and message 2 has 'tool_call_id' as well"),
        ([{"role": "user", "content": [{"type": "image"}]}], "text in both, and message 1 has other values"),
    ],
)
def test_messages_that_a_template_would_misread_are_refused(file, messages, why):
    rows, (fault,) = rows_of(file, {"prompt": messages})
    assert not rows and why in fault.message and (fault.line, fault.id) == (1, "r0")


def test_messages_may_have_keys_without_a_value_and_an_empty_system_message(file):
    rows, faults = rows_of(file, {"prompt": [{"role": "system", "content": ""}, {**CHAT[0], "tool_calls": None}]})
    assert not faults and rows[0].prompt == [{"role": "system", "content": ""}, *CHAT]


def test_keys_that_change_a_prompt_are_used_or_refused(file):
    tools, system = [{"type": "function", "function": {"name": "add"}}], {"role": "system", "content": "s"}
    rows, faults = rows_of(
        file,
        {"system": "s", "tools": json.dumps(tools), "chat_template_kwargs": {"enable_thinking": False}},
        {"prompt": [system, *CHAT], "system": "s", "documents": [{"text": "d"}]},
        {"system": "", "tools": [], "images": None, "source": "x", "level": 3, "data_source": "y", "difficulty": 0.5},
    )
    assert not faults and [row.prompt for row in rows] == [[system, *CHAT], [system, *CHAT], CHAT]
    assert [dict(row.template) for row in rows] == [
        {"tools": tools, "enable_thinking": False}, {"documents": [{"text": "d"}]}, {}
    ]  # fmt: skip
    for bad, why in (
        ({"prompt": "2+2", "system": "s"}, "key 'system' is for a prompt of chat messages, and this prompt is text"),
        ({"prompt": "2+2", "tools": tools}, "key 'tools' is for a prompt of chat messages"),
        ({"prompt": [system, *CHAT], "system": "t"}, "key 'system' is beside a prompt that has a system message"),
        ({"system": ["s"]}, "system must be text"),
        ({"tools": "add"}, "tools is text that is no JSON"),
        ({"tools": ["add"]}, "tools must be a list of objects"),
        ({"chat_template_kwargs": ["x"]}, "chat_template_kwargs must be an object"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs has 'tools'"),
        ({"functions": tools}, "key 'functions' is not read; write them as tools"),
        ({"images": ["a.png"]}, "key 'images' is no text"),
        ({"messages": CHAT}, "key 'messages' is a second prompt"),
        ({"prefill": "<think>"}, "key 'prefill' would begin the response"),
        ({"sampling_params": {"n": 2}}, "key 'sampling_params' would change how this row is sampled"),
    ):
        rows, (fault,) = rows_of(file, bad)
        assert not rows and why in fault.message and "; " in fault.text, (bad, fault.text)


def test_a_rows_own_solution_is_its_reference(file):
    body = "    # the sum\n    return a + b\n"
    rows, _ = rows_of(
        file,
        {"reference": "r", "solution": "s"},
        {"solutions": ["one", "two"]},
        {"solutions": '["print(1)", "print(2)"]'},
        {"prompt": "def add(a, b):\n", "canonical_solution": body},
        {"prompt": [{"role": "user", "content": "Go on:\n```python\ndef add(a, b):\n```"}], "canonical_solution": body},
        {"prompt": "Add.", "canonical_solution": "def add(a, b):\n" + body},
        {"prompt": "Go on from here:\n\ndef add(a, b):\n", "canonical_solution": body},
        {"solutions": {"language": [2, 3], "solution": ["int main", "print(3)"]}},
        {"solution": " ", "solutions": [], "reference": None},
    )
    whole = f"def add(a, b):\n{body}"
    assert [row.reference for row in rows] == ["r", "one", "print(1)", whole, whole, whole, whole, "print(3)", None]


def test_rows_are_read_with_the_tests_of_code_that_they_have(file):
    he = {"answer": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}
    named, gone = {"test_list": ["assert add(1, 2) == 3"], "answer": None}, {"answer": {"inputs": ["1"], "outputs": []}}
    rows, faults = rows_of(file, he, named, gone, {"answer": "add(1, 2) == 3"}, {"answer": "# none"}, reward="code")
    assert [row.id for row in rows] == ["r0", "r1"] and rows[0].answer["entry_point"] == "add"
    assert [(fault.line, fault.id) for fault in faults] == [(3, "r2"), (4, "r3"), (5, "r4")]
    assert "1 inputs and 0 outputs (id 'r2'); write" in faults[0].text
    file.write_text('{"id": "a", "prompt": "p", "test": "assert f() == 1"}')
    assert read_rows(file, "code")[0][0].id == "a", "the tests of other data sets have other keys"
    assert "rename 'test' to answer" in read_rows(file, "function")[1][0].message


def test_gzip_arrays_and_marks_in_the_midst_are_read_alike(file):
    rows = [{"id": "a", "prompt": "1\u2028+1", "answer": 2}, {"id": "b", "prompt": CHAT, "answer": None}]
    lines = "\n".join(json.dumps(row) for row in rows)
    file.write_text(lines)
    wanted = read_rows(file)
    texts = ("\ufeff" + lines.replace("\n", "\n\n\ufeff"), json.dumps(rows), "\n" + json.dumps(rows, indent=1))
    for text in (*texts, *map(gzip.compress, map(str.encode, texts))):
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        assert read_rows(file) == wanted and len(wanted[0]) == 2
    torn, utf16 = gzip.compress(lines.encode())[:40], lines.encode("utf-16")
    for data, why in ((torn, "is gzip that cannot be read"), (utf16, "d.jsonl:1: is UTF-16 and not UTF-8 text; save"),
                      (lines.encode() + b"\n\xe9", "d.jsonl:3: is not UTF-8 text; save")):  # fmt: skip
        file.write_bytes(data)
        with pytest.raises(InputError, match=why):
            read_rows(file)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (f"[\n{ROW},\n]", 3, "a comma follows the last row; remove it"),
        (f"[{ROW}\n{ROW}]", 2, "neither a comma nor the array's end follows a row, at column 1"),
        (f"[\n\n{ROW}, 7]", 3, "must be a JSON object"),
        (f"[{ROW},\n{ROW[:20]}", 2, "not valid JSON"),
        (f"[{ROW}]\n{ROW}", 1, "must be a JSON object"),
        (f"[{ROW},\n{ROW}]\n7", 3, "more follows the end of the array"),
        (f'[{ROW},\n{{"id": "b", "id": "b"}}]', 2, "the key 'id' twice"),
    ],
)
def test_a_fault_of_an_array_has_its_line(file, text, line, why):
    file.write_text(text)
    fault = next(fault for fault in read_rows(file)[1] if "also in line" not in fault.message)
    assert why in fault.message and fault.line == line


def test_parquet_is_read_with_values_as_json_has_them(file, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "id": [7, 8],
        "prompt": [CHAT, [{**CHAT[0], "name": "me"}]],
        "reward_model": [{"ground_truth": "4", "style": "rule"}, {"ground_truth": "5", "style": "rule"}],
        "level": [None, float("nan")],
        "when": [datetime(2026, 1, 2), None],
    }
    parquet.write_table(pyarrow.table(columns), file)
    rows, (fault,) = read_rows(file, "math", "no")
    assert rows == [Prompt("7", CHAT, "4", judged=False)]
    assert (fault.line, fault.id) == (2, "8") and "'name'" in fault.message
    typed = pyarrow.table({
        "extra_info": [{"index": 3}], "prompt": ["p"],
        "answer": pyarrow.array([[("a", Decimal("2.00"))]], pyarrow.map_(pyarrow.string(), pyarrow.decimal128(5, 2))),
    })  # fmt: skip
    parquet.write_table(typed, file)
    assert read_prompts(file) == [Prompt("3", "p", {"a": 2})]
    file.write_bytes(file.read_bytes()[:90])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_rows(file)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"d.jsonl: is Parquet, and pyarrow, .* is not installed; run: pip install"):
        read_rows(file)


def test_the_share_of_rows_that_is_read_is_told(file):
    file.write_text("".join(ROW.replace("first", str(n)) + "\n" for n in range(1025)))
    told = []
    read_rows(file, progress=lambda text, done: told.append((text, done)))
    assert [text for text, _ in told] == ["0 of 1025 rows", "512 of 1025 rows", "1024 of 1025 rows"]
    assert told[0][1] == 0 < told[1][1] < told[2][1] < 1


def job_with(**data):
    plain = yaml.safe_load(JOB)
    plain["data"] = {"path": "d.jsonl", **data}
    plain["rollout"]["prompts_per_step"] = 4
    return Job.model_validate(plain)


@pytest.mark.parametrize(("held_out", "few"), [(0.2, 14), (25, 25)])
def test_rows_that_are_added_hardly_move_what_is_held_out(held_out, few):
    data, ids = DataSpec(path="d.jsonl", held_out=held_out), [f"row-{number}" for number in range(100)]
    first, later = held_out_ids(data, ids), held_out_ids(data, [*reversed(ids), "new-1", "new-2", "new-3"])
    assert few <= len(first) <= 26 and len(first - later) <= 3 * (held_out > 1)
    assert later - first <= {"new-1", "new-2", "new-3"}, "what was trained on stays so"
    assert held_out_ids(data.model_copy(update={"seed": 1}), ids) != first
    assert held_out_ids(DataSpec(path="d.jsonl"), ids) == frozenset()


def test_what_is_held_out_is_neither_trained_nor_planned_with(file):
    rows = [ROW.replace("first", f"row-{number}") for number in range(10)]
    file.write_text("\n".join(rows))
    job = job_with(held_out=3, prompts=10)
    held_out = held_out_ids(job.data, [f"row-{number}" for number in range(10)])
    assert len(held_out) == 3
    assert {row.id for row in trained_rows(job, file)} == {f"row-{number}" for number in range(10)} - held_out
    paths = JobPaths("m", file, None, file.parent)
    assert enough_prompts(job, file) == prompts_to_plan(job, file, paths) == 7
    assert prompts_to_plan(job, file, replace(paths, data=None)) == job.data.trained_prompts == 7
    with pytest.raises(InputError, match=r"has 3 prompts beside those of data.held_out, and a step trains 4"):
        enough_prompts(job_with(held_out=7), file)


def test_evaluations_decode_what_is_held_out_or_are_refused(file):
    file.write_text("\n".join(ROW.replace("first", f"row-{number}") for number in range(10)))
    plain = job_with(held_out=0.3).model_dump(mode="json") | {"evaluate": {"every_steps": 2}}
    job, paths = Job.model_validate(plain), JobPaths("m", file, None, file.parent)
    held_out = held_out_ids(job.data, [f"row-{number}" for number in range(10)])
    assert 0 < len(held_out) == evaluated_prompts(job, paths)
    plain["data"]["held_out"] = 1e-9
    with pytest.raises(InputError, match="none of its 10 prompts is held out"):
        enough_prompts(Job.model_validate(plain), file)
    del plain["data"]["held_out"]
    with pytest.raises(ValidationError, match=r"names no prompts; add data, a file of rows, or data.held_out"):
        Job.model_validate(plain)
    with pytest.raises(ValidationError, match="a share below 1, or a whole number"):
        job_with(held_out=1.5)


def arrow(path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)


def test_a_data_set_that_was_saved_is_read_shard_by_shard(tmp_path):
    folder, shards = tmp_path / "train", ("data-00000-of-00002.arrow", "data-00001-of-00002.arrow")
    folder.mkdir()
    rows = [{"id": number, "prompt": CHAT, "answer": {"value": number}} for number in range(3)]
    # The second file by name is the first of the data set.
    arrow(folder / shards[1], rows[:2])
    arrow(folder / shards[0], rows[2:])
    state = {"_data_files": [{"filename": name} for name in reversed(shards)], "_indices_data_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    read = read_prompts(folder)
    assert [(row.id, row.answer, row.line) for row in read] == [(str(n), {"value": n}, n + 1) for n in range(3)]
    before = rows_digest(folder)
    arrow(folder / shards[0], [{**rows[2], "answer": {"value": 9}}])
    assert rows_digest(folder) != before
    (folder / shards[0]).write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be read as Arrow") as caught:
        read_prompts(folder)
    assert caught.value.path == str(folder / shards[0])
    (folder / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(InputError, match="flatten_indices"):
        read_prompts(folder)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(InputError, match=r"holds several data sets \(train\); name the folder of one"):
        read_prompts(tmp_path)


def test_shards_of_parquet_are_read_by_name_and_other_folders_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(InputError, match="is a folder without rows"):
        read_prompts(tmp_path)
    for number in (1, 0):
        row = {"id": f"row-{number}", "prompt": "p", "answer": "2"}
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.Table.from_pylist([row]), tmp_path / f"part-{number}.parquet"
        )
    assert [(row.id, row.line) for row in read_prompts(tmp_path)] == [("row-0", 1), ("row-1", 2)]
    job_file = tmp_path / "job.yaml"
    job_file.write_text("")
    (tmp_path / "model").mkdir()
    assert job_paths(job_with(path="."), job_file).data == tmp_path


@pytest.fixture
def sets(tmp_path):
    """A job with two sets, the second of weight 2, and its file."""
    for name, rows in (("a", 9), ("b", 5)):
        text = "\n".join(ROW.replace("first", f"{number}") for number in range(rows))
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "model").mkdir()
    (tmp_path / "job.yaml").write_text("")
    listed = [{"name": "a", "path": "a.jsonl"}, {"name": "b", "path": "b.jsonl", "weight": 2}]

    def job(**data):
        plain = job_with(**data).model_dump(mode="json")
        plain["data"] = {key: value for key, value in plain["data"].items() if key != "path"} | {"sets": listed}
        return Job.model_validate(plain)

    return SimpleNamespace(job=job, file=tmp_path / "job.yaml", b=tmp_path / "b.jsonl")


def test_an_epoch_has_each_sets_prompts_as_often_as_it_weighs(sets):
    job = sets.job(prompts=19)
    paths = job_paths(job, sets.file)
    rows = read_prompts(paths.data, job.reward)
    expected = {f"a/{n}" for n in range(9)} | {f"b/{n}{copy}" for n in range(5) for copy in ("", "#2")}
    assert {row.id for row in rows} == expected and len(rows) == 19
    assert [(row.prompt, row.line) for row in rows if row.id.startswith("b/3")] == [("p", 4)] * 2
    assert enough_prompts(job, paths.data) == prompts_to_plan(job, sets.file, paths) == 19
    before = rows_digest(paths.data)
    sets.b.write_text(sets.b.read_text() + "\nno row")
    with pytest.raises(InputError, match="not valid JSON") as caught:
        read_prompts(paths.data, job.reward)
    assert (caught.value.path, caught.value.line) == (str(sets.b), 6)
    assert rows_digest(paths.data) != before
    sets.b.write_text(ROW.replace("first", "x") + "\n" + ROW.replace("first", "x#2"))
    with pytest.raises(InputError, match="another row's of weight 2"):
        read_prompts(paths.data, job.reward)
    sets.b.unlink()
    assert job_paths(job, sets.file).data is None
    with pytest.raises(InputError, match=r"data.sets.1.path: no such file: 'b.jsonl'"):
        data_file(job, sets.file)


def test_rewards_of_evaluations_score_all_that_is_evaluated(sets):
    told = sets.job(held_out=0.5).model_dump(mode="json")
    told["reward"] = [{"kind": "math", "deadline_s": 1, "weight": 0.5, "rows": ["a", "b"]},
                      {"kind": "math", "name": "one", "deadline_s": 1, "rows": ["a"]}]  # fmt: skip
    told["evaluate"] = {"every_steps": 2, "rewards": ["math"]}
    job, paths = Job.model_validate(told), job_paths(sets.job(), sets.file)
    assert [(part.label, part.weight) for part in job.evaluated_reward.parts] == [("math", 1.0)]
    assert [part.weight for part in job.reward.parts] == [0.5, 1.0]
    assert enough_prompts(job, paths.data)
    told["evaluate"]["rewards"] = ["one"]
    with pytest.raises(InputError, match=r"'b/\d+.*' is held out for evaluations, and none of their rewards scores it"):
        enough_prompts(Job.model_validate(told), paths.data)
    told["evaluate"]["rewards"] = ["one", "code"]
    with pytest.raises(ValidationError, match="'code' is no part of the reward; write some of math, one"):
        Job.model_validate(told)


def test_all_copies_of_a_prompt_are_held_out_and_evaluated_once(sets):
    job = sets.job(held_out=4)
    paths = job_paths(job, sets.file)
    ids = [row.id for row in read_prompts(paths.data, job.reward)]
    held_out, evaluated = held_out_ids(job.data, ids), evaluated_ids(job.data, ids)
    assert len(evaluated) == 4 and not any("#" in name for name in evaluated)
    assert held_out == {name for name in ids if name.partition("#")[0] in evaluated} and len(held_out) > 4
    assert enough_prompts(job, paths.data) == 19 - len(held_out)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"path": "d", "sets": [{"name": "a", "path": "a"}]}, "stands beside path; keep one of the two"),
        ({"sets": [{"name": "a", "path": "a"}] * 2}, "has two sets called 'a'"),
        ({"sets": [{"name": "a", "path": "a", "weight": 0.5}]}, "integer"),
    ],
)
def test_sets_that_cannot_be_told_apart_or_weighed_are_refused(data, message):
    with pytest.raises(ValidationError, match=message):
        DataSpec.model_validate(data)


def test_a_row_is_read_as_the_parts_that_name_it(file):
    parts = [
        {"kind": "math", "deadline_s": 1.0, "rows": ["gsm8k"]},
        {"kind": "code", "deadline_s": 1.0, "rows": ["apps", "own"]},
    ]
    reward = job_with_reward(parts).reward
    test, row = json.dumps("assert f() == 1"), '{"id": "%s", "prompt": "p", "answer": %s, "data_source": "%s"}'
    file.write_text("\n".join((row % ("a", '"2"', "gsm8k"), row % ("b", test, "apps"))))
    assert [(each.sources, each.answer) for each in read_prompts(file, reward)] == [
        (("gsm8k",), "2"), (("apps",), "assert f() == 1"),
    ]  # fmt: skip
    file.write_text("\n".join((row % ("a", '"2"', "gsm8k"), row % ("b", '"2"', "apps"), row % ("c", "1", "x"), ROW)))
    _, faults = read_rows(file, reward)
    assert [fault.line for fault in faults] == [2, 3, 4], "2 is no test of code, and math is not asked"
    assert faults[1].text == ("row is of 'x', and no part of the reward scores it (id 'c'); name it in the rows of one")
    assert "row has no data_source, and no part" in faults[2].text
    file.write_text(f'{{"id": "a", "prompt": "p", "answer": {test}}}')
    (of_set,) = read_prompts(RowSets((("own", file, 1),)), reward)
    assert of_set.sources == ("own",), "the name of its set will do"


def job_with_reward(reward):
    return Job.model_validate(job_with().model_dump(mode="json") | {"reward": reward})
