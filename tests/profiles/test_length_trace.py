"""Reading and writing length traces: damage is named with its line, and nothing is ever silently empty."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthRow, LengthTrace, intraclass_correlation, read_lengths, write_lengths
from rlplan.traces.trace import TraceWriter

GOOD = (
    '{"prompt": "k1", "epoch": 0, "sample": %d, "tokens": 57, "truncated": false, "reward": 1.0, "prompt_tokens": 18}'
)

rows = st.builds(
    LengthRow,
    prompt=st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8),
    epoch=st.integers(0, 3),
    sample=st.integers(0, 40),
    tokens=st.integers(1, 4000),
    truncated=st.booleans(),
    reward=st.floats(-2, 2),
    prompt_tokens=st.integers(1, 90),
)


def write(tmp_path, *lines, end="\n"):
    path = tmp_path / "lengths.jsonl"
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


@settings(max_examples=20)
@given(rows=st.lists(rows, min_size=1, max_size=12, unique_by=lambda r: (r.prompt, r.epoch, r.sample)))
def test_what_is_written_is_read_again(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "lengths.jsonl"
    write_lengths(path, rows)
    assert read_lengths(path).rows == LengthTrace(rows).rows
    again = path.read_bytes()
    write_lengths(path, reversed(rows))
    assert path.read_bytes() == again


@pytest.mark.parametrize("keep", [1, 40, 100])
def test_a_torn_last_line_is_skipped_with_a_warning(keep, tmp_path):
    path = write(tmp_path, GOOD % 0, GOOD % 1, (GOOD % 2)[:keep], end="")
    with pytest.warns(UserWarning, match=r"lengths\.jsonl:3: torn last line"):
        assert len(read_lengths(path).rows) == 2


def test_a_damaged_last_line_that_ends_is_no_torn_line(tmp_path):
    with pytest.raises(InputError, match=r"lengths\.jsonl:2: "):
        read_lengths(write(tmp_path, GOOD % 0, (GOOD % 1)[:30]))


def test_a_file_of_a_torn_line_alone_is_no_empty_trace(tmp_path):
    path = write(tmp_path, (GOOD % 0)[:30], end="")
    with pytest.warns(UserWarning, match="torn"), pytest.raises(InputError, match="no whole sample"):
        read_lengths(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"tokens": 57', '"tokens": 0', "at least 1"),
        ('"tokens": 57', '"tokens": "57"', "tokens must be int"),
        ('"tokens": 57', '"tokens": true', "tokens must be int"),
        ('"tokens": 57', '"tokens": 57.5', "tokens must be int"),
        ('"tokens": 57, ', "", "missing key 'tokens'"),
        ('"reward": 1.0', '"reward": NaN', "finite"),
        ('"reward": 1.0', '"reward": 1' + 400 * "0", "reward must be a finite number"),
        ('"truncated": false', '"truncated": 0', "truncated must be bool"),
        ('"prompt": "k1"', '"prompt": ""', "not be empty"),
        ("}", "", "not valid JSON"),
        (GOOD % 1, "[1, 2]", "not a JSON object"),
        ('"sample": 1', '"sample": 0', "also in line 1"),
    ],
)
def test_damage_is_named_with_its_line(old, new, message, tmp_path):
    path = write(tmp_path, GOOD % 0, (GOOD % 1).replace(old, new), GOOD % 2)
    with pytest.raises(InputError, match=message) as caught:
        read_lengths(path)
    assert (caught.value.path, caught.value.line) == (str(path), 2)


def test_each_fault_of_a_row_is_told_with_what_to_do(tmp_path):
    path = write(tmp_path, GOOD % 0, '{"prompt": "", "epoch": 0, "tokens": 0, "truncated": false}')
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert caught.value.lines() == [
        f"{path}:2: prompt must not be empty; restore the file or cut it here",
        f"{path}:2: missing key 'sample'; add it, or make the trace with rlplan lengths import",
        f"{path}:2: tokens must be at least 1, not 0; restore the file or cut it here",
    ]


def test_a_length_beyond_the_cap_of_the_profile_is_an_error(tmp_path):
    path = write(tmp_path, GOOD % 0)
    assert read_lengths(path, cap_tokens=57).cap_tokens == 57
    with pytest.raises(InputError, match=":1: tokens is 57, beyond the cap of 50"):
        read_lengths(path, cap_tokens=50)


def test_missing_and_empty_files_are_errors(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_lengths(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="no whole sample"):
        read_lengths(write(tmp_path, ""))
    with pytest.raises(ValueError, match="at least one row"):
        LengthTrace([])


def test_the_whole_samples_of_an_executed_run_are_a_length_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path)
    writer.write("run", 0.0, mode="exact")
    for round_number in (1, 2):
        for draw, fate in enumerate(["trained", "deferred", "filtered", "returned", "surplus", "discarded"]):
            fields = json.loads(GOOD % 0) | {"draw": draw, "fate": fate, "round": round_number, "tokens": 10 + draw}
            writer.write("sample", 1.0, **fields)
    writer.write("step", 2.0, step_s=1.0)
    writer.close()
    assert [r.tokens for r in read_lengths(path).rows] == [10, 12, 10, 12]


def test_the_icc_of_simulated_groups_is_that_of_their_law():
    rng = np.random.default_rng(0)
    location = np.sqrt(0.6) * rng.normal(size=(400, 1))
    groups = location + np.sqrt(0.4) * rng.normal(size=(400, 16))
    assert intraclass_correlation(groups.tolist()) == pytest.approx(0.6, abs=0.05)
    ragged = [g[: 2 + i % 14].tolist() for i, g in enumerate(groups)]
    assert intraclass_correlation(ragged) == pytest.approx(0.6, abs=0.06)


def test_the_icc_is_within_bounds_where_it_cannot_be_seen():
    assert intraclass_correlation([[1.0], [2.0]]) == 0.0
    assert intraclass_correlation([[3.0, 3.0], [3.0, 3.0]]) == 0.0
    assert intraclass_correlation([[1.0, 1.0], [3.0, 3.0]]) == 1.0
    # Means closer to each other than chance would have them: the estimate is negative and is cut to 0.
    assert intraclass_correlation([[1.0, 5.0], [5.0, 1.0], [1.0, 5.0]]) == 0.0


def test_the_summary_counts_what_is_there():
    trace = LengthTrace(
        [
            LengthRow("a", 0, 0, 10, False, 1.0, 4),
            LengthRow("a", 1, 0, 20, False, 0.0, 4),
            LengthRow("b", 0, 0, 60, True, 0.0, 5),
        ]
    )
    summary = trace.summary()
    assert (summary.prompts, summary.samples, summary.max_tokens, trace.cap_tokens) == (2, 3, 60, 60)
    assert summary.mean_tokens == 30.0
    assert summary.truncated_share == pytest.approx(1 / 3)
    assert trace.prompts == ("a", "b")
