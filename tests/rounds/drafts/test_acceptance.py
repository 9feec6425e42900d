"""The table of how often drafts are accepted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.drafts.acceptance import CELLS, CONTEXT, PRIOR, AcceptanceTable, first_rates
from rlplan.rounds.drafts.acceptance import cell_of as compiled_cell

cell_of = compiled_cell.py_func  # a compiled function that only compiled ones call has no entry for Python

CELL = st.integers(0, CELLS - 1)
DRAFTS = st.lists(
    st.lists(CELL, min_size=1, max_size=8).flatmap(lambda cells: st.tuples(st.just(cells), st.integers(0, len(cells)))),
    max_size=40,
)


@given(context=st.integers(1, CONTEXT), often=st.integers(1, 10**6), share=st.floats(0.0, 1.0))
def test_every_token_has_a_cell(context, often, share):
    assert 0 <= cell_of(context, often, share) < CELLS


def test_a_longer_context_more_occurrences_or_a_larger_share_is_another_cell():
    cells = {cell_of(length, often, share) for length in (1, 2, 3, 4, 6, 9, 16) for often in (1, 2, 4, 16)
             for share in (0.1, 0.5, 0.8, 0.95, 1.0)}  # fmt: skip
    assert len(cells) == CELLS


def test_before_any_draft_a_token_that_always_followed_is_the_likelier_the_more_often_it_did():
    rates = first_rates()
    seen = [rates[cell_of(4, often, 1.0)] for often in (1, 3, 10, 100)]
    assert seen == sorted(seen) and seen[0] == pytest.approx(0.5) and seen[-1] > 0.95


@given(DRAFTS)
def test_a_rate_is_between_its_first_guess_and_what_was_seen_and_nothing_is_accepted_that_was_not_drafted(drafts):
    table = AcceptanceTable()
    drafted, accepted = np.zeros(CELLS), np.zeros(CELLS)
    for cells, taken in drafts:
        table.verified(cells, taken)
        for place, cell in enumerate(cells[: taken + 1]):  # of those behind the first rejected one nothing is known
            drafted[cell] += 1
            accepted[cell] += place < taken
    table.check_invariants()
    expected = (PRIOR * first_rates() + accepted) / (PRIOR + drafted)
    assert table.rates == pytest.approx(expected)


@given(DRAFTS, DRAFTS)
def test_a_table_goes_on_from_its_state_as_if_nothing_had_been(before, after):
    table, restored = AcceptanceTable(), AcceptanceTable()
    for cells, taken in before:
        table.verified(cells, taken)
    restored.restore(json.loads(json.dumps(table.state())))
    for each in (table, restored):
        for cells, taken in after:
            each.verified(cells, taken)
        each.fade()
        each.check_invariants()
    assert np.array_equal(table.rates, restored.rates)


def test_what_earlier_weights_taught_fades_towards_the_first_guess_and_not_to_nothing():
    table = AcceptanceTable()
    for _ in range(100):
        table.verified([7], 0)
    low, first = table.rates[7], first_rates()[7]
    for _ in range(60):
        table.fade()
    assert low < table.rates[7] <= first and table.rates[7] == pytest.approx(first, rel=0.05)
