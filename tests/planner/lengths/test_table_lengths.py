"""Traces that are drawn from tables: quantiles and ICC are the table's, and other jobs' differ as stated."""

from __future__ import annotations

import pytest

from rlplan.planner.lengths.table_lengths import (
    TableTrace,
    Variation,
    changed_table,
    named_lengths,
    open_lengths,
    scaled_lengths,
    shown_table,
)
from rlplan.plans.schema.sections.origin import LengthsInput
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_tables import shipped_table
from rlplan.profiles.length_trace import LengthRow, write_lengths


@pytest.mark.parametrize("name", ["math-16k", "code-16k", "reasoning-32k", "short-math-2k"])
def test_a_trace_from_a_table_has_its_quantiles_its_cap_and_its_icc(name: str) -> None:
    table = shipped_table(name)
    summary = (trace := TableTrace(table)).summary()
    assert summary.p50_tokens == pytest.approx(table.quantile(0.5), rel=0.03)
    assert summary.p95_tokens == pytest.approx(table.quantile(0.95), rel=0.05)
    assert summary.truncated_share == pytest.approx(table.at_cap, abs=0.001)
    assert summary.icc == pytest.approx(table.icc, abs=0.02)
    assert trace.cap_tokens == table.cap_tokens >= summary.max_tokens


def test_a_table_gives_one_trace_each_time() -> None:
    table = shipped_table("math-16k")
    assert TableTrace(table).rows == TableTrace(table).rows


def test_other_jobs_are_longer_more_spread_or_more_alike_as_asked() -> None:
    table = shipped_table("math-16k")
    own = TableTrace(table)
    longer = own.varied(Variation(scale=1.5)).summary()
    assert longer.p50_tokens == pytest.approx(1.5 * own.summary().p50_tokens, rel=0.01)
    spread = own.varied(Variation(spread=1.25)).summary()
    assert spread.p50_tokens == pytest.approx(own.summary().p50_tokens, rel=0.01)
    assert spread.p95_tokens > 1.3 * own.summary().p95_tokens
    alike = own.varied(Variation(icc=0.25)).summary()
    assert alike.icc == pytest.approx(own.summary().icc + 0.25, abs=0.03)
    assert alike.p95_tokens == pytest.approx(own.summary().p95_tokens, rel=0.02)
    down, up = own.variations()["scale"]
    assert down.scale * up.scale == pytest.approx(1) and up.scale > 1.3


def test_a_plan_names_a_table_without_a_path_and_opens_it_again(tmp_path) -> None:
    trace, given = named_lengths("math-16k")
    assert given.model_dump() == {"library": "math-16k", "sha256": given.sha256}
    assert open_lengths(given, tmp_path / "plan.yaml").rows == trace.rows
    stated, named = named_lengths("max=16384,p95=4000,p50=800")
    assert named.assumed == "p50=800,p95=4000,max=16384,icc=0.5" and named.path is None
    assert open_lengths(named, tmp_path / "plan.yaml").rows == stated.rows
    assert changed_table(given) is None and changed_table(named) is None


def test_a_scale_that_was_measured_moves_all_lengths_and_is_no_error_any_more(tmp_path) -> None:
    own, scaled = named_lengths("math-16k")[0], named_lengths("math-16k")[0].scaled(0.8)
    assert scaled.summary().p50_tokens == pytest.approx(0.8 * own.summary().p50_tokens, rel=0.01)
    assert set(own.variations()) - set(scaled.variations()) == {"scale"}
    longer = scaled.varied(Variation(scale=1.5)).summary().p50_tokens
    assert longer == pytest.approx(1.2 * own.summary().p50_tokens, rel=0.01)
    assert scaled.scaled(1.5).scale == 1.2
    for word in ("math-16k", "p50=800,p95=4000,max=16384"):
        given = scaled_lengths(named_lengths(word)[1], 0.8)
        assert (given.scale, given.path) == (0.8, None) and given.sha256 != named_lengths(word)[1].sha256
        assert open_lengths(given, tmp_path / "plan.yaml").rows == named_lengths(word)[0].scaled(0.8).rows
        assert changed_table(given) is None and scaled_lengths(given, 0.8) == given
        assert "digest" in (changed_table(given.model_copy(update={"scale": 0.7})) or "") or word == "math-16k"
    for wrong in ("math-16k,scale=", "math-16k,scale=0", "math-16k,scale=nan", "p50=8,p95=9,max=10,scale=1e9"):
        with pytest.raises(InputError, match="is no factor on lengths; write one from"):
            named_lengths(wrong)


def test_a_plan_opens_its_own_trace_beside_it(tmp_path) -> None:
    rows = [LengthRow("a", 0, s, 10 + s, False, 0.0, 5) for s in range(3)]
    write_lengths(tmp_path / "lengths.jsonl", rows)
    given = LengthsInput(path="lengths.jsonl", sha256="0" * 64)
    assert open_lengths(given, tmp_path / "plan.yaml").rows == tuple(rows)
    assert changed_table(given) is None


def test_a_table_with_other_figures_or_none_at_all_is_told(tmp_path) -> None:
    other = LengthsInput(library="math-16k", sha256="0" * 64)
    assert "other figures" in (changed_table(other) or "")
    gone = LengthsInput(library="math-1k", sha256="0" * 64)
    assert "no lengths ship as 'math-1k'" in (changed_table(gone) or "")
    with pytest.raises(InputError, match="no lengths ship"):
        open_lengths(gone, tmp_path / "plan.yaml")
    edited = LengthsInput(assumed="p50=1,p95=2,max=3,icc=0.5", sha256="0" * 64)
    assert "digest" in (changed_table(edited) or "")


@pytest.mark.parametrize(
    "word", ["math-16k,scale=0.8", "p50=800,p95=4000,max=16384,scale=0.8", "math-16k,scale=3", "math-16k,scale=100"]
)
def test_a_scaled_table_is_shown_as_it_is_drawn(word: str) -> None:
    table, scale = shown_table(word)
    summary = named_lengths(word)[0].summary()
    assert scale == float(word.rpartition("=")[2])
    assert table.quantile(0.5) == pytest.approx(summary.p50_tokens, rel=0.03)
    assert table.quantile(0.95) == pytest.approx(summary.p95_tokens, rel=0.06)
    assert table.quantile(0.999) <= table.cap_tokens
    assert table.at_cap == pytest.approx(summary.truncated_share, abs=0.001)


def test_a_table_takes_a_scale_after_its_name_and_nothing_else() -> None:
    for word in ("math-16k,icc=0.3", "math-16k,scale=0.8,icc=0.3", "math-16k,max=4096,scale=0.8"):
        with pytest.raises(InputError, match=r"a table takes only ,scale=F after its name, as in math-16k,scale=0\.8"):
            named_lengths(word)
    with pytest.raises(InputError, match=",scale=F must come last"):
        named_lengths("p50=800,p95=4000,max=16384,scale=0.8,icc=0.3")
