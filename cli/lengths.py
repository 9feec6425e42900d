"""`rlplan lengths list | show NAME | import FILE`"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import NONE, fixed, percent
from ..plans.phrases.tables import right, text_lines
from ..plans.yaml.errors import InputError
from .shared.options import ACTIONS, force_option, must_fit_action

if TYPE_CHECKING:
    from ..profiles.length_tables import LengthTable


_SHOWN = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@click.command("lengths")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("operand", metavar="[NAME|FILE]", required=False)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=NAME",
    help="import: which column holds prompt, tokens, epoch, sample, truncated, finish_reason, reward or prompt_tokens; "
    "FIELD= leaves one out that is recognized by itself; repeatable.",
)
@click.option(
    "--cap",
    "cap_tokens",
    type=click.IntRange(min=1),
    help="import: cap on a response's tokens when these were sampled; a response that reaches it was truncated.",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), help="import: the length trace to write.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def lengths_command(
    action: str,
    operand: str | None,
    columns: tuple[str, ...],
    cap_tokens: int | None,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Response lengths for `rlplan solve`: tables that ship, or a trace from a log of your own.

    list: the tables that ship. show NAME: one of them, or quantiles like p50=800,p95=4000,max=16384; either may end in
    ,scale=0.8. `rlplan solve --lengths` takes the same NAME.

    import FILE: a length trace (JSON Lines) from CSV (also of tabs or semicolons), JSON Lines, a JSON array or Parquet,
    gzipped or not, of one response a row, for `rlplan solve --trace`. Columns: prompt and tokens are needed; epoch,
    sample, truncated or finish_reason, reward and prompt_tokens are used if present. docs/lengths.md explains them.
    """
    must_fit_action(
        action,
        operand,
        listing="list takes no name; to see one table: rlplan lengths show NAME",
        showing="show what? Name a table; rlplan lengths list has their names",
    )
    if action == "list":
        return _list(as_json)
    assert operand is not None, "must_fit_action refuses it"
    if action == "show":
        return _show(operand, as_json)
    return _import(Path(operand), columns, cap_tokens, out, overwrite, as_json)


def table_figures(table: LengthTable) -> dict[str, Any]:
    """A table for --json: quantiles in tokens, shares, and their sources."""
    return {
        "name": table.name,
        "task": table.task,
        "model": table.model,
        "cap_tokens": table.cap_tokens,
        "at_cap": table.at_cap,
        **{f"p{100 * share:g}_tokens": table.quantile(share) for share in _SHOWN},
        "icc": table.icc,
        "icc_source": table.icc_source,
        "error": table.error.model_dump(),
        "error_source": table.error_source,
        "source": table.source,
        "note": table.note,
    }


def _list(as_json: bool) -> int:
    from ..profiles.length_tables import shipped_table, table_names

    tables = [table_figures(shipped_table(name)) for name in table_names()]
    if as_json:
        click.echo(json.dumps({"tables": tables}))
        return 0
    rows = [
        [t["name"], *(str(t[key]) for key in ("p50_tokens", "p95_tokens", "p99_tokens", "cap_tokens")),
         percent(t['at_cap']), f"{t['icc']:.2f}", f"{t['model']}: {t['task']}"]
        for t in tables
    ]  # fmt: skip
    titles = ["name", *right(("p50", "p95", "p99", "cap", "at cap", "ICC")), "model, task"]
    click.echo("\n".join(text_lines(titles, rows)))
    click.echo("none of them is of your job: rlplan lengths show NAME says how far off one may be")
    return 0


def _show(word: str, as_json: bool) -> int:
    from ..planner.lengths.table_lengths import shown_table

    table, scale = shown_table(word)
    figures = {**table_figures(table), "scale": scale}
    if as_json:
        click.echo(json.dumps({**figures, "quantiles": [list(point) for point in table.quantiles]}))
        return 0
    quantiles = ", ".join(f"p{100 * share:g} {table.quantile(share)}" for share in _SHOWN)
    error = table.error
    lines = [
        f"{table.name}: {f'{table.model}, ' if table.model else ''}{table.task}",
        f"tokens   {quantiles}; {percent(table.at_cap, 2)} of the responses reach the cap of {table.cap_tokens}",
        *([] if scale is None else [f"scale    all lengths of the table times {scale:g}, cut at its cap"]),
        f"ICC      {table.icc:.2f}, {table.icc_source}",
        "error    how far another job of the kind differs (one standard deviation): "
        + (f"lengths by a factor of {math.exp(error.scale):.2f}, " if scale is None else "")
        + f"spread by {percent(error.spread)}, ICC by {error.icc:.2f}; {table.error_source}",
        f"source   {table.source}",
    ]
    lines += [f"note     {table.note}"] if table.note else []
    lines.append(f"use it: rlplan solve JOB --lengths {word}")
    click.echo("\n".join(lines))
    return 0


def _import(
    path: Path, columns: tuple[str, ...], cap_tokens: int | None, out: Path | None, overwrite: bool, as_json: bool
) -> int:
    from ..api.input_paths import check_target
    from ..profiles.imports.length_import import FIELDS, import_lengths
    from ..profiles.imports.log_columns import assignments
    from ..profiles.length_trace import LengthTrace, write_lengths
    from .shared.output import must_be_file

    if out is None:
        raise InputError("import writes a length trace; say where: -o lengths.jsonl")
    column_of_field = assignments(columns, FIELDS)
    must_be_file(out, "a summary is printed")
    check_target(out, path, kind="lengths", force=overwrite)
    rows = import_lengths(path, column_of_field, cap_tokens)
    trace = LengthTrace(rows, cap_tokens)
    write_lengths(out, rows)
    summary = trace.summary()
    if as_json:
        click.echo(json.dumps({"lengths": str(out), **asdict(summary), "cautions": cautions(trace)}))
        return 0
    shares = (
        f"truncated {percent(summary.truncated_share)}, ICC {fixed(summary.icc, '.2f')}, mean reward "
        f"{fixed(summary.mean_reward, '.3f')}"
    ).replace(NONE, "unknown")
    click.echo(
        f"{summary.samples} responses to {summary.prompts} prompts -> {out}\n"
        f"tokens: p50 {summary.p50_tokens:.0f}, p95 {summary.p95_tokens:.0f}, longest {summary.max_tokens}, mean "
        f"{summary.mean_tokens:.0f}; {shares}\n" + "".join(f"warning: {text}\n" for text in cautions(trace))
        + f"use it: rlplan solve JOB --trace {out}"
    )  # fmt: skip
    return 0


def cautions(trace: Any) -> list[str]:
    """Warnings about what a length trace does not show, one line each."""
    from ..profiles.length_trace import PROMPT_TOKENS

    summary = trace.summary()
    lines = []
    if summary.samples == summary.prompts:
        lines.append("one response to each prompt: how alike a prompt's responses are cannot be seen; keep several")
    if summary.truncated_share is None:
        lines.append("which responses were truncated is unknown, and none is taken to be; give --cap, or a column")
    elif not summary.truncated_share:
        lines.append("no response is marked as truncated; if some were, give --cap or a column truncated")
    if summary.mean_reward is None:
        lines.append("no rewards: dynamic sampling cannot be planned from this trace; name a column reward")
    elif summary.mean_reward == 0:
        lines.append("all rewards are 0: dynamic sampling cannot be planned from this trace")
    if all(row.prompt_tokens is None for row in trace.rows):
        lines.append(
            f"how long prompts are is unknown, {PROMPT_TOKENS} tokens are assumed; name a column prompt_tokens"
        )
    return lines
