"""Bars and histograms as commands print them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.cli.screens.bars import RAMP, block, gauge, histogram


@given(st.floats(0, 1), st.integers(3, 40))
def test_bars_are_as_wide_as_asked_and_show_what_is_left(share, width):
    bar = gauge(share, width)
    assert len(bar) == width
    assert ("█" in bar) == (share > 0) and ("░" in bar) == (share < 1)
    assert block(share) in RAMP and (block(share) == " ") == (share <= 1e-10)


@given(st.lists(st.integers(1, 30_000), min_size=21, max_size=21).map(sorted), st.integers(8, 40))
def test_a_histogram_has_its_width_and_shows_the_mode(quantiles, width):
    drawn = histogram(quantiles, width)
    assert len(drawn) == width and "█" in drawn


def test_a_histogram_is_high_where_quantiles_are_close():
    drawn = histogram([10.0**k for k in (0, 1, 2, 2.1, 2.2, 2.3, 2.4, 2.5, 3, 4)], 8)
    assert drawn.index("█") in (4, 5)
    assert histogram([7] * 21, 9) == "    █    "


@pytest.mark.parametrize("values", [[1, 1, 1, 2], [1, 2, 2, 2]])
def test_lengths_that_are_all_alike_stand_at_their_place(values):
    drawn = histogram(values, 10)
    assert (drawn.index("█") == 0) == (values[1] == 1)
