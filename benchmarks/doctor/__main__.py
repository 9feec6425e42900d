"""The command; see the package."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click
import yaml

from rlplan.planner.doctor.setup_memory import first_overflow, known_gpu, known_model, setup_uses
from rlplan.plans.facts.trainer_setup import TrainerSetup
from rlplan.plans.yaml.errors import RunFailed

from ..entry import as_json_option, run, tell

CASES = Path(__file__).with_name("cases.yaml")


def judged(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The case, and each remedy of it as a case that fits: what was expected, what is said, whether that is right."""
    uses, said = _said(case["setup"])
    if case["fits"]:
        expected = "fits"
    elif "phase" in case:
        expected = f"{case['where']} in {case['phase']}"
    else:  # whoever reported it did not say when
        expected, said = str(case["where"]), said.split(" in ")[0]
    row = {
        "name": case["name"],
        "source": case["source"],
        "expected": expected,
        "said": said,
        "right": said == expected,
    }
    if "peak_gib" in case:
        peak = max(use.needed_bytes for use in uses if use.phase == "train" and use.where == "device")
        row["peak_error"] = round(peak / 2**30 / case["peak_gib"] - 1, 3)
    rows = [row]
    for remedy in case.get("remedies", []):
        changed = {name: value for name, value in {**case["setup"], **remedy}.items() if value is not None}
        _, mended = _said(changed)
        name = f"{case['name']} with {', '.join(f'{key} {value}' for key, value in remedy.items())}"
        rows.append(
            {"name": name, "source": case["source"], "expected": "fits", "said": mended, "right": mended == "fits"}
        )
    return rows


def _said(settings: dict[str, Any]) -> tuple[Any, str]:
    setup = TrainerSetup(**settings)
    uses = setup_uses(setup, known_model(setup), known_gpu(setup))
    first = first_overflow(uses)
    return uses, "fits" if first is None else f"{first.where} in {first.phase}"


@click.command()
@as_json_option
def main(as_json: bool) -> None:
    """Judge all cases."""
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    rows = [{**row, "held_out": case.get("held_out", False)} for case in cases for row in judged(case)]
    right = sum(row["right"] for row in rows)
    held_out = [row["right"] for row in rows if row["held_out"]]
    errors = [abs(row["peak_error"]) for row in rows if "peak_error" in row]
    result = {
        "cases": len(rows),
        "right": right,
        "held_out": len(held_out),
        "held_out_right": sum(held_out),
        "out_of_memory": sum(row["expected"] != "fits" for row in rows),
        "ran": sum(row["expected"] == "fits" for row in rows),
        "peak_error_median": round(statistics.median(errors), 3),
        "rows": rows,
    }
    lines = [
        f"{'right' if row['right'] else 'WRONG'}  {row['name']}: {row['expected']}, said {row['said']}" for row in rows
    ]
    total = f"{right} of {len(rows)} right ({sum(held_out)} of {len(held_out)} held out)"
    tell(result, as_json, [*lines, f"{total}; peaks {result['peak_error_median']:.1%} off (median)"])
    if right < len(rows):
        raise RunFailed(f"{len(rows) - right} cases are judged wrongly")


if __name__ == "__main__":
    run(main)
