"""The plans of benchmarks.streaming differ in nothing but the streaming."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.streamed_gradients import gradient_max_diff


def test_streamed_gradients_are_those_of_the_whole_step() -> None:
    assert 0 < gradient_max_diff() < 1e-6
