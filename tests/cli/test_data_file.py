"""The job's data file, as `solve` and `check` look at it: what no step could be made of is refused with its line."""

from __future__ import annotations

import json

import pytest

from .command_line import rlplan
from .solved_folder import listing, write_profiled

ROW = '{"id": "a", "prompt": "1+1", "answer": 2}\n'

# what is in the file, what is said: file, line, words
BROKEN = {
    "an empty file": ("", "data.jsonl", "has no rows"),
    "the header of a table": ("id,prompt,answer\na,1+1,2\n", "data.jsonl:1", "is a table and not JSONL"),
    "a row without an id": (ROW + '{"prompt": "1+2", "answer": 3}\n', "data.jsonl:2", "missing key 'id'"),
    "a row without a prompt": (ROW + '{"id": "b", "answer": 3}\n', "data.jsonl:2", "missing key 'prompt'"),
    "a row without an answer": (ROW + '{"id": "b", "prompt": "1+2"}\n', "data.jsonl:2", "missing key 'answer'"),
    "an answer of null": (ROW + '{"id": "b", "prompt": "1+2", "answer": null}\n', "data.jsonl:2", "answer is empty"),
    "an id twice": (ROW + ROW, "data.jsonl:2", "id 'a' is also in line 1"),
}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    write_profiled(folder)
    return folder


@pytest.mark.parametrize("broken", BROKEN)
def test_solve_and_check_name_what_is_wrong_with_the_data_and_its_line(broken, profiled):
    text, place, words = BROKEN[broken]
    (profiled / "data.jsonl").write_text(text)
    before = listing(profiled)
    solved = rlplan("solve", profiled)
    assert solved.returncode == 2 and listing(profiled) == before, solved.stdout
    [line] = solved.stderr.splitlines()
    assert line.startswith("error: ") and f"{profiled}/{place}: " in line and words in line
    checked = rlplan("check", profiled / "job.yaml", "--json")
    assert checked.returncode == 1
    [finding] = json.loads(checked.stdout)["files"][0]["findings"]
    assert (finding["rule"], finding["key"]) == ("input-unreadable", "data.path")
    assert finding["message"].startswith(f"{place}: ") and words in finding["message"]


def test_solve_and_check_tell_each_bad_row_on_a_line_of_its_own(profiled):
    (profiled / "data.jsonl").write_text(ROW + "nonsense\n" + ROW + '{"id": "c", "prompt": "x"}\n')
    lines = rlplan("solve", profiled).stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"{profiled}/data.jsonl:{row}" for row in (2, 3, 4)]
    findings = json.loads(rlplan("check", profiled / "job.yaml", "--json").stdout)["files"][0]["findings"]
    assert [f["message"].split(": ")[0] for f in findings] == [f"data.jsonl:{row}" for row in (2, 3, 4)]


def test_one_row_for_a_step_of_many_prompts_is_refused_with_both_numbers(profiled):
    (profiled / "data.jsonl").write_text(ROW)
    solved = rlplan("solve", profiled)
    assert solved.returncode == 2 and "has 1 prompt, and a step trains 4 different ones" in solved.stderr
    checked = rlplan("check", profiled / "job.yaml")
    assert checked.returncode == 1 and "[too-few-prompts]" in checked.stdout
