"""The tables of cases are judged as they say, and the data sets beside them are what they claim to be."""

import ast
import json
import random

import pytest

from rlplan.benchmarks.verdicts import datasets, read_cases, tables, training
from rlplan.benchmarks.verdicts.__main__ import TABLES
from rlplan.executor.rewards.kinds.code_reward import CodeReward


@pytest.mark.parametrize("table", ["code", "math", "models"])
def test_every_case_of_the_table_is_judged_right(table):
    cases, wrong = TABLES[table]()
    assert wrong == []
    assert cases >= {"code": 120, "math": 240, "models": 36}[table]


def test_cases_of_code_are_named_once_and_have_a_source():
    cases = read_cases("code")
    assert len({case["case"] for case in cases}) == len(cases)
    assert all(case["source"] and (case["expect"] == "refused" or 0 <= case["expect"] <= 1) for case in cases)


def test_a_case_that_is_judged_wrongly_is_told(monkeypatch):
    right, *_ = [case for case in read_cases("code") if case["expect"] == 1]
    monkeypatch.setattr(tables, "read_cases", lambda _: [right, right | {"expect": 0}, right | {"expect": "refused"}])
    cases, (first, second) = tables.wrong_code_cases()
    assert cases == 3
    assert f"{right['case']}: 1.0 where 0 is right" in first
    assert "where refused is right" in second


@pytest.mark.parametrize("kind", datasets.KINDS)
def test_a_data_set_has_fifty_rows_that_differ(kind, tmp_path):
    datasets.write(tmp_path, kind, seed=3)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == 50
    assert len({row["reference"] for row in rows}) == 50
    assert all(ast.parse(row["reference"]) for row in rows)
    assert len(datasets.TASKS) >= 25
    assert rows == datasets.rows(kind, seed=3)
    assert rows != datasets.rows(kind, seed=4)


def test_the_data_sets_hold_many_ways_to_write_tests():
    tests = "\n".join(row["answer"] for row in datasets.rows("kodcode"))
    for part in ("parametrize", "pytest.raises", "pytest.approx", "import numpy", "class Test", "from solution import"):
        assert part in tests
    programs = "\n".join(row["reference"] for row in datasets.rows("apps"))
    assert "__main__" in programs
    assert "stdin.readline" in programs


@pytest.mark.parametrize("at", [0, 13, 255])
def test_a_taught_answer_is_a_program_that_its_row_pays(at):
    row = training.row(at)
    _, word, number, _ = row["prompt"].split()
    for right in (1.0, 0.0):
        pieces = training.response(random.Random(at), word, number, right)
        assert set(pieces) <= set(training.PIECES)
        assert CodeReward(20.0).judge("", "".join(pieces[:-1]), row["answer"]).reward == right
