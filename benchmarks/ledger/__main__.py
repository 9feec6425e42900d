"""`python -m benchmarks.ledger`"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rlplan.planner.doctor.setup_seconds import FITTED, NONE, Overheads

from .. import entry
from .ledger_rows import LedgerRow, asked, fit, ledger_rows, predicted, sum_s

PAGE = Path(__file__).parents[2] / "docs" / "ledger.md"
AIM = 0.15


@click.command()
@click.option("--write", is_flag=True, help="Write docs/ledger.md.")
@entry.as_json_option
def command(write: bool, as_json: bool) -> None:
    """Step times that others published, predicted before any fit, and with factors of a few named rows."""
    result = run()
    if write:
        PAGE.write_text(page(result), encoding="utf-8")
    entry.tell(result, as_json, _text)


def run(rows: Sequence[LedgerRow] | None = None, fitted: Overheads = FITTED) -> dict[str, Any]:
    """The benchmark's result, JSON-ready. Rows without a step, or without a price, are told and judge nothing."""
    rows = ledger_rows() if rows is None else rows
    by_row = [_row(row, fitted) for row in rows]
    steps = [row for row in by_row if row["error"] is not None]
    judged = [row for row in steps if not row["fitted"]]
    pages = sorted({row["page"] for row in judged})
    return {
        "rows": len(steps),
        "rows_not_priced": len(by_row) - len(steps),
        "median_error_first": _median(abs(row["first_error"]) for row in steps),
        "median_error_unfitted": _median(abs(row["error_unfitted"]) for row in steps),
        "rows_fitted": [row["name"] for row in steps if row["fitted"]],
        "rows_judged": len(judged),
        "median_error_judged_unfitted": _median(abs(row["error_unfitted"]) for row in judged),
        "median_error_judged": _median(abs(row["error"]) for row in judged),
        "worst_error_judged": max(abs(row["error"]) for row in judged),
        "median_error_judged_without": _without(rows),
        "judged_within_stated": sum(abs(row["error"]) <= row["stated_error"] for row in judged),
        "median_error_by_source": {
            name: _median(abs(row["error"]) for row in judged if row["page"] == name) for name in pages
        },
        "factors": asdict(fitted),
        "factors_asked": asked(rows),
        "by_row": by_row,
    }


def _without(rows: Sequence[LedgerRow]) -> dict[str, float]:
    """By fitted row the median error of the judged ones if that row fitted nothing."""
    medians = {}
    for left_out in (row for row in rows if row.fitted):
        factors = fit([row for row in rows if row is not left_out])
        steps = [
            (row.measured["step"], predicted(row, factors)) for row in rows if "step" in row.measured and not row.fitted
        ]
        medians[left_out.name] = _median(
            abs(ours.step_s / measured - 1) for measured, ours in steps if ours is not None
        )
    return medians


def _median(errors: Iterable[float]) -> float:
    return float(statistics.median(errors))


def _row(row: LedgerRow, fitted: Overheads) -> dict[str, Any]:
    laws, ours, measured = predicted(row, NONE), predicted(row, fitted), row.measured.get("step")
    told: dict[str, Any] = {
        "name": row.name,
        "page": row.page,
        "source": row.source,
        "fitted": row.fitted,
        "outside": row.outside,
        "measured_step_s": measured,
        "error": None,
    }
    if laws is None or ours is None:
        return {**told, "phases": {name: {"measured_s": s} for name, s in row.measured.items() if name != "step"}}
    phases = {}
    for name in dict.fromkeys([*(name for name in row.measured if name != "step"), *ours.phases_s]):
        limit, seconds = sum_s(ours.limits_s, name), sum_s(ours.phases_s, name)
        phases[name] = {
            "measured_s": row.measured.get(name),
            "unfitted_s": sum_s(laws.phases_s, name),
            "predicted_s": seconds,
            "limit_s": limit,
            "of_limit_predicted": limit / seconds,
            "of_limit_measured": limit / row.measured[name] if name in row.measured else None,
        }
    told |= {"phases": phases, "stated_error": ours.error, "notes": list(ours.notes)}
    if measured is None:
        return told
    return told | {
        "first_step_s": row.first_s,
        "unfitted_step_s": laws.step_s,
        "predicted_step_s": ours.step_s,
        "first_error": None if row.first_s is None else row.first_s / measured - 1,
        "error_unfitted": laws.step_s / measured - 1,
        "error": ours.step_s / measured - 1,
    }


