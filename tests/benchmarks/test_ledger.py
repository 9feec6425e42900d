"""The ledger of published steps: its rows, its factors, its errors, and the page that it writes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlplan.benchmarks.ledger.__main__ import PAGE, page, run
from rlplan.benchmarks.ledger.ledger_rows import LedgerRow, asked, fit, ledger_rows, predicted, sum_s
from rlplan.planner.doctor.setup_seconds import FITTED, NONE, Overheads
from rlplan.plans.yaml.errors import InputError

NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def rows() -> list[LedgerRow]:
    return ledger_rows()


@pytest.fixture(scope="module")
def result(rows: list[LedgerRow]) -> dict[str, Any]:
    return run(rows)


def test_rows_have_sources_and_say_why_they_have_no_price(rows: list[LedgerRow]) -> None:
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.source
        assert row.outside or row.setup is not None
        assert (row.first_s is not None) == (row.setup is not None and "step" in row.measured)


def test_phases_of_a_row_make_no_more_than_its_step(rows: list[LedgerRow]) -> None:
    for row in rows:
        parts = [seconds for name, seconds in row.measured.items() if name != "step"]
        if "step" in row.measured and parts:
            assert sum(parts) <= 1.01 * row.measured["step"]


def test_shipped_factors_are_what_the_fitted_rows_ask_for(rows: list[LedgerRow]) -> None:
    found = fit(rows)
    for name in Overheads.__dataclass_fields__:
        assert getattr(FITTED, name) == pytest.approx(getattr(found, name), rel=0.005)


def test_factors_follow_from_no_other_row(rows: list[LedgerRow]) -> None:
    starred = [row for row in rows if row.fitted]
    others = [replace(row, measured={name: 9.0 for name in row.measured}) for row in rows if not row.fitted]
    assert asked([*others, *starred]) == asked(starred)


def test_factors_undo_what_a_row_was_slowed_by(rows: list[LedgerRow]) -> None:
    row = next(row for row in rows if row.fitted and row.setup is not None and row.setup.backend == "fsdp")
    slowed = predicted(row, Overheads(1.2, 1.0, 1.5, 0.8, 3e9))
    assert slowed is not None
    names = ("generation", "old_logprobs+reference", "update", "sync")
    measured = {"step": slowed.step_s, **{name: sum_s(slowed.phases_s, name) for name in names}}
    assert fit([replace(row, measured=measured)]) == Overheads(
        *(pytest.approx(value) for value in (1.2, 1.0, 1.5, 0.8, 3e9))
    )


def test_most_judged_steps_are_near_what_was_measured(result: dict[str, Any]) -> None:
    assert result["rows"] >= 8
    assert result["rows_judged"] >= 12
    assert result["median_error_judged"] <= 0.15
    assert result["median_error_judged"] < result["median_error_judged_unfitted"]
    assert list(result["median_error_judged_without"]) == result["rows_fitted"]


def test_errors_are_of_the_steps_that_are_told(result: dict[str, Any]) -> None:
    for row in result["by_row"]:
        if row["error"] is not None:
            assert row["error"] == pytest.approx(row["predicted_step_s"] / row["measured_step_s"] - 1)
        for phase in row["phases"].values():
            if phase.get("limit_s"):
                assert phase["predicted_s"] * phase["of_limit_predicted"] == pytest.approx(phase["limit_s"])
                assert phase["of_limit_predicted"] < 1
                assert phase["measured_s"] is None or 0 < phase["of_limit_measured"] < 1


def test_a_step_of_several_rounds_has_one_sync(rows: list[LedgerRow]) -> None:
    row = next(row for row in rows if row.rounds > 1)
    whole, one = (predicted(each, NONE) for each in (row, replace(row, rounds=1)))
    assert whole is not None and one is not None
    sync_s = one.phases_s["sync"]
    assert whole.step_s == pytest.approx(row.rounds * (one.step_s - sync_s) + sync_s)


def test_the_page_is_what_the_benchmark_writes(result: dict[str, Any]) -> None:
    written, told = page(result), PAGE.read_text(encoding="utf-8")
    # Figures may differ in the last digit from machine to machine; lines are filled by their words.
    assert NUMBER.sub("#", told).split() == NUMBER.sub("#", written).split()
    figures = [[float(each) for each in NUMBER.findall(text)] for text in (told, written)]
    assert figures[0] == pytest.approx(figures[1], rel=0.02, abs=1.0)


@pytest.mark.parametrize("line", ["  - {name: a, measured: {step: 1}, mood: good}", "  - {name: a}"])
def test_a_row_with_odd_keys_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.yaml").write_text(f"rows:\n{line}\n")
    with pytest.raises(InputError, match=r"rows\.yaml: a"):
        ledger_rows(tmp_path)
