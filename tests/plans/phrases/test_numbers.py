"""Numbers read one way wherever they are printed."""

from rlplan.plans.phrases.numbers import bytes_of, bytes_text, count, digits, percent, seconds, span, usd
from rlplan.plans.phrases.sentences import listed


def test_seconds_have_three_digits_and_their_unit():
    assert [seconds(value) for value in (0.0, 0.0123, 0.9996, 1.234, 9.996, 99.99, 123.45, 12345.6)] == [
        "0 s", "12 ms", "1.00 s", "1.23 s", "10.0 s", "100 s", "123 s", "12,346 s",
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


def test_figures_have_three_digits_units_and_thousands_separators():
    assert [digits(v) for v in (0, 0.000123, 0.5, 2.1399, 77.81, 123.4, 98765.4)] == [
        "0", "0.000123", "0.500", "2.14", "77.8", "123", "98,765",
    ]  # fmt: skip
    assert [seconds(v) for v in (None, 0, 0.0051, 0.067, 0.325, 214.3, 6695.0)] == [
        "–", "0 s", "5.1 ms", "67 ms", "0.325 s", "214 s", "6,695 s",
    ]  # fmt: skip
    assert (span(0.0, 0.007), span(1.285, 1.548), span(0.0666, 0.0666)) == ("0–7.0 ms", "1.28–1.55 s", "67 ms")
    assert (usd(337.92), usd(0.000929), usd(12345.6), bytes_text(1.6e13), bytes_text(9.66e11)) == (
        "337.92", "0.000929", "12,345.60", "16 TB", "966 GB",
    )  # fmt: skip
    assert (count(1, "step"), count(3363, "step"), listed("abc")) == ("1 step", "3,363 steps", "a, b and c")
