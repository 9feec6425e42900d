"""A run's means over its cycle: what it still owes a long round is charged, and phases add up to the step."""

from __future__ import annotations

import pytest

from rlplan.traces.cycle_means import CycleMeans, seconds_of


def row(kind, seconds, samples, deferred=0):
    phases = {"rollout_s": 0.5 * seconds, "train_s": 0.3 * seconds, "sync_s": 0.1 * seconds, "other_s": 0.1 * seconds}
    return {"kind": kind, "trained_samples": samples, "deferred": deferred, "total_s": seconds, **phases}


PLANNED = {"total_s": 9.0, "rollout_s": 6.0}


def test_a_long_round_counts_as_itself_and_its_part_of_those_that_are_owed():
    # A long round trained 4 prompts (8 samples); 2 prompts are owed: half a round more.
    rows = [row("short", 2.0, 8), row("long", 12.0, 8), row("short", 2.0, 8, deferred=2)]
    means = CycleMeans(rows, prompts_per_step=4, samples_per_prompt=2, planned_long_s=PLANNED)
    assert (means.owed_prompts, means.owed_rounds, means.long_weight) == (2, 0.5, 1.5)
    assert (
        means.seconds("total_s") == pytest.approx((2.0 + 1.5 * 12.0 + 2.0) / 3.5) == means.measured_seconds("total_s")
    )
    assert means.long_share == pytest.approx(1.5 / 3.5)
    assert means.seconds_per_sample == pytest.approx((16.0 + 0.5 * 12.0) / (24 + 2 * 2))
    assert means.expected_s("total_s") == 0.0


def test_before_the_first_long_round_the_plans_own_is_charged_and_told_apart():
    means = CycleMeans([row("short", 2.0, 8, deferred=2)], 4, 2, PLANNED)
    assert means.seconds("total_s") == pytest.approx((2.0 + 0.5 * 9.0) / 1.5)
    assert means.measured_seconds("total_s") == 2.0 and means.expected_s("total_s") == pytest.approx(4.5)
    assert CycleMeans([row("short", 2.0, 8, deferred=2)], 4, 2, {}).expected_s("total_s") == 0.0


def test_waits_around_a_round_belong_to_its_rollout_so_that_phases_add_up():
    rows = [row("short", 2.0, 8), row("long", 12.0, 8), row("short", 4.0, 8, deferred=3)]
    means = CycleMeans(rows, 4, 2, PLANNED)
    assert seconds_of(rows[0], "rollout_s") == pytest.approx(1.2)
    phases = [means.seconds(key) for key in ("rollout_s", "train_s", "sync_s")]
    assert sum(phases) == pytest.approx(means.seconds("total_s"))
