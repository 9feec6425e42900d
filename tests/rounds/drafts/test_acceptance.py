"""The table of how often drafts are accepted."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.drafts.acceptance import CELLS, FADE, PRIOR, AcceptanceTable, first_rates
from rlplan.rounds.drafts.acceptance import cell_of as compiled_cell

cell_of = compiled_cell.py_func  # a compiled function that only compiled ones call has no entry for Python

CELL = st.integers(0, CELLS - 1)
DRAFTS = st.lists(
    st.lists(CELL, min_size=1, max_size=8).flatmap(lambda cells: st.tuples(st.just(cells), st.integers(0, len(cells)))),
    max_size=20,
)


def test_each_class_of_context_occurrences_and_share_is_a_cell():
    contexts = (1,), (2,), (3,), (4, 5), (6, 8), (9, 15), (16, 99)
    occurrences = (0, 1), (2, 3), (4, 15), (16, 10**6)
    shares = (0.0, 0.39), (0.4, 0.69), (0.7, 0.89), (0.9, 0.99), (1.0 - 1e-10, 1.0)
    cells = [
        {cell_of(length, times, share) for length in lengths for times in often for share in part}
        for lengths, often, part in itertools.product(contexts, occurrences, shares)
    ]
    assert cells == [{number} for number in range(CELLS)]


def test_a_token_that_always_followed_is_likelier_the_more_often_it_did():
    rates = first_rates()
    seen = [rates[cell_of(4, often, 1.0)] for often in (1, 3, 10, 100)]
    assert seen == pytest.approx([1 / 2, 2.5 / 3.5, 8 / 9, 32 / 33])
    assert rates[cell_of(9, 1, 0.5)] == pytest.approx(0.55 / 2)


@settings(max_examples=40)
@given(DRAFTS, DRAFTS)
def test_a_rate_is_drawn_from_its_first_guess_to_what_was_seen(before, after):
    """Also in a table that goes on from the state of another, and less so by what earlier weights taught."""
    table, restored = AcceptanceTable(), AcceptanceTable()
    drafted, accepted = np.zeros(CELLS), np.zeros(CELLS)
    for number, drafts in enumerate((before, after)):
        for cells, taken in drafts:
            for each in (table, restored)[: number + 1]:
                each.verified(cells, taken)
            for place, cell in enumerate(cells[: taken + 1]):  # of those behind the first rejected one nothing is known
                drafted[cell] += 1
                accepted[cell] += place < taken
        table.check_invariants()
        assert table.rates == pytest.approx((PRIOR * first_rates() + accepted) / (PRIOR + drafted))
        if number == 0:
            restored.restore(json.loads(json.dumps(table.state())))
    assert np.array_equal(table.rates, restored.rates) and table.state() == restored.state()
    table.fade()
    table.check_invariants()
    faded = (PRIOR * first_rates() + FADE * accepted) / (PRIOR + FADE * drafted)
    assert table.rates == pytest.approx(faded)


def test_a_table_of_impossible_counts_is_found():
    table = AcceptanceTable()
    for taken in (-1, 3):
        with pytest.raises(AssertionError, match="of 2 drafted tokens were accepted"):
            table.verified([1, 2], taken)
    table.restore({"drafted": [0.0] * CELLS, "accepted": [1.0] * CELLS})
    with pytest.raises(AssertionError, match="more was accepted than drafted"):
        table.check_invariants()
    table = AcceptanceTable()
    for wrong in (1.01, -0.01):
        table.rates[3] = wrong
        with pytest.raises(AssertionError, match="a rate is no share"):
            table.check_invariants()
