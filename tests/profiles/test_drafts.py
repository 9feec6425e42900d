"""What a step with drafts verifies, gives and takes, and how a profile learns it from what rounds counted."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.profiles.draft_schema import DraftLaw, geometric
from rlplan.profiles.laws.draft_counts import BatchCounts, DraftCounts, fit_drafts, overheads, summed
from rlplan.traces.trace_events import Drafts, as_type

from .counted import base_s, counts_of

LAW = DraftLaw((0.8, 0.6, 0.3), (0.6, 0.4, 0.1), (), 0.002, 0.0003)
EARLY = DraftLaw((0.4, 0.2, 0.1), (0.2, 0.08, 0.02), (), 0.002, 0.0003)
BATCHES = {1: 10_000, 3: 20_000, 7: 50_000, 15: 70_000}


def test_tokens_of_one_chance_are_the_mean_of_simulated_acceptance():
    accepted = np.random.default_rng(0).random((200_000, 4)) < 0.7
    mean = 1 + np.cumprod(accepted, axis=1).sum(axis=1).mean()
    assert geometric(4, 0.7).emitted(4, 9) == pytest.approx(mean, rel=0.01)
    assert geometric(4, 0.7).emitted(3, 9) == pytest.approx((1 - 0.7**4) / 0.3)
    assert geometric(4, 0.7).verified(3, 9) == 4.0


shares = st.floats(0, 1)
laws = st.builds(
    lambda pairs, factors, step_s, sequence_s: DraftLaw(
        tuple(drafted for drafted, _ in pairs),
        tuple(drafted * of for drafted, of in pairs),
        tuple((4**place, factor) for place, factor in enumerate(factors)),
        step_s,
        sequence_s,
    ),
    st.lists(st.tuples(shares, shares), min_size=1, max_size=6),
    st.lists(st.floats(0, 3), max_size=3),
    st.floats(0, 0.1),
    st.floats(0, 0.01),
)


@settings(max_examples=50)
@given(laws, st.integers(1, 300))
def test_longer_drafts_give_no_less_and_at_most_what_is_verified(law, batch):
    last = 1.0
    for tokens in range(1, law.most_tokens + 1):
        emitted, verified = law.emitted(tokens, batch), law.verified(tokens, batch)
        assert last <= emitted <= verified + 1e-12 <= tokens + 1 + 2e-12
        last = emitted
    assert law.extra_s(batch + 1) >= law.extra_s(batch) >= 0


def test_a_factor_by_batch_is_linear_between_batches():
    law = DraftLaw((0.5, 0.25), (0.4, 0.2), ((2, 1.5), (10, 0.5)), 0.1, 0.01)
    assert [law.factor(batch) for batch in (1, 2, 6, 10, 99)] == pytest.approx([1.5, 1.5, 1.0, 0.5, 0.5])
    assert law.verified(2, 6) == pytest.approx(1.75) and law.emitted(2, 99) == pytest.approx(1.3)
    assert law.extra_s(3) == pytest.approx(0.13)


@pytest.mark.parametrize(
    ("drafted", "accepted", "step_s"),
    [((), (), 0), ((0.5,), (0.6,), 0), ((0.5, 0.5), (0.4,), 0), ((1.2,), (0.1,), 0), ((0.5,), (0.4,), -1)],
)
def test_what_no_drafts_do_is_refused(drafted, accepted, step_s):
    DraftLaw((1.0, 1.0), (1.0, 0.0))
    with pytest.raises(ValueError, match=r"draft|negative"):
        DraftLaw(drafted, accepted, step_s=step_s)
    for tokens, acceptance in ((0, 0.5), (3, 1.0), (3, -0.1)):
        with pytest.raises(ValueError, match="drafts have"):
            geometric(tokens, acceptance)


# -- from counts to a profile's section --------------------------------------------------------------------------------


def test_rates_of_both_epochs_and_seconds_are_found_again():
    section = fit_drafts(counts_of(EARLY, BATCHES), counts_of(LAW, BATCHES), base_s)
    assert section.provenance == "measured"
    assert section.first.accepted == pytest.approx(EARLY.accepted, rel=0.01)
    assert section.later.drafted == pytest.approx(LAW.drafted, rel=0.01)
    assert section.later.sequence_steps == sum(BATCHES.values())
    for batch in (1, 5, 11):
        assert section.law().emitted(3, batch) == pytest.approx(LAW.emitted(3, batch), rel=0.01)
    step_s, per_sequence_s = overheads(counts_of(LAW, BATCHES), LAW, base_s)
    assert step_s == pytest.approx(0.002, rel=0.02) and per_sequence_s == pytest.approx(0.0003, rel=0.02)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_seconds_are_never_negative_whatever_was_measured(steps):
    ones = {2**k - 1: BatchCounts(p, d, n, n, n, n // 2) for k, (p, d, n) in enumerate(steps, start=1)}
    assert min(overheads(DraftCounts(1, (1,), (1,), ones), LAW, base_s)) >= 0


def test_batches_that_draft_more_have_a_factor_of_their_own():
    law = DraftLaw(LAW.drafted, LAW.accepted, ((1, 1.2), (11, 0.6)))
    section = fit_drafts(counts_of(law, BATCHES), None, base_s)
    assert section.later is None and section.law(first_epoch=True) == section.law()
    for batch in (1, 5, 11):
        assert section.law().emitted(3, batch) == pytest.approx(law.emitted(3, batch), rel=0.05)


def test_epochs_with_too_few_steps_tell_nothing():
    few = counts_of(LAW, {1: 3})
    assert fit_drafts(few, few, base_s) is None
    section = fit_drafts(counts_of(EARLY, BATCHES), None, base_s)
    assert fit_drafts(few, None, base_s, old=section) == section
    again = fit_drafts(few, counts_of(LAW, BATCHES), base_s, old=section)
    assert again.first.accepted == pytest.approx(EARLY.accepted, rel=0.01)


def test_rounds_add_up_in_any_order():
    parts = [counts_of(LAW, {1: 900}), counts_of(EARLY, {1: 500, 7: 1000}), counts_of(LAW, {7: 300})]
    sums = [summed(order) for order in itertools.permutations(parts)]
    assert len({(each.sequence_steps, each.drafted_at, each.accepted_at) for each in sums}) == 1
    assert sums[0].batches[1].sequence_steps == 1400
    assert base_s(1) == pytest.approx(sums[0].batches[1].plain_s)


def test_counts_are_those_of_a_traces_event():
    steps = {"plain_s": 0.01, "drafted_s": 0.012, "emitted": 1.5, "sequence_steps": 90, "drafted_steps": 80,
             "drafted": 70, "accepted": 40}  # fmt: skip
    counts = dict.fromkeys(("step", "epoch", "steps", "index_bytes", "history_bytes"), 1)
    event = {"sequence_steps": 90, "drafted_at": [50, 20], "accepted_at": [30, 10], "by_source": {}}
    told = as_type({**counts, **event, "batches": {"3": steps}}, Drafts)
    assert DraftCounts.of(told) == DraftCounts(90, (50, 20), (30, 10), {3: BatchCounts(0.01, 0.012, 90, 80, 70, 40)})
