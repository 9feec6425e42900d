"""What a report says of drafts."""

import pytest

from rlplan.traces.report_rounds import drafts_report

from .events import DRAFTS, log_of, step

LATER = {
    **DRAFTS, "step": 2, "epoch": 2, "sequence_steps": 100, "by_source": {"earlier": 110, "a new one": 1},
    "drafted_at": [70, 60, 10], "accepted_at": [65, 40, 5], "index_bytes": 4000, "history_bytes": 900,
}  # fmt: skip
STEPS = [step(1), step(2)]


def test_a_run_without_drafts_has_no_figures_of_them():
    assert drafts_report(log_of(*STEPS, {"event": "run", "t_s": 0.0})) is None
    assert drafts_report(log_of(DRAFTS)) is None  # its step has not ended


def test_figures_of_drafts_are_sums_over_rounds_by_source_epoch_and_place():
    figures = drafts_report(log_of(*STEPS, LATER, DRAFTS))
    assert figures["accepted"] == pytest.approx(201 / 300) and figures["rounds"] == 2
    assert list(figures["by_source"]) == ["earlier", "sibling", "own", "a new one"]
    assert figures["by_source"]["earlier"] == pytest.approx(110 / 300)
    assert [(e["epoch"], e["accepted"]) for e in figures["epochs"]] == [(1, pytest.approx(0.45)), (2, 1.11)]
    assert figures["accepted_share_at"] == [pytest.approx(145 / 170), 0.5, 0.5]
    assert (figures["index_bytes"], figures["history_bytes"]) == (5000, 900)
    assert (figures["ahead_samples"], figures["ahead_tokens"]) == (6, 240)
    assert figures["saved_s"] == pytest.approx(0.3) and list(figures["batches"]) == ["3", "15"]
    of_three = {"verified": 80, "saved_s": pytest.approx(0.4), "plain_s": 0.02, "drafted_s": 0.025, "emitted": 1.5}
    assert figures["batches"]["3"] == of_three


def test_an_earlier_trace_tells_no_seconds_saved_and_no_tokens_ahead():
    old = {**LATER, "batches": {"3": {"plain_s": 0.02, "drafted_s": 0.03, "emitted": 1.5}}}
    del old["ahead"]
    figures = drafts_report(log_of(*STEPS, DRAFTS, old))
    assert figures["saved_s"] is None and figures["batches"]["3"]["saved_s"] is None
    assert (figures["ahead_samples"], figures["ahead_tokens"]) == (3, 120)


def test_a_round_that_was_done_again_counts_as_it_was_done_last():
    figures = drafts_report(log_of(step(1), DRAFTS, LATER, {**DRAFTS, "by_source": {"own": 20}}))
    assert figures["rounds"] == 1 and figures["accepted"] == pytest.approx(0.1)


def test_a_round_that_drafted_nothing_has_no_shares():
    nothing = {**DRAFTS, "drafted_at": [0, 0], "accepted_at": [0, 0], "by_source": {}, "sequence_steps": 0}
    figures = drafts_report(log_of(*STEPS, nothing))
    assert figures["accepted"] == 0.0 and figures["accepted_share_at"] == [None, None]
