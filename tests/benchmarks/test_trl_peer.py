"""What the peer benchmark makes of two runs; the runs themselves are too long for a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_step_of_either_is_left_out_and_the_ratio_is_of_samples_per_second(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.trl_peer import result
    from rlplan.traces.report_runs import RunTrace

    class Plan:
        class job:
            class bias:
                mode = "sync"

            class issue:
                samples_per_prompt, prompts_per_step = 4, 2

        class predicted:
            class rounds:
                long = None

    def ours(seconds):
        return {
            "kind": "short", "total_s": seconds, "trained_samples": 8, "trained_tokens": 400, "deferred": 0,
            "reward_mean": 0.5,
        }  # fmt: skip

    run = RunTrace("plan", Plan, [ours(100.0), ours(1.0), ours(3.0)])
    peer = [{"seconds": s, "samples": 8, "mean_tokens": 60.0, "reward_mean": 0.25} for s in (900.0, 6.0, 10.0)]
    found = result(run, peer)
    assert found["samples_per_s"] == {"rlplan": pytest.approx(16 / 4.0), "trl": pytest.approx(16 / 16.0)}
    assert found["ratio"] == pytest.approx(4.0)
    assert found["steps"] == 2
    assert found["mean_tokens"] == {"rlplan": 50.0, "trl": 60.0}


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--steps", "1"], "at least 2"), (["--example", "/nowhere"], "/nowhere")]
)
def test_bad_arguments_are_one_line_and_exit_code_2(arguments, word):
    pytest.importorskip("trl")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.trl_peer", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and word in ran.stderr and "Traceback" not in ran.stderr
