"""What a report says of the parts of a reward."""

from __future__ import annotations

from typing import Any

from rlplan.traces.report_lengths import reward_parts


def row(fate: str, **values: tuple[float, str]) -> dict[str, Any]:
    parts = {name: {"value": value, "s": 0.5, "outcome": outcome} for name, (value, outcome) in values.items()}
    return {"fate": fate, "reward_parts": parts}


def test_means_are_of_trained_samples_and_outcomes_of_all_that_were_scored() -> None:
    samples = {
        1: [row("trained", code=(1.0, "ok"), judge=(0.5, "ok")), row("trained", code=(0.0, "policy_timeout"))],
        2: [row("deferred", code=(1.0, "ok"), judge=(1.0, "ok")), row("surplus", late=(1.0, "ok"))],
    }
    assert reward_parts(samples) == {
        "code": {"mean": 0.5, "mean_s": 0.5, "outcomes": {"ok": 2, "policy_timeout": 1}},
        "judge": {"mean": 0.5, "mean_s": 0.5, "outcomes": {"ok": 2}},
        "late": {"mean": None, "mean_s": 0.5, "outcomes": {"ok": 1}},
    }


def test_a_reward_of_one_part_and_an_earlier_trace_have_none() -> None:
    assert reward_parts({1: [{"fate": "trained"}, {"fate": "trained", "reward_parts": {}}]}) == {}
