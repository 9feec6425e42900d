"""The schema of a length trace's line takes what the reader takes, and refuses what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlplan.plans.yaml.editor_schemas import schema_of
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_line import LengthLine
from rlplan.profiles.length_trace import LengthRow, read_lengths

GOOD: dict[str, Any] = {
    "prompt": "k1", "epoch": 0, "sample": 3, "tokens": 57, "truncated": False, "reward": 1.0, "prompt_tokens": 18
}  # fmt: skip


def taken(line: dict[str, Any], folder: Path) -> tuple[bool, bool]:
    """Whether the model takes a line, and whether the reader does."""
    path = folder / "lengths.jsonl"
    path.write_text(json.dumps(line) + "\n")
    found = []
    for take, error in ((lambda: LengthLine.model_validate(line), ValidationError),
                        (lambda: read_lengths(path), InputError)):  # fmt: skip
        try:
            take()
        except error:
            found.append(False)
        else:
            found.append(True)
    return found[0], found[1]


def test_the_model_has_the_keys_of_a_row() -> None:
    assert list(LengthLine.model_fields) == list(LengthRow.__dataclass_fields__)
    assert all(field.description for field in LengthLine.model_fields.values())


def test_a_good_line_is_taken_by_both_with_further_keys_too(tmp_path: Path) -> None:
    assert taken(GOOD, tmp_path) == taken({**GOOD, "worker": "w3"}, tmp_path) == (True, True)
    assert taken({**GOOD, "reward": 1}, tmp_path) == (True, True)


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": ""}, {"prompt": 3}, {"epoch": -1}, {"epoch": "0"}, {"sample": 0.5}, {"tokens": 0}, {"tokens": True},
     {"truncated": 0}, {"reward": "1"}, {"reward": None}, {"prompt_tokens": 0}],
)  # fmt: skip
def test_a_wrong_line_is_refused_by_both(tmp_path: Path, wrong: dict[str, Any]) -> None:
    assert taken({**GOOD, **wrong}, tmp_path) == (False, False)


@pytest.mark.parametrize("key", GOOD)
def test_a_line_that_lacks_a_key_is_refused_by_both(tmp_path: Path, key: str) -> None:
    assert taken({k: v for k, v in GOOD.items() if k != key}, tmp_path) == (False, False)


def test_the_schema_names_what_is_needed() -> None:
    assert json.loads(schema_of(LengthLine))["required"] == list(GOOD)
