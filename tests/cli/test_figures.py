"""Figures and bars as commands print them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.cli.figures import RAMP, block, bytes_of, gauge, histogram, percent, seconds


def test_seconds_have_three_or_four_figures():
    assert [seconds(value) for value in (0.0, 0.0123, 1.234, 99.99, 123.45, 12345.6)] == [
        "0.000", "0.012", "1.23", "99.99", "123.5", "12346",
    ]  # fmt: skip


def test_small_shares_are_not_rounded_away():
    assert [percent(share) for share in (0.0, 0.0001, 0.012, 0.0994, 0.5, 1.0, -0.02)] == [
        "0%", "<0.1%", "1.2%", "9.9%", "50%", "100%", "-2.0%",
    ]  # fmt: skip


def test_bytes_are_in_the_unit_of_what_there_is():
    assert bytes_of(28.7e9, 70.5e9) == "28.7 of 70.5 GB"
    assert bytes_of(80e9, 16e12) == "0.1 of 16.0 TB"
    assert bytes_of(40_000, 900_000_000) == "<1 of 900 MB"
    assert bytes_of(0, 900_000_000) == "0 of 900 MB"


@given(st.floats(0, 1), st.integers(3, 40))
def test_bars_are_as_wide_as_asked_and_show_what_is_there_and_what_is_left(share, width):
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
