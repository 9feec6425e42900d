"""What a report says of drafts."""

from __future__ import annotations

import json

import pytest

from rlplan.traces.report_drafts import drafts_report
from rlplan.traces.run_log import read_run
from rlplan.traces.trace import TraceError

BATCH = {"plain_s": 0.02, "drafted_s": 0.025, "emitted": 1.5, "verified": 40, "saved_s": 0.2}
EVENT = {
    "event": "drafts", "t_s": 1.0, "step": 1, "kind": "short", "epoch": 1, "steps": 50, "sequence_steps": 200,
    "drafted_at": [100, 40], "accepted_at": [80, 10], "by_source": {"own": 30, "sibling": 60},
    "batches": {"3": BATCH, "15": {**BATCH, "verified": 0, "saved_s": -0.05}}, "ahead": [3, 120],
    "index_bytes": 5000, "history_bytes": 700,
}  # fmt: skip
LATER = {
    **EVENT, "step": 2, "epoch": 2, "sequence_steps": 100, "by_source": {"earlier": 110},
    "drafted_at": [70, 60, 10], "accepted_at": [65, 40, 5], "index_bytes": 4000, "history_bytes": 900,
}  # fmt: skip
STEPS = [{"step": 1}, {"step": 2}]


def test_a_run_without_drafts_has_no_figures_of_them() -> None:
    assert drafts_report(STEPS, [{"event": "run", "t_s": 0.0}]) is None
    assert drafts_report([], [EVENT]) is None  # its step has not ended


def test_accepted_tokens_are_told_a_sample_step_by_source_and_epoch() -> None:
    figures = drafts_report(STEPS, [EVENT, LATER])
    assert figures is not None
    assert figures["accepted"] == pytest.approx(200 / 300) and figures["rounds"] == 2
    assert list(figures["by_source"]) == ["earlier", "sibling", "own"]
    assert figures["by_source"]["earlier"] == pytest.approx(110 / 300)
    assert [(e["epoch"], e["accepted"]) for e in figures["epochs"]] == [(1, pytest.approx(0.45)), (2, 1.1)]
    assert figures["accepted_share_at"] == [pytest.approx(145 / 170), 0.5, 0.5]
    assert (figures["index_bytes"], figures["history_bytes"]) == (5000, 900)
    assert (figures["ahead_samples"], figures["ahead_tokens"]) == (6, 240)


def test_seconds_saved_are_summed_over_batches_and_rounds_and_unknown_in_an_earlier_trace() -> None:
    figures = drafts_report(STEPS, [EVENT, LATER])
    assert figures is not None and figures["saved_s"] == pytest.approx(0.3)
    assert figures["batches"]["3"]["verified"] == 80 and list(figures["batches"]) == ["3", "15"]
    old = {**LATER, "batches": {"3": {"plain_s": 0.02, "drafted_s": 0.03, "emitted": 1.5}}}
    figures = drafts_report(STEPS, [EVENT, old])
    assert figures is not None and figures["saved_s"] is None and figures["batches"]["3"]["saved_s"] is None


def test_a_round_that_was_done_again_counts_as_it_was_done_last() -> None:
    again = {**EVENT, "by_source": {"own": 20}}
    figures = drafts_report(STEPS[:1], [EVENT, LATER, again])
    assert figures is not None and figures["rounds"] == 1 and figures["accepted"] == pytest.approx(0.1)


def test_a_round_that_drafted_nothing_has_no_shares() -> None:
    nothing = {**EVENT, "drafted_at": [0, 0], "accepted_at": [0, 0], "by_source": {}, "sequence_steps": 0}
    figures = drafts_report(STEPS, [nothing])
    assert figures is not None and figures["accepted"] == 0.0 and figures["accepted_share_at"] == [None, None]


@pytest.mark.parametrize(
    "change",
    [
        {"by_source": [1]}, {"by_source": {"own": -1}}, {"accepted_at": [1]}, {"drafted_at": "9"}, {"epoch": None},
        {"batches": []}, {"batches": {"3": 1}}, {"batches": {"x": BATCH}}, {"batches": {"3": {"plain_s": 1.0}}},
        {"batches": {"3": {**BATCH, "saved_s": "much"}}}, {"ahead": [1]}, {"index_bytes": 1e99},
    ],
)  # fmt: skip
def test_an_event_that_is_damaged_is_told_as_damage_of_the_trace(tmp_path, change) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({**EVENT, **change}) + "\n")
    with pytest.raises(TraceError):
        read_run(path)
    path.write_text(json.dumps(EVENT) + "\n")
    assert read_run(path).events == [EVENT]
