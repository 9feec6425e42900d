"""From what rounds counted to a profile's section."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.drafts.draft_counts import BatchCounts, DraftCounts, fit_drafts, overheads, summed
from rlplan.profiles.drafts.draft_law import DraftLaw

from .counted import base_s, counts_of

LAW = DraftLaw((0.8, 0.6, 0.3), (0.6, 0.4, 0.1), (), 0.002, 0.0003)
EARLY = DraftLaw((0.4, 0.2, 0.1), (0.2, 0.08, 0.02), (), 0.002, 0.0003)
BATCHES = {1: 10_000, 3: 20_000, 7: 50_000, 15: 70_000}


def test_rates_of_both_epochs_and_seconds_are_found_again() -> None:
    section = fit_drafts(counts_of(EARLY, BATCHES), counts_of(LAW, BATCHES), base_s)
    assert section is not None and section.later is not None and section.provenance == "measured"
    assert section.first.accepted == pytest.approx(EARLY.accepted, rel=0.01)
    assert section.later.drafted == pytest.approx(LAW.drafted, rel=0.01)
    assert section.later.sequence_steps == sum(BATCHES.values())
    law = section.law()
    for batch in (1, 5, 11):
        assert law.emitted(3, batch) == pytest.approx(LAW.emitted(3, batch), rel=0.01)


def test_seconds_beyond_the_tokens_are_a_line_in_the_samples() -> None:
    step_s, per_sequence_s = overheads(counts_of(LAW, BATCHES), LAW, base_s)
    assert step_s == pytest.approx(0.002, rel=0.02) and per_sequence_s == pytest.approx(0.0003, rel=0.02)


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_seconds_are_never_negative_whatever_was_measured(steps: list[tuple[float, float, int]]) -> None:
    ones = {2**k - 1: BatchCounts(p, d, n, n, n, n // 2) for k, (p, d, n) in enumerate(steps, start=1)}
    counts = DraftCounts(1, (1,), (1,), ones)
    assert min(overheads(counts, LAW, base_s)) >= 0


def test_batches_that_draft_more_have_a_factor_of_their_own() -> None:
    law = DraftLaw(LAW.drafted, LAW.accepted, ((1, 1.2), (11, 0.6)))
    section = fit_drafts(counts_of(law, BATCHES), None, base_s)
    assert section is not None and section.later is None
    found = section.law()
    for batch in (1, 5, 11):
        assert found.emitted(3, batch) == pytest.approx(law.emitted(3, batch), rel=0.05)
    assert section.law(first_epoch=True) == found


def test_epochs_with_too_few_steps_tell_nothing() -> None:
    few = counts_of(LAW, {1: 3})
    assert fit_drafts(few, few, base_s) is None
    assert fit_drafts(few, None, base_s, old=(section := fit_drafts(counts_of(LAW, BATCHES), None, base_s))) == section
    again = fit_drafts(few, counts_of(LAW, BATCHES), base_s, old=fit_drafts(counts_of(EARLY, BATCHES), None, base_s))
    assert again is not None and again.first.accepted == pytest.approx(EARLY.accepted, rel=0.01)


def test_rounds_add_up_in_any_order() -> None:
    parts = [counts_of(LAW, {1: 900}), counts_of(EARLY, {1: 500, 7: 1000}), counts_of(LAW, {7: 300})]
    sums = [summed(order) for order in itertools.permutations(parts)]
    assert len({(each.sequence_steps, each.drafted_at, each.accepted_at) for each in sums}) == 1
    assert sums[0].batches[1].sequence_steps == 1400
    assert base_s(1) == pytest.approx(sums[0].batches[1].plain_s)


def test_an_event_of_a_trace_is_read_and_a_damaged_one_refused() -> None:
    steps = {"plain_s": 0.01, "drafted_s": 0.012, "emitted": 1.5, "sequence_steps": 90, "drafted_steps": 80,
             "drafted": 70, "accepted": 40}  # fmt: skip
    event = {"sequence_steps": 90, "drafted_at": [50, 20], "accepted_at": [30, 10], "batches": {"3": steps}}
    counts = DraftCounts.of_event(event)
    assert counts.batches[3] == BatchCounts(0.01, 0.012, 90, 80, 70, 40)
    for damage in ({"batches": None}, {"accepted_at": [30]}, {"drafted_at": "x"}, {"sequence_steps": None}):
        with pytest.raises(ValueError, match=r"drafts|invalid literal"):
            DraftCounts.of_event({**event, **damage})
