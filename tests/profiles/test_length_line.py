"""The schema of a length trace's line takes what the reader takes, and refuses what it refuses."""

import json

import pytest
from pydantic import ValidationError

from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import schema_of
from rlplan.profiles.length_trace import LengthLine, LengthRow, read_lengths, write_lengths

GOOD = {
    "prompt": "k1", "epoch": 0, "sample": 3, "tokens": 57, "truncated": False, "reward": 1.0, "prompt_tokens": 18
}  # fmt: skip


def taken(line, folder):
    """Whether the model takes a line, and whether the reader does."""
    path = folder / "lengths.jsonl"
    path.write_text(json.dumps(line) + "\n")
    found = []
    for take in (lambda: LengthLine.model_validate(line), lambda: read_lengths(path)):
        try:
            take()
        except (ValidationError, InputError):
            found.append(False)
        else:
            found.append(True)
    return found


def test_a_good_line_is_taken_by_both_with_further_keys_too(tmp_path):
    assert taken(GOOD, tmp_path) == taken({**GOOD, "worker": "w3"}, tmp_path) == [True, True]
    assert taken({**GOOD, "reward": 1}, tmp_path) == [True, True]


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": ""}, {"prompt": 3}, {"epoch": -1}, {"epoch": "0"}, {"sample": 0.5}, {"tokens": 0}, {"tokens": True},
     {"truncated": 0}, {"reward": "1"}, {"tokens": None}, {"prompt_tokens": 0}],
)  # fmt: skip
def test_a_wrong_line_is_refused_by_both(tmp_path, wrong):
    assert taken({**GOOD, **wrong}, tmp_path) == [False, False]


def test_the_keys_of_a_row_are_needed_and_described(tmp_path):
    assert list(LengthLine.model_fields) == list(LengthRow.__dataclass_fields__) == list(GOOD)
    assert all(field.description for field in LengthLine.model_fields.values())
    known = [key for key in GOOD if key not in ("truncated", "reward", "prompt_tokens")]
    assert json.loads(schema_of(LengthLine))["required"] == known
    for key in GOOD:
        assert taken({k: v for k, v in GOOD.items() if k != key}, tmp_path) == [key not in known] * 2


def test_what_is_not_known_of_a_row_is_not_written(tmp_path):
    row = LengthRow(**{**GOOD, "truncated": None, "reward": None, "prompt_tokens": None})
    write_lengths(tmp_path / "lengths.jsonl", [row])
    assert "null" not in (tmp_path / "lengths.jsonl").read_text()
    trace = read_lengths(tmp_path / "lengths.jsonl")
    assert trace.rows == (row,)
    summary = trace.summary()
    assert (summary.truncated_share, summary.mean_reward, summary.icc) == (None, None, None)
