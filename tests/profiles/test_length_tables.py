"""Tables of lengths: those that ship say what they are, and stated quantiles are a law that keeps them."""

import pytest
from pydantic import ValidationError

from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_tables import (
    LengthTable,
    canonical_quantiles,
    parse_quantiles,
    shipped_table,
    table_names,
    table_sha256,
    text_sha256,
)


def test_a_shipped_table_states_name_cap_source_and_error():
    names = table_names()
    assert {"math-16k", "code-16k", "judge-16k", "short-math-2k", "reasoning-32k", "chat-32k"} <= set(names)
    for name in names:
        table = shipped_table(name)
        assert table.name == name and table.quantiles[-1][0] == table.cap_tokens
        assert table.error.scale > 0.1 and table.error.spread > 0 and table.error.icc > 0
        assert "/" in table.source or "arXiv" in table.source
        assert len(table_sha256(name)) == 64


def test_the_published_figures_are_in_their_tables():
    """RollPacker, Fig. 2a: median 660, p90 2554, p95 4091 of mathematics, and 1.07 % of it at the cap of 16k."""
    math = shipped_table("math-16k")
    assert math.quantile(0.5) == pytest.approx(660, rel=0.02)
    assert math.quantile(0.9) == pytest.approx(2554, rel=0.02)
    assert math.quantile(0.95) == pytest.approx(4091, rel=0.02)
    assert math.at_cap == pytest.approx(0.0107, abs=1e-4) and math.cap_tokens == 16384
    assert shipped_table("code-16k").quantile(0.95) == pytest.approx(2783, rel=0.02)
    assert shipped_table("judge-16k").quantile(0.5) == pytest.approx(520, rel=0.02)


def test_an_unknown_table_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"did you mean 'math-16k'\? There are: .*code-16k.*p50="):
        shipped_table("maths-16k")


def test_stated_quantiles_are_those_of_the_table():
    table = parse_quantiles("p50=800, p95=4000, max=16384, icc=0.3")
    assert [table.quantile(share) for share in (0.5, 0.95)] == [800, 4000]
    assert table.cap_tokens == 16384 and table.icc == 0.3
    # The log-normal law of these two passes 16,384 for 0.1 % of the responses, which are cut there.
    assert table.at_cap == pytest.approx(0.001, abs=2e-4)
    assert parse_quantiles("p50=800,p95=4000,max=16384").icc == 0.5


def test_a_maximum_that_is_not_reached_cuts_nothing():
    table = parse_quantiles("p50=100,p90=150,max=8192")
    assert table.at_cap == 0 and table.quantiles[-1] == (8192, 1.0)


def test_more_percentiles_bend_the_law():
    table = parse_quantiles("p10=300,p50=800,p90=2000,p99=9000,max=16384")
    assert [table.quantile(share) for share in (0.1, 0.5, 0.9, 0.99)] == [300, 800, 2000, 9000]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("p50=800", "p50, a higher percentile and max"),
        ("p50=800,max=4000", "p50, a higher percentile and max"),
        ("p90=800,p95=900,max=4000", "p50, a higher percentile and max"),
        ("p50=800,p95=400,max=16384", "must rise"),
        ("p50=800,p95=4000,max=3000", "must be above them all"),
        ("p50=800,p95=4000,max=16384,icc=1.5", "icc must be within 0 and 1"),
        ("p50=800,p95=4000,max=99999999999", "from 1 to 10000000"),
        ("p50=nan,p95=4000,max=16384", "whole number"),
        ("p50=800,p50=900,max=16384", "twice"),
        ("p50=800,median=4000,max=16384", "none of p1 to p99.9"),
        ("p50,p95=4000,max=16384", "no KEY=NUMBER"),
        ("p50=0.5,p95=4000,max=16384", "whole number"),
        ("=", "no KEY=NUMBER"),
    ],
)
def test_quantiles_that_say_nothing_are_refused_on_one_line_with_an_example(text, why):
    with pytest.raises(InputError, match=why) as caught:
        parse_quantiles(text)
    assert "p50=800,p95=4000,max=16384" in str(caught.value) and "\n" not in str(caught.value)


def test_the_same_figures_have_one_text_whatever_their_order():
    text = canonical_quantiles("max=16384 ,p95=4000, p50=800")
    assert text == "p50=800,p95=4000,max=16384,icc=0.5" == canonical_quantiles(text)
    assert text_sha256("a\r\nb\r\n") == text_sha256("a\nb\n") != text_sha256("a\nc\n")


def test_a_table_whose_quantiles_fall_or_pass_the_cap_is_none():
    good = shipped_table("math-16k").model_dump()
    for quantiles in ([(10, 0.5), (9, 0.6)], [(10, 0.5), (20, 0.4)], [(10, 0.5), (20000, 1.0)]):
        with pytest.raises(ValidationError):
            LengthTable.model_validate({**good, "quantiles": quantiles})
