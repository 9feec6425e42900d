"""The benchmark of the trainer's speed: its batch, the peer's padding, that both compute the same; no times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("accelerate")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import trainer_speed

    return trainer_speed


def test_padded_micro_batches_hold_each_sample_once_and_keep_the_budget(bench) -> None:
    from benchmarks.accelerate_peer import padded_batches

    lengths = bench.response_lengths(64)
    batches = padded_batches(lengths, 4096)
    assert sorted(i for rows in batches for i in rows) == list(range(64))
    assert all(len(rows) * max(lengths[i] for i in rows) <= 4096 for rows in batches)
    assert padded_batches([5, 30, 20, 6], 20) == [[1], [2], [3, 0]]  # longer than the budget: alone


def test_padding_is_counted_against_the_longest_row_of_each_micro_batch(bench) -> None:
    from benchmarks.accelerate_peer import padding_share

    assert padding_share([4, 2, 2], 8) == pytest.approx(1 - 8 / 10)  # 4 4 | 2
    assert padding_share([3, 3], 6) == 0.0


def test_responses_have_a_median_of_200_tokens_and_a_tail_to_1500(bench) -> None:
    groups = bench.batch(8, 50)
    lengths = [len(s.response_tokens) for group in groups for s in group]
    assert np.median(lengths) == pytest.approx(200, rel=0.03) and max(lengths) == 1500
    assert groups == bench.batch(8, 50)


def test_trainer_and_peer_compute_the_same_gradients_over_several_micro_batches(bench) -> None:
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    groups = bench.batch(2, 64)
    measured = bench.measure(bench.MODEL | small, groups, 2)
    assert measured.gradient_max > 1e-3
    assert measured.gradient_max_diff < 1e-5
    assert len(measured.rlplan_s) == len(measured.accelerate_s) == 2


def test_the_first_step_of_either_side_is_left_out(bench) -> None:
    groups = bench.batch(1, 50)
    tokens = sum(s.tokens for s in groups[0])
    found = bench.report(bench.Measured([90.0, 1.0, 3.0], [900.0, 5.0, 5.0], 1e-7, 0.1), groups)
    assert found["tokens_per_s"] == {
        "rlplan": pytest.approx(2 * tokens / 4),
        "accelerate": pytest.approx(2 * tokens / 10),
    }
    assert found["ratio"] == pytest.approx(2.5) and found["steps"] == 2
    assert 0 < found["padding_share"] < 0.5


def test_one_step_is_refused_in_one_line_with_exit_code_2() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.trainer_speed", "--steps", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2 and "--steps" in ran.stderr and "Traceback" not in ran.stderr