def _text(result: dict[str, Any]) -> str:
    lines = [_summary(result)]
    for row in result["by_row"]:
        if row["error"] is not None:
            mark = "fits" * row["fitted"]
            lines.append(
                f"{row['name']:52} {_s(row['measured_step_s']):>4} s  laws {_s(row['unfitted_step_s']):>4} "
                f"({_off(row['error_unfitted'])})  predicted {_s(row['predicted_step_s']):>4} ({_off(row['error'])}) "
                f"{mark}"
            )
    return "\n".join(lines)


def _summary(result: dict[str, Any]) -> str:
    return (
        f"{result['rows']} steps are priced; {len(result['rows_fitted'])} of them fit the factors, and "
        f"{result['rows_judged']} judge. Of these the median error is {_share(result['median_error_judged'])} "
        f"({_share(result['median_error_judged_unfitted'])} by the laws alone), the worst "
        f"{_share(result['worst_error_judged'])}; {result['judged_within_stated']} are within the error that the "
        "prediction states of itself."
    )


def _s(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 99.5 else f"{seconds:.3g}"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _off(error: float) -> str:
    return f"{100 * error:+.0f} %"


# -- the page ---------------------------------------------------------------------------------------------------------

_INTRO = """# Steps that others published

What a step of another trainer takes, as published, and what the planner's own costs make of its settings
(`planner/doctor/setup_seconds.py`, which `rlplan doctor` asks too). `python -m benchmarks.ledger --write` writes this
page; rows, settings and sources are in `benchmarks/ledger/*.yaml`.
"""

_STEPS = """## Steps

Seconds. "First" is what the laws said when the row was first priced, without a factor; "laws" what they say now;
"predicted" is with the factors below. "Stated" is the error, one standard deviation, that the prediction states of
itself. Rows with a star fit the factors, and judge nothing.

| step | measured | first | laws | predicted | off by | stated |
|---|---|---|---|---|---|---|
"""

_SINCE = (
    "What was changed after these first runs; misses prompted it, other sources say how much. Where generation "
    "runs ahead and responses go on under new weights, rounds decode side by side. TRL has one sync in the eight "
    "rounds of a step. vLLM of NeMo-RL v0.6 schedules ahead. GPUs report 6 % more bytes than their name says, "
    "which matters to an engine whose weights nearly fill them. Weights that cross between pools go in buckets, "
    "at the rate that verl measured, but in TRL and OpenRLHF."
)

_FACTORS = """## Factors

Each is the geometric mean of what the phases of the rows with a star ask for. These rows were chosen because all their
phases are published; none was left out for its result.

| factor | value | asked for | on |
|---|---|---|---|
"""

_MEANT = {
    "decode": "generation",
    "megatron": "passes of Megatron's trainer",
    "sharded": "passes of other trainers (FSDP, DeepSpeed)",
    "scoring": "further, on passes that only score",
    "load_bytes_per_s": "GB/s of weights that each colocated GPU takes, beside the transfer between ranks",
}

_PHASES = """## Phases

Seconds, and in brackets the share of the data sheet's limit that they reach: of the bandwidth in generation (weights
and KV that the busiest engine reads), of the GPUs' operations in the trainer's passes (MFU, without recomputation).

| step | phase | measured | predicted |
|---|---|---|---|
"""

_KNOWN = """## What stands in the way

- Megatron's trainer: one factor is between a model of 8B in a pipeline of two, which is faster than the law, and one of
  70B in a pipeline of four, which is slower. Predictions for 8B stay too long with it, those for 70B too short. The
  law was fitted to FSDP.
- Engines of 70B: slower than the law by far more than those of 8B. How many GPUs one had is from the recipe of that
  release, not from the report.
- RollPacker's veRL: 14B decodes at 16 ms a token at the end of a round. The law says 10 ms, with CUDA
  graphs; whether its engines had them is not said. Its trainer takes micro-batches of one sample, of some 1,200
  tokens, on replicas of 8 (14B) and 16 (32B) ranks. Kernels so small do not fill a GPU, which the law does not know.
- Mixtures of experts on GB200s: training of Qwen3-30B-A3B takes as many GPU seconds as on H100s (of the steps one step
  ahead, 2,400 for both), so it is bound by what is in no data sheet: small kernels, the exchange of tokens between
  ranks. The law, of Hopper GPUs, expects twice the speed.

By row, what the planner does not express, or the source does not say:

"""

_NOT_PRICED = """## Not priced

| step | measured | why |
|---|---|---|
"""


def page(result: dict[str, Any]) -> str:
    """docs/ledger.md, of a result."""
    rows = result["by_row"]
    priced = [row for row in rows if any("predicted_s" in phase for phase in row["phases"].values())]
    medians = ", ".join(f"{name} {_share(error)}" for name, error in result["median_error_by_source"].items())
    parts = [
        _INTRO,
        _filled(f"{_summary(result)} Aimed at: {_share(AIM)}. Medians by file of rows: {medians}."),
        _STEPS + "".join(_step_line(row) for row in rows if row["error"] is not None),
        _filled(
            f"Median error of all: first {_share(result['median_error_first'])}, laws "
            f"{_share(result['median_error_unfitted'])}. {_SINCE}"
        ),
        _FACTORS + "".join(_factor_line(result, name) for name in result["factors"]),
        _filled(
            "Without one of these rows the median error of the rows that judge would be "
            + ", ".join(f"{_share(error)} ({name})" for name, error in result["median_error_judged_without"].items())
            + "."
        ),
        _PHASES + "".join(_phase_lines(row) for row in priced),
        _KNOWN + "".join(_told(priced)),
        _NOT_PRICED + "".join(_left_line(row) for row in rows if row not in priced),
    ]
    return "\n".join(parts)


def _filled(text: str, follows: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=follows, break_on_hyphens=False) + "\n"


def _step_line(row: dict[str, Any]) -> str:
    seconds = [row[key] for key in ("measured_step_s", "first_step_s", "unfitted_step_s", "predicted_step_s")]
    figures = [*(_s(each) for each in seconds), _off(row["error"]), _share(row["stated_error"])]
    return f"| {row['name']}{' *' * row['fitted']} | {' | '.join(figures)} |\n"


def _factor_line(result: dict[str, Any], name: str) -> str:
    unit = 1e9 if name == "load_bytes_per_s" else 1.0
    value, *asks = (f"{each / unit:.2f}" for each in (result["factors"][name], *result["factors_asked"][name]))
    return f"| {name} | {value} | {', '.join(asks)} | {_MEANT[name]} |\n"


def _phase_lines(row: dict[str, Any]) -> str:
    return "".join(
        f"| {row['name']} | {name.replace('+', ', ')} | {_s(phase['measured_s'])}{_of(phase['of_limit_measured'])} "
        f"| {_s(phase['predicted_s'])}{_of(phase['of_limit_predicted'])} |\n"
        for name, phase in row["phases"].items()
        if phase["measured_s"] is not None
    )


def _of(share: float) -> str:
    return f" ({_share(share)})" if share else ""


def _told(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    """A line for each text, with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for text in [*row["outside"].split("; "), *row["notes"]]:
            if text:
                about.setdefault(text, []).append(row["name"])
    return (_filled(f"- {'; '.join(names)}: {text}.", "  ") for text, names in about.items())


def _left_line(row: dict[str, Any]) -> str:
    phases = ", ".join(f"{name.replace('+', ', ')} {_s(each['measured_s'])}" for name, each in row["phases"].items())
    measured = _s(row["measured_step_s"]) + (f" ({phases})" if phases else "")
    return f"| {row['name']} ({row['source']}) | {measured} | {row['outside']} |\n"


if __name__ == "__main__":
    entry.run(command)
