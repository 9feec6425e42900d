"""What is said of lengths that a plan is made for: how many reach the cap, and what nobody has seen."""

from __future__ import annotations

from rlplan.planner.lengths.length_cautions import at_cap, extrapolated
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.lengths.table_lengths import named_lengths
from rlplan.profiles.length_trace import LengthRow, LengthTrace


def trace(capped: int, cap: int = 100) -> LengthTrace:
    """Twenty prompts of five responses; of each prompt's, so many reach the cap."""
    return LengthTrace(
        LengthRow(f"p{p}", 0, s, cap if s < capped else 20 + p + s, s < capped, 1.0, 5)
        for p in range(20) for s in range(5)
    )  # fmt: skip


def test_responses_at_the_cap_are_told_from_a_fifth_on_and_counted_after_the_jobs_own_cap() -> None:
    assert at_cap(fit_lengths(trace(0), 100)) is None
    text = at_cap(fit_lengths(trace(3), 100))
    assert text is not None and text.startswith("60% of the responses reach the cap of 100 tokens (rollout.max_resp")
    assert at_cap(fit_lengths(trace(0), 25)) is not None, "a trace that goes on beyond the job's cap"


def test_a_table_scaled_beyond_its_cap_is_told() -> None:
    table, _ = named_lengths("math-16k,scale=20")
    text = at_cap(fit_lengths(table, 16384))
    assert text is not None and "reach the cap of 16384 tokens" in text
    assert at_cap(fit_lengths(named_lengths("math-16k")[0], 16384)) is None


def test_a_table_under_a_lower_cap_asks_for_no_profile() -> None:
    table, _ = named_lengths("math-16k")
    text = extrapolated(fit_lengths(table, 32768), table)
    assert text is not None and "lengths of math-16k were cut at 16384 tokens and the job's cap is 32768" in text
    assert "profile" not in text and "take lengths under a cap of 32768 (rlplan lengths list), or a trace" in text
    stated, _ = named_lengths("p50=800,p95=4000,max=8192")
    text = extrapolated(fit_lengths(stated, 32768), stated)
    assert text is not None and "state quantiles with max=32768" in text and "profile" not in text
    assert extrapolated(fit_lengths(table, 16384), table) is None
    measured = trace(3)
    assert "profile again" in (extrapolated(fit_lengths(measured, 200), measured) or "")
